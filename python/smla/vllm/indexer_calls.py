"""Functions that vLLM's sparse indexer calls, with the signatures of vLLM 0.25 to 0.33, on smla's stages.

Only PyTorch is required. smla.compat.deep_gemm and smla.compat.vllm_ops implement them and list the shapes.
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
    """Returns the logits of prefill rows over gathered keys.

    With max_seqlen_k, which vLLM 0.33 passes, column j is key cu_seqlen_ks[t] + j; otherwise, it is key j.
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
    """Returns the logits of decode rows over paged keys. context_lens: [B], [B,1] or [B,next_n]."""
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
    """Converts [B,1] to [B] if requests have several rows; both have the length of the last row."""
    return lens[:, 0] if lens.ndim == 2 and lens.shape[1] == 1 < next_n else lens


def get_indexer_topk(backend: str) -> Callable[..., None]:
    """Returns the selection function for decode rows (0.30 and later). backend: vLLM's kernel, ignored."""
    return select_decode_rows


def select_decode_rows(
    logits: torch.Tensor,
    seq_lens: torch.Tensor,
    next_n: int,
    topk_indices: torch.Tensor,
    topk_tokens: int,
    max_seq_len: int,
) -> None:
    """Writes the topk_tokens columns with the largest logits of each row to topk_indices, in ascending order.

    Unused entries become -1, and ties are broken in favor of the lower column. seq_lens: as context_lens of
    fp8_fp4_paged_mqa_logits. topk_indices: [>=rows,>=topk_tokens] i32. max_seq_len: upper bound of seq_lens,
    in a capture for all replays. Only max_seq_len columns are read, because short rows have a faster kernel.
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
    """Implements vLLM's operators persistent_topk and cooperative_topk, which 0.25 to 0.29 call by name."""
    select_decode_rows(logits, lengths, logits.shape[0] // max(lengths.shape[0], 1), output, k, max_seq_len)


_NOWHERE = torch.iinfo(torch.int32).max  # sorts after every position


def merge_dcp_topk(group_of: Callable[[], Any]) -> Callable[..., None]:
    """Returns a replacement of vLLM's _merge_dcp_topk_global, which requires CuteDSL.

    group_of: vLLM's get_dcp_group.
    """

    def merge(
        logits: torch.Tensor,
        topk_indices: torch.Tensor,
        topk_tokens: int,
        dcp_rank: int,
        dcp_world_size: int,
        cp_interleave: int,
        row_starts: torch.Tensor | None = None,
    ) -> None:
        """Replaces the best positions of this rank's keys by the best positions of all ranks' keys.

        logits: [T,N] f32; row t begins at column row_starts[t]. topk_indices: [T,topk_tokens] i32, -1 for
        unused entries. The results are positions in the request, in ascending order and then -1. Ties are
        broken in favor of the lower position.
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
    """Writes the positions with the largest scores of each row to out. gathered: [T,N,2] f32: scores, and
    positions stored as i32 bits."""
    positions, order = gathered[..., 1].contiguous().view(torch.int32).sort(dim=1)
    scores = gathered[..., 0].gather(1, order)
    ends = (positions != _NOWHERE).sum(1, dtype=torch.int32)
    columns = torch.empty_like(out[:, :topk_tokens])
    rows, (row_stride, stride), starts = scores.shape[0], scores.stride(), torch.zeros_like(ends)
    vllm_ops.top_k_per_row_prefill(scores, starts, ends, columns, rows, row_stride, stride, topk_tokens)
    best = positions.gather(1, columns.clamp(min=0).long())
    out[:, :topk_tokens] = torch.where(columns >= 0, best, -1)


class Operations:
    """Replacement of vllm._custom_ops in the indexer: index cache and top-k run on smla, the rest in vLLM."""

    indexer_k_quant_and_cache = staticmethod(vllm_ops.indexer_k_quant_and_cache)
    cp_gather_indexer_k_quant_cache = staticmethod(vllm_ops.cp_gather_indexer_k_quant_cache)
    top_k_per_row_prefill = staticmethod(vllm_ops.top_k_per_row_prefill)
    top_k_per_row_decode = staticmethod(vllm_ops.top_k_per_row_decode)

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


def pack_seq(theirs: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns vLLM's pack_seq_triton with e4m3 as bytes, because Triton has no e4m3 below sm_89.

    Padding is 0; no positions are selected for rows of padding.
    """

    def pack(
        x: torch.Tensor, lengths: torch.Tensor, pad_value: float = -float("inf"), **tile: int
    ) -> torch.Tensor:
        if x.dtype is not torch.float8_e4m3fn:
            return theirs(x, lengths, pad_value, **tile)
        return theirs(x.view(torch.uint8), lengths, 0, **tile).view(x.dtype)

    return pack


class PackKernel:
    """The kernel of vLLM's pack_seq_triton (0.30 and later), warmed up for bytes instead of e4m3."""

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
