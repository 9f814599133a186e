"""The metadata of a step, in buffers that never move. Needs vLLM."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadata, AttentionMetadataBuilder

from ... import Backend, Metadata, PlanGroup
from ...context import default_context

__all__ = ["SmlaSparseMetadata", "SmlaSparseMetadataBuilder"]


@dataclass
class SmlaSparseMetadata(AttentionMetadata):
    """The metadata of a step of R requests and T tokens, with the padding of CUDA graphs.

    Every token goes through forward_mqa, so all are decodes where vLLM asks how many there are.
    """

    num_reqs: int
    max_query_len: int
    max_seq_len: int
    num_actual_tokens: int
    query_start_loc: torch.Tensor  # [R+1] i32
    slot_mapping: torch.Tensor  # [T] i64, -1: padding
    block_table: torch.Tensor  # [R,MB] i32
    seq_lens: torch.Tensor  # [R] i32
    step: Metadata  # of smla.Backend; the builder's next build changes it
    block_size: int = 64
    topk_tokens: int = 2048
    num_decodes: int = 0
    num_prefills: int = 0
    num_decode_tokens: int = 0
    prefill: None = None  # no token takes the dense path
    prefill_max_seq_len: int = 0

    @property
    def req_id_per_token(self) -> torch.Tensor:
        """[T] i32, 0 for padding."""
        field, device = self.step.field("req_id_per_token"), self.seq_lens.device
        return torch.tensor(field) if device.type == "cpu" else torch.as_tensor(field, device=device)


class SmlaSparseMetadataBuilder(AttentionMetadataBuilder[SmlaSparseMetadata]):
    """Builds the metadata where the batch lies: on a GPU by kernels, which the host does not wait for."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.topk_tokens = vllm_config.model_config.hf_text_config.index_topk
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)  # the indexer wants decodes first
        self._step = self._backend(torch.device(device)).metadata()

    def _backend(self, device):
        """The backend of the step's metadata. Layers have backends of their own, with scale and record."""
        model, parallel = self.vllm_config.model_config, self.vllm_config.parallel_config
        scheduler, dims = self.vllm_config.scheduler_config, model.hf_text_config
        ranks = getattr(parallel, "decode_context_parallel_size", 1)  # which attend for each other's heads
        return Backend(
            None,
            "dsa",
            context=default_context(device),
            heads=model.get_num_attention_heads(parallel) * ranks,
            kv_lora_rank=dims.kv_lora_rank,
            rope_dim=dims.qk_rope_head_dim or -1,
            nope_dim=dims.qk_nope_head_dim,
            v_head_dim=dims.v_head_dim,
            page_tokens=self.kv_cache_spec.block_size,
            topk=self.topk_tokens,
            max_tokens=scheduler.max_num_batched_tokens,
            max_requests=scheduler.max_num_seqs,
            max_seq_len=model.max_model_len,
            softmax_scale=1.0,  # unused
        )

    def build(
        self, common_prefix_len: int, common_attn_metadata, fast_build: bool = False
    ) -> SmlaSparseMetadata:
        common = common_attn_metadata
        requests, tokens = common.num_reqs, common.num_actual_tokens
        starts, seq_lens = common.query_start_loc[: requests + 1], common.seq_lens[:requests]
        slots, table = common.slot_mapping[:tokens], common.block_table_tensor[:requests]
        page = self.kv_cache_spec.block_size
        self._step.build(
            starts,
            seq_lens,
            tokens=tokens,
            decodes=requests,
            decode_tokens=tokens,
            primary=PlanGroup(table, slots, page),
        )
        return SmlaSparseMetadata(
            num_reqs=requests,
            max_query_len=common.max_query_len,
            max_seq_len=common.max_seq_len,
            num_actual_tokens=tokens,
            query_start_loc=starts,
            slot_mapping=slots,
            block_table=table,
            seq_lens=seq_lens,
            step=self._step,
            block_size=page,
            topk_tokens=self.topk_tokens,
            num_decodes=requests,
            num_decode_tokens=tokens,
        )
