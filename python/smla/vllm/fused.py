"""Replacements of vLLM's fused kernels of queries and keys for GPUs below sm_89, where Triton has no e4m3.

Only PyTorch is required. The signatures match vLLM 0.25 to 0.33 (vllm/models/deepseek_v32/common/kernels.py,
vllm/model_executor/layers/sparse_attn_indexer.py). PyTorch computes rotations from vLLM's table of cosines
and sines, [positions, cos | sin], which includes YaRN. Norms, quantization and cache writes are stages.
"""

import torch

from .. import stages
from .. import torch as operators
from ..compat.vllm_ops import latent_cache
from ..compat.vllm_ops.caches import index_cache
from ..errors import unsupported
from .caches import write


def rotated(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Returns the first W channels of x [T,...,D], rotated and in f32. table: [positions,W].

    interleaved: whether pairs are (2i, 2i + 1) or (i, i + half).
    """
    width = table.shape[-1]
    angle = table[positions].float().view(-1, *[1] * (x.ndim - 2), width)
    cos, sin = angle.chunk(2, -1)
    part = x[..., :width].float()
    first, second = (part[..., 0::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    pair = first * cos - second * sin, second * cos + first * sin
    return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)


def _turned(x, positions, table, interleaved):
    """Returns x with rotated first channels, in the dtype of x."""
    turned = rotated(x, positions, table, interleaved).to(x.dtype)
    return torch.cat([turned, x[..., turned.shape[-1] :]], -1)


def _norm(x, weight, eps, dtype, **layer):
    """Returns the normalized rows of x [T,D]. layer: kind and bias of stages.norm; default: RMS."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    stages.norm(x.unsqueeze(1), weight, eps=eps, out=out.unsqueeze(1), **layer)
    return out


def fused_norm_rope(
    positions: torch.Tensor,
    q_c: torch.Tensor,
    q_rms_norm_w: torch.Tensor,
    q_rms_eps: float,
    kv_c: torch.Tensor,
    kv_rms_norm_w: torch.Tensor,
    kv_rms_eps: float,
    k_pe: torch.Tensor,
    k_rope_cos_sin_cache: torch.Tensor,
    index_k: torch.Tensor | None,
    index_k_layer_norm_w: torch.Tensor | None,
    index_k_layer_norm_bias: torch.Tensor | None,
    index_k_layer_norm_eps: float,
    index_k_rope_cos_sin_cache: torch.Tensor | None,
    topk_indices_buffer: torch.Tensor,
    slot_mapping: torch.Tensor | None = None,
    indexer_slot_mapping: torch.Tensor | None = None,
    indexer_k_cache: torch.Tensor | None = None,
    indexer_cache_shuffled: bool = False,
    mla_kv_cache: torch.Tensor | None = None,
    mla_kv_cache_dtype: str = "auto",
    mla_k_scale: torch.Tensor | None = None,
    has_indexer: bool = True,
    index_rope_interleave: bool = False,
    q_c_out: torch.Tensor | None = None,
    kv_c_out: torch.Tensor | None = None,
    k_pe_out: torch.Tensor | None = None,
    index_k_out: torch.Tensor | None = None,
    skip_scale: bool = False,
) -> torch.Tensor:
    """Normalizes queries and keys, writes both caches, clears the selection, and returns the normalized q_c.

    q_c: [T,Q]. kv_c: [T,512]. k_pe: [T,64]. index_k: [T,128], only in layers with an indexer. slot_mapping,
    indexer_slot_mapping: [>=T]; slots below 0 are not written; the second defaults to the first. skip_scale:
    whether the scale is 1. kv_c_out, k_pe_out, index_k_out: optional outputs: the cached values before
    quantization.
    """
    if indexer_cache_shuffled:
        raise unsupported("indexer_cache_shuffled", True, "False, because keys are written in token order")
    latent = _norm(kv_c, kv_rms_norm_w, kv_rms_eps, torch.float32)
    tail = rotated(k_pe, positions, k_rope_cos_sin_cache, interleaved=True)
    _copy(latent, kv_c_out)
    _copy(tail, k_pe_out)
    if mla_kv_cache is not None and mla_kv_cache.numel() and slot_mapping is not None:
        rope, kind = tail if tail.shape[-1] else None, (latent_cache, mla_kv_cache_dtype, mla_k_scale)
        write(stages.write_kv, latent, rope, slot_mapping[: len(latent)], mla_kv_cache, *kind)
    if has_indexer:
        layer = {"kind": "layer", "bias": index_k_layer_norm_bias}
        keys = _norm(index_k, index_k_layer_norm_w, index_k_layer_norm_eps, torch.float32, **layer)
        keys = _turned(keys, positions, index_k_rope_cos_sin_cache, index_rope_interleave)
        _copy(keys, index_k_out)
        slots = slot_mapping if indexer_slot_mapping is None else indexer_slot_mapping
        if indexer_k_cache is not None and indexer_k_cache.numel() and slots is not None:
            write(stages.write_index, keys, None, slots[: len(keys)], indexer_k_cache, index_cache)
        topk_indices_buffer[: len(keys)] = -1
    normed = _norm(q_c, q_rms_norm_w, q_rms_eps, q_c.dtype)
    return normed if q_c_out is None else q_c_out.copy_(normed)


def _copy(values, out):
    if out is not None:
        out.copy_(values)


def fused_q(
    positions: torch.Tensor,
    q_pe: torch.Tensor,
    q_pe_cos_sin_cache: torch.Tensor,
    index_q: torch.Tensor | None,
    index_q_cos_sin_cache: torch.Tensor | None,
    ql_nope: torch.Tensor,
    q_scale: torch.Tensor,
    index_weights: torch.Tensor | None,
    index_weights_softmax_scale: float,
    index_weights_head_scale: float,
    has_indexer: bool = True,
    index_rope_interleave: bool = False,
    quantize_mqa: bool = True,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
    """Returns the rotated and quantized index queries, their weights, and the rotated part of the queries.

    q_pe: [T,H,64]. index_q: [T,Hi,128]. index_weights: [T,Hi]. The results are [T,Hi,128] e4m3, [T,Hi] f32
    and [T,H,64]; the first two are None in a layer without an indexer. The lower bound of amax is 1e-4, as in
    vLLM's kernel of this name; fused_indexer_q_rope_quant uses 1e-10.
    """
    if quantize_mqa:
        raise unsupported("quantize_mqa", True, "False, because smla's backend does not quantize queries")
    q_pe_out = rotated(q_pe, positions, q_pe_cos_sin_cache, interleaved=True).to(q_pe.dtype)
    if not has_indexer or index_q is None or index_weights is None or index_q_cos_sin_cache is None:
        return None, None, q_pe_out
    queries = _turned(index_q.float(), positions, index_q_cos_sin_cache, index_rope_interleave)
    factor = index_weights_softmax_scale * index_weights_head_scale
    quantized = stages.quant_index_q(queries, index_weights, factor=factor)
    return quantized.q, quantized.w, q_pe_out


def fused_indexer_q_rope_quant(
    positions: torch.Tensor,
    q: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    weights: torch.Tensor,
    softmax_scale: float,
    head_scale: float,
    is_neox: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the rotated and quantized index queries, [T,Hi,128] e4m3, and their weights, [T,Hi] f32.

    q: [T,Hi,128]. weights: [T,Hi]. is_neox: whether pairs are (i, i + half). Rotated channels are rounded to
    the dtype of q before quantization. The function calls an operator, so that torch.compile can trace it.
    """
    queries = _turned(q, positions, cos_sin_cache, interleaved=not is_neox)
    quantized = operators.quant_index_q(queries, weights, factor=softmax_scale * head_scale, amax_floor=1e-10)
    return quantized.q, quantized.w
