"""Calls over vLLM's tensors, prepared once for all steps and layers that are alike. Needs PyTorch."""

from typing import Any

from .._handles import Bounded
from ..call import Call

_writes = Bounded()


def layouts(*tensors: Any) -> tuple:
    """What prepared calls depend on of tensors; some may be None."""
    return tuple([None if x is None else (x.shape, x.stride(), x.dtype) for x in tensors])


def run(call: Call, scale: Any, *tensors: Any) -> None:
    """Runs a call whose moving arguments are these tensors, except None, then the scale if it has one."""
    addresses = [x.data_ptr() for x in tensors if x is not None]
    if len(call.moving) > len(addresses):
        addresses.append(scale.data_ptr())
    call(*addresses)


def moving(tensors: dict, name: str) -> list[str]:
    """The moving arguments of a call: all tensors, and the scale of a cache that has one on the device."""
    scale = [f"{name}.scale"] if tensors[name].abi.scale_device else []
    return [*(each for each, x in tensors.items() if x is not None), *scale]


def write(stage: Any, head, tail, slots, data, describe, dtype: Any = None, scale: Any = None) -> None:
    """stage(head, slots, cache, tail=tail), cache: describe(data, dtype, scale), or describe(data)."""
    key = (stage, dtype, head.get_device(), layouts(head, slots, data, tail))
    call = _writes.get(key)
    if call is None:
        cache = describe(data) if dtype is None else describe(data, dtype, scale)
        tensors = {"head": head, "slots": slots, "cache": cache, "tail": tail}
        call = _writes.keep(key, Call(stage, moving(tensors, "cache"), **tensors))
    run(call, scale, head, slots, data, tail)
