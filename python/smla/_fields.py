"""The fields of every stage, from the library's tables, with the argument names of the Python functions."""

import ctypes as c
from typing import NamedTuple

from ._abi import FieldFlags, FieldKind, StageField
from ._library import check, lib


class Field(NamedTuple):
    """A tensor, cache or number of a stage: smla_stage_field, with references to other fields by argument
    name.

    argument: name in the Python function. types: a bit per Dtype or Format.
    """

    name: str
    argument: str
    kind: FieldKind
    shape: tuple[str, ...]
    types: int
    is_written: bool
    is_optional: bool
    in_place_of: str | None
    double_as: str | None
    given_with: str | None
    given_dtype: int

    def may_be(self, dtype):
        return self.types >> dtype & 1 == 1


def argument_of(name):
    """Returns the argument name: "primary.rows" gives `rows`, "extra.rows" `extra_rows`, "extra.cache"
    `extra`.
    """
    for inner in ("primary.", "score.", "select."):
        name = name.removeprefix(inner)
    return name.removesuffix(".cache").replace(".", "_")


def fields_of(stage):
    """Returns the Fields of a Stage, in the order of its table."""
    count, found = c.c_int32(), []
    check(lib.smla_stage_field_count(stage, c.byref(count)))
    for i in range(count.value):
        field = StageField(struct_size=c.sizeof(StageField))
        check(lib.smla_stage_get_field(stage, i, c.byref(field)))
        found.append(field)
    names = [field.name.decode() for field in found]
    arguments = [argument_of(name) for name in names]

    def other(index):
        return arguments[index] if index >= 0 else None

    return [
        Field(
            name,
            argument,
            FieldKind(field.kind),
            tuple(field.shape.decode().split()),
            field.types,
            bool(field.flags & FieldFlags.WRITTEN),
            bool(field.flags & FieldFlags.OPTIONAL),
            other(field.in_place_of),
            other(field.double_as),
            other(field.given_with),
            field.given_dtype,
        )
        for name, argument, field in zip(names, arguments, found)
    ]
