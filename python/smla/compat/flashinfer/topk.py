"""FlashInfer's top-k calls on smla.select: `from smla.compat.flashinfer.topk import ...`.

Scores are ranked in descending order, with -0 = +0, and NaN below -inf. Results are always deterministic, and
calls can be captured in a CUDA graph. Dimensions: T rows of scores, N columns, k selected columns, R rows of
P entries of a page table.
"""

from enum import IntEnum

import torch
from smla import stages
from smla.compat._check import require
from smla.compat.flashinfer._check import require_int
from smla.errors import invalid, one_of

__all__ = ["TopKTieBreak", "top_k", "top_k_page_table_transform", "top_k_ragged_transform"]
_SCORES = (torch.float32, torch.float16, torch.bfloat16)
_INT32_MAX = 2**31 - 1


class TopKTieBreak(IntEnum):
    """Selection among equal scores at rank k. NONE selects the lowest columns, as SMALL."""

    NONE = 0
    SMALL = 1
    LARGE = 2


_TIES = {kind: kind for kind in TopKTieBreak}


def top_k(
    input: torch.Tensor,
    k: int,
    sorted: bool = False,
    deterministic: bool = False,
    tie_break: int = TopKTieBreak.NONE,
    dsa_graph_safe: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the k largest scores of each row.

    Args:
        input: [T,N] f32, f16 or bf16.
        k: 1 <= k <= N.
        sorted: order by rank, and equal scores by column; otherwise, order by column.
        deterministic, dsa_graph_safe: ignored, as results are always deterministic and safe in a CUDA graph.
        tie_break: TopKTieBreak.

    Returns:
        values [T,k] in the dtype of input, and columns [T,k] i64.
    """
    _require_scores(input, k)
    if k > input.shape[1]:
        raise invalid("k", k, f"at most {input.shape[1]}, the number of columns of input")
    indices = _select(input, k, tie_break).long()
    values = input.gather(1, indices)
    if sorted:
        order = _ranks(values).sort(dim=1, descending=True, stable=True).indices
        values, indices = values.gather(1, order), indices.gather(1, order)
    return values, indices


topk = top_k


def top_k_page_table_transform(
    input: torch.Tensor,
    src_page_table: torch.Tensor,
    lengths: torch.Tensor,
    k: int,
    row_to_batch: torch.Tensor | None = None,
    deterministic: bool = False,
    tie_break: int = TopKTieBreak.NONE,
    dsa_graph_safe: bool = False,
    row_starts: torch.Tensor | None = None,
    page_table_row_starts: torch.Tensor | None = None,
    *,
    page_size: int = 1,
    out: torch.Tensor | None = None,
    out_raw_indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """Selects the k largest of columns [row_starts[t], row_starts[t] + lengths[t]), as slots of a paged
    cache.

    Args:
        input: [T,N] f32, f16 or bf16.
        src_page_table: [R,P] i32, pages of page_size tokens; page_size is a power of two.
        lengths, row_starts: [T] i32.
        row_to_batch: optional [T] i32: row of the table for each row of input. Default: t.
        page_table_row_starts: optional [T] i32: first entry of the table's row. Default: row_starts, with
            pages of one token.
        out: [T,k] i32 slots, page * page_size + offset, by ascending column, padded with -1; also -1 if the
            table has no page.
        out_raw_indices: optional output [T,k] i32: columns minus row_starts[t].

    Returns:
        out.
    """
    tokens = _require_scores(input, k)
    require_int(page_size, "page_size", 1)
    if page_size > 1 << 30 or page_size & (page_size - 1):
        raise invalid("page_size", page_size, "a power of two, at most 2^30")
    require(src_page_table, "src_page_table", (torch.int32,), (None, None), like=input)
    _require_rows(input, ("lengths", lengths))
    _require_rows(input, ("row_to_batch", row_to_batch), ("row_starts", row_starts), optional=True)
    _require_rows(input, ("page_table_row_starts", page_table_row_starts), optional=True)
    if page_table_row_starts is None and row_starts is not None:
        if page_size > 1:
            raise invalid("page_table_row_starts", None, "entries [T] i32, because row_starts counts tokens")
        page_table_row_starts = row_starts
    for name, buffer in (("out", out), ("out_raw_indices", out_raw_indices)):
        if buffer is not None:
            require(buffer, name, (torch.int32,), (tokens, k), like=input)
    if out is None:
        out = torch.empty((tokens, k), dtype=torch.int32, device=input.device)
    if out_raw_indices is not None and out_raw_indices.data_ptr() == out.data_ptr() != 0:
        raise invalid("out_raw_indices", "the memory of out", "separate memory")
    found = out if out_raw_indices is None else out_raw_indices
    columns = _select(input, k, tie_break, row_starts, lengths, found)
    if page_table_row_starts is not None:
        columns = _shifted(columns, page_table_row_starts.long() * page_size)
    if row_to_batch is None:
        row_to_batch = torch.arange(tokens, dtype=torch.int32, device=input.device)
    return stages.map(columns, row_to_batch, src_page_table, page_tokens=page_size, rows=out)


def top_k_ragged_transform(
    input: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor,
    k: int,
    deterministic: bool = False,
    tie_break: int = TopKTieBreak.NONE,
    dsa_graph_safe: bool = False,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns offsets[t] + c for the k largest of columns [row_starts[t], row_starts[t] + lengths[t]); c is
    the column minus row_starts[t].

    Args:
        input: [T,N] f32, f16 or bf16.
        offsets, lengths, row_starts: [T] i32.

    Returns:
        [T,k] i32, ascending, padded with -1.
    """
    _require_scores(input, k)
    _require_rows(input, ("offsets", offsets), ("lengths", lengths))
    _require_rows(input, ("row_starts", row_starts), optional=True)
    return _shifted(_select(input, k, tie_break, row_starts, lengths), offsets.long())


def _select(scores, k, tie_break, starts=None, ends=None, indices=None):
    """Returns [T,k] i32: the k best of `ends` columns from starts[t] on, minus starts[t], ascending, padded
    with -1.
    """
    ties = one_of("tie_break", tie_break, _TIES)
    if starts is not None:
        ends = (ends.long() + starts).clamp(0, scores.shape[1]).int()
    windows = {"starts": starts, "ends": ends, "indices": indices}
    if ties != TopKTieBreak.LARGE:
        return stages.select(scores, k, relative=starts is not None, **windows).indices
    # smla selects the lowest id of a tie, so number the columns from the end.
    last = scores.shape[1] - 1
    ids = torch.arange(last, -1, -1, dtype=torch.int32, device=scores.device).expand(scores.shape)
    found = stages.select(scores, k, ids=ids, **windows).indices
    columns = torch.where(found < 0, _INT32_MAX, last - found).sort(dim=1).values
    first = 0 if starts is None else starts.clamp(min=0)[:, None]
    return found.copy_(torch.where(columns == _INT32_MAX, -1, columns - first))


def _shifted(indices, by):
    """Returns indices [T,k] + by [T], i32. -1 stays -1, and sums beyond int32 become -1."""
    moved = indices + by[:, None]
    return torch.where((indices < 0) | (moved > _INT32_MAX), -1, moved).int()


def _ranks(values):
    """Returns integers in the order of the values, with -0 = +0 and NaN lowest."""
    bits = (values.float() + 0.0).view(torch.int32)
    return torch.where(values.isnan(), -_INT32_MAX - 1, bits ^ ((bits >> 31) & _INT32_MAX))


def _require_scores(scores, k):
    require(scores, "input", _SCORES, (None, None))
    if scores.shape[1] > 1 and scores.stride(1) != 1:
        raise invalid("input.stride(1)", scores.stride(1), "1")
    require_int(k, "k", 1)
    return scores.shape[0]


def _require_rows(scores, *named, optional=False):
    """Requires a number per row of scores: [T] i32."""
    for name, values in named:
        if values is not None or not optional:
            require(values, name, (torch.int32,), (scores.shape[0],), like=scores)
