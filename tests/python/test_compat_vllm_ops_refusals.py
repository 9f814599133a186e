"""Signatures and refusals of smla.compat.vllm_ops."""

import inspect

import pytest

torch = pytest.importorskip("torch")

import smla
from smla.compat import vllm_ops as ops
from vllm_ops_world import E4M3, i32, topk

SIGNATURES = {
    "_lse2_to_lse": "lse_base2",
    "build_flashinfer_mixed_sparse_indices": (
        "decode_swa_indices, decode_compressed_indices, decode_compressed_topk_lens, "
        "prefill_topk_indices, query_start_loc, seq_lens, token_to_req_indices, swa_block_table, "
        "swa_block_size, compressed_block_table, compressed_block_size, window_size, compress_ratio, "
        "topk, decode_compressed_indices_are_local=False, decode_is_valid_token=None"
    ),
    "combine_topk_swa_indices": (
        "topk_indices, query_start_loc, seq_lens, gather_lens, window_size, compress_ratio, topk, M, N"
    ),
    "compute_global_topk_indices_and_lens": (
        "topk_indices, token_to_req_indices, block_table, block_size, is_valid_token"
    ),
    "concat_and_cache_mla": "kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale",
    "cp_gather_and_upconvert_fp8_kv_cache": (
        "src_cache, dst, block_table, workspace_starts, batch_size, seq_starts=None"
    ),
    "cp_gather_indexer_k_quant_cache": "kv_cache, dst_k, dst_scale, block_table, cu_seq_lens",
    "dequantize_and_gather_k_cache": (
        "out, k_cache, seq_lens, gather_lens, block_table, block_size, offset, use_fnuz=False"
    ),
    "fp8_mqa_logits_triton": "q, kv, weights, cu_seqlen_ks, cu_seqlen_ke",
    "fp8_paged_mqa_logits_triton": "q, kv_cache, weights, context_lens, block_tables, max_model_len",
    "indexer_k_quant_and_cache": "k, kv_cache, slot_mapping, quant_block_size, kv_cache_dtype",
    "quantize_and_insert_k_cache": "k, k_cache, slot_mapping, block_size=64, is_ue8m0=True, use_fnuz=False",
    "top_k_per_row_decode": (
        "logits, next_n, seq_lens, raw_topk_indices, num_rows, stride0, stride1, topk_tokens"
    ),
    "top_k_per_row_prefill": (
        "logits, cu_seqlen_ks, cu_seqlen_ke, raw_topk_indices, num_rows, stride0, stride1, topk_tokens"
    ),
    "triton_bf16_mla_sparse_interface": "q, kv, indices, sm_scale, d_v=512",
    "triton_convert_req_index_to_global_index": (
        "req_id, block_table, token_indices, BLOCK_SIZE=64, NUM_TOPK_TOKENS=2048, BLOCK_N=128, "
        "HAS_PREFILL_WORKSPACE=False, prefill_workspace_request_ids=None, prefill_workspace_starts=None, "
        "return_valid_counts=False, out=None, valid_counts_out=None, *, BLOCK_STRIDE_ROWS=None"
    ),
    "triton_filter_and_convert_dcp_index": (
        "req_id, block_table, token_indices, dcp_size, dcp_rank, cp_kv_cache_interleave_size=1, "
        "BLOCK_SIZE=64, NUM_TOPK_TOKENS=2048, BLOCK_N=128, return_valid_counts=False, "
        "compact_valid_to_front=True"
    ),
    "triton_mla_sparse_attention": "q, kv, indices, sm_scale, num_kv_splits=None, sm_count=None",
    "warmup_fp8_mqa_logits_triton": "num_heads, head_dim, device",
    "warmup_fp8_paged_mqa_logits_triton": "num_heads, head_dim, block_size, device",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(ops, name)).parameters.values()
    plain = inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])
    assert str(plain) == f"({SIGNATURES[name]})"


def test_every_public_name_is_tested_for_its_signature():
    functions = {name for name in ops.__all__ if callable(getattr(ops, name))}
    assert functions - set(SIGNATURES) == {"filter_prefill_indices", "latent_cache", "lse2_to_lse"}


def convert(**changes):
    arguments = {"req_id": i32(2), "block_table": i32(1, 2), "token_indices": i32(2, 8), "NUM_TOPK_TOKENS": 8}
    return ops.triton_convert_req_index_to_global_index(**{**arguments, **changes})


def dcp(**changes):
    arguments = {"req_id": i32(2), "block_table": i32(1, 2), "token_indices": i32(2, 8), "NUM_TOPK_TOKENS": 8}
    return ops.triton_filter_and_convert_dcp_index(**{**arguments, "dcp_size": 2, "dcp_rank": 0, **changes})


def combine(**changes):
    arguments = dict(topk_indices=i32(0, 4), query_start_loc=i32(2), seq_lens=i32(1), gather_lens=i32(1))
    return ops.combine_topk_swa_indices(
        **{**arguments, "window_size": 4, "compress_ratio": 4, "topk": 4, "M": 8, "N": 4, **changes}
    )


def mixed(**changes):
    arguments = dict(
        decode_swa_indices=i32(1, 4),
        decode_compressed_indices=i32(1, 4),
        decode_compressed_topk_lens=None,
        prefill_topk_indices=i32(0, 4),
        query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=torch.ones(1, dtype=torch.int32),
        token_to_req_indices=i32(1),
        swa_block_table=i32(1, 2),
        swa_block_size=4,
        compressed_block_table=i32(1, 2),
        compressed_block_size=4,
        window_size=4,
        compress_ratio=4,
        topk=4,
    )
    return ops.build_flashinfer_mixed_sparse_indices(**{**arguments, **changes})


def concat(kv_c=None, k_pe=None, kv_cache=None, kv_cache_dtype="auto", slots=None):
    pick = {"kv_c": torch.ones(2, 512).bfloat16(), "k_pe": torch.ones(2, 64).bfloat16()}
    return ops.concat_and_cache_mla(
        pick["kv_c"] if kv_c is None else kv_c,
        pick["k_pe"] if k_pe is None else k_pe,
        torch.zeros(2, 4, 576).bfloat16() if kv_cache is None else kv_cache,
        torch.zeros(2, dtype=torch.int64) if slots is None else slots,
        kv_cache_dtype,
        torch.ones(1),
    )


BYTES = torch.zeros(2, 4, 656, dtype=torch.uint8)


REFUSALS = [
    (convert, {"req_id": torch.zeros(2)}, "req_id.dtype"),
    (convert, {"block_table": i32(1, 2).long()}, "block_table.dtype"),
    (convert, {"token_indices": i32(2, 8).double()}, "token_indices.dtype"),
    (convert, {"token_indices": i32(2, 1, 8)}, "token_indices.ndim"),
    (convert, {"NUM_TOPK_TOKENS": 2048}, "NUM_TOPK_TOKENS"),
    (convert, {"req_id": i32(3)}, "req_id.shape[0]"),
    (convert, {"HAS_PREFILL_WORKSPACE": True}, "prefill_workspace_request_ids"),
    (convert, {"BLOCK_SIZE": 0}, "page_tokens"),
    (convert, {"BLOCK_STRIDE_ROWS": 3}, "page_rows"),
    (dcp, {"dcp_rank": 2}, "dcp_rank"),
    (dcp, {"dcp_size": 0}, "dcp_rank"),
    (dcp, {"cp_kv_cache_interleave_size": 7}, "cp_kv_cache_interleave_size"),
    (combine, {"topk": 5}, "topk"),
    (combine, {"M": 2**31}, "M"),
    (combine, {"seq_lens": torch.zeros(1)}, "seq_lens.dtype"),
    (mixed, {"decode_swa_indices": i32(1, 5)}, "decode_swa_indices.shape[1]"),
    (mixed, {"decode_compressed_indices": i32(2, 4)}, "decode_compressed_indices.shape[0]"),
    (mixed, {"decode_compressed_indices_are_local": True}, "decode_is_valid_token"),
    (
        mixed,
        {"decode_compressed_indices_are_local": True, "decode_is_valid_token": torch.zeros(1)},
        "decode_is_valid_token",
    ),
    (mixed, {"token_to_req_indices": i32(0)}, "token_to_req_indices.shape[0]"),
    (mixed, {"prefill_topk_indices": i32(1, 3), "token_to_req_indices": i32(2)}, "topk"),
    (mixed, {"seq_lens": torch.ones(1)}, "seq_lens.dtype"),
    (concat, {"kv_cache": torch.zeros(2, 4, 576)}, "kv_c.dtype"),
    (concat, {"kv_cache": torch.zeros(2, 4, 576).half()}, "kv_cache.dtype"),
    (concat, {"kv_cache": torch.zeros(2, 4, 580).bfloat16()[..., :576]}, "kv_cache.stride"),
    (concat, {"kv_cache": torch.zeros(2, 576).bfloat16()}, "kv_cache.ndim"),
    (concat, {"kv_cache": BYTES, "kv_cache_dtype": "fp8"}, "kv_cache.shape"),
    (concat, {"kv_cache": BYTES[..., :600].contiguous(), "kv_cache_dtype": "fp8_ds_mla"}, "kv_cache.shape"),
    (concat, {"kv_cache": BYTES.float(), "kv_cache_dtype": "fp8_ds_mla"}, "kv_cache.dtype"),
    (concat, {"kv_cache": BYTES, "kv_cache_dtype": "nvfp4_ds_mla"}, "kv_cache_dtype"),
    (concat, {"k_pe": torch.ones(2, 32).bfloat16()}, "args.tail"),
    (concat, {"slots": torch.zeros(2)}, "args.slots"),
    (topk, {"stride0": 9}, "stride0, stride1"),
    (topk, {"topk_tokens": 5}, "topk_tokens"),
    (topk, {"num_rows": 3}, "logits.shape"),
    (topk, {"raw_topk_indices": i32(1, 4)}, "raw_topk_indices.shape"),
]


@pytest.mark.parametrize("call, changes, field", REFUSALS, ids=lambda x: x if isinstance(x, str) else "")
def test_refusals_name_the_argument(call, changes, field):
    with pytest.raises((smla.InvalidArgument, smla.Unsupported)) as caught:
        call(**changes)
    assert field in caught.value.field and caught.value.wanted


def test_refusals_of_formats_that_there_are_not():
    k, cache = torch.zeros(1, 512).bfloat16(), torch.zeros(1, 37440, dtype=torch.uint8)
    slots = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(smla.Unsupported, match="use_fnuz"):
        ops.quantize_and_insert_k_cache(k, cache, slots, use_fnuz=True)
    with pytest.raises(smla.Unsupported, match="is_ue8m0"):
        ops.quantize_and_insert_k_cache(k, cache, slots, is_ue8m0=False)
    with pytest.raises(smla.InvalidArgument, match="k_cache"):
        ops.quantize_and_insert_k_cache(k, torch.zeros(2, 64, 656, dtype=torch.uint8), slots)
    with pytest.raises(smla.InvalidArgument, match="offset"):
        ops.dequantize_and_gather_k_cache(torch.zeros(1, 4, 512), cache, i32(1), None, i32(1, 1), 64, 5)
    keys, index = torch.zeros(1, 128), torch.zeros(2, 4, 132, dtype=torch.uint8)
    with pytest.raises(smla.Unsupported, match="ue8m0"):
        ops.indexer_k_quant_and_cache(keys, index, slots, 128, "fp32")
    with pytest.raises(smla.InvalidArgument, match="quant_block_size"):
        ops.indexer_k_quant_and_cache(keys, index, slots, 64, "ue8m0")
    with pytest.raises(smla.InvalidArgument, match="dst_scale"):
        ops.cp_gather_indexer_k_quant_cache(
            index, torch.zeros(4, 128, dtype=torch.uint8), torch.zeros(4, 2), i32(1, 1), i32(2)
        )
    with pytest.raises(smla.InvalidArgument, match="dst_k"):
        ops.cp_gather_indexer_k_quant_cache(index, torch.zeros(4, 128), torch.zeros(4, 1), i32(1, 1), i32(2))


def test_refusals_of_attention_and_logits():
    q, kv = torch.zeros(1, 2, 576).bfloat16(), torch.zeros(4, 1, 576).bfloat16()
    rows = i32(1, 1, 4)
    for bad, field in (({"indices": i32(1, 4)}, "indices.shape"), ({"kv": torch.zeros(4, 2, 576)}, "kv")):
        with pytest.raises(smla.InvalidArgument) as caught:
            ops.triton_mla_sparse_attention(**{"q": q, "kv": kv, "indices": rows, "sm_scale": 1.0, **bad})
        assert caught.value.field == field
    with pytest.raises(smla.InvalidArgument, match="num_kv_splits"):
        ops.triton_mla_sparse_attention(q, kv, rows, 1.0, num_kv_splits=-1)
    code, scale, weights = torch.zeros(3, 128).to(E4M3), torch.ones(3), torch.ones(2, 4)
    bounds, query = i32(2), torch.zeros(2, 4, 128).to(E4M3)
    with pytest.raises(smla.InvalidArgument, match=r"kv\[1\]"):
        ops.fp8_mqa_logits_triton(query, (code, scale[:2]), weights, bounds, bounds)
    cache = torch.zeros(2, 4, 1, 132, dtype=torch.uint8)
    with pytest.raises(smla.InvalidArgument, match="context_lens"):
        ops.fp8_paged_mqa_logits_triton(query[:, None], cache, weights, i32(3), i32(2, 1), 4)
    with pytest.raises(smla.InvalidArgument, match="q.ndim"):
        ops.fp8_paged_mqa_logits_triton(query, cache, weights, bounds, i32(2, 1), 4)
    with pytest.raises(smla.InvalidArgument, match="num_rows"):
        ops.top_k_per_row_decode(torch.zeros(4, 8), 1, i32(2), i32(4, 2), 4, 8, 1, 2)
