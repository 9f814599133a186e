"""One layer's attention. Needs vLLM.

vLLM's layer absorbs the queries, calls do_kv_cache_update and forward_mqa, and up-projects the attended
latents.
"""

from typing import Any

import torch
from vllm.v1.attention import backend as _vllm

from .. import Backend, Unsupported, stages
from ..compat.vllm_ops import concat_and_cache_mla, latent_cache
from .metadata import SmlaSparseMetadata

# In the first half of 2026 vLLM had a base class for sparse attention; later versions ask for `is_sparse`.
_Base: Any = getattr(_vllm, "SparseMLAAttentionImpl", None) or _vllm.MLAAttentionImpl


def _unsupported(field, got, wanted):
    return Unsupported(f"{field}: got {got}, wanted {wanted}", field, str(got), wanted)


class SmlaSparseImpl(_Base[SmlaSparseMetadata]):
    """Attention over the positions that the model's indexer selected.

    On a CPU it calls smla.Backend, on a GPU the stages of the same step: map, attend.
    """

    is_sparse = True
    can_return_lse_for_decode = False
    supports_quant_query_input = False

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
        wants = {
            "alibi_slopes": alibi_slopes,
            "sliding_window": sliding_window,
            "logits_soft_cap": logits_soft_cap,
        }
        for name, value in wants.items():
            if value:
                raise _unsupported(name, value, "none: latent attention has none")
        if getattr(attn_type, "value", attn_type) != "decoder":
            raise _unsupported("attn_type", attn_type, "decoder self-attention")
        if getattr(self, "dcp_world_size", 1) > 1:
            raise _unsupported("decode context parallelism", f"{self.dcp_world_size} ranks", "1")
        buffer = topk_indice_buffer if topk_indices_buffer is None else topk_indices_buffer
        buffer = buffer if indexer is None else indexer.topk_indices_buffer
        if buffer is None:
            raise _unsupported("indexer", None, "one, or its buffer: a model with index_topk")
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.scale, self.kv_cache_dtype = float(scale), kv_cache_dtype
        self.topk_indices_buffer = buffer
        self.kv_lora_rank = mla_args["kv_lora_rank"]
        self.qk_nope_head_dim = mla_args["qk_nope_head_dim"]
        self.qk_rope_head_dim = mla_args["qk_rope_head_dim"]
        self.v_head_dim = mla_args["v_head_dim"]
        self._backend = None

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
    ) -> None:
        """Writes the step's keys. A profiling run has no slots, and writes nothing."""
        if slot_mapping is not None:
            rope = k_pe.squeeze(1) if k_pe.ndim == 3 else k_pe
            concat_and_cache_mla(kv_c_normed, rope, kv_cache, slot_mapping.flatten(), kv_cache_dtype, k_scale)

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: SmlaSparseMetadata,
        layer: Any,
    ) -> tuple[torch.Tensor, None]:
        """q: absorbed, [T,H,latent + rope], or a pair of both parts. Returns ([T,H,latent], None)."""
        cache = latent_cache(kv_c_and_k_pe_cache, self.kv_cache_dtype, layer._k_scale)
        forward = self._forward_stages if attn_metadata.host is None else self._forward_backend
        return forward(q, cache, attn_metadata), None

    def forward_mha(self, *_args, **_named) -> None:
        raise _unsupported("forward_mha", "a call", "none: all tokens go through forward_mqa")

    def _forward_stages(self, q, cache, metadata):
        q = torch.cat(q, -1) if isinstance(q, tuple) else q
        tokens = q.shape[0]
        rows = stages.map(
            self.topk_indices_buffer[:tokens],
            metadata.req_id_per_token[:tokens],
            metadata.block_table,
            page_tokens=metadata.block_size,
        )
        lengths = metadata.row_lengths[:tokens]
        return stages.attend(
            q, cache, rows, lengths, softmax_scale=self.scale, value_width=self.kv_lora_rank
        ).out

    def _forward_backend(self, q, cache, metadata):
        q, q_pe = q if isinstance(q, tuple) else (q, None)
        if self._backend is None:
            self._backend = self._backend_like(metadata.host.backend, q.dtype)
        listed = self.topk_indices_buffer[: q.shape[0]]
        return self._backend.forward(metadata.host, q, q_pe=q_pe, topk_indices=listed, kv_cache=cache)

    def _backend_like(self, built, dtype):
        """The backend that the metadata belongs to, with this layer's scale and record."""
        formats = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3"}
        return Backend(
            built.info["name"],
            "dsa",
            heads=self.num_heads,
            kv_lora_rank=self.kv_lora_rank,
            rope_dim=self.qk_rope_head_dim or -1,
            nope_dim=self.qk_nope_head_dim,
            v_head_dim=self.v_head_dim,
            topk=self.topk_indices_buffer.shape[1],
            max_tokens=1,  # bounds metadata, and this backend builds none
            max_requests=1,
            max_seq_len=1,
            softmax_scale=self.scale,
            dtype=str(dtype).removeprefix("torch."),
            kv_cache_dtype=formats.get(self.kv_cache_dtype, self.kv_cache_dtype),
        )
