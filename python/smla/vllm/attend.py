"""Key writes and attention of a layer, shared by the implementations for all versions. Requires PyTorch."""

from typing import Any

import torch
import torch.nn.functional as F

from .. import stages
from .._handles import Bounded
from ..call import Call
from ..compat.vllm_ops import latent_cache
from ..compat.vllm_ops.device_rows import local_positions
from ..errors import unsupported
from .caches import RECORD, flat_pages, joined, layouts, moving, run, write

_calls = Bounded()  # prepared calls, shared by layers of equal layout
_ROPE = 64  # channels after the latent in RECORD


def refuse(attn_type: Any, selections: list, **features: Any) -> None:
    """Raises Unsupported for encoders, for layers without a selection, and for features that are enabled."""
    for name, value in features.items():
        if value is not None and value is not False:
            raise unsupported(name, type(value).__name__, "None, because smla.vllm does not support it")
    if getattr(attn_type, "value", attn_type) != "decoder":
        raise unsupported("attn_type", attn_type, "decoder self-attention")
    if all(each is None for each in selections):
        raise unsupported("indexer", None, "an indexer or its buffer, as in models with index_topk")


class Attends:
    """Mixin with the methods that every version of vLLM calls. The other base class sets the attributes."""

    supports_dcp = can_return_lse_for_decode = True
    supports_quant_query_input = False
    dcp_rank: int
    dcp_world_size: int
    kv_cache_dtype: str
    kv_lora_rank: int
    scale: float
    topk_indices_buffer: torch.Tensor

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor | None,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        skip_scale: bool = False,
    ) -> None:
        """Writes the step's keys; a profiling run has no slots or no cache and writes nothing.

        skip_scale: whether the scale is 1.
        """
        if slot_mapping is None or kv_cache.numel() == 0:
            return
        slot_mapping = slot_mapping.flatten()
        if not slot_mapping.data_ptr():  # no tokens
            return
        rope = k_pe.flatten(1)
        if not rope.shape[-1] and kv_cache.shape[-1] == RECORD:
            rope = rope.new_zeros(rope.shape[0], _ROPE)
        tail = rope if rope.shape[-1] else None
        kind = latent_cache, kv_cache_dtype, k_scale
        write(stages.write_kv, kv_c_normed, tail, slot_mapping, kv_cache, *kind)

    def attend_to_selection(
        self, q: Any, cache: torch.Tensor, metadata: Any, layer: Any, interleave: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Implements forward_mqa in versions of vLLM that pass selected positions instead of rows."""
        tokens = (q[0] if isinstance(q, tuple) else q).shape[0]
        topk = self.topk_indices_buffer[:tokens]
        if self.dcp_world_size > 1:  # only positions whose keys this rank holds
            topk = local_positions(topk, self.dcp_world_size, self.dcp_rank, interleave)
        request, table = metadata.req_id_per_token[:tokens], metadata.block_table
        rows, page = topk.new_empty(topk.shape), metadata.block_size
        if tokens:
            key = (stages.map, cache.get_device(), page, layouts(topk, table))
            call = _calls.get(key)
            if call is None:
                tensors = {"positions": topk, "request_of_token": request, "block_table": table, "rows": rows}
                call = _calls.keep(key, Call(stages.map, list(tensors), **tensors, page_tokens=page))
            run(call, None, topk, request, table, rows)
        return self._attend(joined(q), cache, rows, None, layer._k_scale)

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
        """Returns out [T,H,latent] and, with decode context parallelism, the natural lse, [T,H] f32.

        q: absorbed queries, [T,H,latent + rope] or a pair of both parts. topk_indices: [T,K] i32 rows, which
        are numbered through the memory of the cache; masked entries are -1. valid_counts: optional [T] i32:
        number of rows before the masked entries.
        """
        return self._attend(joined(q), flat_pages(kv_cache), topk_indices, valid_counts, layer._k_scale)

    def _attend(self, q, cache, rows, lengths, scale):
        if cache.shape[-1] == RECORD and q.shape[-1] == self.kv_lora_rank:
            q = F.pad(q, (0, _ROPE))
        tokens, heads, _ = q.shape
        out, lse = q.new_empty(tokens, heads, self.kv_lora_rank), None
        if self.dcp_world_size > 1:
            lse = q.new_empty(tokens, heads, dtype=torch.float32)
        if tokens == 0:
            return out, lse
        layout = layouts(q, rows, lengths, out, lse, cache)
        key = (stages.attend, q.get_device(), self.kv_cache_dtype, self.scale, layout)
        call = _calls.get(key)
        if call is None:
            tensors: dict[str, Any] = {"q": q, "rows": rows, "lengths": lengths, "out": out, "lse": lse}
            tensors["cache"] = latent_cache(cache, self.kv_cache_dtype, scale)
            # As in vLLM's own backends, keys of fp8_ds_mla may be rounded.
            precision = "rounded" if self.kv_cache_dtype == "fp8_ds_mla" else "default"
            numbers = {"softmax_scale": self.scale, "precision": precision}
            call = _calls.keep(key, Call(stages.attend, moving(tensors, "cache"), **tensors, **numbers))
        run(call, scale, q, rows, lengths, out, lse, cache)
        return out, lse
