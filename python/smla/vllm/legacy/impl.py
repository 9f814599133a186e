"""One layer's attention. Needs vLLM.

vLLM's layer absorbs the queries, calls do_kv_cache_update and forward_mqa, and up-projects the attended
latents.
"""

import functools
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.v1.attention import backend as _vllm

from ... import Backend, Context, stages
from ..._handles import Bounded
from ...compat.vllm_ops import latent_cache
from ...compat.vllm_ops.device_rows import local_positions
from ...errors import unsupported
from .. import indexer as _indexer
from ..caches import joined, layouts, moving, run, write
from ..checks import refuse
from .metadata import SmlaSparseMetadata, SmlaSparseMetadataBuilder

__all__ = ["FINDS_ROWS", "HEAD_SIZES", "SmlaSparseImpl", "SmlaSparseMetadataBuilder"]
FINDS_ROWS, HEAD_SIZES = False, [576]
# In the first half of 2026 vLLM had a base class for sparse attention; later versions ask for `is_sparse`.
_Base: Any = getattr(_vllm, "SparseMLAAttentionImpl", None) or _vllm.MLAAttentionImpl

# Arguments of the layer that this implementation does without.
_UNUSED = ("q_lora_rank", "qk_head_dim", "kv_b_proj", "index_group_builder", "q_pad_num_heads")


class SmlaSparseImpl(_Base[SmlaSparseMetadata]):
    """Attention over the positions that the model's indexer selected.

    With decode context parallelism each rank attends to the positions whose keys it holds, and vLLM merges
    the parts by lse.
    """

    is_sparse = True
    supports_quant_query_input = False
    supports_dense_mha_prefill = False
    supports_pcp = False
    supports_dcp = can_return_lse_for_decode = True

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
        for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            setattr(self, name, mla_args.pop(name))
        refuse(
            attn_type,
            next((x for x in (indexer, topk_indice_buffer, topk_indices_buffer) if x is not None), None),
            alibi_slopes=alibi_slopes,
            sliding_window=sliding_window,
            logits_soft_cap=logits_soft_cap,
            **{name: value for name, value in mla_args.items() if name not in _UNUSED},
        )
        self._indexer = indexer
        self._topk: Any = topk_indice_buffer if topk_indices_buffer is None else topk_indices_buffer
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.scale, self.kv_cache_dtype = float(scale), kv_cache_dtype
        parallel = get_current_vllm_config().parallel_config
        self._interleave = getattr(parallel, "cp_kv_cache_interleave_size", 1)
        self._backends: dict[tuple, Backend] = {}
        self._attends = Bounded()  # prepared calls of backends, by the properties that they depend on
        _indexer.install_model()

    @property
    def topk_indices_buffer(self) -> torch.Tensor:
        """The indexer's: a draft model's indexer gets its target's buffer after this layer is made."""
        return self._topk if self._indexer is None else self._indexer.topk_indices_buffer

    def record_logical_topk_ready(self) -> None:
        """vLLM tells that the selection is there; the stream's order is enough."""

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
        """Writes the step's keys. A profiling run has no slots or no cache, and writes nothing.

        skip_scale: it is 1.
        """
        if slot_mapping is None or kv_cache.numel() == 0:
            return
        if slot_mapping.ndim > 1:
            slot_mapping = slot_mapping.flatten()
        if not slot_mapping.data_ptr():  # no tokens
            return
        rope = k_pe.squeeze(1) if k_pe.ndim == 3 else k_pe
        tail = rope if rope.shape[-1] else None
        kind = latent_cache, kv_cache_dtype, k_scale
        write(stages.write_kv, kv_c_normed, tail, slot_mapping, kv_cache, *kind)

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: SmlaSparseMetadata,
        layer: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """q: absorbed, [T,H,latent + rope], or a pair of both parts. Returns [T,H,latent] and an lse.

        lse: [T,H] f32, natural, of this rank's part; None without decode context parallelism.
        """
        q, cache, scale, step = joined(q), kv_c_and_k_pe_cache, layer._k_scale, attn_metadata.step
        topk = self.topk_indices_buffer
        tokens, heads, _ = q.shape
        out, lse = q.new_empty(tokens, heads, self.kv_lora_rank), None
        if self.dcp_world_size > 1:  # only the keys of this rank
            lse = q.new_empty(tokens, heads, dtype=torch.float32)
            topk = local_positions(topk[:tokens], self.dcp_world_size, self.dcp_rank, self._interleave)
        if tokens == 0:
            return out, lse
        key = (step.handle, layouts(q, topk, lse, cache))
        attend = self._attends.get(key)
        if attend is None:
            described = latent_cache(cache, self.kv_cache_dtype, scale)
            backend = self._backend_for(step.backend, heads, q.dtype, described.format)
            tensors: dict[str, Any] = {"q": q, "topk_indices": topk[:tokens], "out": out}
            tensors.update(lse=lse, kv_cache=described)
            attend = backend.call(step, moving(tensors, "kv_cache"), **tensors)
            self._attends.keep(key, attend)
        run(attend, scale, q, topk, out, lse, cache)
        return out, lse

    def forward_mha(self, *_args, **_named) -> None:
        raise unsupported("forward_mha", "a call", "none: all tokens go through forward_mqa")

    def _backend_for(self, built, heads, dtype, record) -> Backend:
        """The backend whose metadata are built, with this layer's scale and record."""
        key = (heads, dtype, record)
        if key not in self._backends:
            self._backends[key] = _backend_of_layers(
                built.context,
                built.info["name"],
                heads=heads,
                kv_lora_rank=self.kv_lora_rank,
                rope_dim=self.qk_rope_head_dim or -1,
                nope_dim=self.qk_nope_head_dim,
                v_head_dim=self.v_head_dim,
                topk=self.topk_indices_buffer.shape[1],
                softmax_scale=self.scale,
                dtype=str(dtype).removeprefix("torch."),
                kv_cache_dtype=record.name.lower(),
            )
        return self._backends[key]


@functools.lru_cache
def _backend_of_layers(context: Context, name: str, *, kv_cache_dtype: str, **dims) -> Backend:
    """One backend for all layers that are alike: they share the plans of its calls."""
    return Backend(
        name,
        "dsa",
        context=context,
        max_tokens=1,  # bounds metadata, and this backend builds none
        max_requests=1,
        max_seq_len=1,
        kv_cache_dtype=kv_cache_dtype,
        # As vLLM's own backend computes: keys may be rounded.
        precision="rounded" if kv_cache_dtype == "fp8_656" else "default",
        **dims,
    )
