"""Attention of a layer on vLLM's base classes for sparse MLA (0.30 and later). Requires vLLM.

vLLM's layer absorbs the queries, writes the keys and up-projects the attended latents. From 0.33 on, the base
class also maps selected positions to cache rows, including decode context parallelism and HiSparse, and the
backend only computes attention to these rows. vLLM runs short prompts with its dense attention.
"""

import inspect
from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.attention.sparse_mla_attention import (
    SparseMLACommonImpl,
    SparseMLACommonMetadata,
    SparseMLACommonMetadataBuilder,
)
from vllm.v1.attention.backend import AttentionCGSupport

from . import indexer as _indexer
from .attend import Attends, refuse

__all__ = ["FINDS_ROWS", "HEAD_SIZES", "SmlaSparseImpl", "SmlaSparseMetadataBuilder"]
FINDS_ROWS = hasattr(SparseMLACommonImpl, "_forward_mqa_kernel")
HEAD_SIZES = [576, 512]  # 512: GLM-5.3-Flash, whose attention has no rope


def _finds_rows(cache: torch.Tensor) -> bool:
    """Returns whether vLLM's class finds the rows of this cache. vLLM has no CPU kernels for this."""
    return FINDS_ROWS and not cache.is_cpu


class SmlaSparseMetadataBuilder(SparseMLACommonMetadataBuilder[SparseMLACommonMetadata]):
    """Builds vLLM's metadata. Requests of up to 128 (with more than 32 heads, 256) tokens are decodes, as in
    vLLM's FA3 backend."""

    metadata_cls = SparseMLACommonMetadata
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        heads = vllm_config.model_config.get_num_attention_heads(vllm_config.parallel_config)
        self._init_reorder_batch_threshold(128 if heads <= 32 else 256, supports_spec_as_decode=True)


class SmlaSparseImpl(Attends, SparseMLACommonImpl[SparseMLACommonMetadata]):
    """Attention over the positions that the model's indexer selected."""

    # Layers with the same selection share its rows only in decode steps, as in vLLM's FA3 backend.
    group_conversion_decode_only: ClassVar[bool] = True

    def __init__(self, **arguments: Any) -> None:
        """Accepts the arguments of vLLM's class by name."""
        known = inspect.signature(SparseMLACommonImpl.__init__).parameters
        absent = ("alibi_slopes", "sliding_window", "logits_soft_cap")
        refuse(
            arguments["attn_type"],
            [arguments.get(name) for name in ("indexer", "topk_indices_buffer")],
            **{name: x for name, x in arguments.items() if name in absent or name not in known},
        )
        super().__init__(**{name: x for name, x in arguments.items() if name in known})
        _indexer.install_model()

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: SparseMLACommonMetadata,
        layer: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns out [T,H,latent] and the lse of absorbed queries q: [T,H,latent + rope], or a pair."""
        cache, metadata = kv_c_and_k_pe_cache, attn_metadata
        if _finds_rows(cache):
            return super().forward_mqa(q, cache, metadata, layer)
        return self.attend_to_selection(q, cache, metadata, layer, metadata.cp_kv_cache_interleave_size)
