"""Registers the operators: real kernels, fake kernels, and an error for autograd."""

from typing import NamedTuple

import torch
from torch.autograd import forward_ad

from .. import stages
from .._abi import Dtype
from .._arrays.torch import torch_dtype
from .._run import CALLS
from ..compat._check import open_cache
from ..context import context_of, default_context
from ..errors import invalid, unsupported
from ..tensor import device_of, dtype_of
from ..tensor import tensor as view_as
from ._schema import LAYOUT_FIELDS, name_of, schemas

DTYPES = {dtype: torch_dtype(dtype) for dtype in Dtype}
_library = torch.library.Library("smla", "DEF")


class Operator:
    """Shared by the operators of one stage: names of arguments, new outputs, and the call of the stage."""

    def __init__(self, name, call):
        self.name, self.call = name, call
        self.arguments, self.choices = schemas(call)
        self.choice_names = {name_of(text) for text in self.choices.positional + self.choices.keyword}
        self.outputs = list(call.outputs.names)
        self.returned = len(self.outputs)
        fields = call.outputs.fields
        self.required = [
            field.argument
            for field in fields
            if field.argument not in call.outputs.asked_for and field.given_with is None
        ]
        if self.outputs:  # other outputs are only written if the caller passes them
            self.outputs += [
                key for key in call.parameters if key not in self.outputs and call.is_written(key)
            ]
        self.positional = [name_of(argument) for argument in self.arguments.positional]
        self.first = self.positional[0]
        self.in_place = bool(fields) and fields[0].in_place_of == self.first
        self._stage = getattr(stages, name)
        self._layouts = {
            cache: [(field, f"{cache}_{field}") for field in LAYOUT_FIELDS] for cache in self.arguments.caches
        }

    def result(self, outputs):
        """Returns the result of the stage for these outputs."""
        return self.call.result(*outputs[: self.returned])

    def new(self, values):
        """Returns new tensors, by name, for requested outputs that `values` lack, on the first argument's
        device.
        """
        given = {
            name: values.get(name, None if each.default is each.empty else each.default)
            for name, each in self.call.parameters.items()
        }
        for cache in self.arguments.caches:
            if given[cache] is not None:
                given[cache] = _Layout(cache, given[cache], values)
        like, out = values[self.first], {}
        for name, shape, dtype in self.call.outputs.missing(given, _extent, self._dtype):
            if dtype is Dtype.E2M1:
                shape = (*shape[:-1], shape[-1] // 2)
            out[name] = like.new_empty(shape, dtype=DTYPES[dtype])
        return out

    def _dtype(self, array, name):
        return _bytes_as(self.call.fields[name], array) or dtype_of(array, name)

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
        self._name_bytes(given)
        number, like = given.pop("context", 0), values[self.first]
        context = context_of(number) if number else default_context(device_of(like))
        self._stage(**given, context=context, workspace=_workspace(context, like))

    def _name_bytes(self, values):
        """Names the dtype of e2m1 and e8m0, which PyTorch stores as bytes. e2m1 always has scales."""
        scaled = {
            field.given_with for name, field in self.call.fields.items() if values.get(name) is not None
        }
        for name, field in self.call.fields.items():
            held = values.get(name)
            kind = isinstance(held, torch.Tensor) and _bytes_as(field, held)
            if kind and (kind is not Dtype.E2M1 or name in scaled):
                values[name] = view_as(held, kind, name)


class _Layout(NamedTuple):
    """A cache's tensor and layout, with the attributes of smla.Cache that output sizes depend on."""

    name: str
    data: torch.Tensor
    values: dict

    @property
    def page_tokens(self):
        return self.values[f"{self.name}_page_tokens"]

    @property
    def capacity(self):
        page_tokens, pages = self.page_tokens, self.values.get(f"{self.name}_pages")
        if pages is None:
            if self.data.dim() < 2:
                raise invalid("columns", None, f"a number, or {self.name} whose first dimension counts pages")
            pages = self.data.shape[0]
        page_rows = self.values.get(f"{self.name}_page_rows") or page_tokens
        return (pages - 1) * page_rows + page_tokens if pages else 0


def _extent(value, name):
    """Returns a size, which may be a symbol."""
    if value < 0:
        raise invalid(name, value, "0 or more")
    return value


def _bytes_as(field, array):
    """Returns the dtype that PyTorch stores as bytes, if the field may have it, else None."""
    if array.dtype is not torch.uint8:
        return None
    return next((kind for kind in (Dtype.E2M1, Dtype.E8M0) if field.may_be(kind)), None)


def _cache(name, data, layout):
    """Returns the smla.Cache of a tensor and its layout. Errors name the argument."""
    if (scale := layout.pop("scale_device", None)) is not None:
        layout["scale"] = scale
    return open_cache(name, data, layout.pop("format", ""), layout.pop("page_tokens", 0), **layout)


def _workspace(context, like):
    """Returns a workspace for one call from PyTorch's allocator on a GPU, else the thread's workspace.

    In a CUDA graph, this memory belongs to the graph, which zeroes its counters. A persistent workspace would
    be shared by graphs that may run concurrently, and torch.compile(mode="reduce-overhead") rejects memory
    that outlives its call (torch/_inductor/cudagraph_trees.py, check_memory_pool).
    """
    return context.workspace(like) if like.is_cuda else None


def _refuse_grad(named):
    """Raises an error if a tensor requires a derivative. named: (name, value) pairs."""
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
        wanted = "a tensor that does not: smla has no derivatives; use torch.no_grad() or x.detach()"
        raise unsupported(name, f"a tensor that {kind}", wanted)


def _define(name, arguments, returns, real, fake):
    """Defines one operator. real, fake: functions of the arguments by name."""
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


def _define_writer(name, operator, arguments, complete=lambda values: values):
    """Defines an operator that writes existing tensors and returns nothing."""
    every = (*arguments.positional, *arguments.keyword)
    written = [name_of(argument) for argument in every if "!" in argument]

    def real(values):
        operator.run(complete(values))
        for key in written:  # so that autograd detects that saved tensors have changed
            if (tensor := values.get(key)) is not None:
                torch.autograd.graph.increment_version(tensor)

    _define(name, arguments, "()", real, lambda values: None)


def _define_allocating(operator):
    """Defines the operator that returns new tensors, with an empty tensor for each output that was not
    requested.
    """

    def pack(values, new):
        like = values[operator.first]
        outputs = [
            new[key] if key in new else like.new_empty(0, dtype=torch.float32)
            for key in operator.outputs[: operator.returned]
        ]
        return outputs[0] if operator.returned == 1 else tuple(outputs)

    def real(values):
        new = operator.new(values)
        inputs = {name: value for name, value in values.items() if name not in operator.choice_names}
        operator.run({**inputs, **new})
        return pack(values, new)

    returns = "Tensor" if operator.returned == 1 else f"({', '.join(['Tensor'] * operator.returned)})"
    arguments = operator.arguments._replace(
        positional=operator.arguments.positional + operator.choices.positional,
        keyword=operator.arguments.keyword + operator.choices.keyword,
    )
    _define(operator.name, arguments, returns, real, lambda values: pack(values, operator.new(values)))


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
    # Outputs come first, because torch.compile only supports contiguous tensors for the keyword `out`.
    _define_writer(
        f"{operator.name}_out", operator, arguments._replace(positional=required + arguments.positional)
    )
    if operator.in_place:
        first, *others = arguments.positional
        _define_writer(
            f"{operator.name}_",
            operator,
            arguments._replace(positional=[first.replace("Tensor", "Tensor(a!)"), *others]),
            lambda values: {**values, operator.outputs[0]: values[operator.first]},
        )


OPERATORS = {name: Operator(name, call) for name, call in CALLS.items()}
for _operator in OPERATORS.values():
    _define_stage(_operator)
