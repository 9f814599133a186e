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
    """Result of attend and merge. out: [T,H,Dv]. lse: [T,H]. max_logits: [T,H]. None if not requested.

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
    """Attention of q[t] over the listed rows of one cache or two together: softmax(scale q.K) V, V the first
    Dv values of a row. A token without valid rows: out 0, lse `empty_lse`. A row listed twice counts twice.

    q: [T,H,Dqk] float (f64: not on a GPU) or e4m3 (with q_scale: value = code * q_scale), 1
    <= H <= 256. cache: smla.Cache, width Dqk, row_f64 only with q of f64. rows: [T,K] i32, holes (-1)
    anywhere. lengths: [T] i32: rows[t, lengths[t]:] are never read. extra, extra_rows, extra_lengths: a
    second cache (V4). sink: [H] f32 or f64, a logit that joins the denominator only. softmax_scale, q_scale:
    numbers, or f32 arrays of one element on the device. value_width: Dv; default: the width of out,
    without out 512 if Dqk is 576, else Dqk. precision: "exact" (the default) or "rounded", which allows
    keys of bf16(code * scale) or f16(code * f16(scale)). lse_base: "ln" or "log2". empty_lse: "-inf" or
    "+inf"; merge accepts both. out: [T,H,Dv] of q's type by default (bf16 for
    e4m3); f32, bf16 and f16 for each of them, bf16 alone for e4m3, f64 for f64. lse, max_logits: True, or an
    array, to get them, [T,H] f32 (f64 for f64). out_positions, out_frequencies: [T] integers and [n] f64, to
    rotate the last 2n channels of out back, as smla.inverse_rope does.
    Returns an Attended.

    Example:
        >>> cache = smla.Cache(np.ones((1, 64, 64), np.float32), "row_f32", 64)  # a page of 64 tokens
        >>> q, rows = np.ones((2, 16, 64), np.float32), np.array([[0, 1, -1], [0, 1, 2]], np.int32)
        >>> smla.attend(q, cache, rows, softmax_scale=64**-0.5, lse=True)
        smla.Attended(out=float32 [2, 16, 64], lse=float32 [2, 16], max_logits=None)
    """
    if q_scale is not None and dtype_of(q, "q") is not Dtype.E4M3:
        raise invalid(
            "q_scale", f"one beside q of {dtype_of(q, 'q').name.lower()}", "none: only e4m3 has one"
        )
    if extra is None and (extra_rows is not None or extra_lengths is not None):
        raise invalid("extra", None, "a smla.Cache, as its rows or lengths are given")
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
    """Joins n partial results of disjoint row lists, then applies the sink once.

    A part whose lse is -inf or +inf is empty and weighs exactly 0. If an lse is NaN, out and lse are NaN.

    partials: [n,T,H,Dv] float. lse: [n,T,H] f32 (f64 for partials of f64). sink: [H] f32 or f64. out:
    [T,H,Dv] of their type by default; f32, bf16, f16 (f64 for f64). lse_out: True, or [T,H] of lse's type, to
    get it (without the sink). Returns an Attended.

    Example:
        >>> parts, lse = np.array([1, 3], np.float32).reshape(2, 1, 1, 1), np.zeros((2, 1, 1), np.float32)
        >>> smla.merge(parts, lse).out.item()
        2.0
    """
    return _merge(locals())
