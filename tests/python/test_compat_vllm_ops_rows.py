"""The index rows of smla.compat.vllm_ops: the host's and the device's functions against plain loops."""

import math

import pytest

torch = pytest.importorskip("torch")

import smla
from smla.compat import vllm_ops as ops
from smla.compat.vllm_ops import device_rows, indices
from vllm_ops_world import DEVICES, ints, normal, row, same, table_of, view_of, with_holes
from vllm_ops_world import rng as rng


@pytest.fixture(params=["host", "device", pytest.param("gpu", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    """Moves tensors to where the operations run; "device": the GPU's operations, on the CPU."""
    if request.param == "device":
        monkeypatch.setattr(indices, "rows_on", lambda tensor: device_rows)
    where = "cuda" if request.param == "gpu" else "cpu"
    return lambda tensor: None if tensor is None else tensor.to(where)


def test_worked_numbers_of_the_conversion(place):
    table = torch.tensor([[7, 3]], dtype=torch.int32)
    positions = torch.tensor([[0, 63, 64, 130, -1]], dtype=torch.int32)
    rows, counts = ops.triton_convert_req_index_to_global_index(
        place(torch.zeros(1, dtype=torch.int32)),
        place(table),
        place(positions),
        NUM_TOPK_TOKENS=5,
        return_valid_counts=True,
    )
    same(rows, [[448, 511, 192, -1, -1]])
    same(counts, [3])


@pytest.mark.parametrize("page, stride", [(64, None), (1, None), (5, 9), (2, 2)])
def test_conversion_of_positions(place, rng, page, stride):
    table, positions = table_of(rng, 3, 6, page)
    table[1, 2] = -1  # no page: the original would make up a row
    request = ints(rng, 0, 3, 7)
    wanted = [
        [row(table, int(r), p, page, stride) for p in line.tolist()]
        for r, line in zip(request, positions, strict=True)
    ]
    rows, counts = ops.triton_convert_req_index_to_global_index(
        place(request),
        view_of(place(table), 10**6),
        view_of(place(positions), 3),
        BLOCK_SIZE=page,
        NUM_TOPK_TOKENS=19,
        BLOCK_STRIDE_ROWS=stride,
        return_valid_counts=True,
    )
    same(rows, wanted)
    same(counts, [sum(r >= 0 for r in line) for line in wanted])


def test_conversion_writes_the_buffers_it_is_given(place, rng):
    table, positions = table_of(rng, 3, 6, 8)
    arguments = [place(x) for x in (ints(rng, 0, 3, 7), table, positions)]
    out = torch.full((7, 40), 77, dtype=torch.int32, device=arguments[0].device)
    counts = torch.full((7,), 77, dtype=torch.int32, device=arguments[0].device)
    part = out[:, 3:22]
    got = ops.triton_convert_req_index_to_global_index(
        *arguments, BLOCK_SIZE=8, NUM_TOPK_TOKENS=19, out=part, valid_counts_out=counts
    )
    wanted = ops.triton_convert_req_index_to_global_index(*arguments, BLOCK_SIZE=8, NUM_TOPK_TOKENS=19)
    assert got.data_ptr() == part.data_ptr() and torch.equal(part, wanted)
    assert torch.equal(counts, (wanted >= 0).sum(1).int())
    assert (out[:, :3] == 77).all() and (out[:, 22:] == 77).all()


def test_conversion_with_a_prefill_workspace(place, rng):
    table, positions = table_of(rng, 3, 6, 8)
    request, workspace = ints(rng, 0, 3, 7), ints(rng, -1, 3, 7)
    starts = torch.tensor([0, 100, 2**31 - 20], dtype=torch.int32)

    def wanted(t, p):
        if workspace[t] < 0:
            return row(table, int(request[t]), p, 8)
        found = int(starts[workspace[t]]) + p
        return -1 if p < 0 or p >= 8 * 6 or found >= 2**31 else found

    rows, counts = ops.triton_convert_req_index_to_global_index(
        *(place(x) for x in (request, table, positions)),
        BLOCK_SIZE=8,
        NUM_TOPK_TOKENS=19,
        HAS_PREFILL_WORKSPACE=True,
        prefill_workspace_request_ids=place(workspace),
        prefill_workspace_starts=place(starts),
        return_valid_counts=True,
    )
    expected = [[wanted(t, p) for p in positions[t].tolist()] for t in range(7)]
    same(rows, expected)
    same(counts, [sum(r >= 0 for r in line) for line in expected])


@pytest.mark.parametrize(
    "ranks, interleave, compact", [(1, 1, True), (2, 1, True), (3, 4, True), (4, 8, False)]
)
def test_filter_of_a_context_parallel_rank(place, rng, ranks, interleave, compact):
    table, _ = table_of(rng, 3, 6, 8)
    positions = with_holes(rng, ints(rng, 0, 8 * 8 * ranks, 7, 19))
    request = ints(rng, 0, 3, 7)
    for rank in range(ranks):
        expected = []
        for t in range(7):
            local = [
                p // (ranks * interleave) * interleave + p % interleave
                if p >= 0 and p // interleave % ranks == rank
                else -1
                for p in positions[t].tolist()
            ]
            rows = [row(table, int(request[t]), p, 8) for p in local]
            if compact and ranks > 1:
                rows = [r for r in rows if r >= 0] + [-1] * sum(r < 0 for r in rows)
            expected.append(rows)
        rows, counts = ops.triton_filter_and_convert_dcp_index(
            *(place(x) for x in (request, table, positions)),
            ranks,
            rank,
            interleave,
            BLOCK_SIZE=8,
            NUM_TOPK_TOKENS=19,
            return_valid_counts=True,
            compact_valid_to_front=compact,
        )
        same(rows, expected)
        same(counts, [sum(r >= 0 for r in line) for line in expected])


@pytest.mark.parametrize("page", [64, 2])  # ratio 4, ratio 128
def test_global_topk_indices_and_lens(place, rng, page):
    table, entries = table_of(rng, 4, 6, page)
    request, valid = (
        ints(rng, 0, 4, 9),
        torch.rand(9, generator=rng) < 0.7,
    )  # longer: buffers of the whole batch
    rows, lens = ops.compute_global_topk_indices_and_lens(
        view_of(place(entries), 1), place(request), place(table), page, place(valid)
    )
    expected = [[row(table, int(request[t]), p, page) for p in entries[t].tolist()] for t in range(7)]
    same(rows, expected)
    same(lens, [sum(r >= 0 for r in expected[t]) if valid[t] else 0 for t in range(7)])


def batch_of(rng, requests, longest=40):
    """query_start_loc, seq_lens: requests without query tokens too."""
    queries = ints(rng, 0, 5, requests)
    lens = torch.maximum(queries, ints(rng, 0, longest, requests))
    return torch.cat([torch.zeros(1, dtype=torch.int32), queries.cumsum(0).int()]), lens


def tokens_of(starts, lens, base=0):
    """(request, position) of each token."""
    for b in range(len(lens)):
        queries = int(starts[b + 1] - starts[b])
        yield from ((b, int(lens[b]) - queries + i) for i in range(queries))


@pytest.mark.parametrize("ratio, topk", [(4, 5), (128, 7), (1, 0), (0, 0), (4, 130)])
def test_combined_rows_of_a_gathered_workspace(place, rng, ratio, topk):
    starts, lens = batch_of(rng, 5)
    window, entries = 6, 11
    gathered = torch.minimum(lens, starts.diff() + window - 1)
    gathered[0] //= 2  # fewer than the windows want
    stride, tokens = entries + int(gathered.max()) + 2, int(starts[-1])
    selected = with_holes(rng, ints(rng, 0, entries, tokens, topk + 2))
    rows, counts = ops.combine_topk_swa_indices(
        view_of(place(selected), 4),
        place(starts + 100),  # of a chunk in the middle of a batch
        place(lens),
        place(gathered),
        window,
        ratio,
        topk,
        stride,
        entries,
    )
    width = -(-(topk + window) // 128) * 128
    assert rows.shape == (tokens, width)
    expected, expected_lens = [], []
    for t, (b, position) in enumerate(tokens_of(starts, lens)):
        some = selected[t, : min((position + 1) // ratio if ratio else 0, topk)].tolist()
        line = [stride * b + s if s >= 0 else -1 for s in some]
        for p in range(max(position - window + 1, 0), position + 1):
            behind = p - (int(lens[b]) - int(gathered[b]))
            line.append(stride * b + entries + behind if behind >= 0 else -1)
        expected.append(line + [-1] * (width - len(line)))
        expected_lens.append(len(line))
    same(rows, expected)
    same(counts, expected_lens)


@pytest.mark.parametrize("kind", ["local", "rows", "rows, no lengths", "window only"])
@pytest.mark.parametrize("decodes", [0, 3])
def test_mixed_rows(place, rng, kind, decodes):
    window, topk, wide, ratio, page = 6, 7, 9, 4, 3
    starts = torch.tensor([0, 1, 2, 3, 3, 7, 8][3 if not decodes else 0 :], dtype=torch.int32)
    starts = starts - starts[0]
    requests = len(starts) - 1
    lens = torch.maximum(ints(rng, 1, 40, requests), starts.diff())
    window_table, entry_table = (
        torch.randperm(64, generator=rng)[: requests * 8].view(requests, 8).int() for _ in range(2)
    )
    tokens = int(starts[-1])
    request = torch.tensor([b for b, _ in tokens_of(starts, lens)] + [0, 0], dtype=torch.int32)
    decode_window = with_holes(rng, ints(rng, 0, 99, decodes, window))
    decode_entries = with_holes(rng, ints(rng, 0, page * 9, decodes, wide))
    decode_lens, valid = ints(rng, 0, wide + 1, decodes + 2), torch.rand(decodes + 2, generator=rng) < 0.6
    prefill = with_holes(rng, ints(rng, 0, page * 9, tokens - decodes, topk + 1))
    alone = kind == "window only"
    if alone:
        decode_entries, topk, wide, prefill = None, 0, 0, prefill[:, :0]
    rows, counts = ops.build_flashinfer_mixed_sparse_indices(
        view_of(place(decode_window), 5),
        place(decode_entries),
        place(decode_lens) if kind in ("rows", "local") else None,  # local entries are counted
        place(prefill),
        *(place(x) for x in (starts, lens, request, window_table)),
        5,
        None if alone else place(entry_table),
        page,
        window,
        0 if alone else ratio,
        topk,
        decode_compressed_indices_are_local=kind == "local",
        decode_is_valid_token=place(valid) if kind == "local" else None,
    )
    width = window + -(-max(topk, wide) // 4) * 4
    expected, expected_lens = [], []
    for t, (b, position) in enumerate(tokens_of(starts, lens)):
        if t < decodes:
            line, count = decode_window[t].tolist(), 0
            if kind == "local":
                some = [row(entry_table, b, e, page) for e in decode_entries[t].tolist()]
                some = [r for r in some if r >= 0]
                line, count = line + some, len(some) if valid[t] else 0
            elif not alone:
                line += decode_entries[t].tolist()
                count = int(decode_lens[t]) if kind == "rows" else wide
        else:
            count = 0 if alone else min((position + 1) // ratio, topk)
            line = [row(window_table, b, p, 5) for p in range(max(position - window + 1, 0), position + 1)]
            line += [-1] * (window - len(line))
            line += [row(entry_table, b, e, page) for e in prefill[t - decodes, :count].tolist()]
        expected.append(line + [-1] * (width - len(line)))
        expected_lens.append(window + count)
    same(rows, expected)
    same(counts, expected_lens)


def test_row_functions_of_no_tokens(place):
    none, table = torch.zeros(0, dtype=torch.int32), torch.zeros(0, 3, dtype=torch.int32)
    lists = torch.zeros(0, 8, dtype=torch.int32)
    rows = ops.triton_convert_req_index_to_global_index(
        place(none), place(table), place(lists), NUM_TOPK_TOKENS=8
    )
    assert rows.shape == (0, 8)
    start = torch.zeros(1, dtype=torch.int32)
    rows, lens = ops.combine_topk_swa_indices(
        *(place(x) for x in (lists, start, none, none)), 6, 4, 8, 20, 10
    )
    assert rows.shape == (0, 128) and lens.shape == (0,)
    rows, lens = ops.build_flashinfer_mixed_sparse_indices(
        place(lists[:, :6]),
        None,
        None,
        *(place(x) for x in (lists, start, none, none, table)),
        4,
        None,
        4,
        6,
        4,
        8,
    )
    assert rows.shape == (0, 14) and lens.shape == (0,)


def test_filter_of_prefill_indices(place, rng):
    positions, context = with_holes(rng, ints(rng, 0, 50, 7, 19)), ints(rng, 0, 50, 7)
    old, new = ops.filter_prefill_indices(place(positions), place(context))
    limits = context.tolist()
    same(
        old,
        [[p if 0 <= p < c else -1 for p in line] for line, c in zip(positions.tolist(), limits, strict=True)],
    )
    same(
        new,
        [[p - c if p >= c else -1 for p in line] for line, c in zip(positions.tolist(), limits, strict=True)],
    )


def test_lse_of_base_two(place, rng):
    for lse in (normal(rng, 5, 3) * 100, normal(rng, 4, 2, 3, dtype=torch.bfloat16), torch.zeros(0, 4)):
        got = ops.lse2_to_lse(place(lse))
        assert got.dtype == torch.float32 and got.shape == lse.shape
        assert torch.allclose(got.cpu().double(), lse.double() * math.log(2), rtol=2**-23, atol=0)
    empty = torch.tensor([[-math.inf, math.inf]])
    assert ops._lse2_to_lse(place(empty)).tolist() == [[-math.inf, math.inf]]


def test_both_kinds_of_rows_give_the_same_bits_of_lse(rng):
    lse = normal(rng, 999, 1) * 50
    assert torch.equal(device_rows.lse_from_log2(lse), smla.rows.lse_from_log2(lse))


@pytest.mark.parametrize("device", DEVICES)
def test_values_that_cannot_be_looked_at_on_a_device_are_holes(device):
    def i32(*values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    arguments = i32(5, -1, 0), i32(1, 2)[None], i32(0, 9, 1).repeat(3, 1)
    got = device_rows.request_rows(
        arguments[2],
        arguments[0],
        arguments[1],
        page_tokens=8,
        workspace_of_token=i32(-1, -1, 4),
        workspace_starts=i32(0),
    )
    same(got.rows, [[-1] * 3] * 3)
    same(got.lens, [0] * 3)
    wide = device_rows.combined_rows(
        i32(0, 1)[None], i32(0, 0), i32(9), i32(9), window=2, ratio=4, topk=2, stride=20, entries=5
    )
    assert (wide.rows == -1).all() and wide.lens.tolist() == [0]  # a token behind the last request
