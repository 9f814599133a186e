"""The metadata of a step, in buffers that never move. Needs vLLM."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadata, AttentionMetadataBuilder

from .. import Backend, Metadata, PlanGroup

_WHOLE_LIST = 2**31 - 1  # attend bounds it by the width of the list, which may exceed index_topk


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
    req_id_per_token: torch.Tensor  # [T] i32, 0 for padding
    seq_lens: torch.Tensor  # [R] i32
    row_lengths: torch.Tensor  # [T] i32: how many selected positions count, 0 for padding
    host: Metadata | None  # of smla.Backend, on a CPU
    block_size: int = 64
    topk_tokens: int = 2048
    num_decodes: int = 0
    num_prefills: int = 0
    num_decode_tokens: int = 0
    prefill: None = None  # no token takes the dense path
    prefill_max_seq_len: int = 0


class SmlaSparseMetadataBuilder(AttentionMetadataBuilder[SmlaSparseMetadata]):
    """Builds the metadata on the device, and reads nothing back. On a CPU it also builds smla.Backend's."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.topk_tokens = vllm_config.model_config.hf_text_config.index_topk
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)  # the indexer wants decodes first
        tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self._token = torch.arange(tokens, dtype=torch.int32, device=device)
        self._request = torch.zeros(tokens, dtype=torch.int32, device=device)
        self._lengths = torch.zeros(tokens, dtype=torch.int32, device=device)
        self._host = self._host_metadata() if torch.device(device).type == "cpu" else None

    def _host_metadata(self):
        model, scheduler = self.vllm_config.model_config, self.vllm_config.scheduler_config
        dims = model.hf_text_config
        backend = Backend(
            None,
            "dsa",
            heads=model.get_num_attention_heads(self.vllm_config.parallel_config),
            kv_lora_rank=dims.kv_lora_rank,
            rope_dim=dims.qk_rope_head_dim or -1,
            nope_dim=dims.qk_nope_head_dim,
            v_head_dim=dims.v_head_dim,
            page_tokens=self.kv_cache_spec.block_size,
            topk=self.topk_tokens,
            max_tokens=scheduler.max_num_batched_tokens,
            max_requests=scheduler.max_num_seqs,
            max_seq_len=model.max_model_len,
            softmax_scale=1.0,  # unused: each layer has its own
        )
        return backend.metadata()

    def build(
        self, common_prefix_len: int, common_attn_metadata, fast_build: bool = False
    ) -> SmlaSparseMetadata:
        common = common_attn_metadata
        requests, tokens = common.num_reqs, common.num_actual_tokens
        starts, seq_lens = common.query_start_loc[: requests + 1], common.seq_lens[:requests]
        slots, table = common.slot_mapping[:tokens], common.block_table_tensor[:requests]
        request, lengths = self._request[:tokens], self._lengths[:tokens]
        token = self._token[:tokens]
        found, real = torch.searchsorted(starts[1:], token, right=True), token < starts[-1]
        request.copy_(torch.where(real, found, 0))
        lengths.copy_(torch.where(real, _WHOLE_LIST, 0))
        if self._host is not None:
            group = PlanGroup(table, slots, self.kv_cache_spec.block_size)
            self._host.build(starts, seq_lens, tokens=tokens, primary=group)
        return SmlaSparseMetadata(
            num_reqs=requests,
            max_query_len=common.max_query_len,
            max_seq_len=common.max_seq_len,
            num_actual_tokens=tokens,
            query_start_loc=starts,
            slot_mapping=slots,
            block_table=table,
            req_id_per_token=request,
            seq_lens=seq_lens,
            row_lengths=lengths,
            host=self._host,
            block_size=self.kv_cache_spec.block_size,
            topk_tokens=self.topk_tokens,
            num_decodes=requests,
            num_decode_tokens=tokens,
        )
