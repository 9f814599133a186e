"""Exceptions for errors of the library."""

import json
import operator
import os
from typing import Any

from ._abi import Status

__all__ = ["Cancelled", "DataError", "DeviceError", "Error", "InternalError", "InvalidArgument", "IoError"]
__all__ += ["OutOfMemory", "Unsupported", "WorkspaceTooSmall"]


class Error(Exception):
    """Base class of all errors. `field` names the invalid value ("args.q.dtype"), `got` is that value, and
    `wanted` is the requirement. If no value is wrong, `got` is a sentence and `wanted` is empty.

    Example:
        >>> try:
        ...     smla.select(np.zeros((1, 3), np.int32), 2)
        ... except smla.Error as error:
        ...     print(error.field, error.got)
        args.scores.dtype i32
    """

    status: Status = Status.INTERNAL
    field: str
    got: str
    wanted: str

    def __init__(self, message: str, field: str = "", got: str = "", wanted: str = "") -> None:
        super().__init__(message)
        self.field, self.got, self.wanted = field, got, wanted

    @classmethod
    def of(cls, field: str, got: object, wanted: object) -> "Error":  # message in the format of the library
        text = f"got {got}, wanted {wanted}" if wanted else got
        return cls(f"{field}: {text}", field, str(got), str(wanted))

    def __reduce__(self) -> Any:  # otherwise pickling would lose the fields
        return type(self), (str(self), self.field, self.got, self.wanted)


class InvalidArgument(Error, ValueError):
    """An argument is invalid."""


class Unsupported(Error, NotImplementedError):
    """The arguments are valid, but no kernel of this build and machine supports them."""


class WorkspaceTooSmall(Error):
    """The workspace is smaller than the call requires."""


class OutOfMemory(Error, MemoryError):
    """An allocation failed."""


class DeviceError(Error, RuntimeError):
    """The GPU driver reported an error."""


class DataError(Error, ValueError):
    """A file or a checked tensor has invalid data."""


class IoError(Error):
    """A file cannot be read or written."""


class InternalError(Error, RuntimeError):
    """A bug in smla; please report it."""


class Cancelled(Error):
    """A callback of the caller ended the call: the function of smla_set_interrupt (smla/context.h), or any
    function by an exception. Ctrl-C raises KeyboardInterrupt instead.
    """


_BY_STATUS: dict[Status, type[Error]] = {
    Status.INVALID_ARGUMENT: InvalidArgument,
    Status.UNSUPPORTED: Unsupported,
    Status.WORKSPACE_TOO_SMALL: WorkspaceTooSmall,
    Status.OUT_OF_MEMORY: OutOfMemory,
    Status.DEVICE_ERROR: DeviceError,
    Status.DATA_ERROR: DataError,
    Status.IO_ERROR: IoError,
    Status.INTERNAL: InternalError,
    Status.CANCELLED: Cancelled,
}
for _status, _kind in _BY_STATUS.items():
    _kind.status = _status

invalid, unsupported = InvalidArgument.of, Unsupported.of


# Advice by (got, begin of `wanted`). PyTorch's default integers are i64, and weights are often bf16.
_CONVERSIONS = {
    ("i64", "i32"): "x.int() of PyTorch, x.astype('int32') of NumPy",
    ("bf16", "f32"): "x.float() of PyTorch",
    ("f16", "f32"): "x.float() of PyTorch, x.astype('float32') of NumPy",
    ("f64", "f32"): "x.float() of PyTorch, x.astype('float32') of NumPy",
}


def from_status(status, message, field, got, wanted):
    """Returns the exception for a status. The message says how to convert an array, because smla converts
    none.
    """
    if field.endswith(".dtype"):
        if how := _CONVERSIONS.get((got, wanted.split(" ")[0])):
            message += f"; convert it: {how}"
    elif ".stride_elems[" in field and wanted == "1":
        message += "; make it contiguous with x.contiguous() (PyTorch) or numpy.ascontiguousarray(x) (NumPy)"
    return _BY_STATUS[status](message, field, got, wanted)


def one_of(field, value, choices):
    """Returns choices[value], or raises an error that lists the names. Enumerators are returned unchanged."""
    try:
        return choices[value]
    except (KeyError, TypeError):
        names = sorted(name for name in choices if isinstance(name, str)) or [
            repr(choice).strip("<>") for choice in choices
        ]
        raise invalid(field, repr(value), "one of " + ", ".join(names)) from None


def words(*members):
    """Returns choices for one_of: enumerators by their names in lower case."""
    return {key: kind for kind in members for key in (kind.name.lower(), kind)}


def integer(field, value, bits=32, least=None):
    """Returns value as an int of that many bits, at least `least`; ctypes itself truncates larger values."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    limit = 1 << (bits - 1)
    least = -limit if least is None else least
    if number is None or not least <= number < limit:
        more = "" if least < 0 else f", {least} or more"
        raise invalid(field, repr(value), f"an integer of {bits} bits{more}")
    return number


def flag(field, value):
    """Returns 0 or 1 for a bool of Python or NumPy; integers are returned unchanged."""
    return int(value) if type(value).__name__ in ("bool", "bool_") else integer(field, value)


def name_bytes(field, value):
    """Returns a name as a char*."""
    if not isinstance(value, str):
        raise invalid(field, repr(value), "a string")
    return _whole(field, value.encode())


def path_bytes(field, value):
    """Returns a path as a char*."""
    return _whole(field, os.fsencode(value))


def _whole(field, data):
    if b"\0" in data:  # a char* ends there
        raise invalid(field, repr(data.decode(errors="replace")), "text without NUL characters")
    return data


def config_json(config):
    """Returns a configuration dict as JSON."""
    try:
        return json.dumps(dict(config))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(
            "config", f"a dict that cannot be written as JSON ({error})", "the contents of a config.json"
        ) from None
