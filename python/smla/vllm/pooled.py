"""Replacements of vLLM's fused kernels of pooled index keys (GLM-5.3-Flash) for GPUs below sm_89, where
Triton has no e4m3. Only PyTorch is required.

The signatures match vLLM 0.32 and 0.33 (vllm/models/glm5next/nvidia/ops/kpool_compress.py). A pool is
pool_size consecutive tokens. Its key is the mean of the tokens' keys, weighted in each channel by the softmax
of score + ape, and multiplied by H / sqrt(128).
"""

import torch

from .. import stages
from ..compat.vllm_ops import latent_cache
from ..compat.vllm_ops.caches import index_cache
from ..errors import unsupported
from .caches import write


def fwht128_quant_fp8(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns q [N,128] multiplied by H / sqrt(128), in e4m3, and its scales, [N,1] f32 powers of two."""
    ones = torch.ones(q.shape[0], 1, dtype=torch.float32, device=q.device)
    quantized = stages.quant_index_q(q.unsqueeze(1), ones, factor=1.0, hadamard=True)
    return quantized.q.squeeze(1), quantized.w


def kpool_compress_and_write_cache(
    kv_cache: torch.Tensor,
    slot_k: torch.Tensor,
    slot_score: torch.Tensor,
    ape: torch.Tensor,
    loc: torch.Tensor,
    pool_size: int,
    head_dim: int = 128,
    write_mask: torch.Tensor | None = None,
    round_scale: bool = True,
    return_compressed: bool = False,
    write_cache: bool = True,
) -> None:
    """Writes pool n to row loc[n] of the cache, [nb,bs,132] u8. slot_k, slot_score: [N,pool,128]. ape:
    [pool,128] f32. loc: [N] i64. Pools with a negative loc, or with a false write_mask, are not written.
    """
    if return_compressed or not write_cache or not round_scale:
        got = f"return_compressed={return_compressed}, write_cache={write_cache}, round_scale={round_scale}"
        raise unsupported("kpool_compress_and_write_cache", got, "False, True, True")
    pooled = ((slot_score.float() + ape).softmax(1) * slot_k.float()).sum(1)
    slots = loc if write_mask is None else torch.where(write_mask, loc, -1)
    write(stages.write_index, pooled, None, slots, kv_cache, index_cache, hadamard=True)


def kpool_decode_update_and_maybe_write_cache_batched(
    kv_cache: torch.Tensor,
    tail_kv_cache: torch.Tensor,
    tail_slot_mapping: torch.Tensor,
    key: torch.Tensor,
    slot_score: torch.Tensor,
    ape: torch.Tensor,
    slot_mapping: torch.Tensor,
    positions: torch.Tensor,
    pool_size: int,
    head_dim: int = 128,
    round_scale: bool = True,
) -> None:
    """Stores the keys and scores of a decode step, and writes the pools that its tokens complete.

    key, slot_score: [B,n,128] bf16: n tokens of each request in the order of their positions. tail_kv_cache:
    [nb,2,ring,128] bf16: keys and scores of the last tokens of each request, one page per request.
    tail_slot_mapping, slot_mapping, positions: [B,n]; padding is negative.
    """
    ring = tail_kv_cache.shape[2]
    steps = torch.arange(1 - pool_size, 1, device=key.device)
    for t in range(key.shape[1]):  # a pool may end at a token and begin with an earlier one of this step
        position, kept = positions[:, t], tail_slot_mapping[:, t]
        slots = torch.where(position >= 0, kept, -1)
        for part, values in enumerate((key, slot_score)):
            write(stages.write_kv, values[:, t], None, slots, tail_kv_cache[:, part], latent_cache, "auto")
        page = (kept.clamp(min=0) // ring).long()[:, None]
        at = (position[:, None] + steps).clamp(min=0).long() % ring
        ends = (position >= 0) & ((position + 1) % pool_size == 0)
        pool = tail_kv_cache[page, 0, at], tail_kv_cache[page, 1, at]
        loc = torch.where(ends, slot_mapping[:, t], -1)
        kpool_compress_and_write_cache(kv_cache, *pool, ape, loc, pool_size, round_scale=round_scale)
