"""Shapes and dtypes of what an operator returns, from its arguments: real tensors or PyTorch's fake ones.

Each function gives one (shape, dtype) per output, None for an output that was not asked for.
"""

import torch

from .._abi import Dtype
from .._arrays.torch import torch_dtype
from .._dtypes import parse
from ..errors import invalid

DTYPES = {dtype: torch_dtype(dtype) for dtype in Dtype}
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _rank(tensor, name, ndim):
    if tensor.dim() != ndim:
        raise invalid(f"{name}.ndim", tensor.dim(), str(ndim))
    return tensor.shape


def _extent(value, name):
    if value < 0:
        raise invalid(name, value, "0 or more")
    return value


def _sums(tensor):
    """The dtype of sums over an input: f64 for f64, else f32."""
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32


def _float_of(tensor):
    """The dtype of an output beside a floating input: its own; bf16, which attend wants, for fp8."""
    return tensor.dtype if tensor.dtype in _FLOATS else torch.bfloat16


def like_x(x, **_):
    return [(x.shape, _float_of(x))]


def product(x, w, out_dtype=None, **_):
    tokens, groups, _ = _rank(x, "x", 3)
    return [((tokens, groups, _rank(w, "w", 3)[1]), out_dtype or _float_of(x))]


def quantized(q, dtype="e4m3", q_out=None, **_):
    tokens, heads, width = _rank(q, "q", 3)
    kind = parse(dtype)
    in_blocks = kind is Dtype.E2M1 if q_out is None else q_out.shape[-1] * 2 == width  # e2m1: two to a byte
    codes = (tokens, heads, width // 2 if in_blocks else width), DTYPES[kind]
    return [
        codes,
        ((tokens, heads, width // 32), DTYPES[Dtype.E8M0]) if in_blocks else None,
        ((tokens, heads), _sums(q)),
    ]


def _columns(keys, block_table, columns, layout):
    """N of logits that nobody sized: every token that the table, or the keys, can hold."""
    if columns is not None:
        return _extent(columns, "columns")
    page_tokens = layout["keys_page_tokens"]
    if block_table is not None:
        return _rank(block_table, "block_table", 2)[1] * page_tokens
    pages = layout.get("keys_pages")
    if pages is None:
        if keys.dim() < 2:
            raise invalid("columns", None, "how many, or keys whose first dimension counts pages")
        pages = keys.shape[0]
    return (pages - 1) * (layout.get("keys_page_rows") or page_tokens) + page_tokens if pages else 0


def logits(q, w, keys, block_table=None, columns=None, **layout):
    return [((_rank(q, "q", 3)[0], _columns(keys, block_table, columns, layout)), _sums(w))]


def _selection(tokens, k, indices, selected, dtype):
    if indices is not None:
        k = _rank(indices, "indices", 2)[1]
    if k is None:
        raise invalid("k", None, "how many to select, or indices=")
    k = _extent(k, "k")
    return [
        ((tokens, k), torch.int32),
        ((tokens,), torch.int32),
        ((tokens, k), dtype) if selected is True else None,
    ]


def selection(scores, k=None, indices=None, selected=False, **_):
    return _selection(_rank(scores, "scores", 2)[0], k, indices, selected, _sums(scores))


def scored_selection(q, w, k=None, indices=None, selected=False, **_):
    return _selection(_rank(q, "q", 3)[0], k, indices, selected, _sums(w))


def mapped(positions, **_):
    return [(_rank(positions, "positions", 2), torch.int32), None]


def attended(q, value_width=None, out_dtype=None, lse=False, max_logits=False, **_):
    tokens, heads, width = _rank(q, "q", 3)
    value_width = _extent(value_width or (512 if width == 576 else width), "value_width")
    row = (tokens, heads), _sums(q)
    return [
        ((tokens, heads, value_width), out_dtype or _float_of(q)),
        row if lse is True else None,
        row if max_logits is True else None,
    ]


def merged(partials, lse, lse_out=False, **_):
    shape = _rank(partials, "partials", 4)[1:]
    return [(shape, _float_of(partials)), (shape[:2], lse.dtype) if lse_out is True else None]
