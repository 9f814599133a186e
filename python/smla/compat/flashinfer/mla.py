"""`from smla.compat.flashinfer.mla import ...`"""

from smla.compat.flashinfer._dsv4 import batch_decode_sparse_mla_dsv4, trtllm_batch_decode_sparse_mla_dsv4
from smla.compat.flashinfer._v32 import trtllm_batch_decode_with_kv_cache_mla
from smla.compat.flashinfer.sparse_mla_sm120 import BatchSparseMLAPagedAttentionWrapper

__all__ = (
    "BatchSparseMLAPagedAttentionWrapper",
    "batch_decode_sparse_mla_dsv4",
    "trtllm_batch_decode_sparse_mla_dsv4",
    "trtllm_batch_decode_with_kv_cache_mla",
)
