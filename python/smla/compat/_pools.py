"""Opens the key-value pools of FlashInfer and FlashMLA as caches of smla. A pool has one KV head."""

import torch

from ..errors import invalid, unsupported
from ._check import open_cache, require

PLAIN = {torch.bfloat16: "row_bf16", torch.float32: "row_f32"}
BYTES = (torch.uint8, torch.int8, torch.float8_e4m3fn)
_PACKED = {(576, 656): "fp8_656", (512, 584): "fp8_584", (512, 528): "fp8_528"}  # (D, bytes per token)
_PER_TENSOR = {576: "fp8_576", 512: "fp8_512"}  # e4m3 values, by D
_IN_WHOLE_PAGES = {576: 656, 512: 584}  # bytes per token of [pages,bytes of a page], by D


def is_packed(pool):
    """Returns whether a pool has packed records, which SM120 kernels read and SM100 kernels do not."""
    if not isinstance(pool, torch.Tensor) or pool.dtype not in BYTES:
        return False
    return pool.dtype != torch.float8_e4m3fn or pool.shape[-1:] in [(record,) for _, record in _PACKED]


def is_per_tensor(pool, width):
    """Returns whether a pool has e4m3 values with one scale, which a smla.Cache applies."""
    codes = isinstance(pool, torch.Tensor) and pool.dtype == torch.float8_e4m3fn
    return codes and pool.shape[-1:] == (width,) and width in _PER_TENSOR


def open_pool(pool, name, query, *, layout=None, scale=None):
    """Returns a smla.Cache over a pool with any stride between pages.

    Args:
        pool: [pages,page,X], [pages,1,page,X] (layout HND), [pages,page,1,X] (NHD; None: either layout),
            [rows,D], or packed records as [pages,bytes of a page]. X is D values of bf16, f32 or e4m3, where
            D is the query's width, or the bytes of a packed record.
        scale: scale of e4m3 values.
    """
    require(pool, name, (*PLAIN, *BYTES), like=query)
    if pool.ndim == 4:
        pool = _without_head(pool, name, layout)
    if pool.ndim not in (2, 3):
        raise invalid(f"{name}.ndim", pool.ndim, "2, 3 or 4")
    return open_pages(pool, name, query.shape[-1], scale)


def open_pages(pool, name, width, scale=None):
    """Returns open_pool of a pool [pages,page,X], [pages,page,1,X], [rows,D] or [pages,bytes of a page]."""
    format, record = _format_of(pool, name, width)
    last = pool.shape[-1]
    page = pool.shape[1] if pool.ndim > 2 else last // record
    if page < 1:
        raise invalid(f"{name}.shape", list(pool.shape), "at least one token per page")
    dense = pool.ndim == 2 or page == 1 or pool.stride(1) == last
    if not dense or (last > 1 and pool.stride(-1) != 1):
        raise invalid(f"{name}.stride", list(pool.stride()), "dense pages")
    if last % record and format != "fp8_584":  # whose pages end with padding
        raise invalid(f"{name}.shape[-1]", last, f"a multiple of {record}, the bytes per token")
    return open_cache(name, pool, format, page, scale=scale if format in _PER_TENSOR.values() else None)


def _format_of(pool, name, width):
    """Returns the record format and the number of elements of the last dimension per token."""
    last = pool.shape[-1]
    if pool.dtype in PLAIN:
        if last != width:
            raise invalid(f"{name}.shape[-1]", last, f"{width}, as the query")
        return PLAIN[pool.dtype], width
    if is_per_tensor(pool, width):
        return _PER_TENSOR[width], width
    record = _IN_WHOLE_PAGES.get(width, last) if pool.ndim == 2 else last
    if (width, record) not in _PACKED:
        known = " or ".join(f"{size} for a query of {d}" for d, size in _PACKED)
        wanted = f"records of {known} bytes, or e4m3 values of the query's width, 512 or 576"
        raise unsupported(f"{name}.shape[-1]", f"{last} of {pool.dtype} for a query of {width}", wanted)
    return _PACKED[width, record], record


def _without_head(pool, name, layout):
    """Returns the pool as [pages,page,X], without the dimension of its one KV head."""
    head = {"HND": 1, "NHD": 2}.get(layout) or (1 if pool.shape[1] == 1 else 2)
    if pool.shape[head] != 1:
        wanted = f"one KV head in dimension {head}" + (f" (kv_layout {layout})" if layout else " or 1")
        raise invalid(f"{name}.shape", list(pool.shape), wanted)
    return pool.squeeze(head)
