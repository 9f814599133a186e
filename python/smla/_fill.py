"""Writes arrays, caches and numbers into the argument structs of the C ABI."""

import ctypes as c
import struct

from . import _abi
from ._arrays.interface import PACKED, moved
from .errors import invalid
from .tensor import describe, require_writable

_CACHE_BYTES = c.sizeof(_abi.Cache)
assert PACKED.size == c.sizeof(_abi.Tensor)


# Pointers are stored as integers.
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
_CACHE = struct.Struct(f"{_CACHE_BYTES}s")
_KINDS = {_abi.Tensor: PACKED, _abi.Cache: _CACHE}


class Struct:
    """Layout of an argument struct: offsets of its tensors and caches, and which of them the call writes.

    outputs: names of written fields. called: maps names of fields to names of arguments.
    """

    def __init__(self, kind, outputs=(), called=str):
        self.kind, self.size = kind, c.sizeof(kind)
        self.places, self.outputs = {}, frozenset(outputs)
        self._find(kind, "", 0)
        blank = kind()
        if hasattr(blank, "struct_size"):
            blank.struct_size = self.size
        for name, (_, offset) in self.places.items():  # nested structs also have a struct_size
            if name.endswith(".struct_size"):
                outer = dict(kind._fields_)[name.split(".")[0]]
                c.c_uint32.from_buffer(blank, offset).value = c.sizeof(outer)
        self.blank = bytes(blank)
        # (writer, offset, whether the call writes to the field, name of the field) by argument. If two fields
        # have the same argument name, the first is used.
        self._writers = {
            called(name): (_KINDS.get(what) or _NUMBERS[what], offset, name in self.outputs, name)
            for name, (what, offset) in reversed(self.places.items())
            if what in _KINDS or what in _NUMBERS
        }
        self.arguments = frozenset(self._writers)

    def ignore(self, names):
        """Sets names of values that `fill` skips."""
        self._writers.update((name, None) for name in names)

    def only(self, values):
        """Returns the values that are fields."""
        return {name: value for name, value in values.items() if name in self.arguments}

    def _find(self, kind, prefix, base):
        for name, field in kind._fields_:
            offset = base + getattr(kind, name).offset
            nested = isinstance(field, type) and issubclass(field, c.Structure)
            if nested and field not in (_abi.Tensor, _abi.Cache):
                self._find(field, f"{prefix}{name}.", offset)
            else:
                self.places[prefix + name] = (field, offset)

    def fill(self, values, keep, stream=0):
        """Returns a struct with these fields; None leaves a field at its default. Appends objects that must
        outlive the call to `keep`.

        stream: CUDA stream that is about to use the arrays.
        """
        args = self.kind.from_buffer_copy(self.blank)
        writers = self._writers
        for called, value in values.items():
            if value is None:
                continue
            if (found := writers[called]) is None:
                continue
            writer, offset, is_output, name = found
            if writer is PACKED:
                if is_output:
                    require_writable(value, name)
                address, rest = describe(value, name, keep, stream)
                if not rest:  # the library would treat it as an absent tensor
                    raise invalid(f"{name}.ndim", 0, "1 or more")
                writer.pack_into(args, offset, address, rest)
            elif writer is _CACHE:
                try:
                    packed, now, address, before_use, _ = borrowed = value._borrowed
                except AttributeError:
                    raise invalid(name, type(value).__name__, "a smla.Cache") from None
                if now is not None and now() != address:
                    raise moved(f"{name}.data")
                if before_use is not None:
                    before_use(name, keep, stream)
                keep.append(borrowed)
                writer.pack_into(args, offset, packed)
                if is_output:
                    value.require_writable(name)
            else:
                try:
                    writer.pack_into(args, offset, value)
                except (struct.error, OverflowError):
                    _refuse_number(self.places[name][0], name, value)
        return args

    def offset(self, called):
        """Returns the offset of the address of a tensor, a cache, its scale ("cache.scale") or a number."""
        name = called.removesuffix(".scale")
        found = self._writers.get(f"{name}_device") or self._writers.get(name)
        if found is None or (name != called and found[0] is not _CACHE):
            raise invalid("moving", repr(called), "names of array arguments")
        return found[1] + (_abi.Cache.scale_device.offset if name != called else 0)


def _refuse_number(what, name, value):
    wanted = "a number" if what in (c.c_float, c.c_double) else f"an integer of {c.sizeof(what) * 8} bits"
    raise invalid(name, repr(value), wanted) from None
