"""Stages as custom operators of PyTorch, for torch.compile, torch.export and CUDA graphs.

smla.torch.attend(q, cache, ...) and the other functions have the arguments and results of smla.attend, except
workspace and stream. The functions call operators of torch.ops.smla: attend allocates its outputs, attend_out
writes existing outputs, and rope_ writes its first argument. Operators represent a cache as a tensor and its
layout (docs/python/torch.md).

A tensor that requires grad raises Unsupported. On a GPU, a call runs on the current stream, with scratch
memory from PyTorch's allocator.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from .. import stages as _stages
from .._dtypes import parse as _parse
from ..cache import Cache as _Cache
from ..context import Context as _Context
from ..errors import invalid as _invalid
from ..tensor import Tensor as _Tensor
from ._ops import DTYPES as _DTYPES
from ._ops import OPERATORS as _OPERATORS

__all__ = ["absorb", "attend", "compress", "copy_pages", "gather", "inverse_rope", "merge", "norm"]
__all__ += ["out_project", "project", "quant_index_q", "rope", "save_state", "score", "score_select"]
__all__ += ["score_select_blocks", "select", "up_project", "write_index", "write_kv"]
_Stage = TypeVar("_Stage", bound=Callable[..., Any])


def _put_cache(values, name, cache):
    """Replaces a smla.Cache by a tensor and its layout."""
    if not isinstance(cache, _Cache):
        raise _invalid(name, type(cache).__name__, "a smla.Cache")
    data = cache.array
    if not isinstance(data, torch.Tensor):
        raise _invalid(f"{name}.data", type(data).__name__, "a torch.Tensor")
    values[name] = data
    for field, value in cache.layout.items():
        values[f"{name}_{field}_device" if isinstance(value, torch.Tensor) else f"{name}_{field}"] = value


def _plain(name, view):
    """Returns the tensor of a smla.Tensor, viewed as its dtype; e2m1 stays bytes."""
    if not isinstance(view.array, torch.Tensor):
        raise _invalid(name, type(view.array).__name__, "a torch.Tensor")
    dtype = _DTYPES[view.dtype]
    return view.array if view.array.dtype is dtype else view.array.view(dtype)


def _arguments(operator, names, args, kwargs):
    """Returns the operator's arguments by name. names: names of the stage's positional arguments."""
    if len(args) > len(names):
        raise TypeError(f"smla.torch.{operator.name}: got {len(args)} arguments, wanted at most {len(names)}")
    values = dict(zip(names, args))
    for name, value in kwargs.items():
        if name in values:
            raise TypeError(f"smla.torch.{operator.name}: got {name} twice")
        values[name] = value
    if operator.name == "copy_pages" and values.get("source") is values.get("target"):
        values.pop("source", None)
    for name in operator.arguments.caches:
        if values.get(name) is not None:
            _put_cache(values, name, values[name])
    for name in operator.arguments.scales:
        if isinstance(values.get(name), torch.Tensor):
            values[f"{name}_device"] = values.pop(name)
    for name, dtype in values.items():
        if name.endswith("_dtype") and dtype is not None:
            values[name] = _DTYPES[_parse(dtype, name)]
    if not isinstance(values.get("dtype", ""), str):
        values["dtype"] = str(values["dtype"])
    if (context := values.get("context")) is not None:
        if not isinstance(context, _Context):
            raise _invalid("context", type(context).__name__, "a smla.Context")
        values["context"] = context.id
    for name, value in values.items():
        if type(value) is _Tensor:
            values[name] = _plain(name, value)
    return {name: value for name, value in values.items() if value is not None}


def _call(function, positional, values):
    """Calls an operator. positional: names in the order of its schema."""
    leading = []
    for name in positional:
        if name not in values:
            break
        leading.append(values.pop(name))
    return function(*leading, **values)


def _fill(operator, into, in_place, values, given):
    """Calls <stage>_out or <stage>_, with new tensors for requested outputs that are missing. Returns all
    outputs.
    """
    like = values[operator.first]
    given.update(operator.new({**values, **given}))
    values = {key: value for key, value in values.items() if key not in operator.choice_names}
    results = [given.get(key) for key in operator.outputs]
    if in_place is not None and results[0] is like:
        del given[operator.outputs[0]]
        _call(in_place, operator.positional, {**values, **given})
    else:
        _call(into, operator.required + operator.positional, {**values, **given})
    return results


def _wrap(stage: _Stage) -> _Stage:
    name = stage.__name__
    operator = _OPERATORS[name]
    signature = inspect.signature(stage)
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.name not in ("workspace", "stream")
    ]
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    allocating = getattr(torch.ops.smla, name)
    into = getattr(torch.ops.smla, f"{name}_out", None)
    in_place = getattr(torch.ops.smla, f"{name}_", None)

    def call(*args, **kwargs):
        values = _arguments(operator, names, args, kwargs)
        if not operator.outputs:
            out = values.get("out")
            _call(allocating, operator.positional, values)
            return out
        given = {
            key: values.pop(key) for key in operator.outputs if isinstance(values.get(key), torch.Tensor)
        }
        if given:
            return operator.result(_fill(operator, into, in_place, values, given))
        results = _call(allocating, operator.positional, values)
        if operator.returned == 1:
            results = (results,)
        # Outputs that were not requested have one dimension; all others have more.
        found = dict(zip(operator.outputs, results))
        return operator.result(
            [
                found[key] if key in found and (key in operator.required or found[key].dim() > 1) else None
                for key in operator.outputs
            ]
        )

    call.__name__ = call.__qualname__ = name
    call.__doc__ = stage.__doc__
    call.__dict__["__signature__"] = signature.replace(parameters=parameters)
    return cast(_Stage, call)


norm = _wrap(_stages.norm)
rope = _wrap(_stages.rope)
inverse_rope = _wrap(_stages.inverse_rope)
project = _wrap(_stages.project)
absorb = _wrap(_stages.absorb)
up_project = _wrap(_stages.up_project)
out_project = _wrap(_stages.out_project)
quant_index_q = _wrap(_stages.quant_index_q)
write_kv = _wrap(_stages.write_kv)
write_index = _wrap(_stages.write_index)
save_state = _wrap(_stages.save_state)
compress = _wrap(_stages.compress)
gather = _wrap(_stages.gather)
copy_pages = _wrap(_stages.copy_pages)
score = _wrap(_stages.score)
select = _wrap(_stages.select)
score_select = _wrap(_stages.score_select)
score_select_blocks = _wrap(_stages.score_select_blocks)
map = _wrap(_stages.map)
attend = _wrap(_stages.attend)
merge = _wrap(_stages.merge)
