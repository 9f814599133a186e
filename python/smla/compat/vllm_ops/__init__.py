"""Functions that vLLM's sparse MLA backends call, with vLLM's names and signatures, on smla's stages.

    from smla.compat.vllm_ops import concat_and_cache_mla, triton_convert_req_index_to_global_index

docs/python/drop_in.md lists where vLLM calls each function, and which functions are not implemented. vLLM
itself is not imported. Tensors are PyTorch tensors on a CPU or a GPU. Calls do not synchronize with a GPU, so
they can be captured in a CUDA graph. Errors are smla.InvalidArgument or smla.Unsupported and name the
argument.
"""

from .attention import KV_SPLITS_CANDIDATES, triton_bf16_mla_sparse_interface, triton_mla_sparse_attention
from .caches import (
    concat_and_cache_mla,
    cp_gather_and_upconvert_fp8_kv_cache,
    cp_gather_indexer_k_quant_cache,
    dequantize_and_gather_k_cache,
    indexer_k_quant_and_cache,
    latent_cache,
    quantize_and_insert_k_cache,
)
from .indices import (
    _lse2_to_lse,
    build_flashinfer_mixed_sparse_indices,
    combine_topk_swa_indices,
    compute_global_topk_indices_and_lens,
    filter_prefill_indices,
    lse2_to_lse,
    triton_convert_req_index_to_global_index,
    triton_filter_and_convert_dcp_index,
)
from .logits import (
    fp8_mqa_logits_triton,
    fp8_paged_mqa_logits_triton,
    top_k_per_row_decode,
    top_k_per_row_prefill,
    warmup_fp8_mqa_logits_triton,
    warmup_fp8_paged_mqa_logits_triton,
)

__all__ = ["KV_SPLITS_CANDIDATES", "_lse2_to_lse", "build_flashinfer_mixed_sparse_indices"]
__all__ += ["combine_topk_swa_indices", "compute_global_topk_indices_and_lens", "concat_and_cache_mla"]
__all__ += ["cp_gather_and_upconvert_fp8_kv_cache", "cp_gather_indexer_k_quant_cache"]
__all__ += ["dequantize_and_gather_k_cache", "filter_prefill_indices", "fp8_mqa_logits_triton"]
__all__ += ["fp8_paged_mqa_logits_triton", "indexer_k_quant_and_cache", "latent_cache", "lse2_to_lse"]
__all__ += ["quantize_and_insert_k_cache", "top_k_per_row_decode", "top_k_per_row_prefill"]
__all__ += ["triton_bf16_mla_sparse_interface", "triton_convert_req_index_to_global_index"]
__all__ += ["triton_filter_and_convert_dcp_index", "triton_mla_sparse_attention"]
__all__ += ["warmup_fp8_mqa_logits_triton", "warmup_fp8_paged_mqa_logits_triton"]
