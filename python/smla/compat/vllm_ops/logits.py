"""Indexer logits and top-k (vllm/v1/attention/ops/mqa_logits_triton.py, vllm/_custom_ops.py).

Dimensions: M query tokens, H index heads, D = 128 channels, N keys, B requests of next_n tokens each.
"""

import torch

from ... import stages
from ..._run import prepare_call
from ...cache import Cache
from ...errors import invalid
from .caches import index_cache

__all__ = ["fp8_mqa_logits_triton", "fp8_paged_mqa_logits_triton", "top_k_per_row_decode"]
__all__ += ["top_k_per_row_prefill", "warmup_fp8_mqa_logits_triton", "warmup_fp8_paged_mqa_logits_triton"]
_INDEX_DIM = 128


def fp8_mqa_logits_triton(
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    cu_seqlen_ks: torch.Tensor,
    cu_seqlen_ke: torch.Tensor,
) -> torch.Tensor:
    """Returns logits [M,N] f32: scale[n] * sum_h weights[m,h] * relu(q[m,h].k[n]) for ks[m] <= n < ke[m],
    else -inf.

    Products are summed in f32 (for e4m3 on Hopper with about 14 bits), then scaled. The original rounds
    scaled keys to bf16 first.

    Args:
        q: [M,H,D] e4m3.
        kv: keys [N,D] e4m3 and N scales, f32.
        weights: [M,H] f32.
        cu_seqlen_ks, cu_seqlen_ke: [M] i32.
    """
    keys, columns = _ragged_keys(*kv), kv[0].shape[0]
    return stages.score(
        q, weights, keys, cu_seqlen_ke, starts=cu_seqlen_ks, columns=columns, precision="rounded"
    )


def _ragged_keys(codes, scales):
    """Returns one page of all keys, with their codes, then their scales. Copies 132 bytes per key."""
    if codes.ndim != 2 or codes.shape[1] != _INDEX_DIM or codes.element_size() != 1:
        wanted = f"torch.float8_e4m3fn [keys, {_INDEX_DIM}]"
        raise invalid("kv[0]", f"{codes.dtype} {list(codes.shape)}", wanted)
    if scales.dtype is not torch.float32 or scales.numel() != codes.shape[0]:
        wanted = f"torch.float32, {codes.shape[0]} of them"
        raise invalid("kv[1]", f"{scales.dtype} {list(scales.shape)}", wanted)
    parts = [part.reshape(-1).view(torch.uint8) for part in (codes, scales)]
    keys = codes.shape[0]
    return Cache(torch.cat(parts), "index_fp8_132", max(keys, 1), pages=min(keys, 1))


def fp8_paged_mqa_logits_triton(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    max_model_len: int,
) -> torch.Tensor:
    """Returns fp8_mqa_logits_triton over a paged cache, [B * next_n, max_model_len] f32.

    Token j of request b sees keys up to its position, context_lens[b] - next_n + j. Other columns are -inf.

    Args:
        q: [B,next_n,H,D] e4m3.
        kv_cache: [nb,bs,1,132] u8.
        weights: [B * next_n,H] f32.
        context_lens: [B] i32, or [B,next_n]: number of keys that each token sees.
        block_tables: [>=B,MB] i32.
    """
    if q.ndim != 4:
        raise invalid("q.ndim", q.ndim, "4: [requests, tokens, heads, 128]")
    batch, next_n = q.shape[:2]
    request = torch.arange(batch, dtype=torch.int32, device=q.device).repeat_interleave(next_n)
    return stages.score(
        q.flatten(0, 1),
        weights,
        index_cache(kv_cache),
        _visible_keys(context_lens, batch, next_n),
        block_table=block_tables[:batch],
        request_of_token=request,
        columns=max_model_len,
        precision="rounded",
    )


def _visible_keys(lens, batch, next_n):
    """Returns how many keys each token sees, [B * next_n] i32."""
    if lens.dtype is not torch.int32 or lens.shape not in ((batch,), (batch, next_n)):
        raise invalid("context_lens", f"{lens.dtype} {list(lens.shape)}", f"torch.int32 [{batch}]")
    if lens.ndim == 1:
        lens = lens[:, None] + torch.arange(1 - next_n, 1, dtype=torch.int32, device=lens.device)
    return lens.flatten()


def warmup_fp8_mqa_logits_triton(num_heads: int, head_dim: int, device: torch.device) -> None:
    """Loads the kernels of fp8_mqa_logits_triton, so that a CUDA graph can capture it. Computes nothing."""
    q, weights, bounds = _warmup_queries((1, num_heads, head_dim), device)
    kv = torch.empty(1, head_dim, dtype=torch.float8_e4m3fn, device=device), weights.new_empty(1)
    prepare_call(fp8_mqa_logits_triton, q, kv, weights, bounds, bounds)


def warmup_fp8_paged_mqa_logits_triton(
    num_heads: int, head_dim: int, block_size: int, device: torch.device
) -> None:
    """Loads the kernels of fp8_paged_mqa_logits_triton, so that a CUDA graph can capture it. Computes
    nothing.
    """
    q, weights, lens = _warmup_queries((1, 1, num_heads, head_dim), device)
    cache = torch.empty(1, block_size, 1, head_dim + 4, dtype=torch.uint8, device=device)
    prepare_call(fp8_paged_mqa_logits_triton, q, cache, weights, lens, lens[:, None], block_size)


def _warmup_queries(shape, device):
    q = torch.empty(shape, dtype=torch.float8_e4m3fn, device=device)
    return q, torch.empty(1, shape[-2], device=device), torch.empty(1, dtype=torch.int32, device=device)


def top_k_per_row_prefill(
    logits: torch.Tensor,
    cu_seqlen_ks: torch.Tensor,
    cu_seqlen_ke: torch.Tensor,
    raw_topk_indices: torch.Tensor,
    num_rows: int,
    stride0: int,
    stride1: int,
    topk_tokens: int,
) -> None:
    """Selects the topk_tokens columns of logits[m, ks[m]:ke[m]] with the largest scores.

    Args:
        logits: [>=M,N] f32, M = num_rows, with strides stride0 and stride1.
        cu_seqlen_ks, cu_seqlen_ke: [>=M] i32.
        raw_topk_indices: output [>=M,>=topk_tokens] i32: columns minus ks[m], ascending, padded with -1. Ties
            select the lowest column.
    """
    _check_strides(logits, stride0, stride1)
    _select(logits, cu_seqlen_ks[:num_rows], cu_seqlen_ke[:num_rows], raw_topk_indices, num_rows, topk_tokens)


def top_k_per_row_decode(
    logits: torch.Tensor,
    next_n: int,
    seq_lens: torch.Tensor,
    raw_topk_indices: torch.Tensor,
    num_rows: int,
    stride0: int,
    stride1: int,
    topk_tokens: int,
) -> None:
    """Selects the topk_tokens columns of logits[m] with the largest scores among the columns that the token
    sees.

    Row m is token m % next_n of request m // next_n. This token sees seq_len - next_n + m % next_n + 1
    columns. Other arguments are the same as in top_k_per_row_prefill.

    Args:
        seq_lens: [B] i32, or [B,next_n]: number of columns that each token sees.
    """
    _check_strides(logits, stride0, stride1)
    if next_n < 1 or num_rows > seq_lens.shape[0] * next_n:
        raise invalid(
            "num_rows", num_rows, f"at most next_n ({next_n}) for each of {seq_lens.shape[0]} seq_lens"
        )
    ends = _visible_keys(seq_lens, seq_lens.shape[0], next_n)[:num_rows]
    _select(logits, None, ends, raw_topk_indices, num_rows, topk_tokens)


def _check_strides(logits, *strides):
    if logits.stride() != strides:
        raise invalid("stride0, stride1", strides, f"{logits.stride()}, as logits")


def _select(logits, starts, ends, indices, num_rows, topk):
    for name, tensor in (("logits", logits), ("raw_topk_indices", indices)):
        if tensor.ndim != 2 or tensor.shape[0] < num_rows:
            raise invalid(f"{name}.shape", list(tensor.shape), f"2 dimensions, at least {num_rows} rows")
    if topk > indices.shape[1]:
        raise invalid("topk_tokens", topk, f"at most {indices.shape[1]}, the width of raw_topk_indices")
    stages.select(
        logits[:num_rows],
        starts=starts,
        ends=ends,
        relative=starts is not None,
        indices=indices[:num_rows, :topk],
    )
