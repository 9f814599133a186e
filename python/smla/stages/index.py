"""The indexer: queries, scores and selection (smla/stages_index.h)."""

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
    """Result of quant_index_q.

    Attributes:
        q: [T,Hi,D].
        scales: [T,Hi,D/32] e8m0 for e2m1 queries, else None.
        w: [T,Hi], including all scales.

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
    """Result of select and score_select.

    Attributes:
        indices: [T,k] i32, ascending, padded with -1.
        counts: [T] i32.
        selected: [T,k] scores, f32 (f64 for f64 scores), or None.
        rows: [T,k] i32 cache rows, or None.

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
    """Result of score_select_blocks.

    Attributes:
        indices, counts, selected: as in Selection.
        block_maxima: [T,NB] f32 (f64 for f64 scores), or None.
        best_blocks: [T,KB] i32, ascending, padded with -1, or None.

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
    """Returns N for new logits: the capacity of the block table or of the keys, in tokens."""
    if columns is not None:
        return columns
    if not hasattr(keys, "page_tokens"):
        raise invalid("keys", type(keys).__name__, "a smla.Cache")
    return keys.capacity if block_table is None else rank(block_table, "block_table", 2)[1] * keys.page_tokens


def _chosen(argument, wanted):
    """Returns the function for a size that the caller must specify."""

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
    """Quantizes index queries and folds their scales into the weights (smla/stages_index.h).

    Args:
        q: [T,Hi,D] float.
        w: [T,Hi] float; f64 if and only if q is f64.
        factor: factor of the weights, Hi^-0.5 * D^-0.5.
        dtype: dtype of q_out: "e4m3" (default), "e2m1", "bf16" or "f32" ("f64" only for f64 queries).
        hadamard: multiply queries by H_D / sqrt(D).
        amax_floor: lower bound of a group's maximum. 0 selects 1e-4 (V4); V3.2 uses 1e-10.
        positions, frequencies: optional [T] integers and [n] f64: first rotate channels [rope_first,
            rope_first + 2n), as rope does.
        rope_style, rope_first: as style and first of rope.
        rotated: optional output [T,Hi,D] float: queries after that rotation.

    Returns:
        QuantizedQuery; its w is f32, or f64 for f64 queries.

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
    """Computes index scores: logits[t,j] = key_scale[j] * sum_h w[t,h] * relu(q[t,h].k[j]) for starts[t] <= j
    < ends[t].

    Args:
        q: [T,Hi,D] e4m3, e2m1, bf16, f32 or f64.
        w: [T,Hi] f32, or f64 if q is f64, including all scales: w of quant_index_q, or for unquantized
            queries weights * Hi^-0.5 * D^-0.5.
        keys: smla.Cache; row_f64 requires q of f64.
        starts, ends: [T] i32. Default of starts: 0.
        block_table, request_of_token: optional [R,MB] i32 and [T] i32: column j is token j of the request.
            Without them, column j is row j of keys.
        q_scales: [T,Hi,D/32] e8m0, required if q is e2m1.
        columns: N. Default: capacity of the table or of keys, in tokens.
        fill: whether columns outside [starts, ends) become -inf; otherwise, these columns are unchanged.
        precision: "exact" (default), or "rounded", which allows sums of e4m3 products with about 14 bits, as
            in DeepGEMM on Hopper.
        logits: [T,N]. Default: new.
        logits_dtype: "f32" (default) or "bf16"; f64 if q is f64.

    Returns:
        logits.

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
    """Selects the k columns of [starts[t], ends[t]) with the largest scores in each row.

    Ties select the lower column. NaN ranks below every number. Rows with fewer than k columns are padded with
    -1.

    Args:
        scores: [T,N] float.
        k: number of columns to select.
        starts, ends: optional [T] i32. Default: 0 and N.
        ids: optional [T,N] i32: return ids[t,j] in place of column j; columns with a negative id are skipped.
        relative: return columns minus starts[t].
        selected: True, or an array, to also return the scores.
        rows: True, or an array, to also return cache rows, as smla.map computes them from row_table [RC,MC]
            i32, request_of_token [T] i32, page_tokens and page_rows (default: page_tokens).

    Returns:
        Selection.

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
    """Computes the result of score followed by select, bit for bit, without storing all logits.

    Args:
        columns: upper bound of ends.
        rows: as in select; requires a block_table.

    Other arguments are the same as in score and select.

    Returns:
        Selection.

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
    """Scores and selects within candidate blocks of columns; keys of other blocks are not read.

    Block b of a token begins at column starts[t] + b * block_size. Arguments are the same as in score_select,
    without precision, and:

    Args:
        block_size: columns per block.
        blocks: optional [T,B] i32: candidate blocks of each token in any order, -1 for none. Default: all
            blocks.
        block_maxima: True, or an array, to also return the maximum score of each block: +inf for the newest,
            -inf for blocks that are no candidates.
        best_blocks: True, or an array, to also return the `keep` blocks with the largest maxima, always
            including the newest. Later calls accept them as `blocks`.

    Returns:
        BlockSelection.

    Example:
        >>> keys = smla.Cache(np.ones((1, 64, 128), np.float32), "row_f32", 64)
        >>> q, w = np.ones((1, 8, 128), np.float32), np.ones((1, 8), np.float32)
        >>> blocks, ends = np.array([[1]], np.int32), np.array([64], np.int32)
        >>> smla.score_select_blocks(q, w, keys, ends, 2, block_size=16, blocks=blocks).indices.tolist()
        [[16, 17]]
    """
    columns = _columns(keys, block_table, columns)
    return _score_select_blocks(locals())
