"""The operators: one entry per stage, in the language of _schema.py. Meanings are those of smla.<stage>."""

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import stages
from . import _shapes


class Entry(NamedTuple):
    """A stage as operators.

    arguments: what all its operators take. outputs: what it computes; `?`: only if asked for, `+`: only into
    a given tensor. choices: what only the operator takes that allocates the outputs, by position before `*`.
    shapes: of the outputs (_shapes.py). in_place: the first output may be the first argument. result: makes
    what the function returns of the outputs.
    """

    arguments: str
    outputs: str = ""
    choices: str = ""
    shapes: Callable[..., Any] | None = None
    in_place: bool = False
    result: Callable[..., Any] = lambda *outputs: outputs[0]


_PRODUCT = Entry("Tensor x, Tensor w", "out", "*, ScalarType? out_dtype=None", _shapes.product)
_ROPE = "Tensor x, Tensor positions, Tensor frequencies, *, str style='interleaved', SymInt first=0"
_SCORE = (
    "Tensor q, Tensor w, Cache keys, Tensor ends, *, Tensor? starts=None, Tensor? block_table=None, "
    "Tensor? request_of_token=None, Tensor? q_scales=None"
)

TABLE = {
    "norm": Entry(
        "Tensor x, Tensor? weight=None, Tensor? bias=None, *, float eps, str kind='rms'",
        "out",
        shapes=_shapes.like_x,
        in_place=True,
    ),
    "rope": Entry(_ROPE + ", bool inverse=False", "out", shapes=_shapes.like_x, in_place=True),
    "inverse_rope": Entry(_ROPE, "out", shapes=_shapes.like_x, in_place=True),
    "project": _PRODUCT,
    "absorb": _PRODUCT,
    "up_project": _PRODUCT,
    "out_project": _PRODUCT,
    "quant_index_q": Entry(
        "Tensor q, Tensor w, *, float factor, bool hadamard=False, float amax_floor=0.0",
        "q_out, scales?, w_out",
        "*, str dtype='e4m3'",
        _shapes.quantized,
        result=stages.QuantizedQuery,
    ),
    "score": Entry(_SCORE + ", bool fill=True", "logits", "*, SymInt? columns=None", _shapes.logits),
    "select": Entry(
        "Tensor scores, *, Tensor? starts=None, Tensor? ends=None, Tensor? ids=None, bool relative=False",
        "indices, counts, selected?",
        "SymInt? k=None, *, bool selected=False",
        _shapes.selection,
        result=stages.Selection,
    ),
    "score_select": Entry(
        _SCORE + ", SymInt? columns=None, bool relative=False",
        "indices, counts, selected?",
        "SymInt? k=None, *, bool selected=False",
        _shapes.scored_selection,
        result=stages.Selection,
    ),
    "map": Entry(
        "Tensor positions, Tensor request_of_token, Tensor block_table, *, SymInt page_tokens, "
        "SymInt page_rows=0",
        "rows, counts+",
        shapes=_shapes.mapped,
        in_place=True,
    ),
    "attend": Entry(
        "Tensor q, Cache cache, Tensor rows, Tensor? lengths=None, *, Scale softmax_scale, "
        "Cache? extra=None, Tensor? extra_rows=None, Tensor? extra_lengths=None, Tensor? sink=None, "
        "Scale q_scale, str precision='default', str lse_base='ln'",
        "out, lse?, max_logits?",
        "*, SymInt? value_width=None, ScalarType? out_dtype=None, bool lse=False, bool max_logits=False",
        _shapes.attended,
        result=stages.Attended,
    ),
    "merge": Entry(
        "Tensor partials, Tensor lse, *, Tensor? sink=None, str lse_base='ln'",
        "out, lse_out?",
        "*, bool lse_out=False",
        _shapes.merged,
        result=lambda out, lse_out: stages.Attended(out, lse_out, None),
    ),
    "write_kv": Entry("Tensor head, Tensor slots, Cache(a!) cache, *, Tensor? tail=None"),
    "write_index": Entry(
        "Tensor head, Tensor slots, Cache(a!) cache, *, Tensor? tail=None, bool hadamard=False"
    ),
    "save_state": Entry(
        "Tensor kv, Tensor score, Tensor ape, Tensor positions, Tensor slots, Cache(a!) state"
    ),
    "compress": Entry(
        "Cache state, Tensor state_table, Tensor request_of_token, Tensor positions, Tensor slots, "
        "Tensor norm_weight, Tensor frequencies, Cache(a!) cache, *, SymInt ratio, float eps, "
        "bool hadamard=False, Tensor(b!)? entries=None"
    ),
    "gather": Entry(
        "Cache cache, Tensor block_table, Tensor cu, Tensor(a!) out, *, Tensor? starts=None, "
        "bool raw=False, Tensor(b!)? scales=None"
    ),
    # Within one cache `source` is left out: a tensor that is written may not stand in a second argument.
    "copy_pages": Entry("Cache(a!) target, Tensor pairs, *, Cache? source=None"),
}
