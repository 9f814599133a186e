"""Another import path of the attention calls: `from smla.compat.flashinfer.decode import ...`."""

from smla.compat.flashinfer._dsv4 import trtllm_batch_decode_sparse_mla_dsv4
from smla.compat.flashinfer._v32 import trtllm_batch_decode_with_kv_cache_mla

__all__ = ("trtllm_batch_decode_sparse_mla_dsv4", "trtllm_batch_decode_with_kv_cache_mla")
