"""One layer's attention on vLLM's base classes for sparse MLA (0.30 and later). Needs vLLM.

vLLM's layer absorbs the queries, writes the keys and up-projects the attended latents. Its base class turns
selected positions into rows of the cache, also with decode context parallelism and HiSparse, and runs short
prompts as dense attention. smla attends to the rows.
"""

import inspect
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from vllm.model_executor.layers.attention.sparse_mla_attention import (
    SparseMLACommonImpl,
    SparseMLACommonMetadata,
    SparseMLACommonMetadataBuilder,
)
from vllm.v1.attention.backend import AttentionCGSupport

from .. import stages
from .._handles import Bounded
from ..call import Call
from ..compat.vllm_ops import latent_cache
from ..compat.vllm_ops.device_rows import local_positions
from . import indexer as _indexer
from .caches import flat_pages, joined, layouts, moving, run, write
from .checks import refuse

__all__ = ["FINDS_ROWS", "HEAD_SIZES", "SmlaSparseImpl", "SmlaSparseMetadataBuilder"]
HEAD_SIZES = [576, 512]  # 512: GLM-5.3-Flash, whose attention has no rope
# From 0.33 on vLLM's class finds the rows; 0.30 to 0.32 leave that to each backend, with HiSparse too.
FINDS_ROWS = hasattr(SparseMLACommonImpl, "_forward_mqa_kernel")
_RECORD = 656  # bytes of fp8_ds_mla, which holds 64 rope channels, zeros in a model without rope
_attends = Bounded()  # prepared calls, for all layers that are alike


class SmlaSparseMetadataBuilder(SparseMLACommonMetadataBuilder[SparseMLACommonMetadata]):
    """vLLM's metadata. Requests of up to 128 or 256 tokens attend to their lists, as in vLLM's FA3 backend."""

    metadata_cls = SparseMLACommonMetadata
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        heads = vllm_config.model_config.get_num_attention_heads(vllm_config.parallel_config)
        self._init_reorder_batch_threshold(128 if heads <= 32 else 256, supports_spec_as_decode=True)


class SmlaSparseImpl(SparseMLACommonImpl[SparseMLACommonMetadata]):
    """Attention over the positions that the model's indexer selected."""

    supports_dcp = can_return_lse_for_decode = True
    supports_quant_query_input = False
    # The rows of a layer are found beside those of others only where several layers share a selection.
    group_conversion_decode_only: ClassVar[bool] = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla_args: Any,
    ) -> None:
        known = inspect.signature(SparseMLACommonImpl.__init__).parameters
        selection = [mla_args.get(name) for name in ("indexer", "topk_indices_buffer")]
        refuse(
            attn_type,
            next((each for each in selection if each is not None), None),
            alibi_slopes=alibi_slopes,
            sliding_window=sliding_window,
            logits_soft_cap=logits_soft_cap,
            **{name: value for name, value in mla_args.items() if name not in known},
        )
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            alibi_slopes,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
            **{name: value for name, value in mla_args.items() if name in known},
        )
        _indexer.install_model()

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        skip_scale: bool = False,
    ) -> None:
        """Writes the step's keys: on a GPU by vLLM's operator, on a CPU by smla.write_kv."""
        if not kv_cache.is_cpu or kv_cache.numel() == 0 or slot_mapping.numel() == 0:
            given = kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype, k_scale
            super().do_kv_cache_update(*given, skip_scale)
            return
        tail: torch.Tensor | None = k_pe.flatten(1)
        if not k_pe.shape[-1]:
            tail = k_pe.new_zeros(len(k_pe), 64) if kv_cache.shape[-1] == _RECORD else None
        kind = latent_cache, kv_cache_dtype, k_scale
        write(stages.write_kv, kv_c_normed, tail, slot_mapping.flatten(), kv_cache, *kind)

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: SparseMLACommonMetadata,
        layer: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """vLLM's class finds the rows. On a CPU, where it has no kernels, and before 0.33 smla.map does."""
        cache, metadata = kv_c_and_k_pe_cache, attn_metadata
        if FINDS_ROWS and not cache.is_cpu:
            return super().forward_mqa(q, cache, metadata, layer)
        tokens = (q[0] if isinstance(q, tuple) else q).shape[0]
        topk: Any = self.topk_indices_buffer
        interleave = metadata.cp_kv_cache_interleave_size
        rows = stages.map(
            local_positions(topk[:tokens], self.dcp_world_size, self.dcp_rank, interleave),
            metadata.req_id_per_token[:tokens],
            metadata.block_table,
            page_tokens=metadata.block_size,
            page_rows=cache.stride(0) // cache.shape[-1],
        )
        step = {"layer": layer, "block_size": metadata.block_size, "is_decode": False}
        return self._forward_mqa_kernel(q, cache, rows, None, **step)

    def _forward_mqa_kernel(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_cache: torch.Tensor,
        topk_indices: torch.Tensor,
        valid_counts: torch.Tensor | None,
        *,
        layer: Any,
        block_size: int,
        is_decode: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """q: absorbed, [T,H,latent + rope], or a pair of both parts. topk_indices: [T,K] i32, rows of the
        cache, counted through all pages; holes are -1. valid_counts: [T] i32, rows before the holes, or None.
        Returns [T,H,latent] and, with decode context parallelism, the natural lse, [T,H] f32.
        """
        q, rows, scale = joined(q), topk_indices, layer._k_scale
        if kv_cache.shape[-1] == _RECORD and q.shape[-1] == self.kv_lora_rank:
            q = F.pad(q, (0, 64))
        tokens, heads, _ = q.shape
        out, lse = q.new_empty(tokens, heads, self.kv_lora_rank), None
        if self.need_to_return_lse_for_decode:
            lse = q.new_empty(tokens, heads, dtype=torch.float32)
        if tokens == 0:
            return out, lse
        cache = flat_pages(kv_cache)
        layout = layouts(q, rows, valid_counts, out, lse, cache)
        key = (q.get_device(), self.kv_cache_dtype, self.scale, layout)
        attend = _attends.get(key)
        if attend is None:
            described = latent_cache(cache, self.kv_cache_dtype, scale)
            tensors = {"q": q, "rows": rows, "lengths": valid_counts, "out": out, "lse": lse}
            tensors["cache"] = described
            # As vLLM's own backends compute: keys of fp8_ds_mla may be rounded.
            precision = "rounded" if self.kv_cache_dtype == "fp8_ds_mla" else "default"
            numbers = {"softmax_scale": self.scale, "precision": precision}
            attend = Call(stages.attend, moving(tensors, "cache"), **tensors, **numbers)
            _attends.keep(key, attend)
        run(attend, scale, q, rows, valid_counts, out, lse, cache)
        return out, lse
