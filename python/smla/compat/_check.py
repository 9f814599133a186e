"""Checks of PyTorch's tensors by the names that another library gives its arguments."""

import torch

from ..cache import Cache
from ..errors import InvalidArgument, invalid


def require(tensor, name, dtypes=None, shape=None, like=None):
    """The shape of a tensor of one of these dtypes, of this shape and on like's device; others are refused.

    shape: an extent that is None or a name may be anything.
    """
    if not isinstance(tensor, torch.Tensor):
        raise invalid(name, type(tensor).__name__, "a torch.Tensor")
    if dtypes is not None and tensor.dtype not in dtypes:
        raise invalid(f"{name}.dtype", tensor.dtype, " or ".join(map(str, dtypes)))
    if shape is not None and (
        tensor.ndim != len(shape)
        or any(type(want) is int and got != want for got, want in zip(tensor.shape, shape))
    ):
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise invalid(f"{name}.shape", list(tensor.shape), f"[{wanted}]")
    if like is not None and tensor.device != like.device:
        raise invalid(f"{name}.device", tensor.device, f"{like.device}, that of the query")
    return tensor.shape


def open_cache(name, data, format, page_tokens, **layout):
    """A smla.Cache; errors name the argument."""
    try:
        return Cache(data, format, page_tokens, **layout)
    except InvalidArgument as error:
        raise invalid(error.field.replace("cache", name, 1), error.got, error.wanted) from None
