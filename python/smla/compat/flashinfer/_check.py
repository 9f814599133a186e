"""Checks of arguments under FlashInfer's names."""

import math

import torch

from ...errors import invalid
from .._check import require

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def require_int(value, name, least):
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise invalid(name, repr(value), f"an integer of {least} or more")


def tokens_of(query, name, width=None):
    """Returns a query [T,H,D] or [B,Q,H,D] as [T,H,D]."""
    require(query, name, (*FLOATS, torch.float8_e4m3fn))
    if query.ndim not in (3, 4):
        raise invalid(f"{name}.ndim", query.ndim, "3 or 4: [tokens,H,D] or [B,Q,H,D]")
    if width is not None and query.shape[-1] != width:
        raise invalid(f"{name}.shape[-1]", query.shape[-1], str(width))
    return query if query.ndim == 3 else query.flatten(0, 1)


def rows_of(indices, name, query):
    """Returns listed rows [T,K] or [B,Q,K] i32 as [T,K], for a query [T,H,D]."""
    require(indices, name, (torch.int32,), like=query)
    tokens = query.shape[0]
    if indices.ndim not in (2, 3) or math.prod(indices.shape[:-1]) != tokens:
        raise invalid(f"{name}.shape", list(indices.shape), f"[{tokens}, any], one list per query token")
    return indices if indices.ndim == 2 else indices.flatten(0, 1)


def lengths_of(lengths, name, query):
    """Returns lengths [T] or [B,Q] i32 as [T]; None stays None."""
    if lengths is None:
        return None
    require(lengths, name, (torch.int32,), like=query)
    tokens = query.shape[0]
    if lengths.ndim not in (1, 2) or lengths.numel() != tokens:
        raise invalid(f"{name}.shape", list(lengths.shape), f"[{tokens}], one per query token")
    return lengths if lengths.ndim == 1 else lengths.flatten()


def output_of(out, name, query, shape):
    """Returns (out, out as [T,H,Dv]). If out is None, creates a tensor: bf16 for bf16 and e4m3 queries."""
    fp8 = query.dtype == torch.float8_e4m3fn
    if out is None:
        out = torch.empty(shape, dtype=torch.bfloat16 if fp8 else query.dtype, device=query.device)
    require(out, name, (torch.bfloat16,) if fp8 else FLOATS, shape, like=query)
    return out, flat_view(out, name, (*query.shape[:2], shape[-1]))


def flat_view(tensor, name, shape):
    """Returns the same memory in another shape."""
    try:
        return tensor.view(shape)
    except RuntimeError:
        wanted = "a constant stride between tokens"
        raise invalid(f"{name}.stride", list(tensor.stride()), wanted) from None


def sinks_of(sinks, name, query):
    """Returns logits [H] f32, or None. Accepts a list of one tensor."""
    if isinstance(sinks, (list, tuple)):
        if len(sinks) != 1:
            raise invalid(name, f"{len(sinks)} tensors", "one tensor [H] f32")
        sinks = sinks[0]
    if sinks is not None:
        require(sinks, name, (torch.float32,), (query.shape[1],), like=query)
    return sinks


def scale_of(scale, name, query, *, positive):
    """Returns a host number, or an f32 tensor of one element on the query's device."""
    if isinstance(scale, torch.Tensor):
        require(scale, name, (torch.float32,), like=query)
        if scale.numel() != 1:
            raise invalid(f"{name}.shape", list(scale.shape), "one element")
        return scale
    try:
        number = float(scale)
    except (TypeError, ValueError):
        raise invalid(name, repr(scale), "a number, or an f32 tensor of one element") from None
    if not math.isfinite(number) or (positive and number <= 0):
        raise invalid(name, number, "a finite number above 0" if positive else "a finite number")
    return number
