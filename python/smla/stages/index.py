"""The indexer (smla/stages_index.h)."""

from typing import Any, NamedTuple

from .. import _abi
from .._outputs import rank
from .._run import StageCall
from .._types import Array, DtypeLike, NewArray, PrecisionName, RopeName
from .._units import fields_repr
from ..cache import Cache
from ..context import Context, Workspace
from ..errors import integer, invalid

__all__ = ["BlockSelection", "QuantizedQuery", "Selection", "quant_index_q", "score"]
__all__ += ["score_select", "score_select_blocks", "select"]


class QuantizedQuery(NamedTuple):
    """Result of quant_index_q. q: [T,Hi,D]. scales: [T,Hi,D/32] e8m0 for e2m1 queries, else None.
    w: [T,Hi], multiplied by all scales.

    Example:
        >>> q, w = np.ones((1, 64, 128), np.float32), np.ones((1, 64), np.float32)
        >>> smla.quant_index_q(q, w, factor=0.01, dtype="f32")
        smla.QuantizedQuery(q=float32 [1, 64, 128], scales=None, w=float32 [1, 64])
    """

    q: Any
    scales: Any
    w: Any

    def __repr__(self) -> str:
        return fields_repr(self)


class Selection(NamedTuple):
    """indices: [T,k] i32 ascending, then -1. counts: [T] i32. selected: [T,k] f32 scores (f64 of f64), or
    None. rows: [T,k] i32 cache rows, or None.

    Example:
        >>> smla.select(np.zeros((3, 9), np.float32), 2)
        smla.Selection(indices=int32 [3, 2], counts=int32 [3], selected=None, rows=None)
    """

    indices: Any
    counts: Any
    selected: Any
    rows: Any

    def __repr__(self) -> str:
        return fields_repr(self)


class BlockSelection(NamedTuple):
    """indices: [T,k] i32 ascending, then -1. counts: [T] i32. selected: [T,k] f32 scores (f64 of f64), or
    None. block_maxima: [T,NB] f32 (f64), or None. best_blocks: [T,KB] i32 ascending, then -1, or None.

    Example:
        >>> found = smla.BlockSelection(np.zeros((1, 8), np.int32), np.array([8], np.int32), None, None, None)
        >>> found.indices.shape
        (1, 8)
    """

    indices: Any
    counts: Any
    selected: Any
    block_maxima: Any
    best_blocks: Any

    def __repr__(self) -> str:
        return fields_repr(self)


def _columns(keys, block_table, columns, **_):
    """N of logits that nobody sized: every token that the table, or the keys, can hold."""
    if columns is not None:
        return columns
    if not hasattr(keys, "page_tokens"):
        raise invalid("keys", type(keys).__name__, "a smla.Cache")
    return keys.capacity if block_table is None else rank(block_table, "block_table", 2)[1] * keys.page_tokens


def _chosen(argument, wanted):
    """A size that the caller has to choose."""

    def size(values, length):
        if values[argument] is None:
            raise invalid(argument, None, wanted)
        return values[argument]

    return argument, size


_quant_index_q = StageCall(
    "quant_index_q",
    _abi.QuantIndexQArgs,
    "q_out, scales, w_out",
    dtypes={"q_out": ("dtype", "e4m3")},
    result=QuantizedQuery,
)
_score = StageCall(
    "score", _abi.ScoreArgs, "logits", sizes={"N": ("columns", lambda values, _: _columns(**values))}
)
_K = _chosen("k", "how many to select, or indices=")
_SELECTED = {"outputs": "indices, counts, selected?, rows?", "sizes": {"k": _K}, "result": Selection}
_select = StageCall("select", _abi.SelectArgs, **_SELECTED)
_score_select = StageCall("score_select", _abi.ScoreSelectArgs, **_SELECTED)


def _blocks(values, length):
    columns = integer("columns", _columns(**values), 32, least=0)
    return -(-columns // integer("block_size", values["block_size"], 32, least=1))


_score_select_blocks = StageCall(
    "score_select_blocks",
    _abi.ScoreSelectBlocksArgs,
    "indices, counts, selected?, block_maxima?, best_blocks?",
    sizes={
        "k": _K,
        "NB": ("block_size", _blocks),
        "KB": _chosen("keep", "how many blocks to select, or best_blocks="),
    },
    result=BlockSelection,
)


@_quant_index_q.of
def quant_index_q(
    q: Array,
    w: Array,
    *,
    factor: float,
    dtype: DtypeLike | None = None,
    hadamard: bool = False,
    amax_floor: float = 0.0,
    positions: Array | None = None,
    frequencies: Array | None = None,
    rope_style: RopeName = "interleaved",
    rope_first: int = 0,
    rotated: Array | None = None,
    q_out: Array | None = None,
    scales: Array | None = None,
    w_out: Array | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> QuantizedQuery:
    """Quantises index queries and folds their scales into the weights (smla/stages_index.h).

    q: [T,Hi,D], w: [T,Hi], both float, and both f64 or neither. factor: Hi^-0.5 * D^-0.5. dtype of q_out:
    "e4m3" (the default), "e2m1", "bf16", "f32" ("f64" for f64 only). hadamard: rotate by H_D / sqrt(D).
    amax_floor: 0: 1e-4 (V4); V3.2 uses 1e-10. positions, frequencies: [T] integers and [n] f64: channels
    [rope_first, rope_first + 2n) are rotated before all that, as rope does it. rotated: [T,Hi,D] float,
    optional output: the queries after that rotation. Returns a QuantizedQuery, with w f32 (f64 for f64).

    Example:
        >>> q, w = np.ones((1, 64, 128), np.float32), np.ones((1, 64), np.float32)
        >>> smla.quant_index_q(q, w, factor=64**-0.5 * 128**-0.5).w.shape
        (1, 64)
    """
    return _quant_index_q(locals())


@_score.of
def score(
    q: Array,
    w: Array,
    keys: Cache,
    ends: Array,
    *,
    starts: Array | None = None,
    block_table: Array | None = None,
    request_of_token: Array | None = None,
    q_scales: Array | None = None,
    columns: int | None = None,
    fill: bool = True,
    precision: PrecisionName = "default",
    logits: Array | None = None,
    logits_dtype: DtypeLike | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> NewArray:
    """logits[t,j] = key_scale[j] * sum_h w[t,h] * relu(q[t,h] . k[j]) for starts[t] <= j < ends[t].

    q: [T,Hi,D] e4m3, e2m1 (with q_scales [T,Hi,D/32] e8m0), bf16, f32, f64; not f16. w: [T,Hi] f32 (f64 for q
    of f64), all scales folded in: what quant_index_q returns, or, for queries that are not quantised, the
    weights times Hi^-0.5 D^-0.5. keys: smla.Cache, row_f64 only with q of f64. block_table: [R,MB] i32 with
    request_of_token: [T] i32 (paged: column j is token j of the request); None: column j is row j of the
    keys. starts, ends: [T] i32. columns: N of the result, by default what keys or table can hold. fill:
    columns outside the window become -inf, else they stay. precision: "exact" (the default) or "rounded",
    which allows e4m3 products to be summed with about 14 bits, as DeepGEMM does on Hopper. Returns logits
    [T,N], by default new, of logits_dtype: f32 (the default; f64 for q of f64) or bf16.

    Example:
        >>> keys = smla.Cache(np.ones((1, 64, 128), np.float32), "row_f32", 64)
        >>> q, w = np.ones((1, 8, 128), np.float32), np.ones((1, 8), np.float32)
        >>> smla.score(q, w, keys, np.array([2], np.int32), columns=3).tolist()
        [[1024.0, 1024.0, -inf]]
    """
    return _score(locals())


@_select.of
def select(
    scores: Array,
    k: int | None = None,
    *,
    starts: Array | None = None,
    ends: Array | None = None,
    ids: Array | None = None,
    relative: bool = False,
    indices: Array | None = None,
    counts: Array | None = None,
    selected: Array | bool | None = None,
    rows: Array | bool | None = None,
    row_table: Array | None = None,
    request_of_token: Array | None = None,
    page_tokens: int | None = None,
    page_rows: int | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> Selection:
    """The k best columns of [starts[t], ends[t]) of each row: score descending, ties to the lowest index, NaN
    last.

    scores: [T,N] float. starts, ends: [T] i32. ids: [T,N] i32: column j stands for ids[t,j] (< 0:
    skipped), and ids are returned. relative: indices count from starts[t]. selected: True, or an array, for
    the scores too. rows: True, or an array, for the columns as rows of a cache, as smla.map finds them:
    row_table: [RC,MC] i32, request_of_token: [T] i32, page_tokens and page_rows (page_tokens) say where they
    are. Returns a Selection.

    Example:
        >>> smla.select(np.array([[1, 3, 2]], np.float32), 2).indices.tolist()
        [[1, 2]]
    """
    return _select(locals())


@_score_select.of
def score_select(
    q: Array,
    w: Array,
    keys: Cache,
    ends: Array,
    k: int | None = None,
    *,
    starts: Array | None = None,
    block_table: Array | None = None,
    request_of_token: Array | None = None,
    q_scales: Array | None = None,
    columns: int | None = None,
    relative: bool = False,
    precision: PrecisionName = "default",
    indices: Array | None = None,
    counts: Array | None = None,
    selected: Array | bool | None = None,
    rows: Array | bool | None = None,
    row_table: Array | None = None,
    page_tokens: int | None = None,
    page_rows: int | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> Selection:
    """score, then select, bit for bit, without ever storing whole logits. Arguments: those of both. rows need
    a block_table.

    columns: an upper bound of ends. Returns a Selection.

    Example:
        >>> keys = smla.Cache(np.ones((1, 64, 128), np.float32), "row_f32", 64)
        >>> q, w = np.ones((1, 8, 128), np.float32), np.ones((1, 8), np.float32)
        >>> smla.score_select(q, w, keys, np.array([40], np.int32), 3).indices.tolist()
        [[0, 1, 2]]
    """
    columns = _columns(keys, block_table, columns)
    return _score_select(locals())


@_score_select_blocks.of
def score_select_blocks(
    q: Array,
    w: Array,
    keys: Cache,
    ends: Array,
    k: int | None = None,
    *,
    block_size: int,
    blocks: Array | None = None,
    starts: Array | None = None,
    block_table: Array | None = None,
    request_of_token: Array | None = None,
    q_scales: Array | None = None,
    columns: int | None = None,
    relative: bool = False,
    keep: int | None = None,
    indices: Array | None = None,
    counts: Array | None = None,
    selected: Array | bool | None = None,
    block_maxima: Array | bool | None = None,
    best_blocks: Array | bool | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> BlockSelection:
    """score and select within candidate blocks of columns: keys of other blocks are not read.

    Arguments: those of score_select but precision, and: block_size: columns of a block;
    block b of a token is columns
    starts[t] + b * block_size and on. blocks: [T,B] i32, the candidate
    blocks of each token in any order, -1 for none; None: all. block_maxima: True, or an array, for the best
    score of each candidate block: +inf of the newest one, -inf of those that are no candidates. best_blocks:
    True, or an array, for the `keep` best blocks by those maxima, the newest always among them: `blocks` of
    later calls. Returns a BlockSelection.

    Example:
        >>> keys = smla.Cache(np.ones((1, 64, 128), np.float32), "row_f32", 64)
        >>> q, w = np.ones((1, 8, 128), np.float32), np.ones((1, 8), np.float32)
        >>> blocks, ends = np.array([[1]], np.int32), np.array([64], np.int32)
        >>> smla.score_select_blocks(q, w, keys, ends, 2, block_size=16, blocks=blocks).indices.tolist()
        [[16, 17]]
    """
    columns = _columns(keys, block_table, columns)
    return _score_select_blocks(locals())
