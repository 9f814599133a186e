"""The stages, one function each. Arguments are arrays of NumPy, PyTorch or any DLPack library, on one device.

Alphabet: T query tokens, H heads, K listed rows, R requests, MB blocks per request, Hi index heads, D
channels, N columns. A row of a cache is page * page_rows + offset; rows below 0 are holes. Types are written
as smla names them (bf16, e4m3, ...), and "float" is any of f32, bf16, f16, f64. Nothing is cast: another type
is refused. Memory of libraries without such a type is passed as smla.tensor(array, "bf16").

All functions take, by keyword:
  context: smla.Context; None: the default one of the device.
  workspace: smla.Workspace; None: one of this thread's own.
  stream: a CUDA stream's address; None: the current one of the arrays' library.
Outputs are allocated with the library of the first argument unless given (out=...), and returned.
Errors: InvalidArgument names the field, what it got and wants; Unsupported if no kernel can run it.
"""

from .attend import Attended, attend, merge
from .cache import compress, copy_pages, gather, save_state, write_index, write_kv
from .cache import map as map
from .index import (
    BlockSelection,
    QuantizedQuery,
    Selection,
    quant_index_q,
    score,
    score_select,
    score_select_blocks,
    select,
)
from .linear import absorb, inverse_rope, norm, out_project, project, rope, up_project

# Omits `map`, which would shadow the builtin; use smla.map.
__all__ = ["Attended", "BlockSelection", "QuantizedQuery", "Selection", "absorb", "attend", "compress"]
__all__ += [
    "copy_pages",
    "gather",
    "inverse_rope",
    "merge",
    "norm",
    "out_project",
    "project",
    "quant_index_q",
]
__all__ += ["rope", "save_state", "score", "score_select", "score_select_blocks", "select", "up_project"]
__all__ += ["write_index", "write_kv"]
