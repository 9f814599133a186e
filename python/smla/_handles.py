"""Base classes of objects with a handle or addresses, and a guard for objects that serve one call."""

import threading
import weakref
from typing import Any

from ._units import Described
from .errors import InvalidArgument


class Handle(Described):
    """An object that cannot be duplicated, because it has a handle or addresses: copy.copy, copy.deepcopy and
    pickle raise TypeError. `_instead`: advice in the error message.
    """

    __slots__ = ()
    _instead = ""
    handle: Any

    def _acquire(self, destroy: Any, handle: Any, *holds: Any) -> None:
        """Sets `handle`, and calls destroy(handle) when this object dies. holds: objects kept alive until
        then.
        """
        self.handle = handle
        # Not at exit, when other objects may still use the handle.
        weakref.finalize(self, _close, destroy, handle, holds).atexit = False

    def __reduce__(self) -> Any:  # copy.copy and copy.deepcopy also call it
        raise TypeError(f"a smla.{type(self).__name__} cannot be copied or pickled: {self._instead}")


class Shared(Handle):
    """A handle that several users may share: a copy is the object itself. It cannot be pickled."""

    __slots__ = ()

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"a smla.{type(self).__name__} cannot be pickled: {self._instead}")


def _close(destroy, handle, _holds):
    destroy(handle)


class Bounded(dict):
    """A cache with a bounded number of entries, because a server meets new shapes as long as it runs. A copy
    is empty.
    """

    MOST = 4096

    def keep(self, key, value):
        """Stores the value under the key and returns it."""
        if len(self) >= self.MOST:
            self.clear()
        self[key] = value
        return value

    def __reduce__(self):
        return Bounded, ()


class InUse:
    """Guards an object that serves one call at a time: `with in_use:` raises during another call."""

    __slots__ = ("acquire", "release", "_name", "_instead")

    def __init__(self, name, instead):
        lock = threading.Lock()
        self.acquire, self.release, self._name, self._instead = lock.acquire, lock.release, name, instead

    def __enter__(self):
        if not self.acquire(False):
            self.refuse()

    def __exit__(self, *_error):
        self.release()

    def refuse(self):
        message = f"{self._name}: in use by another call; {self._instead}"
        raise InvalidArgument(message, self._name, "in use", "one call at a time")
