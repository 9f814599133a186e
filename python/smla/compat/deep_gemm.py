"""The indexer logits of DeepGEMM on smla, on CPUs and GPUs: `from smla.compat import deep_gemm`.

    logits[t,j] = key_scale[j] * sum_h weights[t,h] * relu(q[t,h].k[j])

Names, arguments, defaults and results are the same as in DeepGEMM of June 2026; docs/python/drop_in.md lists
every argument, extensions and unsupported arguments.

Dimensions: S query rows, B requests of next_n rows each, H index heads, D channels, N keys. fp8 is e4m3 with
one f32 scale per key. fp4 is e2m1, two per int8 with the even channel in the low nibble, with one UE8M0 scale
per 32 channels; one int32 has all scales of a row or key. A page of a cache stores the values of all its
keys, then all their scales, so its last dimension only gives the bytes per key.

All tensors of a call are on one device. Calls run on the device's current stream and can be captured in a
CUDA graph. Only the first paged call for a next_n waits for the GPU. Errors: InvalidArgument for a wrong
argument, Unsupported if no kernel supports the call.
"""

import os
from typing import NamedTuple

import torch

from ..cache import Cache
from ..errors import integer, invalid
from ..stages import score
from ..tensor import tensor as typed
from ._check import require

__all__ = [
    "fp8_fp4_mqa_logits",
    "fp8_fp4_paged_mqa_logits",
    "fp8_mqa_logits",
    "fp8_paged_mqa_logits",
    "get_num_sms",
    "get_paged_mqa_logits_metadata",
    "set_num_sms",
]

ValuesAndScales = tuple[torch.Tensor, torch.Tensor | None]

_WIDTH, _GROUP, _SCALE_BYTES = 128, 32, 4  # channels of a key; channels per UE8M0; bytes of a key's scales
_SPLIT = 256  # keys per unit of the schedule
_NIBBLES = {getattr(torch, name, None) for name in ("int8", "uint8", "float4_e2m1fn_x2")} - {None}
_DTYPES = (torch.float32, torch.bfloat16)  # of weights and logits


class _Kind(NamedTuple):
    """Storage of values. format: cache format. bits: per value. scale_dtype: dtype of dense keys' scales."""

    format: str
    bits: int
    scale_dtype: torch.dtype

    @property
    def row_bytes(self):
        return _WIDTH * self.bits // 8

    def scale_bytes(self, width):
        """Returns the bytes of scales in use at this width. Bytes after them may have any value."""
        return _SCALE_BYTES if self.bits == 8 else width // _GROUP


_FP8 = _Kind("index_fp8_132", 8, torch.float32)
_FP4 = _Kind("index_mxfp4_68", 4, torch.int32)
_num_sms = 0  # 0: the number of the device


def get_num_sms() -> int:
    """Returns the number of multiprocessors for schedules: of the current GPU, or the process's cores without
    a GPU.
    """
    return _num_sms or _device_parts()


def set_num_sms(new_num_sms: int) -> None:
    """Sets the result of get_num_sms; 0 restores the device's number. smla's kernels ignore it."""
    global _num_sms
    wanted = integer("new_num_sms", new_num_sms, least=0)
    if torch.cuda.is_available() and wanted > _device_parts():
        raise invalid("new_num_sms", wanted, f"at most {_device_parts()}, as the device has")
    _num_sms = wanted


def _device_parts():
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return len(os.sched_getaffinity(0))


def fp8_fp4_mqa_logits(
    q: ValuesAndScales,
    kv: ValuesAndScales,
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
    logits_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Computes logits of rows over keys [cu_seq_len_k_start[t], cu_seq_len_k_end[t]) of one array.

    Args:
        q: fp8 ([S,H,D] e4m3, None) or fp4 ([S,H,D/2] int8, [S,H] int32).
        kv: fp8 ([N,D] e4m3, [N] f32) or fp4 ([N,D/2] int8, [N] int32).
        weights: [S,H] f32 or bf16.
        cu_seq_len_k_start, cu_seq_len_k_end: [S] int32.
        clean_logits: whether columns outside a row's keys become -inf; otherwise, these columns are
            undefined.
        max_seqlen_k: if 0, column j of N is key j. Otherwise, column j of max_seqlen_k is key
            cu_seq_len_k_start[t] + j.
        logits_dtype: f32 or bf16.

    Returns:
        Logits [S,columns].
    """
    values, scales = _pair(q, "q")
    rows, heads, _ = require(values, "q", None, ("S", "H", "D"))
    queries = _Queries(values, scales)
    keys = _DenseKeys(_pair(kv, "kv"), queries.width, values)
    require(weights, "weights", _DTYPES, (rows, heads), values)
    require(cu_seq_len_k_start, "cu_seq_len_k_start", (torch.int32,), (rows,), values)
    require(cu_seq_len_k_end, "cu_seq_len_k_end", (torch.int32,), (rows,), values)
    most = integer("max_seqlen_k", max_seqlen_k, least=0)
    if most == 0:
        logits = _logits(values, rows, keys.count, keys.count + _SPLIT, logits_dtype)
        where = {"starts": cu_seq_len_k_start, "ends": cu_seq_len_k_end}
    else:
        logits = _logits(values, rows, most, most, logits_dtype)
        where = _relative_columns(cu_seq_len_k_start, cu_seq_len_k_end, keys.count, most)
    if keys.count == 0:
        return logits.fill_(float("-inf"))
    return _score(queries, weights, keys.cache(by_key=most > 0), clean_logits, logits, where)


def fp8_fp4_paged_mqa_logits(
    q: ValuesAndScales,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule_meta: torch.Tensor | None,
    max_context_len: int,
    clean_logits: bool = False,
    logits_dtype: torch.dtype = torch.float32,
    indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes logits of next_n rows per request over the keys in the request's pages.

    Args:
        q: fp8 ([B,next_n,H,D] e4m3, None) or fp4 ([B,next_n,H,D/2] int8, [B,next_n,H] int32).
        kv_cache: uint8 [pages,block,1,D+4] for fp8, [pages,block,1,D/2+4] for fp4.
        weights: [B*next_n,H] f32 or bf16.
        context_lens: int32 [B,next_n], the keys of each row, or [B]: row n has context_lens[b] - next_n + n +
            1 keys.
        block_table: [B,max_blocks] int32. Keys of pages that do not exist score -inf.
        schedule_meta: ignored.
        clean_logits: whether columns after a row's keys become -inf; otherwise, these columns are undefined.
        logits_dtype: f32 or bf16.
        indices: optional [B] int32, the request of each row, only with next_n 1; ignored.

    Returns:
        Logits [B*next_n,max_context_len].
    """
    values, scales = _pair(q, "q")
    batch, next_n, heads, _ = require(values, "q", None, ("B", "next_n", "H", "D"))
    rows = batch * next_n
    queries = _Queries(values, scales)
    require(weights, "weights", _DTYPES, (rows, heads), values)
    require(block_table, "block_table", (torch.int32,), (batch, "max_blocks"), values)
    one_each = getattr(context_lens, "ndim", 2) == 1
    require(context_lens, "context_lens", (torch.int32,), (batch,) if one_each else (batch, next_n), values)
    if indices is not None:
        _check_indices(indices, batch, next_n, values)
    most = integer("max_context_len", max_context_len, least=0)
    logits = _logits(values, rows, most, most, logits_dtype)
    keys, table = _paged_keys(kv_cache, block_table, queries)
    if keys is None:
        return logits.fill_(float("-inf"))
    ends = context_lens
    if one_each and next_n != 1:  # the keys of the last row; negative lengths count as 0
        before = torch.arange(1 - next_n, 1, dtype=torch.int32, device=values.device)
        ends = ends.clamp(min=0)[:, None] + before
    requests = _request_of_rows(rows, max(next_n, 1), values.device)
    where = {"ends": ends.flatten(), "block_table": table, "request_of_token": requests}
    return _score(queries, weights, keys, clean_logits, logits, where)


_FIRST_ROWS = 65536
_requests: dict[tuple[torch.device, int], list[torch.Tensor]] = {}  # all are kept: graphs may read them


def _request_of_rows(rows, next_n, device):
    """Returns the request of each row, [rows] int32. Caches the tensor, because creating it takes 4 us and a
    short call 7 us.
    """
    known = _requests.setdefault((device, next_n), [])
    if known and known[-1].numel() >= rows:
        return known[-1][:rows]
    on_gpu = device.type == "cuda"
    captured = on_gpu and torch.cuda.is_current_stream_capturing()  # the graph then owns the tensor
    made = torch.arange(rows if captured else max(rows, _FIRST_ROWS), dtype=torch.int32, device=device)
    made //= next_n
    if not captured and type(made) is torch.Tensor:  # not a compiler's fake tensor
        if on_gpu:
            torch.cuda.current_stream(device).synchronize()  # calls on other streams also read it
        known.append(made)
    return made[:rows]


def fp8_mqa_logits(
    q: torch.Tensor,
    kv: ValuesAndScales,
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
) -> torch.Tensor:
    """Computes f32 fp8_fp4_mqa_logits for fp8 queries q [S,H,D] e4m3."""
    return fp8_fp4_mqa_logits(
        (q, None), kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, clean_logits, max_seqlen_k
    )


def fp8_paged_mqa_logits(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule_meta: torch.Tensor | None,
    max_context_len: int,
    clean_logits: bool = False,
    indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes f32 fp8_fp4_paged_mqa_logits for fp8 queries q [B,next_n,H,D] e4m3."""
    return fp8_fp4_paged_mqa_logits(
        (q, None),
        kv_cache,
        weights,
        context_lens,
        block_table,
        schedule_meta,
        max_context_len,
        clean_logits,
        indices=indices,
    )


def get_paged_mqa_logits_metadata(
    context_lens: torch.Tensor, block_kv: int, num_sms: int, indices: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns how DeepGEMM divides the keys of a batch among multiprocessors: [num_sms+1,2] int32.

    Entry i is the start of the range of multiprocessor i as (q atom, split of 256 keys); the range ends where
    entry i + 1 begins. A q atom is up to two rows of a request, with the keys of the last row of that
    request. smla's kernels do not read the schedule.

    Args:
        context_lens: [B,next_n] or [B] int32.
        block_kv: keys per page; ignored.
        indices: optional [B] int32, the request of each row, only with next_n 1: two adjacent rows of a
            request are one atom, named by the first row.
    """
    shape = ("B",) if getattr(context_lens, "ndim", 2) == 1 else ("B", "next_n")
    batch, *rest = require(context_lens, "context_lens", (torch.int32,), shape)
    next_n = rest[0] if rest else 1
    if next_n == 0:
        raise invalid("context_lens.shape", list(context_lens.shape), "[B, next_n], next_n at least 1")
    integer("block_kv", block_kv, least=1)
    parts = integer("num_sms", num_sms, least=1)
    lens = context_lens.reshape(batch, next_n)[:, -1]
    if indices is None:
        return _share(_splits(lens)[:, None].expand(batch, (next_n + 1) // 2).flatten(), parts)
    _check_indices(indices, batch, next_n, context_lens)
    return _share(_paired_splits(lens, indices), parts)


def _splits(lens):
    return (lens.clamp(min=0) - 1) // _SPLIT + 1


def _paired_splits(lens, indices):
    """Returns the number of splits of each atom at its first row, computed from its last row, and 0 at second
    rows.
    """
    rows = torch.arange(lens.numel(), device=lens.device)
    follows = torch.zeros_like(rows, dtype=torch.bool)  # the previous row belongs to the same request
    follows[1:] = indices[1:] == indices[:-1]
    run = torch.cummax(rows.masked_fill(follows, 0), 0).values  # first row of each row's request
    second = (rows - run) % 2 == 1
    splits = _splits(lens)
    # Row 0, which roll moves to the end, is not a second row.
    of_pair = torch.where(second.roll(-1), splits.roll(-1), splits)
    return of_pair.masked_fill(second, 0)


def _share(splits, parts):
    """Cuts the concatenated splits of all atoms into `parts` parts, whose lengths differ by at most one."""
    ends = torch.nn.functional.pad(splits.cumsum(0), (1, 0))  # ends[i]: splits before atom i
    part = torch.arange(parts + 1, device=splits.device)
    total = ends[-1]
    extra = total % parts
    if _first_get_more(splits.device):
        longer = torch.minimum(part, extra)
    else:
        longer = (part - (parts - extra)).clamp(min=0)
    begin = part * (total // parts) + longer
    atom = torch.searchsorted(ends[1:], begin, right=True)
    return torch.stack((atom, begin - ends[atom]), dim=1).to(torch.int32)


def _first_get_more(device):
    """Returns whether the first parts are longer by one (from Blackwell on), or the last ones (Hopper)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 10


class _Queries:
    """Queries as arguments of smla. values: [T,H,128]. scales: [T,H,4] e8m0 for fp4, else None. width: D."""

    def __init__(self, q, q_sf):
        codes, kind, self.width = _codes(q, "q")
        codes = _widened(codes.flatten(0, -3), kind.row_bytes)
        if kind is _FP8:
            if q_sf is not None:
                raise invalid("q_sf", "a tensor", "None, because weights include the scales of fp8 queries")
            self.values, self.scales = codes.view(torch.float8_e4m3fn), None
        else:
            require(q_sf, "q_sf", (torch.int32,), tuple(q.shape[:-1]), q)
            scales = q_sf.flatten(0, -2).unsqueeze(-1).view(torch.uint8)[..., : kind.scale_bytes(self.width)]
            self.values = typed(codes, "e2m1", "q")
            self.scales = typed(_widened(scales, _SCALE_BYTES), "e8m0", "q_sf")


class _DenseKeys:
    """Keys of `width` channels with scales in a second tensor, converted to caches of smla."""

    def __init__(self, pair, width, like):
        kv, kv_sf = pair
        self.count, _ = require(kv, "kv", None, ("N", "D"), like)
        self._codes, self._kind, self._width = _codes(kv, "kv")
        if self._width != width:
            raise invalid("kv.shape", list(kv.shape), f"the {width} channels of q")
        require(kv_sf, "kv_sf", (self._kind.scale_dtype,), (self.count,), kv)
        self._scales = kv_sf

    def cache(self, by_key):
        """Returns a cache with pages of one key each if `by_key`, else with one page of all keys."""
        if not by_key and (page := self._page_in_place()):
            return page
        page_tokens = 1 if by_key else self.count
        codes = self._codes.unflatten(0, (-1, page_tokens))
        scales = self._scales.unsqueeze(-1).view(torch.uint8).unflatten(0, (-1, page_tokens))
        return _pack(codes, scales, self._kind, self._width)

    def _page_in_place(self):
        """Returns the page that contains values and scales, or None if the scales are not at a page's offset.

        For example, values and scales that are slices of one buffer of M keys form a page, even if only N < M
        keys are used.
        """
        codes, scales, row = self._codes, self._scales, self._kind.row_bytes
        if codes.shape[1] != row or not codes.is_contiguous() or not scales.is_contiguous():
            return None
        tokens, rest = divmod(scales.data_ptr() - codes.data_ptr(), row)
        size = tokens * (row + _SCALE_BYTES)
        if (
            rest
            or tokens < self.count
            or codes.storage_offset() + size > codes.untyped_storage().nbytes()
            or codes.data_ptr() % 16
        ):
            return None
        # Kernels that load 16-byte words require a multiple of 16, even for a single page.
        return Cache(
            codes.as_strided((size,), (1,)),
            self._kind.format,
            tokens,
            pages=1,
            page_stride_bytes=_round_up(size, 16),
        )


def _logits(like, rows, columns, room, dtype):
    """Returns a new result. As in DeepGEMM, the row stride is a multiple of 1024 bytes."""
    if dtype not in _DTYPES:
        raise invalid("logits_dtype", dtype, " or ".join(map(str, _DTYPES)))
    stride = _round_up(room, 1024 // dtype.itemsize)
    return torch.empty((rows, stride), dtype=dtype, device=like.device)[:, :columns]


def _score(queries, weights, keys, clean, logits, where):
    # DeepGEMM sums products of e4m3 with about 14 bits.
    options = {"q_scales": queries.scales, "fill": bool(clean), "precision": "rounded", "logits": logits}
    return score(queries.values, weights.float(), keys, **options, **where)


def _relative_columns(starts, ends, keys, columns):
    """Returns pages of one key and a table whose row r is r, r + 1, ..., so that column j of row t is key
    starts[t] + j.

    The rows of the table overlap, so it needs keys + columns words of memory, not rows * columns.
    """
    first = starts.clamp(min=0)
    table = torch.arange(keys + columns, dtype=torch.int32, device=starts.device)
    return {
        "block_table": table.as_strided((keys, columns), (1, 1)),
        "request_of_token": first,
        "ends": ends.clamp(0, keys) - first,
    }


def _paged_keys(kv_cache, block_table, queries):
    """Returns the cache and its block table, or (None, None) if the cache has no pages."""
    flat = getattr(kv_cache, "ndim", 4) == 3
    shape = ("pages", "block", "D+4") if flat else ("pages", "block", 1, "D+4")
    pages, block, *_, record = require(kv_cache, "kv_cache", None, shape, block_table)
    if kv_cache.dtype.itemsize != 1:
        raise invalid("kv_cache.dtype", kv_cache.dtype, "torch.uint8")
    width = queries.width
    kind = {width + _SCALE_BYTES: _FP8, width // 2 + _SCALE_BYTES: _FP4}.get(record)
    if kind is None:
        wanted = f"a last dimension of {width} + 4 (fp8) or {width} / 2 + 4 (fp4) bytes"
        raise invalid("kv_cache.shape", list(kv_cache.shape), wanted)
    if pages == 0:
        return None, None
    if not kv_cache[0].is_contiguous():
        raise invalid("kv_cache.stride", list(kv_cache.stride()), "dense pages")
    if width == _WIDTH:
        return Cache(kv_cache, kind.format, block), block_table
    # Copy the listed pages of narrower keys, and pad channels with 0 to smla's width.
    listed = kv_cache.view(torch.uint8).index_select(0, block_table.flatten().clamp(0, pages - 1)).flatten(1)
    row = width * kind.bits // 8
    values = listed[:, : block * row].unflatten(1, (block, row))
    scales = listed[:, block * row :].unflatten(1, (block, _SCALE_BYTES))
    table = torch.arange(block_table.numel(), dtype=torch.int32, device=block_table.device)
    missing = (block_table < 0) | (block_table >= pages)
    return _pack(values, scales, kind, width), table.view(block_table.shape).masked_fill_(missing, -1)


def _pack(values, scales, kind, width):
    """Returns keys as a cache. values: [pages,keys,bytes] u8, padded with 0. scales: [pages,keys,4] u8."""
    pages, keys, given = values.shape
    middle, end = keys * kind.row_bytes, keys * (kind.row_bytes + _SCALE_BYTES)
    new = values.new_zeros if given < kind.row_bytes else values.new_empty
    packed = new((pages, _round_up(end, 32)))  # 32: a sector of GPU memory
    packed[:, :middle].unflatten(1, (keys, kind.row_bytes))[..., :given].copy_(values)
    known = kind.scale_bytes(width)
    packed[:, middle:end].unflatten(1, (keys, _SCALE_BYTES))[..., :known].copy_(scales[..., :known])
    return Cache(packed, kind.format, keys, pages=pages, page_stride_bytes=packed.shape[1])


def _codes(x, name):
    """Returns x as bytes, its storage kind, and its number of channels."""
    if x.dtype is torch.float8_e4m3fn:
        kind, width = _FP8, x.shape[-1]
    elif x.dtype in _NIBBLES:
        kind, width = _FP4, x.shape[-1] * 2
    else:
        raise invalid(f"{name}.dtype", x.dtype, "torch.float8_e4m3fn, or torch.int8 with two e2m1 each")
    if not 1 <= width <= _WIDTH or (kind is _FP4 and width % _GROUP):
        raise invalid(f"{name}.shape", list(x.shape), "1 to 128 channels, or 32, 64, 96 or 128 for e2m1")
    return x.view(torch.uint8), kind, width


def _widened(x, wanted):
    missing = wanted - x.shape[-1]
    return torch.nn.functional.pad(x, (0, missing)) if missing else x


def _check_indices(indices, batch, next_n, like):
    require(indices, "indices", (torch.int32,), (batch,), like)
    if next_n != 1:
        raise invalid("indices", f"next_n {next_n}", "next_n 1, with one request per row")


def _pair(pair, name):
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise invalid(name, type(pair).__name__, "a tuple of two: values and scales")
    return pair


def _round_up(n, multiple):
    return -(-n // multiple) * multiple
