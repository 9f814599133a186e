"""smla.rows for tensors on a GPU: the same functions, arguments and results, on smla.map and PyTorch.

Calls do not synchronize with the GPU, so they can be captured in a CUDA graph. Unlike smla.rows, they do not
check values: a token with an invalid value gets masked entries (-1).
"""

from typing import Any

import torch

from ...rows import Rows
from ...stages import map

__all__ = ["combined_rows", "lse_from_log2", "mixed_rows", "request_rows", "split_context"]
_LARGEST = 2**31 - 1


def request_rows(
    positions: torch.Tensor,
    request_of_token: torch.Tensor,
    block_table: torch.Tensor,
    *,
    page_tokens: int,
    page_rows: int = 0,
    compact: bool = False,
    ranks: int = 0,
    rank: int = 0,
    interleave: int = 0,
    is_valid: torch.Tensor | None = None,
    workspace_of_token: torch.Tensor | None = None,
    workspace_starts: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
) -> Rows:
    """Implements smla.rows.request_rows."""
    local = local_positions(positions, max(ranks, 1), rank, max(interleave, 1))
    found = map(local, request_of_token, block_table, page_tokens=page_tokens, page_rows=page_rows)
    if workspace_of_token is not None:
        past_table = local >= min(page_tokens * block_table.shape[1], _LARGEST)
        gathered = _workspace_rows(local, past_table, workspace_of_token, workspace_starts)
        found = torch.where(workspace_of_token[:, None] >= 0, gathered, found)
    if compact:
        found = _compacted(found)
    lens = (found >= 0).sum(1, dtype=torch.int32)
    if is_valid is not None:
        lens *= is_valid != 0
    return Rows(_into(rows, found), _into(counts, lens))


def _into(out, values):
    return values if out is None else out.copy_(values)


def local_positions(positions, ranks, rank, interleave):
    """Returns positions in the numbering of this context-parallel rank, or -1 for positions of other ranks.

    Groups of `interleave` tokens are assigned to the ranks round-robin.
    """
    if ranks == 1:
        return positions
    owned = (positions >= 0) & (positions // interleave % ranks == rank)
    local = positions // (ranks * interleave) * interleave + positions % interleave
    return torch.where(owned, local, -1)


def _workspace_rows(local, past_table, workspace_of_token, workspace_starts):
    """Returns workspace_starts[w] + p, or -1 for masked entries, positions past the table and invalid
    workspaces.
    """
    count = workspace_starts.shape[0]
    starts = torch.cat([workspace_starts.clamp(min=0), workspace_starts.new_full((1,), -1)]).long()
    start = starts[workspace_of_token.clamp(0, count).long()][:, None]
    row = start + local
    hole = (local < 0) | past_table | (start < 0) | (row > _LARGEST)
    return torch.where(hole, -1, row).int()


def _compacted(rows):
    """Moves masked entries to the end and keeps the order of the rows."""
    order = (rows < 0).to(torch.uint8).argsort(dim=1, stable=True)
    return rows.gather(1, order)


def split_context(positions: torch.Tensor, context_lens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Implements smla.rows.split_context."""
    lens = context_lens[:, None]
    inside = (positions >= 0) & (positions < lens)
    behind = (positions >= 0) & (positions >= lens)
    return torch.where(inside, positions, -1), torch.where(behind, positions - lens, -1)


def lse_from_log2(log2_lse: torch.Tensor) -> torch.Tensor:
    """Implements smla.rows.lse_from_log2."""
    return log2_lse * 0.6931471805599453


def combined_rows(
    selected: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    gather_lens: torch.Tensor,
    *,
    window: int,
    ratio: int,
    topk: int,
    stride: int,
    entries: int,
) -> Rows:
    """Implements smla.rows.combined_rows, with topk + window columns, rounded up to 128."""
    tokens, device = selected.shape[0], selected.device
    rows = torch.full((tokens, (topk + window + 127) // 128 * 128), -1, dtype=torch.int32, device=device)
    if tokens == 0 or seq_lens.shape[0] == 0:
        return Rows(rows, rows.new_zeros(tokens))
    token = torch.arange(tokens, dtype=torch.int32, device=device)
    ends = query_start_loc[1:] - query_start_loc[0]
    request = torch.searchsorted(ends, token, right=True)
    alive = request < seq_lens.shape[0]
    request = request.clamp(max=seq_lens.shape[0] - 1)
    length = seq_lens[request]
    position = torch.where(alive, length - ends[request] + token, -1)  # -1: the token has no rows
    listed, windowed = (n[:, None] for n in _prefill_columns(position, ratio, topk, window))
    first_row = (stride * request).int()[:, None]

    if topk:
        column = torch.arange(topk, dtype=torch.int32, device=device)
        some = selected[:, :topk]
        rows[:, :topk] = torch.where((column < listed) & (some >= 0), some + first_row, -1)
    step = torch.arange(window, dtype=torch.int32, device=device)
    behind = position[:, None] - windowed + 1 + step - (length - gather_lens[request])[:, None]
    inside = (step < windowed) & (behind >= 0)
    # Columns after the window are already -1 and are set to -1. listed + window is at most the width.
    rows.scatter_(1, (listed + step).long(), torch.where(inside, first_row + entries + behind, -1))
    return Rows(rows, (listed + windowed).flatten())


def _prefill_columns(position, ratio, topk, window):
    """Returns how many entries and how many window tokens a token at `position` lists."""
    visible = (position + 1) // ratio if ratio else torch.zeros_like(position)
    return visible.clamp(max=topk), (position + 1).clamp(max=window)


def mixed_rows(
    *,
    decode_window_rows: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    request_of_token: torch.Tensor,
    window_table: torch.Tensor,
    window: int,
    ratio: int,
    topk: int,
    window_page_tokens: int,
    decode_entries: torch.Tensor | None,
    decode_lens: torch.Tensor | None,
    is_valid: Any,
    prefill_entries: torch.Tensor,
    entry_table: torch.Tensor,
    entry_page_tokens: int,
    local: bool,
    tokens: int,
) -> Rows:
    """Implements smla.rows.mixed_rows."""
    decodes = decode_window_rows.shape[0]
    wide = 0 if decode_entries is None else decode_entries.shape[1]
    device = decode_window_rows.device
    width = window + (max(topk, wide) + 3) // 4 * 4
    rows = torch.full((tokens, width), -1, dtype=torch.int32, device=device)
    lens = torch.full((tokens,), window, dtype=torch.int32, device=device)
    rows[:decodes, :window] = decode_window_rows
    if decodes and wide and decode_entries is not None:
        columns = rows[:decodes, window : window + wide]
        if local:
            found = request_rows(
                decode_entries,
                request_of_token[:decodes],
                entry_table,
                page_tokens=entry_page_tokens,
                compact=True,
                is_valid=is_valid[:decodes],
            )
            columns.copy_(found.rows)
            lens[:decodes] += found.lens
        else:
            columns.copy_(decode_entries)
            lens[:decodes] += wide if decode_lens is None else decode_lens
    if tokens > decodes and seq_lens.shape[0]:
        request = request_of_token[decodes:tokens]
        position = _prefill_positions(decodes, request, query_start_loc, seq_lens)
        listed, windowed = (n[:, None] for n in _prefill_columns(position, ratio, topk, window))
        step = torch.arange(window, dtype=torch.int32, device=device)
        recent = torch.where(step < windowed, position[:, None] - windowed + 1 + step, -1)
        rows[decodes:, :window] = map(recent, request, window_table, page_tokens=window_page_tokens)
        if topk:
            column = torch.arange(topk, dtype=torch.int32, device=device)
            some = torch.where(column < listed, prefill_entries[:, :topk], -1)
            columns = rows[decodes:, window : window + topk]
            columns.copy_(map(some, request, entry_table, page_tokens=entry_page_tokens))
        lens[decodes:] += listed.flatten()
    return Rows(rows, lens)


def _prefill_positions(first, request, query_start_loc, seq_lens):
    """Returns positions of prefill tokens, which begin at token `first` of the batch; -1 for tokens of no
    request.
    """
    token = torch.arange(first, first + request.shape[0], dtype=torch.int32, device=request.device)
    known = request.clamp(0, seq_lens.shape[0] - 1).long()
    position = seq_lens[known] - (query_start_loc[known + 1] - token)
    return torch.where((request == known) & (position >= 0), position, -1)
