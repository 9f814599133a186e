"""Ctrl-C during a long call: runs signal handlers, and raises their exceptions from the call."""

import atexit
import ctypes
import threading

_raised: list[BaseException] = []


def _questions():
    """Yields the number of exceptions that signal handlers have raised, at each send().

    Handlers run when the interpreter resumes the generator, which is inside the try statement. In a function
    they would run before its first statement, where nothing catches their exceptions.
    """
    while True:
        try:
            while True:
                yield len(_raised)
        except GeneratorExit:
            return
        except BaseException as error:
            _raised.append(error)


_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_function = None  # callback of the library; must not be freed


def watch_signals(library):
    """Lets signal handlers run during long calls of the main thread, the only thread in which Python runs
    them.
    """
    global _function
    if threading.current_thread() is not threading.main_thread():
        return
    questions = _questions()
    next(questions)
    _function = _FUNCTION(questions.send)
    library.smla_set_interrupt(_function, None)
    atexit.register(library.smla_set_interrupt, None, None)  # before the interpreter frees _function


def take_raised():
    """Returns and clears the exception that ended the call, or None."""
    if not _raised:
        return None
    error = _raised[0]
    _raised.clear()
    return error.with_traceback(None)
