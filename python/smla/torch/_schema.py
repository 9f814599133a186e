"""The operators' argument lists: PyTorch's schema language, with words for a cache and for a scale.

`Cache name` is the memory as a tensor, in place, and what smla.Cache takes besides it, by keyword:
name_format, name_page_tokens, ... A smla.Cache itself cannot cross a schema. `Scale name` is a number, or
name_device, an f32 tensor of one element. `Cache?` may be left out, `Cache(a!)` is written.

Every operator takes CONTEXT too.
"""

import re
from typing import NamedTuple

# What smla.Cache takes besides the memory. A first dimension of pages makes `pages` needless.
_LAYOUT = (
    "SymInt {}_width=0",
    "SymInt {}_page_rows=0",
    "SymInt? {}_pages=None",
    "SymInt {}_page_stride_bytes=0",
    "SymInt {}_row_stride_bytes=0",
    "float? {}_scale=None",
    "Tensor? {}_scale_device=None",
)
_REQUIRED = ("str {}_format", "SymInt {}_page_tokens")
_OPTIONAL = ("str {}_format=''", "SymInt {}_page_tokens=0")
LAYOUT_FIELDS = (
    "format",
    "page_tokens",
    "width",
    "page_rows",
    "pages",
    "page_stride_bytes",
    "row_stride_bytes",
    "scale",
    "scale_device",
)
CONTEXT = "int context=0"  # the id of a smla.Context; 0: the default one
_WORD = re.compile(r"(Cache|Scale)(\(\w!\))?(\?)? (\w+)(=None)?")


class Arguments(NamedTuple):
    """positional, keyword: schema texts of one argument each. caches, scales: names of those."""

    positional: list
    keyword: list
    caches: list
    scales: list

    def schema(self, more=()):
        """The text between the parentheses; `more` are keyword arguments too."""
        keyword = [*self.keyword, *more]
        return ", ".join([*self.positional, *(["*", *keyword] if keyword else [])])


def split(text):
    """The arguments of a list, none for ""."""
    return [part.strip() for part in text.split(",") if part.strip()]


def name_of(argument):
    """ "Tensor(a!)? lse=None" -> "lse"."""
    return argument.split()[-1].split("=")[0]


def expand(text):
    """Arguments from a list in which caches and scales are words."""
    found = Arguments([], [], [], [])
    into = found.positional
    layouts = []
    for argument in split(text):
        word = _WORD.fullmatch(argument)
        if argument == "*":
            into = found.keyword
        elif not word:
            into.append(argument)
        elif word[1] == "Scale":
            found.scales.append(word[4])
            found.keyword.extend((f"float? {word[4]}=None", f"Tensor? {word[4]}_device=None"))
        else:
            found.caches.append(word[4])
            into.append(argument.replace("Cache", "Tensor", 1))
            layouts.extend(field.format(word[4]) for field in (_OPTIONAL if word[3] else _REQUIRED) + _LAYOUT)
    found.keyword.extend(layouts)
    return found
