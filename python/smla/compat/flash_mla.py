"""The calls of FlashMLA on smla, for PyTorch tensors on a GPU or a CPU: `import smla.compat.flash_mla`.

Names, arguments, defaults and results are the same as in flash_mla; docs/python/drop_in.md lists extensions
and unsupported arguments. flash_mla_sparse_prefill and two schedule tensors are forms of 2025.

Dimensions: b requests, s_q query tokens per request, h query heads of width d (576 or 512), topk listed rows.
Errors: InvalidArgument for a wrong argument, Unsupported if no kernel supports the call.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .. import stages
from .._types import PrecisionName
from ..cache import Cache
from ..errors import integer, invalid, unsupported
from ..rows import decode_schedule
from ._check import require
from ._pools import BYTES, PLAIN, open_pages

__all__ = ["FlashMLASchedMeta", "flash_mla_sparse_fwd", "flash_mla_sparse_prefill"]
__all__ += ["flash_mla_with_kvcache", "get_mla_metadata"]
_RECORD_BYTES = (656, 584)
_QUERIES = (torch.bfloat16, torch.float16, torch.float32)
_PRECISION: PrecisionName = "rounded"  # keys are bf16(code * scale) in FlashMLA
_HOPPER = (132, 9)  # multiprocessors and compute capability of schedules for CPU tensors


@dataclass
class FlashMLASchedMeta:
    """Result of get_mla_metadata. smla needs no schedule, and neither reads nor fills this object."""

    have_initialized: bool = False
    config: object = None
    tile_scheduler_metadata: torch.Tensor | None = None
    num_splits: torch.Tensor | None = None


def get_mla_metadata(*args: Any, **kwargs: Any) -> tuple[Any, torch.Tensor | None]:
    """Returns (FlashMLASchedMeta, None), or two schedule tensors if called with cache_seqlens, as in 2025.

    flash_mla_with_kvcache accepts either form and does not need them.

    Args:
        args, kwargs: in 2025, cache_seqlens [b] i32, num_q_tokens_per_head_k, num_heads_k, num_heads_q=None,
            is_fp8_kvcache=False, topk=None.

    Returns:
        In 2025, tile_scheduler_metadata [parts,8] and num_splits [b+1], i32, on the device of cache_seqlens:
        FlashMLA's split of `topk` rows per request, or without `topk` of cache_seqlens, whose values are then
        copied from the GPU.
    """
    if not args and kwargs.get("cache_seqlens") is None:
        return FlashMLASchedMeta(), None
    return _schedule(*args, **kwargs)


def _schedule(
    cache_seqlens,
    num_q_tokens_per_head_k=None,
    num_heads_k=1,
    num_heads_q=None,
    is_fp8_kvcache=False,
    topk=None,
    *,
    num_heads_per_head_k=None,  # the older name of num_q_tokens_per_head_k
):
    require(cache_seqlens, "cache_seqlens", (torch.int32,), (None,))
    queries = num_q_tokens_per_head_k if num_heads_per_head_k is None else num_heads_per_head_k
    integer("num_q_tokens_per_head_k", queries, least=1)
    integer("num_heads_k", num_heads_k, least=1)
    heads = queries * num_heads_k if num_heads_q is None else num_heads_q
    integer("num_heads_q", heads, least=1)
    device = cache_seqlens.device
    multiprocessors, major = _HOPPER
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        multiprocessors, major = properties.multi_processor_count, properties.major
    if topk is None:
        lens = cache_seqlens.cpu()
        parts = multiprocessors // num_heads_k // _ceil_div(queries, 64)
    else:
        lens = torch.full((cache_seqlens.shape[0],), topk, dtype=torch.int32, device="cpu")
        group, tokens = _ceil_div(heads, num_heads_k), max(queries * num_heads_k // heads, 1)
        blocks = 1 if major == 10 else 2  # on Hopper two thread blocks share 128 heads
        parts = multiprocessors // blocks // num_heads_k // (_ceil_div(group, 64 * blocks) * tokens)
    schedule, splits = decode_schedule(lens, max(parts, 1))
    return schedule.to(device), splits.to(device)


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta | torch.Tensor | None,
    num_splits: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention over listed rows of one or two paged caches; without `indices`, over all rows of a
    request.

    Args:
        q: [b,s_q,h,d] bf16, f16 or f32, 1 <= h <= 256.
        k_cache: with is_fp8_kvcache bytes [pages,page,1,656] (d 576) or [pages,page,1,584] (d 512), else
            [pages,page,1,d] bf16 or f32.
        block_table, cache_seqlens, causal: [b,blocks] i32, [b] i32 and bool; only without indices.
        softmax_scale: factor of the logits. Default: d^-0.5.
        indices: [b,s_q,topk] i32, page * page size + offset; rows below 0 or past the cache are skipped.
        attn_sink: optional [h] f32.
        extra_k_cache, extra_indices_in_kvcache, extra_topk_length: optional second cache.
        topk_length: optional [b] or [b,s_q] i32.

    Returns:
        out [b,s_q,h,head_dim_v] in the dtype of q, and lse [b,h,s_q] f32, a transposed view: natural
        logarithm without the sink. A query without rows gets out = 0 and lse = +inf.
    """
    require(q, "q", _QUERIES, (None, None, None, None))
    b, s_q, heads, width = q.shape
    _require_schedule(tile_scheduler_metadata, num_splits)
    _require_sink(attn_sink, q, heads)
    extra = _Source(None, None, None)
    if indices is None:
        for name, value in (("extra_k_cache", extra_k_cache), ("topk_length", topk_length)):
            _require_absent(value, name, "None without indices")
        source = _every_row(q, k_cache, block_table, cache_seqlens, causal, is_fp8_kvcache)
    else:
        if causal:
            raise invalid("causal", causal, "False with indices, which list the rows of each query")
        names = ("k_cache", "indices", "topk_length")
        source = _listed_rows(q, k_cache, indices, topk_length, is_fp8_kvcache, names)
    names = ("extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length")
    if extra_k_cache is None:
        for name, value in zip(names[1:], (extra_indices_in_kvcache, extra_topk_length), strict=True):
            _require_absent(value, name, "None without extra_k_cache")
    else:
        extra = _listed_rows(
            q, extra_k_cache, extra_indices_in_kvcache, extra_topk_length, is_fp8_kvcache, names
        )
    out = q.new_empty((b, s_q, heads, _value_width(head_dim_v, width, "head_dim_v")))
    lse = q.new_empty((b, s_q, heads), dtype=torch.float32)
    stages.attend(
        q.reshape(b * s_q, heads, width),
        *source,
        softmax_scale=width**-0.5 if softmax_scale is None else softmax_scale,
        extra=extra.cache,
        extra_rows=extra.rows,
        extra_lengths=extra.lengths,
        sink=attn_sink,
        precision=_PRECISION,
        empty_lse="+inf",
        out=out.view(b * s_q, heads, head_dim_v),
        lse=lse.view(b * s_q, heads),
    )
    return out, lse.transpose(1, 2)


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes the attention of each query token over its listed rows of one unpaged cache.

    Args:
        q: [s_q,h,d] bf16, f16 or f32.
        kv: [s_kv,1,d] bf16 or f32, or bytes [s_kv,1,656] (d 576).
        indices: [s_q,1,topk] i32; rows below 0 or past s_kv are skipped.
        attn_sink: optional [h] f32.
        topk_length: optional [s_q] i32.

    Returns:
        out [s_q,h,d_v] in the dtype of q; max_logits and lse [s_q,h] f32 in natural units, without the sink.
        A query without rows gets out = 0, max_logits = -inf and lse = +inf.
    """
    result = _prefill(q, kv, indices, sm_scale, d_v, attn_sink, topk_length, empty_lse="+inf")
    return result.out, result.max_logits, result.lse


def flash_mla_sparse_prefill(
    q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, sm_scale: float, d_v: int = 512
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes flash_mla_sparse_fwd of 2025, with max_logits and lse in base 2, and -inf for a query without
    rows.
    """
    result = _prefill(q, kv, indices, sm_scale, d_v, lse_base="log2")
    return result.out, result.max_logits.mul_(math.log2(math.e)), result.lse


def _prefill(q, kv, indices, sm_scale, d_v, attn_sink=None, topk_length=None, **lse):
    require(q, "q", _QUERIES, (None, None, None))
    tokens, heads, width = q.shape
    require(kv, "kv", (*BYTES, *PLAIN), (None, 1, None), like=q)
    require(indices, "indices", (torch.int32,), (tokens, 1, None), like=q)
    _require_sink(attn_sink, q, heads)
    if topk_length is not None:
        require(topk_length, "topk_length", (torch.int32,), (tokens,), like=q)
    pages_of_one = kv.unsqueeze(1)  # rows may have any stride
    return stages.attend(
        q,
        _open(pages_of_one, q, kv.dtype in BYTES, "kv"),
        indices.squeeze(1),
        topk_length,
        softmax_scale=sm_scale,
        sink=attn_sink,
        value_width=_value_width(d_v, width, "d_v"),
        precision=_PRECISION,
        lse=True,
        max_logits=True,
        **lse,
    )


class _Source(NamedTuple):
    """Cache and row lists. rows: [b*s_q,K] of the cache. lengths: [b*s_q], or None."""

    cache: Cache | None
    rows: torch.Tensor | None
    lengths: torch.Tensor | None


def _listed_rows(q, cache, indices, lengths, packed, names):
    """Returns the source with rows listed for each query token. names: names of the three tensors."""
    b, s_q, _, width = q.shape
    require(cache, names[0], (*BYTES, *PLAIN), (None, None, 1, None), like=q)
    require(indices, names[1], (torch.int32,), (b, s_q, None), like=q)
    if lengths is not None:
        per_token = isinstance(lengths, torch.Tensor) and lengths.ndim == 2
        require(lengths, names[2], (torch.int32,), (b, s_q) if per_token else (b,), like=q)
        lengths = (lengths if per_token else lengths[:, None].expand(b, s_q)).reshape(b * s_q)
    rows = indices.reshape(b * s_q, indices.shape[2])
    return _Source(_open(cache, q, packed, names[0]), rows, lengths)


def _every_row(q, cache, block_table, cache_seqlens, causal, packed):
    """Returns the source with all rows of each request; if `causal`, up to the query's position."""
    b, s_q, _, width = q.shape
    require(cache, "k_cache", (*BYTES, *PLAIN), (None, None, 1, None), like=q)
    require(block_table, "block_table", (torch.int32,), (b, None), like=q)
    require(cache_seqlens, "cache_seqlens", (torch.int32,), (b,), like=q)
    source = _open(cache, q, packed, "k_cache")

    def count(n):
        return torch.arange(n, dtype=torch.int32, device=q.device)

    hidden = s_q - 1 - count(s_q) if causal else count(1).expand(s_q)  # rows of later queries
    lengths = (cache_seqlens[:, None] - hidden).reshape(b * s_q)
    columns = block_table.shape[1] * cache.shape[1]
    positions = count(columns).expand(b * s_q, columns)  # rows past the lengths are never read
    requests = count(b)[:, None].expand(b, s_q).reshape(b * s_q)
    rows = stages.map(positions, requests, block_table, page_tokens=cache.shape[1])
    return _Source(source, rows, lengths)


def _open(cache, q, packed, name):
    """Returns a smla.Cache over [pages,page,1,bytes or values]. Errors name the argument."""
    if packed != (cache.dtype in BYTES):
        raise invalid("is_fp8_kvcache", packed, f"{not packed} for {name} of {cache.dtype}")
    if packed and cache.shape[3] not in _RECORD_BYTES:  # V4.1's 528-byte records differ from FlashInfer's
        wanted = "records of 656 (d 576) or 584 bytes (d 512)"
        raise unsupported(f"{name}.shape[-1]", cache.shape[3], wanted)
    return open_pages(cache, name, q.shape[-1])


def _ceil_div(a, b):
    return -(-a // b)


def _value_width(got, width, name):
    if not isinstance(got, int) or not 1 <= got <= width:
        raise invalid(name, repr(got), f"an integer from 1 to {width}, the width of q")
    return got


def _require_sink(sink, q, heads):
    if sink is not None:
        require(sink, "attn_sink", (torch.float32,), (heads,), like=q)


def _require_absent(value, name, wanted):
    if value is not None:
        raise invalid(name, type(value).__name__, wanted)


def _require_schedule(metadata, num_splits):
    """Rejects arguments that are not a schedule. Schedules are not read."""
    wanted = "a result of get_mla_metadata, or None"
    known = metadata is None or isinstance(metadata, torch.Tensor)
    if not known and not hasattr(metadata, "tile_scheduler_metadata"):  # accept FlashMLA's class
        raise invalid("tile_scheduler_metadata", type(metadata).__name__, wanted)
    if num_splits is not None and not isinstance(num_splits, torch.Tensor):
        raise invalid("num_splits", type(num_splits).__name__, wanted)
