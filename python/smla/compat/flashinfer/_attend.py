"""The call of smla.attend for FlashInfer's attention calls, with FlashInfer's scales and lse."""

import math
from typing import NamedTuple

import torch

from ... import stages
from .._pools import is_per_tensor, open_pool
from ._check import scale_of

_EMPTY_LSE = -1e30  # FlashInfer's lse of a token without rows
_LOG2_E = math.log2(math.e)


class Segment(NamedTuple):
    """A pool, its name in messages, its listed rows [T,K], and their lengths [T]."""

    pool: torch.Tensor
    name: str
    rows: torch.Tensor
    lengths: torch.Tensor | None


def attend(query, segments, out, *, scales, sinks=None, layout=None, lse=None, scale_name="bmm1_scale"):
    """Computes out = bmm2 * softmax(bmm1 * query.K) V over the rows of one or two segments.

    Args:
        query: [T,H,D].
        out: [T,H,Dv].
        scales: bmm1 and bmm2, numbers or f32 tensors of one element.
        lse: optional output [T,H] f32: base 2, with the sink, -1e30 for a token without rows and sink.
    """
    bmm1 = scale_of(scales[0], scale_name, query, positive=True)
    bmm2 = scale_of(scales[1], "bmm2_scale", query, positive=False)
    on_device = isinstance(bmm2, torch.Tensor)
    # A cache of e4m3 values has one scale for K and V, bmm2, so divide bmm1 by it.
    folds = all(is_per_tensor(segment.pool, query.shape[-1]) for segment in segments)
    folds = folds and (on_device or bmm2 > 0)
    caches = [
        open_pool(segment.pool, segment.name, query, layout=layout, scale=bmm2 if folds else 1.0)
        for segment in segments
    ]
    second = {}
    if len(segments) > 1:
        second = {"extra": caches[1], "extra_rows": segments[1].rows, "extra_lengths": segments[1].lengths}
    stages.attend(
        query,
        caches[0],
        segments[0].rows,
        segments[0].lengths,
        softmax_scale=bmm1 / bmm2 if folds else bmm1,
        q_scale=1.0 if query.dtype == torch.float8_e4m3fn else None,  # bmm1 includes it
        sink=sinks,
        lse_base="log2",
        out=out,
        lse=lse,
        **second,
    )
    if not folds and (on_device or bmm2 != 1):
        out.mul_(bmm2)
    if lse is not None:
        if sinks is not None:
            torch.logaddexp2(lse, sinks * _LOG2_E, out=lse)
        lse.clamp_(min=_EMPTY_LSE)
