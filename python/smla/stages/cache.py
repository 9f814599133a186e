"""Writing, compressing, gathering and mapping cached tokens (smla/stages_cache.h)."""

from .. import _abi
from .._run import StageCall
from .._types import Array, NewArray, NormName, RopeName
from ..cache import Cache
from ..context import Context, Workspace
from ..errors import integer

# Omits `map`, which would shadow the builtin.
__all__ = ["compress", "copy_pages", "gather", "save_state", "write_index", "write_kv"]
_write_kv = StageCall("write_kv", _abi.WriteArgs)
_write_index = StageCall("write_index", _abi.WriteArgs)
_save_state = StageCall("save_state", _abi.SaveStateArgs)
_compress = StageCall("compress", _abi.CompressArgs)
_gather = StageCall("gather", _abi.GatherArgs)
_copy_pages = StageCall("copy_pages", _abi.CopyPagesArgs)


def _columns(values, length):
    pool = values.get("pool_tokens", 0)
    if not hasattr(pool, "__index__"):  # symbols of PyTorch have it
        integer("pool_tokens", pool)
    pool = max(pool, 1)
    tail = 0 if values.get("visible_tokens") is None else pool - 1
    return length("P") * pool + tail


_map = StageCall("map", _abi.MapArgs, "rows", sizes={"K": ("pool_tokens", _columns)})


@_write_kv.of
def write_kv(
    head: Array,
    slots: Array,
    cache: Cache,
    *,
    tail: Array | None = None,
    norm_weight: Array | None = None,
    norm_bias: Array | None = None,
    norm_kind: NormName = "rms",
    eps: float = 0.0,
    positions: Array | None = None,
    frequencies: Array | None = None,
    rope_style: RopeName = "interleaved",
    rope_first: int = 0,
    values: Array | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> None:
    """Encodes [head | tail] of token t into row slots[t] of a cache. Tokens with a negative slot are skipped.

    If two tokens have the same slot, the row receives either token or a mixture of both; check_indices does
    not detect this.

    Args:
        head: [T,Dhead] float.
        slots: [N] i64 or i32, N <= T; tokens from N on are padding.
        cache: smla.Cache of width Dhead + Dtail.
        tail: optional [T,Dtail] float: the rope part.
        norm_weight, norm_bias: optional [Dhead] float: normalize head first, as norm does; only "layer"
            accepts a bias.
        norm_kind, eps: as in norm; eps must be > 0.
        positions, frequencies: optional [T] integers and [n] f64: then rotate channels [rope_first,
            rope_first + 2n) of the row, as rope does.
        rope_style, rope_first: as style and first of rope.
        values: optional output [T,Dhead + Dtail] float: the row before it is encoded.

    Example:
        >>> memory = np.zeros((1, 4, 2), np.float32)
        >>> smla.write_kv(np.array([[1, 2]], np.float32), np.array([3]), smla.Cache(memory, "row_f32", 4))
        >>> memory[0, 3].tolist()
        [1.0, 2.0]
    """
    _write_kv(locals())


@_write_index.of
def write_index(
    head: Array,
    slots: Array,
    cache: Cache,
    *,
    tail: Array | None = None,
    hadamard: bool = False,
    norm_weight: Array | None = None,
    norm_bias: Array | None = None,
    norm_kind: NormName = "rms",
    eps: float = 0.0,
    positions: Array | None = None,
    frequencies: Array | None = None,
    rope_style: RopeName = "interleaved",
    rope_first: int = 0,
    values: Array | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> None:
    """Encodes index keys. Arguments are the same as in write_kv, with one more:

    Args:
        hadamard: multiply the row by H_D / sqrt(D) before it is encoded; D must be a power of two. `values`
            receives the row before this product.

    Example:
        >>> memory = np.zeros((1, 4, 2), np.float32)
        >>> smla.write_index(np.array([[1, 2]], np.float32), np.array([3]), smla.Cache(memory, "row_f32", 4))
        >>> memory[0, 3].tolist()
        [1.0, 2.0]
    """
    _write_index(locals())


@_save_state.of
def save_state(
    kv: Array,
    score: Array,
    ape: Array | None,
    positions: Array,
    slots: Array,
    state: Cache,
    *,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> None:
    """Writes kv[t] and score[t] + ape[positions[t] % ratio] to row slots[t] of the compressor's state.

    Args:
        kv, score: [T,W] f32, bf16 or f16; with state_f64 also f64.
        ape: [ratio,W] f32, or None (V4.1).
        positions: [T] i32 or i64.
        slots: [N] i64 or i32, N <= T.
        state: smla.Cache, state_f32 or state_f64, of width 2W.

    Example:
        >>> state, x = smla.Cache.empty("state_f32", 1, 4, width=4), np.ones((1, 2), np.float32)
        >>> smla.save_state(x, x, None, np.array([0]), np.array([0]), state)
        >>> state.array.view(np.float32)[:4].tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    _save_state(locals())


@_compress.of
def compress(
    state: Cache,
    state_table: Array,
    request_of_token: Array,
    positions: Array,
    slots: Array,
    norm_weight: Array | None,
    frequencies: Array,
    cache: Cache,
    *,
    ratio: int,
    eps: float = 0.0,
    hadamard: bool = False,
    no_overlap: bool = False,
    entries: Array | None = None,
    latents: Array | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> None:
    """Writes one compressed entry for each token with (position + 1) % ratio == 0 and a valid slot.

    A token with an entry pools the state rows of its window, normalizes the result, rotates it at position /
    ratio * ratio, and encodes it into row slots[t] of `cache`.

    Args:
        state: smla.Cache, state_f32 or state_f64.
        state_table: [R,MB] i32.
        request_of_token: [T] i32.
        positions: [T] i32 or i64.
        slots: [N] i64 or i32, N <= T.
        norm_weight: [D] float, or None for no norm (GLM-5.3).
        frequencies: [n] f64.
        cache: smla.Cache of keys or index keys; row_f64 requires state_f64.
        ratio: tokens per entry. Windows overlap if it is 4, unless no_overlap is set.
        eps: epsilon of the RMS norm.
        hadamard: as in write_index.
        entries, latents: optional outputs [T,D], f32, bf16 or f16 (f64 with state_f64): entries before
            encoding, and before rotation.

    Example:
        >>> state = smla.Cache(np.ones((1, 2, 4), np.float32), "state_f32", 2)  # values, scores
        >>> entries, zero = smla.Cache(np.zeros((1, 4, 2), np.float32), "row_f32", 4), np.zeros(1, np.int32)
        >>> smla.compress(state, zero[None], zero, zero + 1, zero, None, np.ones(1), entries, ratio=2)
        >>> entries.array[0, 0].tolist()
        [1.0, 1.0]
    """
    _compress(locals())


@_gather.of
def gather(
    cache: Cache,
    block_table: Array,
    cu: Array,
    out: Array,
    *,
    starts: Array | None = None,
    raw: bool = False,
    scales: Array | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> NewArray:
    """Decodes cache rows into a dense array: tokens [starts[r], starts[r] + n) of request r go to out rows
    [cu[r], cu[r+1]).

    Args:
        block_table: [R,MB] i32.
        cu: [R+1] i32.
        out: [N,D] float; rows from cu[R] on are unchanged.
        starts: optional [R] i32. Default: 0.
        raw: copy index_fp8_132 without decoding: out receives e4m3 codes, and `scales` [N] f32 the scales.

    Returns:
        out.

    Example:
        >>> cache = smla.Cache(np.arange(8, dtype=np.float32).reshape(2, 2, 2), "row_f32", 2)
        >>> table, out = np.array([[1, 0]], np.int32), np.zeros((3, 2), np.float32)
        >>> smla.gather(cache, table, np.array([0, 3], np.int32), out).tolist()
        [[4.0, 5.0], [6.0, 7.0], [0.0, 1.0]]
    """
    _gather(locals())
    return out


@_copy_pages.of
def copy_pages(
    source: Cache,
    target: Cache,
    pairs: Array,
    *,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> None:
    """Copies page pairs[i][0] of `source` to page pairs[i][1] of `target`.

    Both caches must have the same format, width, page size and scale. If the target page of one pair also
    occurs in another pair, its contents are undefined.

    Args:
        pairs: [N,2] i32.

    Example:
        >>> cache = smla.Cache(np.arange(4, dtype=np.float32).reshape(2, 1, 2), "row_f32", 1)
        >>> smla.copy_pages(cache, cache, np.array([[1, 0]], np.int32))
        >>> cache.array.tolist()
        [[[2.0, 3.0]], [[2.0, 3.0]]]
    """
    _copy_pages(locals())


@_map.of
def map(
    positions: Array,
    request_of_token: Array,
    block_table: Array,
    *,
    page_tokens: int,
    page_rows: int = 0,
    pool_tokens: int = 0,
    limits: Array | None = None,
    visible_tokens: Array | None = None,
    rows: Array | None = None,
    counts: Array | None = None,
    lengths: Array | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> NewArray:
    """Converts positions of a request to cache rows.

    For p = positions[t,j]: rows[t,j] = block_table[request_of_token[t]][p / page_tokens] * page_rows + p %
    page_tokens, or -1 if p is negative or past the table.

    Args:
        positions: [T,P] i32.
        request_of_token: [T] i32.
        block_table: [R,MB] i32.
        page_rows: rows between pages. Default: page_tokens.
        pool_tokens: consecutive tokens per position (GLM-5.3 pools). Default: 1.
        limits: optional [T] i32: columns from limits[t] on become -1.
        visible_tokens: optional [T] i32: number of tokens that each token sees; tokens after the last whole
            pool are listed last.
        rows: [T,K] i32, K = P * pool_tokens, plus pool_tokens - 1 with visible_tokens; may be positions.
        counts, lengths: optional outputs [T] i32: number of valid rows, and of columns up to the last valid
            row.

    Returns:
        rows.

    Example:
        >>> positions, table = np.array([[0, 65, -1]], np.int32), np.array([[7, 3]], np.int32)
        >>> smla.map(positions, np.zeros(1, np.int32), table, page_tokens=64).tolist()
        [[448, 193, -1]]
    """
    return _map(locals())
