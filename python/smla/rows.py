"""Integer operations of the attention backends (smla/rows.h): cache rows for the positions that an indexer
selected. Arrays are i32, of NumPy or of PyTorch on a CPU. Masked entries are -1.

Dimensions: T query tokens, K columns, R requests, MB blocks per request, B requests of a chunk.
"""

import ctypes as c
from typing import Any, NamedTuple

from . import _abi, _outputs
from ._abi import Dtype
from ._arrays.interface import PACKED
from ._fill import Struct
from ._library import check, lib
from ._types import Array, NewArray
from ._units import fields_repr
from .errors import flag, integer, invalid
from .tensor import describe, empty, require_writable, shape_of

__all__ = ["Rows", "combined_rows", "decode_schedule", "lse_from_log2", "mixed_rows", "prefill_chunks"]
__all__ += ["request_rows", "split_context"]
_ARGS = {
    "request_rows": Struct(_abi.RequestRowsArgs, ["rows", "counts"]),
    "split_context": Struct(_abi.SplitContextArgs, ["context_rows", "new_rows"]),
    "combined_rows": Struct(_abi.CombinedRowsArgs, ["rows", "lens"]),
    "mixed_rows": Struct(_abi.MixedRowsArgs, ["rows", "lens"]),
    "decode_schedule": Struct(_abi.DecodeScheduleArgs, ["schedule", "splits"]),
    "prefill_chunks": Struct(_abi.PrefillChunksArgs, ["chunks"]),
}


for _kind in _ARGS.values():  # local variables of the functions
    _kind.ignore(("shape", "tokens", "columns", "decodes", "wide", "parts", "starts", "ends", "found"))


def _run(name, values):
    """Runs an operation with the local variables of its function, and returns its arguments."""
    keep = []
    args = _ARGS[name].fill(values, keep)
    check(getattr(lib, f"smla_{name}")(c.byref(args)))
    return args


def _new(like, *shape):
    return empty(like, shape, Dtype.I32)


def _given(array, name, **sizes):
    """Raises an error if size arguments differ from the output's dimensions."""
    shape = _outputs.rank(array, name, len(sizes))
    for dim, (argument, size) in enumerate(sizes.items()):
        if size is not None:
            _outputs.agree(argument, size, shape, name, dim)
    return array


class Rows(NamedTuple):
    """Row lists.

    Attributes:
        rows: [T,K] i32.
        lens: [T] i32: number of columns to read.

    Example:
        >>> smla.rows.Rows(np.zeros((3, 8), np.int32), np.zeros(3, np.int32))
        smla.Rows(rows=int32 [3, 8], lens=int32 [3])
    """

    rows: Any
    lens: Any

    def __repr__(self) -> str:
        return fields_repr(self)


def request_rows(
    positions: Array,
    request_of_token: Array,
    block_table: Array,
    *,
    page_tokens: int,
    page_rows: int = 0,
    compact: bool = False,
    ranks: int = 0,
    rank: int = 0,
    interleave: int = 0,
    is_valid: Array | None = None,
    workspace_of_token: Array | None = None,
    workspace_starts: Array | None = None,
    rows: Array | None = None,
    counts: Array | None = None,
) -> Rows:
    """Converts positions of requests to cache rows: rows[t,j] is the row of positions[t,j], or -1 past the
    table.

    Args:
        positions: [T,K].
        request_of_token: [T].
        block_table: [R,MB].
        page_rows: rows between pages. Default: page_tokens.
        compact: move -1 behind the rows.
        ranks, rank, interleave: a context-parallel rank keeps positions with (p / interleave) % ranks ==
            rank, in its local numbering.
        is_valid: optional [T] u8.
        workspace_of_token, workspace_starts: optional [T] and [W]: for w = workspace_of_token[t] >= 0, rows
            are workspace_starts[w] + p.

    Returns:
        Rows. lens counts valid rows; this number is the length of a prefix only with `compact` or trailing
        -1.

    Example:
        >>> positions, table = np.array([[0, 65, -1]], np.int32), np.array([[7, 3]], np.int32)
        >>> smla.rows.request_rows(positions, np.zeros(1, np.int32), table, page_tokens=64).rows.tolist()
        [[448, 193, -1]]
    """
    shape = _outputs.rank(positions, "positions", 2)
    rows = _new(positions, *shape) if rows is None else rows
    counts = _new(positions, shape[0]) if counts is None else counts
    compact = flag("compact", compact)
    _run("request_rows", locals())
    return Rows(rows, counts)


def split_context(
    positions: Array, context_lens: Array, *, context_rows: Array | None = None, new_rows: Array | None = None
) -> tuple[NewArray, NewArray]:
    """Splits positions into positions below context_lens[t], and all others minus context_lens[t].

    An entry of one result is -1 in the other.

    Args:
        positions: [T,K].
        context_lens: [T].

    Returns:
        (context_rows, new_rows), each [T,K].

    Example:
        >>> old, new = smla.rows.split_context(np.array([[1, 5]], np.int32), np.array([4], np.int32))
        >>> old.tolist(), new.tolist()
        ([[1, -1]], [[-1, 1]])
    """
    shape = _outputs.rank(positions, "positions", 2)
    context_rows = _new(positions, *shape) if context_rows is None else context_rows
    new_rows = _new(positions, *shape) if new_rows is None else new_rows
    _run("split_context", locals())
    return context_rows, new_rows


def lse_from_log2(log2_lse: Array, lse: Array | None = None) -> NewArray:
    """Converts lse from base 2 to base e: lse = ln 2 * log2_lse, both [T,H] f32. Returns lse, which may be
    log2_lse.

    Example:
        >>> smla.rows.lse_from_log2(np.log2([[1, 4]], dtype=np.float32)) == np.log([[1, 4]], dtype=np.float32)
        array([[ True,  True]])
    """
    lse = empty(log2_lse, shape_of(log2_lse), Dtype.F32) if lse is None else lse
    require_writable(lse, "lse")
    keep: list = []
    tensors = [
        _abi.Tensor.from_buffer_copy(PACKED.pack(*describe(array, name, keep)))
        for array, name in ((log2_lse, "log2_lse"), (lse, "lse"))
    ]
    check(lib.smla_lse_from_log2(*map(c.byref, tensors)))
    return lse


def combined_rows(
    selected: Array | None,
    query_start_loc: Array,
    seq_lens: Array,
    gather_lens: Array,
    *,
    window: int,
    ratio: int,
    topk: int,
    stride: int,
    entries: int,
    tokens: int | None = None,
    columns: int | None = None,
    rows: Array | None = None,
    lens: Array | None = None,
) -> Rows:
    """Computes rows of prefill tokens in a gathered workspace with `stride` rows per request.

    A request has its compressed entries first, and from row `entries` on its last gather_lens[b] tokens. The
    result lists the selected entries, then the window rows, then -1.

    Args:
        selected: [T,>=topk], or None with topk = 0, which requires tokens = T.
        query_start_loc: [B+1], beginning with any number.
        seq_lens, gather_lens: [B].
        columns: columns of the result. Default: topk + window, rounded up to 128.

    Returns:
        Rows.

    Example:
        >>> one = np.array([3], np.int32)  # three tokens, which see windows of two
        >>> start = np.array([0, 3], np.int32)
        >>> smla.rows.combined_rows(
        ...     None, start, one, one, window=2, ratio=1, topk=0, stride=4, entries=0, tokens=3
        ... ).lens.tolist()
        [1, 2, 2]
    """
    if rows is not None:
        _given(rows, "rows", tokens=tokens, columns=columns)
    if selected is not None:
        selected = _given(selected, "selected", tokens=tokens, columns=None)
        tokens = shape_of(selected)[0]
    if tokens is None:
        raise invalid("tokens", None, "the number of query tokens, because selected is None")
    topk, window = integer("topk", topk, least=0), integer("window", window, least=0)
    columns = (topk + window + 127) // 128 * 128 if columns is None else columns
    tokens, columns = _outputs.extent(tokens, "tokens"), _outputs.extent(columns, "columns")
    rows = _new(query_start_loc, tokens, columns) if rows is None else rows
    lens = _new(query_start_loc, tokens) if lens is None else lens
    _run("combined_rows", locals())
    return Rows(rows, lens)


def mixed_rows(
    *,
    decode_window_rows: Array,
    query_start_loc: Array,
    seq_lens: Array,
    request_of_token: Array,
    window_table: Array,
    window: int,
    ratio: int,
    topk: int,
    window_page_tokens: int,
    window_page_rows: int = 0,
    decode_entries: Array | None = None,
    decode_lens: Array | None = None,
    is_valid: Array | None = None,
    prefill_entries: Array | None = None,
    entry_table: Array | None = None,
    entry_page_tokens: int = 0,
    entry_page_rows: int = 0,
    local: bool = False,
    tokens: int | None = None,
    rows: Array | None = None,
    lens: Array | None = None,
) -> Rows:
    """Computes rows of a batch with decode tokens first: `window` columns of the window cache, then
    compressed entries.

    lens always includes the whole window.

    Args:
        decode_window_rows: [Td,window].
        query_start_loc, seq_lens, request_of_token: [R+1], [R] and [Td+Tp].
        decode_entries: [Td,Kd]: entries of the request, with is_valid [Td] u8, if `local`; else cache rows,
            with decode_lens [Td].
        prefill_entries: [Tp,>=topk], or None with topk = 0.
        window_table, entry_table: block tables of both caches.

    Returns:
        Rows of [Td+Tp, window + P], P = max(topk, Kd) rounded up to 4.

    Example:
        >>> zero, page = np.array([0], np.int32), np.array([[0]], np.int32)
        >>> batch = {"query_start_loc": np.array([0, 1], np.int32), "seq_lens": zero + 9}
        >>> tables = {"window_table": page, "entry_table": page, "request_of_token": zero}
        >>> sizes = {"window": 2, "ratio": 1, "topk": 0, "window_page_tokens": 64, "entry_page_tokens": 64}
        >>> window = np.array([[6, 7]], np.int32)
        >>> smla.rows.mixed_rows(decode_window_rows=window, **batch, **tables, **sizes).rows.tolist()
        [[6, 7]]
    """
    decodes = _outputs.rank(decode_window_rows, "decode_window_rows", 2)[0]
    if rows is not None:
        _given(rows, "rows", tokens=tokens, columns=None)
    if tokens is None:
        (tokens,) = _outputs.rank(request_of_token, "request_of_token", 1)
    tokens = _outputs.extent(tokens, "tokens")
    topk, window = integer("topk", topk, least=0), integer("window", window, least=0)
    wide = 0 if decode_entries is None else _outputs.rank(decode_entries, "decode_entries", 2)[1]
    if rows is None:
        rows = _new(request_of_token, tokens, window + (max(topk, wide) + 3) // 4 * 4)
    lens = _new(request_of_token, tokens) if lens is None else lens
    if tokens < decodes:
        raise invalid("tokens", tokens, f"at least {decodes}, the number of decode tokens")
    if prefill_entries is None and not topk:  # the library takes the number of prefill tokens from them
        prefill_entries = _new(request_of_token, tokens - decodes, 0)
    local = flag("local", local)
    _run("mixed_rows", locals())
    return Rows(rows, lens)


def decode_schedule(
    lens: Array, parts: int, *, schedule: Array | None = None, splits: Array | None = None
) -> tuple[NewArray, NewArray]:
    """Computes FlashMLA's decode schedule: `parts` of a GPU share requests of lens[b] rows, in blocks of 64
    rows.

    Returns:
        schedule [parts,8]: first request (-1 if idle), first block, last request, end block, first split, 0,
        0, 0; and splits [B+1], prefix sums of the number of parts per request.

    Example:
        >>> schedule, splits = smla.rows.decode_schedule(np.array([640, 64], np.int32), 4)
        >>> schedule.shape, splits[0].item()
        ((4, 8), 0)
    """
    parts = _outputs.extent(parts, "parts")
    if schedule is None:
        schedule = _new(lens, parts, 8)
    else:
        _given(schedule, "schedule", parts=parts, columns=None)
    splits = _new(lens, _outputs.rank(lens, "lens", 1)[0] + 1) if splits is None else splits
    _run("decode_schedule", locals())
    return schedule, splits


def prefill_chunks(
    query_start_loc: Array,
    seq_lens: Array,
    *,
    ratio: int = 1,
    max_rows: int = 0,
    max_logits_bytes: int = 0,
    first_request: int = 0,
    max_requests: int = 0,
    chunks: Array | None = None,
) -> NewArray:
    """Splits prefill requests into chunks of at most max_rows gathered rows and max_logits_bytes of f32
    logits.

    Args:
        query_start_loc: [R+1].
        seq_lens: [R].
        ratio: a request has seq_len / ratio rows, at most max_rows.
        max_rows, max_logits_bytes, max_requests: limits of a chunk. 0 means no limit.
        first_request: first prefill request.

    Returns:
        [n,6]: first request, end request, first query token, end query token, rows, and 1 if the chunk can
        use the rows of the previous chunk.

    Example:
        >>> starts, lens = np.array([0, 4, 8], np.int32), np.array([100, 100], np.int32)
        >>> smla.rows.prefill_chunks(starts, lens, max_rows=128)[:, :4].tolist()
        [[0, 1, 0, 4], [1, 2, 4, 8]]
    """
    if chunks is None:
        (starts,) = _outputs.rank(query_start_loc, "query_start_loc", 1)
        ends: Any = query_start_loc
        tokens = max(int(ends[starts - 1]), 0) if starts else 0
        chunks = _new(query_start_loc, starts + tokens, 6)
    found: Any = chunks
    return found[: _run("prefill_chunks", locals()).count]
