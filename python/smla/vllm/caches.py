"""Calls with vLLM's tensors, prepared once for all steps and layers of equal layout. Requires PyTorch."""

from typing import Any

from .._handles import Bounded
from ..call import Call

_writes = Bounded()


def layouts(*tensors: Any) -> tuple:
    """Returns the properties of tensors that prepared calls depend on. A tensor may be None."""
    return tuple([None if x is None else (x.shape, x.stride(), x.dtype) for x in tensors])


def run(call: Call, scale: Any, *tensors: Any) -> None:
    """Runs a call whose moving arguments are these tensors, except None, and the scale if it has one."""
    addresses = [x.data_ptr() for x in tensors if x is not None]
    if len(call.moving) > len(addresses):
        addresses.append(scale.data_ptr())
    call(*addresses)


def moving(tensors: dict, name: str) -> list[str]:
    """Returns the moving arguments of a call: all tensors, and the scale of a cache on the device."""
    scale = [f"{name}.scale"] if tensors[name].abi.scale_device else []
    return [*(each for each, x in tensors.items() if x is not None), *scale]


def write(stage: Any, head, tail, slots, data, describe, dtype: Any = None, scale: Any = None) -> None:
    """Runs stage(head, slots, cache, tail=tail); cache is describe(data, dtype, scale) or describe(data)."""
    key = (stage, dtype, head.get_device(), layouts(head, slots, data, tail))
    call = _writes.get(key)
    if call is None:
        cache = describe(data) if dtype is None else describe(data, dtype, scale)
        tensors = {"head": head, "slots": slots, "cache": cache, "tail": tail}
        call = _writes.keep(key, Call(stage, moving(tensors, "cache"), **tensors))
    run(call, scale, head, slots, data, tail)
