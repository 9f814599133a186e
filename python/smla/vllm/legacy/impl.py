"""Attention of a layer on vLLM's MLAAttentionImpl. Requires vLLM."""

from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.v1.attention import backend as _vllm

from ...errors import unsupported
from .. import indexer as _indexer
from ..attend import Attends, refuse
from .metadata import SmlaSparseMetadata, SmlaSparseMetadataBuilder

__all__ = ["FINDS_ROWS", "HEAD_SIZES", "SmlaSparseImpl", "SmlaSparseMetadataBuilder"]
FINDS_ROWS, HEAD_SIZES = False, [576]
# Some versions of vLLM have a base class for sparse attention; later versions read `is_sparse`.
_Base: Any = getattr(_vllm, "SparseMLAAttentionImpl", None) or _vllm.MLAAttentionImpl
# Arguments of the layer that this implementation does not use.
_UNUSED = ["q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim", "kv_b_proj"]
_UNUSED += ["index_group_builder", "q_pad_num_heads"]


class SmlaSparseImpl(Attends, _Base[SmlaSparseMetadata]):
    """Attention over the positions that the model's indexer selected.

    With decode context parallelism, each rank attends to the positions whose keys it holds, and vLLM merges
    the partial results by lse.
    """

    is_sparse = True
    supports_dense_mha_prefill = False
    supports_pcp = False

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
        topk_indice_buffer: torch.Tensor | None = None,
        indexer: Any = None,
        topk_indices_buffer: torch.Tensor | None = None,
        **mla_args,
    ) -> None:
        self.kv_lora_rank = mla_args.pop("kv_lora_rank")
        for name in _UNUSED:
            setattr(self, name, mla_args.pop(name, None))
        refuse(
            attn_type,
            [indexer, topk_indice_buffer, topk_indices_buffer],
            alibi_slopes=alibi_slopes,
            sliding_window=sliding_window,
            logits_soft_cap=logits_soft_cap,
            **mla_args,
        )
        self._indexer = indexer
        self._topk: Any = topk_indice_buffer if topk_indices_buffer is None else topk_indices_buffer
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.scale, self.kv_cache_dtype = float(scale), kv_cache_dtype
        parallel = get_current_vllm_config().parallel_config
        self._interleave = getattr(parallel, "cp_kv_cache_interleave_size", 1)
        _indexer.install_model()

    @property
    def topk_indices_buffer(self) -> torch.Tensor:  # type: ignore[override]
        """The selection buffer of the indexer. A draft model's indexer gets the buffer of the target model
        after this layer is created."""
        return self._topk if self._indexer is None else self._indexer.topk_indices_buffer

    def record_logical_topk_ready(self) -> None:
        """Does nothing: vLLM calls it when the selection is queued, and stream order suffices."""

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: SmlaSparseMetadata,
        layer: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns out [T,H,latent] and the lse of absorbed queries q: [T,H,latent + rope], or a pair."""
        return self.attend_to_selection(q, kv_c_and_k_pe_cache, attn_metadata, layer, self._interleave)

    def forward_mha(self, *_args, **_named) -> None:
        raise unsupported("forward_mha", "a call", "no call, because all tokens use forward_mqa")
