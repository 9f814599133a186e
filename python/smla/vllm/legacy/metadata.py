"""The metadata of a step, in buffers with fixed addresses. Requires vLLM."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadata, AttentionMetadataBuilder

__all__ = ["SmlaSparseMetadata", "SmlaSparseMetadataBuilder"]


@dataclass
class SmlaSparseMetadata(AttentionMetadata):
    """The metadata of a step of R requests and T tokens, including the padding of CUDA graphs.

    All tokens are counted as decodes, because forward_mqa processes every token.
    """

    num_reqs: int
    max_query_len: int
    max_seq_len: int
    num_actual_tokens: int
    query_start_loc: torch.Tensor  # [R+1] i32
    slot_mapping: torch.Tensor  # [T] i64, -1 for padding
    block_table: torch.Tensor  # [R,MB] i32
    seq_lens: torch.Tensor  # [R] i32
    req_id_per_token: torch.Tensor  # [T] i32, R for padding; overwritten by the next build()
    block_size: int = 64
    topk_tokens: int = 2048
    num_decodes: int = 0
    num_prefills: int = 0
    num_decode_tokens: int = 0
    prefill: None = None  # no token uses dense attention
    prefill_max_seq_len: int = 0


class SmlaSparseMetadataBuilder(AttentionMetadataBuilder[SmlaSparseMetadata]):
    """Builds the metadata on the batch's device with one kernel; the host does not wait for it."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.topk_tokens = vllm_config.model_config.hf_text_config.index_topk
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)  # the indexer needs decodes first
        self._tokens = torch.arange(
            vllm_config.scheduler_config.max_num_batched_tokens, dtype=torch.int32, device=device
        )
        self._requests = torch.empty_like(self._tokens)

    def build(
        self, common_prefix_len: int, common_attn_metadata, fast_build: bool = False
    ) -> SmlaSparseMetadata:
        common = common_attn_metadata
        requests, tokens = common.num_reqs, common.num_actual_tokens
        starts, seq_lens = common.query_start_loc[: requests + 1], common.seq_lens[:requests]
        slots, table = common.slot_mapping[:tokens], common.block_table_tensor[:requests]
        of_token = self._requests[:tokens]
        torch.searchsorted(
            starts[1:].contiguous(), self._tokens[:tokens], right=True, out_int32=True, out=of_token
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
            req_id_per_token=of_token,
            block_size=self.kv_cache_spec.block_size,
            topk_tokens=self.topk_tokens,
            num_decodes=requests,
            num_decode_tokens=tokens,
        )
