"""Finds and loads libsmla, and converts its statuses to exceptions."""

import ctypes
import os
import warnings
from pathlib import Path

from . import _abi
from ._interrupt import take_raised, watch_signals
from .errors import from_status, integer

_PACKAGE = Path(__file__).resolve().parent


def _candidates():
    """Returns candidate paths: SMLA_LIBRARY, then the library of the wheel, this clone, the system."""
    if path := os.environ.get("SMLA_LIBRARY"):
        return [path]  # a wrong path is an error; other locations are not searched
    name, (major, minor) = "libsmla.so", divmod(_abi.VERSION // 100, 100)
    soname = f"{name}.{major or f'0.{minor}'}"  # as in src/CMakeLists.txt
    return [_PACKAGE / "lib" / name, _PACKAGE.parents[1] / "build/release/lib" / name, soname]


def _warn_of_two(folder):
    """Warns if smla and smla-cuda13 are both installed, because the later wheel has overwritten files of the
    other.
    """
    names = sorted(path.name.split("-")[0].replace("_", "-") for path in folder.glob("smla*.dist-info"))
    both = [name for name in names if name in ("smla", "smla-cuda13")]
    if len(both) > 1:
        text = f"smla: {' and '.join(both)} are both installed and overwrite each other's files"
        warnings.warn(f"{text}; uninstall both, then install one", RuntimeWarning, stacklevel=3)


def _load():
    tried = []
    for path in _candidates():
        if isinstance(path, Path) and not path.exists():
            tried.append(f"{path}: no such file")
            continue
        if (
            "/" in str(path) and os.path.exists(path) and not os.path.isfile(path)
        ):  # opening a FIFO would wait
            tried.append(f"{path}: not a regular file")
            continue
        try:
            return ctypes.CDLL(str(path)), str(path)
        except OSError as error:
            tried.append(str(error))
    text = "smla: cannot load libsmla.so; set SMLA_LIBRARY to its path. Tried: "
    raise ImportError(text + "; ".join(tried))


# ctypes itself truncates integers to the width of a parameter.
_INTEGERS = {
    ctypes.c_int32: {"bits": 32},
    ctypes.c_int64: {"bits": 64},
    ctypes.c_size_t: {"bits": 64, "least": 0},
}


def _checked(function, parameters):
    """Returns `function` with a check that its integer arguments fit the parameter types."""
    limits = [
        (i, name, _INTEGERS[kind]) for i, (name, kind) in enumerate(parameters.items()) if kind in _INTEGERS
    ]
    if not limits:
        return function

    def call(*arguments):
        arguments = list(arguments)
        for place, name, limit in limits:
            arguments[place] = integer(name, arguments[place], **limit)
        return function(*arguments)

    call.unchecked = function
    return call


_warn_of_two(_PACKAGE.parent)
lib, path = _load()
for _name, (_result, _parameters) in _abi.FUNCTIONS.items():
    try:
        _function = getattr(lib, _name)
    except AttributeError:
        raise ImportError(f"smla: {path} has no {_name}; it belongs to another version") from None
    _function.restype, _function.argtypes = _result, tuple(_parameters.values())
    setattr(lib, _name, _checked(_function, _parameters))

# Before 1.0 a minor version may change the ABI.
if lib.smla_version() // 100 != _abi.VERSION // 100:
    raise ImportError(
        f"smla: {path} is version {lib.smla_version()}, wanted {_abi.VERSION} (or another patch of it)"
    )


watch_signals(lib)


def check(status):
    """Raises the error of this thread's last call unless status is OK, or KeyboardInterrupt if Ctrl-C ended
    the call.
    """
    if status:
        if status == _abi.Status.CANCELLED and (raised := take_raised()):
            raise raised
        info = _abi.Error()
        lib.smla_last_error_info(ctypes.byref(info))
        text = (part.decode("utf-8", "replace") for part in (info.message, info.field, info.got, info.wanted))
        raise from_status(_abi.Status(status), *text)


def sized_text(call):
    """Returns the text that call(buffer, byref(bytes)) -> status writes to buffer[*bytes]."""
    size = ctypes.c_size_t()
    check(call(None, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(call(buffer, ctypes.byref(size)))
    return buffer.value.decode()


def names(call):
    """Returns the list of names that call(byref(array), byref(count)) -> status sets."""
    array, count = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_int32()
    check(call(ctypes.byref(array), ctypes.byref(count)))
    return [array[i].decode() for i in range(count.value)]
