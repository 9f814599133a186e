"""Sparse attention over flat bf16 rows (vllm/v1/attention/ops/triton_mla_sparse_kernel.py,
xpu_mla_sparse.py).

Dimensions: T query tokens, H heads, K listed rows, S rows of keys.
"""

import torch

from ... import stages
from ...cache import Cache
from ...errors import invalid
from .caches import PLAIN

__all__ = ["KV_SPLITS_CANDIDATES", "triton_bf16_mla_sparse_interface", "triton_mla_sparse_attention"]
KV_SPLITS_CANDIDATES = (1, 2, 4, 8, 16)
_VALUE_WIDTH = 512


def triton_mla_sparse_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    num_kv_splits: int | None = None,
    sm_count: int | None = None,
) -> torch.Tensor:
    """Returns the attention of q[t] over rows indices[t] of kv, [T,H,512] bf16; 0 for a token without rows.

    Args:
        q: [T,H,576] bf16.
        kv: [S,1,576] bf16, with any row stride.
        indices: [T,1,K] i32; rows below 0 or past S are skipped.
        num_kv_splits, sm_count: launch hints of the original; ignored.
    """
    if num_kv_splits is not None and (num_kv_splits < 0 or num_kv_splits != int(num_kv_splits)):
        raise invalid("num_kv_splits", num_kv_splits, "None or a number >= 0")
    return stages.attend(
        q,
        flat_rows(kv),
        _rows("indices", indices),
        softmax_scale=sm_scale,
        value_width=_VALUE_WIDTH,
        out_dtype="bf16",
    ).out


def triton_bf16_mla_sparse_interface(
    q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, sm_scale: float, d_v: int = 512
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes triton_mla_sparse_attention with d_v values per head, and returns its softmax statistics.

    Returns:
        out [T,H,d_v] bf16, max_logits [T,H] and lse [T,H], f32 in natural logarithms, -inf for a token
        without rows.
    """
    done = stages.attend(
        q,
        flat_rows(kv),
        _rows("indices", indices),
        softmax_scale=sm_scale,
        value_width=d_v,
        out_dtype="bf16",
        lse=True,
        max_logits=True,
    )
    return done.out, done.max_logits, done.lse


def flat_rows(kv: torch.Tensor) -> Cache:
    """Returns [S,1,D] bf16 or f32 rows, with any stride, as a cache of pages of one row."""
    if kv.ndim != 3 or kv.shape[1] != 1 or kv.stride(2) != 1 or kv.dtype not in PLAIN:
        raise invalid(
            "kv",
            f"{kv.dtype} {list(kv.shape)}, strides {kv.stride()}",
            "torch.bfloat16 [rows, 1, width], dense rows",
        )
    return Cache(kv, PLAIN[kv.dtype], 1)


def _rows(name, indices):
    if indices.ndim != 3 or indices.shape[1] != 1:
        raise invalid(f"{name}.shape", list(indices.shape), "[tokens, 1, rows]")
    return indices[:, 0]
