"""FlashInfer's calls for sparse MLA and top-k on smla, for PyTorch tensors on a GPU or a CPU: `from
smla.compat import flashinfer`.

Names, arguments, defaults and results are the same as in FlashInfer, as are the module names mla, decode,
topk and sparse_mla_sm120. docs/python/drop_in.md lists extensions and unsupported arguments. The modules use
absolute imports, so that they can also be loaded as `flashinfer`.
"""

from . import decode, mla, sparse_mla_sm120, topk
from .sparse_mla_sm120 import BatchSparseMLAPagedAttentionWrapper
from .topk import TopKTieBreak, top_k, top_k_page_table_transform, top_k_ragged_transform

__all__ = ["BatchSparseMLAPagedAttentionWrapper", "TopKTieBreak", "decode", "mla", "sparse_mla_sm120"]
__all__ += ["top_k", "top_k_page_table_transform", "top_k_ragged_transform", "topk"]
