"""Argument lists of the operators in PyTorch's schema language, from the parameters and fields of a stage.

A schema cannot contain a smla.Cache. A cache is passed as its memory, a mutable tensor, and the other
arguments of smla.Cache by keyword: name_format, name_page_tokens, ... A scale is a number, or name_device, an
f32 tensor of one element. Every operator has the argument CONTEXT.
"""

from inspect import signature
from typing import NamedTuple, get_args

from .._abi import FieldKind
from ..cache import Cache


def _layout(required):
    """Returns the arguments of smla.Cache except the memory, as arguments of a cache named {}."""
    for name, parameter in list(signature(Cache).parameters.items())[1:]:
        kind = "str" if name == "format" else "SymInt"
        if name == "scale":
            yield from ("float? {}_scale=None", "Tensor? {}_scale_device=None")
        elif parameter.default is not parameter.empty:
            yield f"{kind}{'?' if parameter.default is None else ''} {{}}_{name}={parameter.default}"
        elif required:
            yield f"{kind} {{}}_{name}"
        else:
            yield f"{kind} {{}}_{name}={repr('') if kind == 'str' else 0}"


_REQUIRED, _OPTIONAL = tuple(_layout(True)), tuple(_layout(False))
LAYOUT_FIELDS = tuple(text.split("{}_")[1].split("=")[0] for text in _REQUIRED)
CONTEXT = "int context=0"  # the id of a smla.Context; 0: the default context
_WORDS = {float: "float", bool: "bool", str: "str", int: "SymInt"}
# A tensor that is written may not be passed twice.
_LEFT_OUT_WITHIN_ONE_CACHE = {"copy_pages": "source"}


class Arguments(NamedTuple):
    """positional, keyword: schema texts of the arguments. caches, scales: names of those arguments."""

    positional: list
    keyword: list
    caches: list
    scales: list

    def schema(self):
        """Returns the text between the parentheses."""
        return ", ".join([*self.positional, *(["*", *self.keyword] if self.keyword else [])])


def name_of(argument):
    """Returns the name in a schema text: "Tensor(a!)? lse=None" gives "lse"."""
    return argument.split()[-1].split("=")[0]


def _plain(parameter):
    """Returns the schema text of a number, word, flag, size or dtype."""
    kinds = get_args(parameter.annotation) or (parameter.annotation,)
    kind = next((word for kind, word in _WORDS.items() if kind in kinds), None)
    kind = kind or ("ScalarType" if parameter.name.endswith("_dtype") else "str")
    return f"{kind}{_default(parameter)}"


def _default(parameter):
    """Returns the part of an argument after its type."""
    if parameter.default is parameter.empty:
        return f" {parameter.name}"
    return f"{'?' if parameter.default is None else ''} {parameter.name}={parameter.default!r}"


def schemas(call):
    """Returns (arguments of all operators of a StageCall, arguments of only the allocating operator)."""
    common, choices = Arguments([], [], [], []), Arguments([], [], [], [])
    letters, layouts = iter("abc"), []
    moved = _LEFT_OUT_WITHIN_ONE_CACHE.get(call.name)
    for name, parameter in sorted(call.parameters.items(), key=lambda item: item[0] == moved):
        field = call.fields.get(name)
        is_keyword = parameter.kind is parameter.KEYWORD_ONLY
        into = common.keyword if is_keyword else common.positional
        if name in call.outputs.asked_for:
            choices.keyword.append(f"bool {name}=False")
        elif name in call.choices:
            (choices.keyword if is_keyword else choices.positional).append(_plain(parameter))
        elif name in call.scales:
            common.scales.append(name)
            into.extend((f"float? {name}=None", f"Tensor? {name}_device=None"))
        elif field is None:
            into.append(_plain(parameter))
        elif not (field.is_written and call.outputs.names):  # outputs follow later
            if name == moved:
                parameter, into = parameter.replace(default=None), common.keyword
            into.append(f"Tensor{f'({next(letters)}!)' if field.is_written else ''}{_default(parameter)}")
            if field.kind is FieldKind.CACHE:
                common.caches.append(name)
                needed = _OPTIONAL if parameter.default is None else _REQUIRED
                layouts.extend(text.format(name) for text in needed)
    common.keyword.extend((*layouts, CONTEXT))
    return common, choices
