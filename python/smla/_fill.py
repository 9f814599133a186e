"""Writes arrays, caches and numbers into the argument structs of the C ABI."""

import ctypes as c
import struct

from . import _abi
from .errors import invalid
from .tensor import PACKED, describe, require_writable

_CACHE_BYTES = c.sizeof(_abi.Cache)
assert PACKED.size == c.sizeof(_abi.Tensor)


class Struct:
    """An argument struct: where its tensors and caches lie, and which of them the call writes."""

    def __init__(self, kind, outputs=()):
        self.kind, self.size = kind, c.sizeof(kind)
        self.places, self.outputs = {}, frozenset(outputs)
        self._find(kind, "", 0)
        blank = kind()
        if hasattr(blank, "struct_size"):
            blank.struct_size = self.size
        for name, (_, offset) in self.places.items():  # args nested in args have a size of their own
            if name.endswith(".struct_size"):
                outer = dict(kind._fields_)[name.split(".")[0]]
                c.c_uint32.from_buffer(blank, offset).value = c.sizeof(outer)
        self.blank = bytes(blank)

    def _find(self, kind, prefix, base):
        for name, field in kind._fields_:
            offset = base + getattr(kind, name).offset
            nested = isinstance(field, type) and issubclass(field, c.Structure)
            if nested and field not in (_abi.Tensor, _abi.Cache):
                self._find(field, f"{prefix}{name}.", offset)
            else:
                self.places[prefix + name] = (field, offset)

    def fill(self, values, keep):
        """A struct with these fields; None leaves one as it is. What must outlive the call goes to `keep`."""
        args = self.kind.from_buffer_copy(self.blank)
        places, outputs, pack_into = self.places, self.outputs, PACKED.pack_into
        for name, value in values.items():
            if value is None:
                continue
            what, offset = places[name]
            if what is _abi.Tensor:
                if name in outputs:
                    require_writable(value, name)
                pack_into(args, offset, *describe(value, name, keep))
            elif what is _abi.Cache:
                packed = _cache_bytes(value, name)
                if name in outputs:
                    value.require_writable(name)
                c.memmove(c.addressof(args) + offset, packed, _CACHE_BYTES)
            else:
                try:
                    _NUMBERS[what].pack_into(args, offset, value)
                except (struct.error, OverflowError):
                    _refuse_number(what, name, value)
        return args


def _cache_bytes(value, name):
    try:
        return value._packed
    except AttributeError:
        raise invalid(name, type(value).__name__, "a smla.Cache") from None


# By ctypes' own letters. Pointers are addresses.
_NUMBERS = {
    kind: struct.Struct("=" + letter)
    for kind, letter in (
        (c.c_int32, "i"),
        (c.c_uint32, "I"),
        (c.c_int64, "q"),
        (c.c_size_t, "Q"),
        (c.c_float, "f"),
        (c.c_double, "d"),
        (c.c_void_p, "Q"),
    )
}


def _refuse_number(what, name, value):
    wanted = "a number" if what in (c.c_float, c.c_double) else f"an integer of {c.sizeof(what) * 8} bits"
    raise invalid(name, repr(value), wanted) from None
