"""Sparse decode of the V3.2 family, with top-k rows of one pool for each query token."""

import torch

from ...errors import invalid, unsupported
from .._check import require
from ._attend import Segment, attend
from ._batch import Batch
from ._check import flat_view, lengths_of, output_of, require_int, rows_of, sinks_of, tokens_of

_BACKENDS = ("auto", "trtllm-gen", "sparse")
_SCALE_FORMATS = ("auto", "pow2_fp32", "arbitrary_fp32")


def trtllm_batch_decode_with_kv_cache_mla(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    workspace_buffer: torch.Tensor | None,
    qk_nope_head_dim: int,
    kv_lora_rank: int,
    qk_rope_head_dim: int,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor | None,
    max_seq_len: int | None,
    sparse_mla_top_k: int = 0,
    out: torch.Tensor | None = None,
    bmm1_scale: float | torch.Tensor = 1.0,
    bmm2_scale: float | torch.Tensor = 1.0,
    sinks: torch.Tensor | list[torch.Tensor] | None = None,
    skip_softmax_threshold_scale_factor: float | None = None,
    enable_pdl: bool | None = None,
    backend: str = "auto",
    is_var_seq: bool = True,
    uses_shared_paged_kv_idx: bool = True,
    lse: torch.Tensor | None = None,
    return_lse: bool = False,
    cute_dsl_impl: str = "auto",
    kv_scale_format: str = "auto",
    cum_seq_lens_q: torch.Tensor | None = None,
    max_q_len: int | None = None,
    multi_ctas_kv_counter_buffer: torch.Tensor | None = None,
    sparse_mla_top_k_lens: torch.Tensor | None = None,
    enable_dcp: bool = False,
    cp_world: int = 1,
    cp_rank: int = 0,
    causal_seqlens_kv_global: torch.Tensor | None = None,
    use_fp16_softmax: bool | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Computes out = bmm2_scale * softmax(bmm1_scale * query.K) V over sparse_mla_top_k listed rows per
    token.

    Args:
        query: [B,Q,H,D] or [T,H,D], bf16, e4m3, f16 or f32; D = kv_lora_rank + qk_rope_head_dim. V is the
            first kv_lora_rank values of K.
        kv_cache: [pages,page,X], [pages,1,page,X] or [rows,D], where X is D values of bf16, f32 or e4m3 (D
            576 or 512), or records of 656 bytes (D 576) or 528 bytes (D 512).
        block_tables: [B,Q,K] or [T,K] i32, page * page size + offset; rows below 0 or past the pool are
            skipped.
        sparse_mla_top_k_lens: optional [T] i32: lengths of the lists. Default: seq_lens, as [T], [B,Q], or
            [B] for all tokens of a request. Entries past a length are not read.
        sinks: optional [H] f32, or a list of one such tensor.
        bmm1_scale, bmm2_scale: numbers, or f32 tensors of one element.
        lse: optional [T,H] or [B,Q,H] f32.

    Other arguments are not needed.

    Returns:
        out [B,Q,H,kv_lora_rank] or [T,H,kv_lora_rank]: bf16 for bf16 and e4m3 queries, else in their dtype.
        A token without rows gets 0. With return_lse, the lse is the second result: base 2, with the sink, and
        -1e30 for a token without rows and sink.
    """
    _require_supported(
        sparse_mla_top_k, skip_softmax_threshold_scale_factor, uses_shared_paged_kv_idx, enable_dcp
    )
    if backend not in _BACKENDS:
        raise invalid("backend", repr(backend), "one of " + ", ".join(_BACKENDS))
    if str(kv_scale_format).lower().replace("-", "_") not in _SCALE_FORMATS:
        raise invalid("kv_scale_format", repr(kv_scale_format), "one of " + ", ".join(_SCALE_FORMATS))
    require_int(kv_lora_rank, "kv_lora_rank", 1)
    require_int(qk_rope_head_dim, "qk_rope_head_dim", 0)
    flat = tokens_of(query, "query", kv_lora_rank + qk_rope_head_dim)
    rows = rows_of(block_tables, "block_tables", flat)
    if rows.shape[1] != sparse_mla_top_k:
        raise invalid("block_tables.shape[-1]", rows.shape[1], f"sparse_mla_top_k, {sparse_mla_top_k}")
    lengths = lengths_of(sparse_mla_top_k_lens, "sparse_mla_top_k_lens", flat)
    if lengths is None and seq_lens is not None:
        lengths = _bounds(seq_lens, Batch.of(query, cum_seq_lens_q), flat)
    out, flat_out = output_of(out, "out", flat, (*query.shape[:-1], kv_lora_rank))
    states = _lse_of(lse, query, flat) if return_lse else None
    attend(
        flat,
        [Segment(kv_cache, "kv_cache", rows, lengths)],
        flat_out,
        scales=(bmm1_scale, bmm2_scale),
        sinks=sinks_of(sinks, "sinks", flat),
        layout="HND",
        lse=None if states is None else states[1],
    )
    return out if states is None else (out, states[0])


def _require_supported(top_k, skips, shares, dcp):
    lists = isinstance(top_k, int) and top_k > 0
    for name, got, supported, wanted in (
        ("sparse_mla_top_k", top_k, lists, "1 or more, because smla only attends to listed rows"),
        (
            "skip_softmax_threshold_scale_factor",
            skips,
            skips is None,
            "None, because every listed row counts",
        ),
        ("uses_shared_paged_kv_idx", shares, shares, "True, because V is part of the row of K"),
        ("enable_dcp", dcp, not dcp, "False; merge the results of ranks with smla.merge"),
    ):
        if not supported:
            raise unsupported(name, got, wanted)


def _bounds(seq_lens, batch, query):
    """Returns seq_lens as lengths [T] of the row lists."""
    if isinstance(seq_lens, torch.Tensor) and seq_lens.shape == (batch.requests,) != (batch.tokens,):
        require(seq_lens, "seq_lens", (torch.int32,), like=query)
        return batch.spread(seq_lens)
    return lengths_of(seq_lens, "seq_lens", query)


def _lse_of(lse, query, flat) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (lse, lse as [T,H]) for lse [T,H] or [B,Q,H] f32; None creates a new tensor."""
    if lse is None:
        lse = torch.empty(flat.shape[:2], dtype=torch.float32, device=flat.device)
    nested = isinstance(lse, torch.Tensor) and lse.ndim == 3
    require(lse, "lse", (torch.float32,), query.shape[:-1] if nested else flat.shape[:2], like=query)
    return lse, flat_view(lse, "lse", flat.shape[:2])
