"""What vLLM's sparse indexer calls, under vLLM's signatures of 0.25 to 0.33, on smla's stages.

Needs PyTorch alone. Shapes: smla.compat.deep_gemm and smla.compat.vllm_ops, which do the work.
"""

from collections.abc import Callable
from typing import Any

import torch

from ..compat import deep_gemm, vllm_ops

__all__ = ["Operations", "PackKernel", "fp8_fp4_mqa_logits", "fp8_fp4_paged_mqa_logits", "get_indexer_topk"]
__all__ += ["merge_dcp_topk", "pack_seq", "persistent_topk", "select_decode_rows", "select_of_ranks"]
Pair = tuple[torch.Tensor, torch.Tensor | None]


def fp8_fp4_mqa_logits(
    q: Pair,
    kv: Pair,
    weights: torch.Tensor,
    cu_seqlen_ks: torch.Tensor,
    cu_seqlen_ke: torch.Tensor,
    max_seqlen_k: int = 0,
    *,
    clean_logits: bool = False,
) -> torch.Tensor:
    """Logits of prefill rows over gathered keys.

    With max_seqlen_k, which 0.33 passes, column j is key cu_seqlen_ks[t] + j; without it, key j.
    """
    return deep_gemm.fp8_fp4_mqa_logits(
        q, kv, weights, cu_seqlen_ks, cu_seqlen_ke, clean_logits, max_seqlen_k
    )


def fp8_fp4_paged_mqa_logits(
    q: Pair,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    schedule_metadata: torch.Tensor | None,
    max_model_len: int,
    indices: torch.Tensor | None = None,
    *,
    clean_logits: bool = False,
) -> torch.Tensor:
    """Logits of decode rows over the keys in pages. context_lens: [B], [B,1] or [B,next_n]."""
    return deep_gemm.fp8_fp4_paged_mqa_logits(
        q,
        kv_cache,
        weights,
        _lens_of(context_lens, q[0].shape[1]),
        block_tables,
        schedule_metadata,
        max_model_len,
        clean_logits,
        indices=indices,
    )


def _lens_of(lens, next_n):
    """[B,1] as [B] where a request has several rows: both hold the length of its last row."""
    return lens[:, 0] if lens.ndim == 2 and lens.shape[1] == 1 < next_n else lens


def get_indexer_topk(backend: str) -> Callable[..., None]:
    """The function that selects for decode rows (0.30 and later). backend: a kernel of vLLM, ignored."""
    return select_decode_rows


def select_decode_rows(
    logits: torch.Tensor,
    seq_lens: torch.Tensor,
    next_n: int,
    topk_indices: torch.Tensor,
    topk_tokens: int,
    max_seq_len: int,
) -> None:
    """The best topk_tokens columns of each row, ascending, then -1; ties go to the lowest.

    seq_lens: as context_lens of fp8_fp4_paged_mqa_logits. topk_indices: [>=rows,>=topk_tokens] i32.
    max_seq_len: a bound of seq_lens, in a capture that of all replays. Logits are as wide as a model allows,
    and short rows have a quicker kernel.
    """
    logits = logits[:, : max(max_seq_len, 0)]
    vllm_ops.top_k_per_row_decode(
        logits,
        next_n,
        _lens_of(seq_lens, next_n),
        topk_indices,
        logits.shape[0],
        logits.stride(0),
        logits.stride(1),
        topk_tokens,
    )


def persistent_topk(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    output: torch.Tensor,
    workspace: torch.Tensor,
    k: int,
    max_seq_len: int,
) -> None:
    """vLLM's operators persistent_topk and cooperative_topk, which 0.25 to 0.29 call by name."""
    select_decode_rows(logits, lengths, logits.shape[0] // max(lengths.shape[0], 1), output, k, max_seq_len)


_NOWHERE = torch.iinfo(torch.int32).max  # behind every position


def merge_dcp_topk(group_of: Callable[[], Any]) -> Callable[..., None]:
    """vLLM's _merge_dcp_topk_global, which needs CuteDSL there. group_of: get_dcp_group."""

    def merge(
        logits: torch.Tensor,
        topk_indices: torch.Tensor,
        topk_tokens: int,
        dcp_rank: int,
        dcp_world_size: int,
        cp_interleave: int,
        row_starts: torch.Tensor | None = None,
    ) -> None:
        """Turns each rank's best positions in its own keys into the best of all ranks' keys, in place.

        logits: [T,N] f32, row t's from column row_starts[t] on. topk_indices: [T,topk_tokens] i32, -1: none.
        They become positions in the request, ascending, then -1; ties go to the lowest.
        """
        if dcp_world_size <= 1:
            return
        local = topk_indices.clamp(min=0)
        columns = local if row_starts is None else local + row_starts[: local.shape[0], None]
        scores = logits.gather(1, columns.clamp(max=max(logits.shape[1] - 1, 0)).long())
        group = local // cp_interleave * dcp_world_size + dcp_rank
        positions = group * cp_interleave + local % cp_interleave
        positions = torch.where(topk_indices >= 0, positions, _NOWHERE)
        both = torch.stack((scores, positions.view(torch.float32)), -1)
        select_of_ranks(group_of().all_gather(both, dim=1), topk_indices, topk_tokens)

    return merge


def select_of_ranks(gathered: torch.Tensor, out: torch.Tensor, topk_tokens: int) -> None:
    """out[t] = positions of the best of gathered[t], [T,N,2]: scores f32, and positions i32 in f32's bits."""
    positions, order = gathered[..., 1].contiguous().view(torch.int32).sort(dim=1)
    scores = gathered[..., 0].gather(1, order)
    ends = (positions != _NOWHERE).sum(1, dtype=torch.int32)
    columns = torch.empty_like(out[:, :topk_tokens])
    rows, (row_stride, stride), starts = scores.shape[0], scores.stride(), torch.zeros_like(ends)
    vllm_ops.top_k_per_row_prefill(scores, starts, ends, columns, rows, row_stride, stride, topk_tokens)
    best = positions.gather(1, columns.clamp(min=0).long())
    out[:, :topk_tokens] = torch.where(columns >= 0, best, -1)


class Operations:
    """vllm._custom_ops as the indexer sees it: index cache and top-k on smla, the rest vLLM's."""

    indexer_k_quant_and_cache = staticmethod(vllm_ops.indexer_k_quant_and_cache)
    cp_gather_indexer_k_quant_cache = staticmethod(vllm_ops.cp_gather_indexer_k_quant_cache)
    top_k_per_row_prefill = staticmethod(vllm_ops.top_k_per_row_prefill)
    top_k_per_row_decode = staticmethod(vllm_ops.top_k_per_row_decode)

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


def pack_seq(theirs: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """vLLM's pack_seq_triton, with e4m3 as bytes: below sm_89 Triton has no such type.

    Padding is 0. Rows of padding are never selected from, whatever they hold.
    """

    def pack(
        x: torch.Tensor, lengths: torch.Tensor, pad_value: float = -float("inf"), **tile: int
    ) -> torch.Tensor:
        if x.dtype is not torch.float8_e4m3fn:
            return theirs(x, lengths, pad_value, **tile)
        return theirs(x.view(torch.uint8), lengths, 0, **tile).view(x.dtype)

    return pack


class PackKernel:
    """vLLM's kernel behind pack_seq_triton (0.30 and later), warmed up for bytes in place of e4m3."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._theirs(*arguments, **named)

    def register_warmup(self, *, dtype: torch.dtype, pad_value: float) -> None:
        if dtype is torch.float8_e4m3fn:
            dtype, pad_value = torch.uint8, 0
        self._theirs.register_warmup(dtype=dtype, pad_value=pad_value)
