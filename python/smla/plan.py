"""Plans: data about the batch of a step, computed for all layers together."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from . import _abi, _views
from ._abi import Group
from ._fill import Struct
from ._handles import Handle
from ._library import check, lib, names
from ._units import device_text, fields_repr
from .errors import invalid, one_of
from .tensor import Array, stream_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .context import Context

__all__ = ["Plan", "PlanGroup"]
GROUPS = {kind.name.lower(): kind for kind in Group}
_ARGS = Struct(_abi.PlanArgs)
_BATCH = Struct(_abi.PlanBatch)
_BATCH.ignore(("self", "groups", "keep"))


class PlanGroup(NamedTuple):
    """A cache group of a step.

    Attributes:
        block_table: [R,MB] i32.
        slots: [N] i64 or i32: the row that each token writes, negative for none. Default: from the table.
        page_tokens: tokens (or entries) per page.
        page_rows: rows between pages. Default: page_tokens.

    Example:
        >>> smla.PlanGroup(np.zeros((2, 4), np.int32), page_tokens=64)
        smla.PlanGroup(block_table=int32 [2, 4], slots=None, page_tokens=64, page_rows=0)
    """

    block_table: Array | None = None
    slots: Array | None = None
    page_tokens: int = 0
    page_rows: int = 0

    def __repr__(self) -> str:
        return fields_repr(self)


class Groups(TypedDict, total=False):
    """Cache groups of a build, by name."""

    primary: PlanGroup | None
    window: PlanGroup | None
    compressed: PlanGroup | None
    index: PlanGroup | None
    state: PlanGroup | None
    index_state: PlanGroup | None


def group_bits(groups):
    """Returns SMLA_GROUP_* bits for "primary", "window", "compressed", "index", "state" and "index_state"."""
    return bits_of("groups", groups, GROUPS)


def bits_of(field, names, choices):
    """Returns the bits for a list of names; rejects a single string."""
    if isinstance(names, str):
        raise invalid(field, repr(names), "a list of names")
    bits = 0
    for name in names:
        bits |= one_of(field, name, choices)
    return bits


def fill_batch(values, keep):
    """Returns a smla_plan_batch from the local variables of build(). Appends objects that must outlive the
    call to `keep`.
    """
    stream, query_start_loc = values["stream"], values["query_start_loc"]
    for name, group in values["groups"].items():
        one_of("groups", name, GROUPS)
        if group is None:
            continue
        if not isinstance(group, tuple):
            raise invalid(name, type(group).__name__, "a smla.PlanGroup")
        values.update({f"{name}.{field}": value for field, value in zip(PlanGroup._fields, group)})
    batch = _BATCH.fill(values, keep, stream or 0)
    if stream is None and query_start_loc is not None:
        batch.stream = stream_of(query_start_loc)
    return batch


class Plan(Handle):
    """A plan has persistent buffers, allocated once for the maxima. A build changes their contents, never
    their addresses.

    A plan covers one compression ratio. Any number of threads may read a plan concurrently. A build that
    overlaps with another build or read raises InvalidArgument. A plan cannot be copied or pickled.

    Args:
        groups: names of the cache groups: "primary", "window", "compressed", "index", "state", "index_state".
        max_tokens: query tokens of a step, including padding.
        window: tokens of the window, including the query token (V4).
        ratio: tokens per compressed entry (V4) or pool (GLM-5.3).
        list_entries: whether the field entry_rows lists every visible entry (ratio 128).
        topk, heads, workers: for the field `schedule`.
        context: context whose device stores the fields (smla/plan.h documents builds on a GPU). Default: the
            CPU.

    Example:
        >>> plan = smla.Plan(["primary"], max_tokens=4, max_requests=2, max_seq_len=128)
        >>> group = smla.PlanGroup(np.array([[5, 6]], np.int32), page_tokens=64)
        >>> plan.build(np.array([0, 1], np.int32), np.array([66], np.int32), primary=group)
        >>> plan.field("primary_slot").tolist()  # token 65 is in the second page
        [385]
    """

    _instead = "create another smla.Plan with the same arguments"
    groups: frozenset[str]

    def __init__(
        self,
        groups: Iterable[str],
        *,
        max_tokens: int,
        max_requests: int,
        max_seq_len: int,
        speculative_tokens: int = 0,
        uniform_decodes: bool = False,
        window: int = 0,
        ratio: int = 0,
        list_entries: bool = False,
        topk: int = 0,
        heads: int = 0,
        workers: int = 0,
        batch_invariant: bool = False,
        context: Context | None = None,
    ) -> None:
        values = _ARGS.only(locals())
        values["groups"] = bits = group_bits(groups)
        values["context"] = None if context is None else context.handle
        self._maxima = f"up to {max_tokens} tokens of {max_requests} requests, max_seq_len {max_seq_len}"
        self._device = (0, 0) if context is None else context.device
        args, handle = _ARGS.fill(values, []), c.c_void_p()
        check(lib.smla_plan_create(c.byref(args), c.byref(handle)))
        self.groups = frozenset(name for name, bit in GROUPS.items() if bits & bit)
        self._acquire(lib.smla_plan_destroy, handle.value, context)

    def _text(self):
        return f"{' + '.join(sorted(self.groups))}, {self._maxima}{device_text(self._device)}"

    def build(
        self,
        query_start_loc: Array,
        seq_lens: Array,
        *,
        tokens: int = 0,
        rope_positions: Array | None = None,
        stream: int | None = None,
        **groups: Unpack[Groups],
    ) -> None:
        """Builds the plan of a step. An invalid batch changes nothing.

        Lifetime: arrays on the host may be changed after build() has returned. Arrays on a GPU are read in
        stream order and must stay unchanged until that work has finished.

        Args:
            query_start_loc: [R+1] i32, beginning with 0.
            seq_lens: [R] i32, including the tokens of this step.
            tokens: T with padding; required for a plan on a GPU. Default: no padding.
            rope_positions: [N] i64 or i32, N >= query tokens. Default: the order in the request.
            groups: primary=PlanGroup(...), window=, ...
            stream: address of a CUDA stream, for a plan on a GPU. Default: the current stream of
                query_start_loc's library.

        Raises:
            InvalidArgument: a table on the host lacks a page that a token writes or may read; the message
                names request, column, token and position. Tokens with a negative slot are padding and need no
                page, and pages before the window may be -1 (see smla/plan.h).
        """
        keep: list[Any] = []
        batch = fill_batch(locals(), keep)
        check(lib.smla_plan_build(self.handle, c.byref(batch)))

    def field(self, name: str) -> Any:
        """Returns a field (smla/plan.h lists them) in the shape of the last build, as a NumPy view or, on a
        GPU, a GpuView.
        """
        return _views.field(lib.smla_plan_field, self.handle, name, self)

    @property
    def fields(self) -> list[str]:
        """Returns the names of the fields of this plan."""
        return names(lambda array, count: lib.smla_plan_fields(self.handle, array, count))
