"""Registers the operators of _table.py: real kernels, fake ones, and the refusal of autograd."""

import torch
from torch.autograd import forward_ad

from .. import stages
from .._abi import Dtype
from ..cache import Cache
from ..context import context_of, default_context
from ..errors import InvalidArgument, Unsupported, invalid
from ..tensor import device_of
from ..tensor import tensor as view_as
from ._schema import CONTEXT, LAYOUT_FIELDS, expand, name_of, split
from ._table import TABLE

_BYTES = {"q_out": Dtype.E2M1, "q_scales": Dtype.E8M0, "scales": Dtype.E8M0}
_library = torch.library.Library("smla", "DEF")


class Operator:
    """What the operators of one stage share: names of arguments, new outputs, the call of the stage."""

    def __init__(self, name, entry):
        self.name, self.entry = name, entry
        self.arguments = expand(entry.arguments)
        self.arguments.keyword.append(CONTEXT)
        self.choices = expand(entry.choices)
        self.choice_names = {name_of(choice) for choice in split(entry.choices)}
        marked = split(entry.outputs)
        self.outputs = [output.rstrip("?+") for output in marked]
        self.returned = sum(not output.endswith("+") for output in marked)
        self.required = [output for output in marked if output[-1] not in "?+"]
        self.positional = [name_of(argument) for argument in self.arguments.positional]
        self.first = self.positional[0]
        self._stage = getattr(stages, name)
        self._layouts = {
            cache: [(field, f"{cache}_{field}") for field in LAYOUT_FIELDS] for cache in self.arguments.caches
        }

    def allocate(self, values):
        """New outputs on the device of the first argument, None for those that were not asked for."""
        like = values[self.first]
        return [spec and like.new_empty(spec[0], dtype=spec[1]) for spec in self.entry.shapes(**values)]

    def run(self, values):
        """Calls the stage. values: all arguments and outputs, by name."""
        given = dict(values)
        for name, fields in self._layouts.items():
            if given.get(name) is not None:
                layout = {field: given.pop(key) for field, key in fields if key in given}
                given[name] = _cache(name, given[name], layout)
        for name in self.arguments.scales:
            device = given.pop(f"{name}_device", None)
            given[name] = given.get(name) if device is None else device
        if self.name == "copy_pages":
            given.setdefault("source", given["target"])
        _name_bytes(given)
        number, like = given.pop("context", 0), values[self.first]
        context = context_of(number) if number else default_context(device_of(like))
        self._stage(**given, context=context, workspace=_workspace(context, like))


def _cache(name, data, layout):
    """The smla.Cache of a tensor and its layout; errors name the argument."""
    if (scale := layout.pop("scale_device", None)) is not None:
        layout["scale"] = scale
    try:
        return Cache(data, layout.pop("format", ""), layout.pop("page_tokens", 0), **layout)
    except InvalidArgument as error:
        raise invalid(error.field.replace("cache", name, 1), error.got, error.wanted) from None


def _name_bytes(values):
    """e2m1 and e8m0, which PyTorch holds as bytes. Index queries of bytes have block scales."""
    kinds = _BYTES if values.get("q_scales") is None else {"q": Dtype.E2M1, **_BYTES}
    for name, kind in kinds.items():
        held = values.get(name)
        if held is not None and held.dtype is torch.uint8:
            values[name] = view_as(held, kind, name)


def _workspace(context, like):
    """On a GPU scratch of PyTorch's allocator for this call alone; else the workspace of the thread.

    In a CUDA graph such memory is the graph's own, and the graph zeroes its counters. One that is kept would
    be shared by graphs that may run at once, and torch.compile(mode="reduce-overhead") refuses memory that
    outlives its call (torch/_inductor/cudagraph_trees.py, check_memory_pool).
    """
    return context.workspace(like) if like.is_cuda else None


def _refuse_grad(named):
    """Raises if a tensor wants a derivative: (name, value) pairs."""
    reverse, forward = torch.is_grad_enabled(), forward_ad._current_level >= 0
    if not reverse and not forward:
        return
    for name, value in named:
        if not isinstance(value, torch.Tensor):
            continue
        if reverse and value.requires_grad:
            kind = "requires grad"
        elif forward and forward_ad.unpack_dual(value).tangent is not None:
            kind = "has a tangent of forward-mode differentiation"
        else:
            continue
        raise Unsupported(
            f"{name}: got a tensor that {kind}, wanted one that does not: smla has no derivatives; "
            "call it under torch.no_grad() or on x.detach()",
            name,
            kind,
            "no derivative",
        )


def _define(name, arguments, returns, real, fake):
    """One operator. real, fake: called with all arguments by name, as far as given."""
    schema = arguments.schema()
    _library.define(f"{name}({schema}) -> {returns}", tags=(torch.Tag.pt2_compliant_tag,))
    overload = getattr(torch.ops.smla, name).default
    names = [name_of(argument) for argument in arguments.positional]

    def by_name(kernel):
        return lambda *args, **kwargs: kernel({**dict(zip(names, args)), **kwargs})

    def autograd(*args, **kwargs):
        _refuse_grad((*zip(names, args), *kwargs.items()))
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*args, **kwargs)

    _library.impl(name, by_name(real), "CompositeExplicitAutograd")
    _library.impl(name, autograd, "Autograd")
    torch.library.register_fake(f"smla::{name}", by_name(fake), lib=_library)


def _written(arguments):
    return [name_of(argument) for argument in (*arguments.positional, *arguments.keyword) if "!" in argument]


def _define_writer(name, operator, arguments, complete=lambda values: values):
    """An operator that writes given tensors and returns nothing."""
    written = _written(arguments)

    def real(values):
        operator.run(complete(values))
        for key in written:  # so that autograd notices saved tensors that are no longer what they were
            if (tensor := values.get(key)) is not None:
                torch.autograd.graph.increment_version(tensor)

    _define(name, arguments, "()", real, lambda values: None)


def _define_allocating(operator):
    """The operator that returns new tensors: an empty one for an output that was not asked for."""

    def pack(values, outputs):
        like = values[operator.first]
        outputs = [
            like.new_empty(0, dtype=torch.float32) if output is None else output
            for output in outputs[: operator.returned]
        ]
        return outputs[0] if operator.returned == 1 else tuple(outputs)

    def real(values):
        outputs = operator.allocate(values)
        inputs = {name: value for name, value in values.items() if name not in operator.choice_names}
        operator.run({**inputs, **dict(zip(operator.outputs, outputs))})
        return pack(values, outputs)

    returns = "Tensor" if operator.returned == 1 else f"({', '.join(['Tensor'] * operator.returned)})"
    arguments = operator.arguments._replace(
        positional=operator.arguments.positional + operator.choices.positional,
        keyword=operator.arguments.keyword + operator.choices.keyword,
    )
    _define(operator.name, arguments, returns, real, lambda values: pack(values, operator.allocate(values)))


def _define_stage(operator):
    arguments = operator.arguments
    if not operator.outputs:
        _define_writer(operator.name, operator, arguments)
        return
    _define_allocating(operator)
    required = [f"Tensor({letter}!) {name}" for letter, name in zip("abc", operator.required)]
    asked_for = [name for name in operator.outputs if name not in operator.required]
    optional = [f"Tensor({letter}!)? {name}=None" for letter, name in zip("xyz", asked_for)]
    arguments = arguments._replace(keyword=arguments.keyword + optional)
    # The outputs stand first: by the keyword `out` torch.compile takes none but contiguous ones.
    _define_writer(
        f"{operator.name}_out", operator, arguments._replace(positional=required + arguments.positional)
    )
    if operator.entry.in_place:
        first, *others = arguments.positional
        _define_writer(
            f"{operator.name}_",
            operator,
            arguments._replace(positional=[first.replace("Tensor", "Tensor(a!)"), *others]),
            lambda values: {**values, operator.outputs[0]: values[operator.first]},
        )


OPERATORS = {name: Operator(name, entry) for name, entry in TABLE.items()}
for _operator in OPERATORS.values():
    _define_stage(_operator)
