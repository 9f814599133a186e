"""What smla.compat.flashinfer refuses, each by the name of the argument."""

import math

import pytest

torch = pytest.importorskip("torch")

import smla
from smla.compat import flashinfer
from smla.compat.flashinfer import mla

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
NAN = float("nan")


def ints(*shape):
    return torch.zeros(shape, dtype=torch.int32)


SWA = torch.zeros(2, 64, 512, dtype=BF16)
PACKED = torch.zeros(2, 65, 584, dtype=torch.uint8)[:, :64]
DSV4_CALL = {
    "query": torch.zeros(3, 4, 512, dtype=BF16), "swa_kv_cache": SWA, "workspace_buffer": None,
    "sparse_indices": ints(3, 140), "compressed_kv_cache": SWA, "sparse_topk_lens": ints(3),
    "bmm1_scale": 0.1,
}  # fmt: skip
V32_CALL = {
    "query": torch.zeros(2, 1, 4, 576, dtype=BF16), "kv_cache": torch.zeros(2, 64, 576, dtype=BF16),
    "workspace_buffer": None, "qk_nope_head_dim": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "block_tables": ints(2, 1, 8), "seq_lens": None, "max_seq_len": 8, "sparse_mla_top_k": 8,
}  # fmt: skip
RUN_CALL = {"q": torch.zeros(3, 4, 512, dtype=BF16), "kv_cache": PACKED, "indices": ints(3, 8),
            "output": torch.zeros(3, 4, 512, dtype=BF16), "sm_scale": 0.1}  # fmt: skip
TABLE_CALL = {"input": torch.zeros(3, 9), "src_page_table": ints(3, 9), "lengths": ints(3), "k": 4}
RAGGED_CALL = {"input": torch.zeros(3, 9), "offsets": ints(3), "lengths": ints(3), "k": 4}
TOP_K_CALL = {"input": torch.zeros(3, 9), "k": 4}


def run(**arguments):
    return flashinfer.BatchSparseMLAPagedAttentionWrapper(8, 8).run(**arguments)


CALLS = {
    "dsv4": (mla.trtllm_batch_decode_sparse_mla_dsv4, DSV4_CALL),
    "v32": (mla.trtllm_batch_decode_with_kv_cache_mla, V32_CALL),
    "run": (run, RUN_CALL),
    "wrapper": (flashinfer.BatchSparseMLAPagedAttentionWrapper, {"max_num_tokens": 8, "max_num_heads": 8}),
    "table": (flashinfer.top_k_page_table_transform, TABLE_CALL),
    "ragged": (flashinfer.top_k_ragged_transform, RAGGED_CALL),
    "top_k": (flashinfer.top_k, TOP_K_CALL),
}
BAD, NO = smla.InvalidArgument, smla.Unsupported
# fmt: off
REFUSALS = [
    ("dsv4", {"query": None}, BAD, "query"),
    ("dsv4", {"query": torch.zeros(3, 4, 512, dtype=torch.float64)}, BAD, "query.dtype"),
    ("dsv4", {"query": torch.zeros(3, 512, dtype=BF16)}, BAD, "query.ndim"),
    ("dsv4", {"query": torch.zeros(3, 4, 576, dtype=BF16)}, BAD, "query.shape[-1]"),
    ("dsv4", {"query": torch.zeros(3, 257, 512, dtype=BF16)}, BAD, "args.q.shape[1]"),
    ("dsv4", {"swa_kv_cache": None}, BAD, "swa_kv_cache"),
    ("dsv4", {"swa_kv_cache": SWA.half()}, BAD, "swa_kv_cache.dtype"),
    ("dsv4", {"swa_kv_cache": SWA[0, 0]}, BAD, "swa_kv_cache.ndim"),
    ("dsv4", {"swa_kv_cache": SWA[..., :500]}, BAD, "swa_kv_cache.shape[-1]"),
    ("dsv4", {"swa_kv_cache": SWA.mT}, BAD, "swa_kv_cache.shape[-1]"),
    ("dsv4", {"swa_kv_cache": torch.zeros(2, 64, 1024, dtype=BF16)[..., ::2]}, BAD, "swa_kv_cache.stride"),
    ("dsv4", {"swa_kv_cache": torch.zeros(2, 128, 512, dtype=BF16)[:, ::2]}, BAD, "swa_kv_cache.stride"),
    ("dsv4", {"swa_kv_cache": SWA[:, :0]}, BAD, "swa_kv_cache.shape"),
    ("dsv4", {"swa_kv_cache": SWA[:, :, None]}, BAD, "swa_kv_cache.shape"),
    ("dsv4", {"swa_kv_cache": SWA[:, None], "kv_layout": "NHD"}, BAD, "swa_kv_cache.shape"),
    ("dsv4", {"swa_kv_cache": torch.zeros(2, 64, 656, dtype=torch.uint8)}, NO, "swa_kv_cache.shape[-1]"),
    ("dsv4", {"swa_kv_cache": SWA[..., :256].view(torch.uint8)}, NO, "swa_kv_cache.shape[-1]"),
    ("dsv4", {"swa_kv_cache": torch.zeros(64, 1024, dtype=BF16)[:, ::2]}, BAD, "swa_kv_cache.stride"),
    ("dsv4", {"swa_kv_cache": SWA.to(E4M3), "sparse_topk_lens": None}, BAD, "sparse_topk_lens"),
    ("dsv4", {"sparse_indices": None}, BAD, "sparse_indices"),
    ("dsv4", {"sparse_indices": ints(3, 140).long()}, BAD, "sparse_indices.dtype"),
    ("dsv4", {"sparse_indices": ints(4, 140)}, BAD, "sparse_indices.shape"),
    ("dsv4", {"sparse_indices": ints(420)}, BAD, "sparse_indices.shape"),
    ("dsv4", {"compressed_kv_cache": None}, BAD, "compressed_kv_cache"),
    ("dsv4", {"compressed_kv_cache": 3}, BAD, "compressed_kv_cache"),
    ("dsv4", {"sparse_topk_lens": ints(2)}, BAD, "sparse_topk_lens.shape"),
    ("dsv4", {"sparse_topk_lens": ints(3).long()}, BAD, "sparse_topk_lens.dtype"),
    ("dsv4", {"sparse_topk_lens": ints(3, 1, 1)}, BAD, "sparse_topk_lens.shape"),
    ("dsv4", {"sparse_topk_lens": None}, BAD, "sparse_topk_lens"),
    ("dsv4", {"seq_lens": ints(2)}, BAD, "seq_lens.shape"),
    ("dsv4", {"seq_lens": ints(3).float()}, BAD, "seq_lens.dtype"),
    ("dsv4", {"out": torch.zeros(3, 4, 511, dtype=BF16)}, BAD, "out.shape"),
    ("dsv4", {"out": torch.zeros(3, 4, 512, dtype=torch.float64)}, BAD, "out.dtype"),
    ("dsv4", {"out": torch.zeros(3, 4, 512), "query": torch.zeros(3, 4, 512).to(E4M3)}, BAD, "out.dtype"),
    ("dsv4", {"out": torch.zeros(3, 512, 4, dtype=BF16).mT}, BAD, "args.out.stride_elems[2]"),
    ("dsv4", {"bmm1_scale": 0.0}, BAD, "bmm1_scale"),
    ("dsv4", {"bmm1_scale": math.inf}, BAD, "bmm1_scale"),
    ("dsv4", {"bmm1_scale": "a"}, BAD, "bmm1_scale"),
    ("dsv4", {"bmm1_scale": torch.zeros(2)}, BAD, "bmm1_scale.shape"),
    ("dsv4", {"bmm1_scale": torch.zeros(1, dtype=torch.float64)}, BAD, "bmm1_scale.dtype"),
    ("dsv4", {"bmm2_scale": NAN}, BAD, "bmm2_scale"),
    ("dsv4", {"bmm2_scale": torch.zeros(1, dtype=BF16)}, BAD, "bmm2_scale.dtype"),
    ("dsv4", {"sinks": torch.zeros(5)}, BAD, "sinks.shape"),
    ("dsv4", {"sinks": torch.zeros(4, dtype=BF16)}, BAD, "sinks.dtype"),
    ("dsv4", {"kv_layout": "hnd"}, BAD, "kv_layout"),
    ("dsv4", {"cum_seq_lens_q": ints(1)}, BAD, "cum_seq_lens_q.shape[0]"),
    ("dsv4", {"cum_seq_lens_q": ints(3).long()}, BAD, "cum_seq_lens_q.dtype"),
    ("dsv4", {"cum_seq_lens_q": ints(2), "query": torch.zeros(3, 1, 4, 512, dtype=BF16)}, BAD, "query.ndim"),
    ("dsv4", {"max_q_len": 0}, BAD, "max_q_len"),
    ("dsv4", {"max_q_len": 2, "query": torch.zeros(3, 1, 4, 512, dtype=BF16)}, BAD, "max_q_len"),
    ("dsv4", {"backend": "cutlass"}, BAD, "backend"),
    ("dsv4", {"swa_topk_lens": ints(3)}, BAD, "swa_topk_lens"),
    ("dsv4", {"backend": "trtllm-gen", "extra_sparse_indices": ints(3, 4)}, BAD, "extra_sparse_indices"),
    ("dsv4", {"backend": "trtllm-gen", "hca_seq_lens": ints(3)}, BAD, "hca_seq_lens"),
    ("dsv4", {"backend": "sparse", "hca_swa_indices": ints(3, 128)}, BAD, "hca_swa_indices"),
    ("dsv4", {"backend": "sparse", "extra_sparse_topk_lens": ints(3)}, BAD, "extra_sparse_indices"),
    ("dsv4", {"backend": "sparse", "extra_sparse_indices": ints(3, 4), "compressed_kv_cache": None}, BAD,
     "compressed_kv_cache"),
    ("dsv4", {"backend": "cute-dsl"}, BAD, "sparse_indices"),
    ("dsv4", {"backend": "cute-dsl", "sparse_indices": None}, BAD, "swa_topk_lens"),
    ("dsv4", {"backend": "cute-dsl", "sparse_indices": None, "swa_topk_lens": ints(3)}, BAD,
     "hca_swa_indices"),
    ("dsv4", {"sparse_indices": None, "swa_topk_lens": ints(3), "hca_swa_indices": ints(3, 128)}, BAD,
     "hca_compressed_block_tables"),
    ("dsv4", {"sparse_indices": None, "swa_topk_lens": ints(3), "hca_swa_indices": ints(3, 128),
              "hca_compressed_block_tables": ints(3, 2), "compressed_kv_cache": SWA[0]}, BAD,
     "compressed_kv_cache"),
    ("dsv4", {"hca_is_causal": False}, NO, "hca_is_causal"),
    ("dsv4", {"hca_sparse_indices_format": "page-aligned"}, BAD, "hca_sparse_indices_format"),
    ("dsv4", {"hca_sparse_indices_format": "compressed-page-aligned", "backend": "sparse"}, BAD,
     "hca_sparse_indices_format"),
    ("dsv4", {"hca_sparse_indices_format": "compressed-page-aligned", "swa_topk_lens": ints(3)}, BAD,
     "swa_topk_lens"),
    ("v32", {"sparse_mla_top_k": 0}, NO, "sparse_mla_top_k"),
    ("v32", {"sparse_mla_top_k": 9}, BAD, "block_tables.shape[-1]"),
    ("v32", {"block_tables": ints(2, 8).long()}, BAD, "block_tables.dtype"),
    ("v32", {"block_tables": ints(3, 8)}, BAD, "block_tables.shape"),
    ("v32", {"kv_lora_rank": 500}, BAD, "query.shape[-1]"),
    ("v32", {"kv_lora_rank": 0}, BAD, "kv_lora_rank"),
    ("v32", {"qk_rope_head_dim": -1}, BAD, "qk_rope_head_dim"),
    ("v32", {"kv_cache": torch.zeros(2, 64, 1, 576, dtype=BF16)}, BAD, "kv_cache.shape"),
    ("v32", {"kv_cache": torch.zeros(2, 64, 584, dtype=torch.uint8)}, NO, "kv_cache.shape[-1]"),
    ("v32", {"kv_cache": torch.zeros(2, 657, dtype=torch.uint8)}, BAD, "kv_cache.shape[-1]"),
    ("v32", {"seq_lens": ints(3)}, BAD, "seq_lens.shape"),
    ("v32", {"seq_lens": ints(2).long()}, BAD, "seq_lens.dtype"),
    ("v32", {"seq_lens": [1, 2]}, BAD, "seq_lens"),
    ("v32", {"sparse_mla_top_k_lens": ints(3)}, BAD, "sparse_mla_top_k_lens.shape"),
    ("v32", {"sinks": [torch.zeros(4), torch.zeros(4)]}, BAD, "sinks"),
    ("v32", {"lse": torch.zeros(2, 5), "return_lse": True}, BAD, "lse.shape"),
    ("v32", {"lse": torch.zeros(2, 4, dtype=BF16), "return_lse": True}, BAD, "lse.dtype"),
    ("v32", {"skip_softmax_threshold_scale_factor": 1.0}, NO, "skip_softmax_threshold_scale_factor"),
    ("v32", {"uses_shared_paged_kv_idx": False}, NO, "uses_shared_paged_kv_idx"),
    ("v32", {"enable_dcp": True}, NO, "enable_dcp"),
    ("v32", {"backend": "xqa"}, BAD, "backend"),
    ("v32", {"kv_scale_format": "fp32"}, BAD, "kv_scale_format"),
    ("run", {"q": torch.zeros(9, 4, 512, dtype=BF16)}, BAD, "q.shape: tokens"),
    ("run", {"q": torch.zeros(3, 9, 512, dtype=BF16)}, BAD, "q.shape: heads"),
    ("run", {"q": torch.zeros(3, 4, 500, dtype=BF16)}, BAD, "d_v"),
    ("run", {"q": torch.zeros(3, 4, 640, dtype=BF16)}, NO, "kv_cache.shape[-1]"),
    ("run", {"output": None}, BAD, "output"),
    ("run", {"output": torch.zeros(3, 4, 511, dtype=BF16)}, BAD, "output.shape"),
    ("run", {"output": torch.zeros(3, 1, 4, 512, dtype=BF16)}, BAD, "output.shape"),
    ("run", {"indices": ints(2, 8)}, BAD, "indices.shape"),
    ("run", {"topk_length": ints(4)}, BAD, "topk_length.shape"),
    ("run", {"sm_scale": -1}, BAD, "sm_scale"),
    ("run", {"attn_sink": torch.zeros(3)}, BAD, "attn_sink.shape"),
    ("run", {"extra_kv_cache": PACKED}, BAD, "extra_indices"),
    ("run", {"extra_indices": ints(3, 8)}, BAD, "extra_kv_cache"),
    ("run", {"extra_topk_length": ints(3)}, BAD, "extra_kv_cache"),
    ("run", {"kv_cache": torch.zeros(2, 2, 64, 584, dtype=torch.uint8)}, BAD, "kv_cache.shape"),
    ("wrapper", {"max_num_tokens": 0}, BAD, "max_num_tokens"),
    ("wrapper", {"max_num_heads": 1.5}, BAD, "max_num_heads"),
    ("wrapper", {"d_v": -1}, BAD, "d_v"),
    ("top_k", {"k": 10}, BAD, "k"),
    ("top_k", {"k": 0}, BAD, "k"),
    ("top_k", {"input": torch.zeros(9)}, BAD, "input.shape"),
    ("top_k", {"input": torch.zeros(3, 9, dtype=torch.int32)}, BAD, "input.dtype"),
    ("top_k", {"input": torch.zeros(9, 3).mT}, BAD, "input.stride(1)"),
    ("top_k", {"tie_break": 3}, BAD, "tie_break"),
    ("table", {"page_size": 3}, BAD, "page_size"),
    ("table", {"page_size": 1 << 31}, BAD, "page_size"),
    ("table", {"page_size": 2, "row_starts": ints(3)}, BAD, "page_table_row_starts"),
    ("table", {"src_page_table": ints(3)}, BAD, "src_page_table.shape"),
    ("table", {"lengths": None}, BAD, "lengths"),
    ("table", {"lengths": ints(4)}, BAD, "lengths.shape"),
    ("table", {"row_to_batch": ints(3).long()}, BAD, "row_to_batch.dtype"),
    ("table", {"out": ints(3, 5)}, BAD, "out.shape"),
    ("table", {"out_raw_indices": ints(3, 4).long()}, BAD, "out_raw_indices.dtype"),
    ("ragged", {"offsets": ints(2)}, BAD, "offsets.shape"),
    ("ragged", {"row_starts": ints(2)}, BAD, "row_starts.shape"),
]
# fmt: on


@pytest.mark.parametrize("call", list(CALLS))
def test_the_calls_that_refusals_spoil_are_good(call):
    function, arguments = CALLS[call]
    function(**arguments)


@pytest.mark.parametrize("call, spoiled, kind, field", REFUSALS)
def test_refusals_name_the_argument(call, spoiled, kind, field):
    function, arguments = CALLS[call]
    with pytest.raises(kind) as caught:
        function(**{**arguments, **spoiled})
    assert caught.value.field == field and caught.value.wanted and field in str(caught.value)


def test_refusals_of_buffers():
    shared = ints(3, 4)
    with pytest.raises(BAD) as caught:
        flashinfer.top_k_page_table_transform(**TABLE_CALL, out=shared, out_raw_indices=shared)
    assert caught.value.field == "out_raw_indices"
    with pytest.raises(BAD) as caught:  # [B,Q,H,D] whose tokens are at two distances
        out = torch.zeros(2, 3, 4, 512, dtype=BF16).transpose(0, 1)
        mla.trtllm_batch_decode_sparse_mla_dsv4(
            torch.zeros(3, 2, 4, 512, dtype=BF16), PACKED, None, ints(6, 8), out=out, swa_topk_lens=ints(6)
        )
    assert caught.value.field == "out.stride"
    with pytest.raises(smla.Unsupported):
        run(**{**RUN_CALL, "q": RUN_CALL["q"].clone().requires_grad_()})


@pytest.mark.gpu
def test_gpu_tensors_on_two_devices_are_refused():
    for name in ("swa_kv_cache", "sparse_indices", "compressed_kv_cache", "sparse_topk_lens"):
        arguments = {
            key: value.cuda() if isinstance(value, torch.Tensor) else value
            for key, value in DSV4_CALL.items()
        }
        arguments[name] = DSV4_CALL[name]
        with pytest.raises(BAD) as caught:
            mla.trtllm_batch_decode_sparse_mla_dsv4(**arguments)
        assert caught.value.field == f"{name}.device"
