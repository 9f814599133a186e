"""Checks of PyTorch tensors under the argument names of another library."""

import torch

from ..cache import Cache
from ..errors import InvalidArgument, invalid


def require(tensor, name, dtypes=None, shape=None, like=None):
    """Returns the shape of a tensor; requires one of these dtypes, this shape, and like's device.

    shape: dimensions that are None or a name may have any size.
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
        raise invalid(f"{name}.device", tensor.device, f"{like.device}, as the query")
    return tensor.shape


def open_cache(name, data, format, page_tokens, **layout):
    """Returns a smla.Cache. Errors name the argument."""
    try:
        return Cache(data, format, page_tokens, **layout)
    except InvalidArgument as error:
        raise invalid(error.field.replace("cache", name, 1), error.got, error.wanted) from None
