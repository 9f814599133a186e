"""FlashInfer's calls for sparse MLA and top-k on smla, for tensors of PyTorch on a GPU or a CPU:
`from smla.compat import flashinfer`.

Its modules use absolute imports, so that they can be loaded under the original's name as well.

Names, arguments, defaults and results are FlashInfer's, in modules named as its own: mla, decode, topk,
sparse_mla_sm120. docs/python/compat_flashinfer.md lists what is accepted beyond it and what is refused.
"""

from . import decode, mla, sparse_mla_sm120, topk
from .sparse_mla_sm120 import BatchSparseMLAPagedAttentionWrapper
from .topk import TopKTieBreak, top_k, top_k_page_table_transform, top_k_ragged_transform
