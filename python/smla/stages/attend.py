"""Sparse attention over listed rows, and the merge of partial results (smla/stages_attend.h)."""

from typing import Any, NamedTuple

from .. import _abi
from .._abi import Dtype
from .._run import StageCall
from .._types import Array, DtypeLike, EmptyLseName, LseName, PrecisionName
from .._units import fields_repr
from ..cache import Cache
from ..context import Context, Workspace
from ..errors import invalid
from ..tensor import dtype_of

__all__ = ["Attended", "attend", "merge"]


class Attended(NamedTuple):
    """Result of attend and merge; members that were not requested are None.

    Attributes:
        out: [T,H,Dv].
        lse, max_logits: [T,H].

    Example:
        >>> smla.Attended(np.zeros((1, 16, 512), np.float32), None, None)
        smla.Attended(out=float32 [1, 16, 512], lse=None, max_logits=None)
    """

    out: Any
    lse: Any
    max_logits: Any

    def __repr__(self) -> str:
        return fields_repr(self)


def _value_width(values, length):
    width = length("Dqk")
    return values["value_width"] or (512 if width == 576 else width)


_attend = StageCall(
    "attend",
    _abi.AttendArgs,
    "out, lse?, max_logits?",
    sizes={"Dv": ("value_width", _value_width)},
    result=Attended,
)
_merge = StageCall("merge", _abi.MergeArgs, "out, lse_out?", result=lambda out, lse: Attended(out, lse, None))


@_attend.of
def attend(
    q: Array,
    cache: Cache,
    rows: Array,
    lengths: Array | None = None,
    *,
    softmax_scale: float | Array,
    extra: Cache | None = None,
    extra_rows: Array | None = None,
    extra_lengths: Array | None = None,
    sink: Array | None = None,
    q_scale: float | Array | None = None,
    value_width: int | None = None,
    precision: PrecisionName = "default",
    lse_base: LseName = "ln",
    empty_lse: EmptyLseName = "-inf",
    out: Array | None = None,
    out_dtype: DtypeLike | None = None,
    lse: Array | bool | None = None,
    max_logits: Array | bool | None = None,
    out_positions: Array | None = None,
    out_frequencies: Array | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> Attended:
    """Computes the attention of each query over the cache rows listed for its token.

    For token t and head h: out = softmax(softmax_scale * q.K) V over rows[t], and over extra_rows[t] if
    present. V is the first Dv values of a row. A row that is listed twice counts twice. A token without valid
    rows gets out = 0 and the lse that empty_lse selects.

    Args:
        q: [T,H,Dqk] float (f64 only on CPUs) or e4m3, 1 <= H <= 256.
        cache: smla.Cache of width Dqk; row_f64 requires q of f64.
        rows: [T,K] i32; negative rows are skipped.
        lengths: optional [T] i32; rows[t, lengths[t]:] are never read.
        softmax_scale: a number, or an f32 array of one element on the device.
        extra, extra_rows, extra_lengths: optional second cache of the same width, with its rows and lengths.
        sink: optional [H], f32 or f64: unscaled logit that only enters the denominator.
        q_scale: scale of e4m3 queries (value = code * q_scale): a number or an array, as softmax_scale.
        value_width: Dv. Default: width of out; without out, 512 if Dqk is 576, else Dqk.
        precision: "exact" (default), or "rounded", which allows keys of bf16(code * scale) or f16(code *
            f16(scale)).
        lse_base: base of the logarithm in lse, "ln" or "log2".
        empty_lse: "-inf" or "+inf"; merge accepts both.
        out: [T,H,Dv] f32, bf16 or f16; bf16 if q is e4m3, f64 if q is f64.
        out_dtype: dtype of a new out. Default: dtype of q, or bf16 if q is e4m3.
        lse, max_logits: True, or an array [T,H], to return them; f32, or f64 if q is f64.
        out_positions, out_frequencies: optional [T] integers and [n] f64; rotate the last 2n channels of out
            back, as smla.inverse_rope does.

    Returns:
        Attended.

    Example:
        >>> cache = smla.Cache(np.ones((1, 64, 64), np.float32), "row_f32", 64)  # a page of 64 tokens
        >>> q, rows = np.ones((2, 16, 64), np.float32), np.array([[0, 1, -1], [0, 1, 2]], np.int32)
        >>> smla.attend(q, cache, rows, softmax_scale=64**-0.5, lse=True)
        smla.Attended(out=float32 [2, 16, 64], lse=float32 [2, 16], max_logits=None)
    """
    if q_scale is not None and dtype_of(q, "q") is not Dtype.E4M3:
        raise invalid("q_scale", f"a scale for q of {dtype_of(q, 'q').name.lower()}", "None unless q is e4m3")
    if extra is None and (extra_rows is not None or extra_lengths is not None):
        raise invalid("extra", None, "a smla.Cache for extra_rows or extra_lengths")
    return _attend(locals())


@_merge.of
def merge(
    partials: Array,
    lse: Array,
    *,
    sink: Array | None = None,
    lse_base: LseName = "ln",
    out: Array | None = None,
    lse_out: Array | bool | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> Attended:
    """Merges n partial results of attend over disjoint row lists, then applies the sink.

    A partial result with an lse of -inf or +inf has weight 0. If an lse is NaN, out and lse are NaN.

    Args:
        partials: [n,T,H,Dv] float.
        lse: [n,T,H] f32, or f64 if partials are f64.
        sink: optional [H], f32 or f64, as in attend.
        lse_base: base of the logarithms, "ln" or "log2".
        out: [T,H,Dv] f32, bf16 or f16 (f64 if partials are f64). Default: new, in the dtype of partials.
        lse_out: True, or an array [T,H] in the dtype of lse, to return the merged lse without the sink.

    Returns:
        Attended.

    Example:
        >>> parts, lse = np.array([1, 3], np.float32).reshape(2, 1, 1, 1), np.zeros((2, 1, 1), np.float32)
        >>> smla.merge(parts, lse).out.item()
        2.0
    """
    return _merge(locals())
