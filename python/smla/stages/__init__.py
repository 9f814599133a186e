"""One function per stage. Arrays are of NumPy, PyTorch or any DLPack library, all on one device.

Dimensions: T query tokens, H heads, K listed rows, R requests, MB blocks per request, Hi index heads, D
channels, N columns. A cache row is page * page_rows + offset; negative rows are masked. "float" means f32,
bf16, f16 or f64. Nothing is converted: other dtypes raise InvalidArgument. smla.tensor(array, "bf16") names a
dtype that the array's library lacks.

Keyword arguments of all functions:
    context: smla.Context. Default: the default context of the device.
    workspace: smla.Workspace. Default: a workspace of the calling thread.
    stream: address of a CUDA stream. Default: the current stream of the arrays' library.

Functions allocate omitted outputs with the library of the first argument, and return them.
Errors: InvalidArgument for a wrong argument, Unsupported if no kernel supports the call.
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
