"""smla.compat.vllm_ops against plain loops and float64, on hostile inputs: holes anywhere, views, poisoned
memory.

Functions that make rows run three times: over smla.rows, over the operations for a GPU on CPU tensors, and on
a GPU. All three are compared with the same loops, exactly.
"""

import inspect
import math

import pytest

torch = pytest.importorskip("torch")

import smla  # noqa: E402
from smla.compat import vllm_ops as ops  # noqa: E402
from smla.compat.vllm_ops import device_rows, indices  # noqa: E402

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
E4M3 = torch.float8_e4m3fn


@pytest.fixture(params=["host", "device", pytest.param("gpu", marks=GPU)])
def place(request, monkeypatch):
    """Moves tensors to where the operations run; "device": the GPU's operations, on the CPU."""
    if request.param == "device":
        monkeypatch.setattr(indices, "rows_on", lambda tensor: device_rows)
    where = "cuda" if request.param == "gpu" else "cpu"
    return lambda tensor: None if tensor is None else tensor.to(where)


@pytest.fixture(params=range(4))
def rng(request):
    return torch.Generator().manual_seed(request.param)


def ints(rng, low, high, *shape):
    return torch.randint(low, high, shape, generator=rng, dtype=torch.int32)


def normal(rng, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=rng).to(dtype)


def with_holes(rng, rows, share=0.2):
    return torch.where(torch.rand(rows.shape, generator=rng) < share, -1, rows)


def view_of(tensor, fill):
    """The same values as a strided view inside memory that holds `fill`."""
    wide = torch.full(
        (*tensor.shape[:-1], 2 * tensor.shape[-1] + 3), fill, dtype=tensor.dtype, device=tensor.device
    )
    part = wide[..., 1 : 1 + tensor.shape[-1]]
    part.copy_(tensor)
    return part


def same(got, wanted):
    assert got.dtype == torch.int32 and got.tolist() == wanted


def row(table, request, position, page, stride=0):
    """What a position means, or -1."""
    if position < 0 or position // page >= table.shape[1]:
        return -1
    block = int(table[request, position // page])
    return -1 if block < 0 else block * (stride or page) + position % page


def table_of(rng, requests, blocks, page, pages=64):
    table = torch.stack([torch.randperm(pages, generator=rng)[:blocks] for _ in range(requests)]).int()
    return table, with_holes(rng, ints(rng, 0, (blocks + 2) * page, 7, 19))


# --- rows ---------------------------------------------------------------------------------------------------


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


# --- writing and gathering ----------------------------------------------------------------------------------


def power_of_two_scale(amax, floor, before):
    """2^ceil(log2(.)) of amax / 448 with a floor before or after the division, exactly."""
    ratio = amax.clamp(min=floor) / 448 if before else (amax / 448).clamp(min=floor)
    mantissa, exponent = torch.frexp(ratio)
    return torch.ldexp(torch.ones_like(ratio), exponent - (mantissa == 0.5).int())


def tiles(x, width, floor, before):
    """e4m3 codes and the scale of each tile."""
    part = x.float().unflatten(-1, (-1, width))
    scale = power_of_two_scale(part.abs().amax(-1), floor, before)
    return (part / scale[..., None]).clamp(-448, 448).to(E4M3).flatten(-2), scale


def record_656(latent, rope):
    codes, scale = tiles(latent, 128, 1e-4, before=False)
    return torch.cat(
        [codes.view(torch.uint8), scale.view(torch.uint8), rope.bfloat16().view(torch.uint8)], -1
    )


def pages_of(pages, page_tokens, record, device, dtype=torch.uint8, gap=40, fill=0xAB):
    """[pages, page_tokens, record] whose pages lie `gap` elements apart, in memory full of `fill`."""
    stride = page_tokens * record + gap
    memory = torch.full((pages * stride,), fill, dtype=dtype, device=device)
    return memory, memory.as_strided((pages, page_tokens, record), (stride, record, 1))


def slots_of(rng, tokens, pages, page_tokens):
    """Distinct slots in any order; some are -1."""
    return with_holes(rng, torch.randperm(pages * page_tokens, generator=rng)[:tokens])


def keys_of(rng, tokens, dtype=torch.bfloat16, width=512):
    scale = torch.tensor([0.0, 1e-6, 0.02, 1.0, 336.0, 1e4])[ints(rng, 0, 6, tokens, 1).long()]
    return (normal(rng, tokens, width) * scale).to(dtype), normal(rng, tokens, 64, dtype=dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [64, 3])
@pytest.mark.parametrize("kind", ["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla"])
def test_concat_and_cache_mla(rng, device, page, kind):
    tokens, pages, k_scale = 11, 6, 0.37
    latent, rope = keys_of(rng, tokens + 4)
    latent[tokens:] = rope[tokens:] = math.nan  # padding of CUDA graphs
    slots = slots_of(rng, tokens, pages, page)
    if kind in ("auto", "bfloat16"):
        records, dtype = torch.cat([latent, rope], -1), torch.bfloat16
    elif kind == "fp8_ds_mla":
        records, dtype = record_656(latent, rope), torch.uint8
    else:
        both = torch.cat([latent, rope], -1).float() / torch.tensor(k_scale)
        records, dtype = both.clamp(-448, 448).to(E4M3).view(torch.uint8), torch.uint8
    memory, cache = pages_of(pages, page, records.shape[-1], device, dtype, fill=7)
    expected_memory, expected = memory.clone(), None
    expected = expected_memory.as_strided(cache.shape, cache.stride())
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot // page, slot % page] = records[t].to(device)
    ops.concat_and_cache_mla(
        view_of(latent.to(device), math.nan),
        view_of(rope.to(device), math.nan),
        cache,
        slots.to(device),
        kv_cache_dtype=kind,
        scale=torch.tensor(k_scale, device=device),
    )
    assert torch.equal(memory, expected_memory)


def test_concat_and_cache_mla_takes_an_empty_cache(rng):
    latent, rope = keys_of(rng, 3)
    slots = torch.zeros(3, dtype=torch.int64)
    ops.concat_and_cache_mla(latent, rope, torch.tensor([]), slots, "auto", torch.ones(1))
    cache = torch.full((2, 4, 576), 3.0, dtype=torch.float32)
    ops.concat_and_cache_mla(latent.float(), rope.float(), cache, slots[:0], "auto", torch.ones(1))
    assert (cache == 3).all()


def page_584(k):
    """Bytes of one page of V4's cache."""
    codes, scale = tiles(k[:, :448], 64, 1e-4, before=True)
    rows = torch.cat([codes.view(torch.uint8), k[:, 448:].bfloat16().contiguous().view(torch.uint8)], -1)
    exponents = torch.frexp(scale)[1] - 1 + 127
    exponents = torch.cat([exponents.to(torch.uint8), torch.zeros(len(k), 1, dtype=torch.uint8)], -1)
    return torch.cat([rows.flatten(), exponents.flatten()])


def v4_cache(rng, pages, page, device):
    """A full V4 cache written by hand, as vLLM's view of padded pages, and what it holds in float64."""
    stride = -(-584 * page // 576) * 576 + 576
    memory = torch.full((pages * stride,), 0x7F, dtype=torch.uint8)  # 0x7F: NaN
    k, _ = keys_of(rng, pages * page)
    for p in range(pages):
        memory[p * stride : p * stride + 584 * page] = page_584(k[p * page : (p + 1) * page])
    codes, scale = tiles(k[:, :448], 64, 1e-4, before=True)
    values = torch.cat([codes.double() * scale.double().repeat_interleave(64, -1), k[:, 448:].double()], -1)
    memory = memory.to(device)
    return memory, memory.as_strided((pages, page, 584), (stride, 584, 1)), k, values.bfloat16()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [64, 2])
@pytest.mark.parametrize("flat", [False, True])
def test_quantize_and_insert_k_cache(rng, device, page, flat):
    pages = 3
    expected, cache, k, _ = v4_cache(rng, pages, page, device)
    memory = torch.full_like(expected, 0x7F)
    view = memory.as_strided(cache.shape, cache.stride())
    if flat:
        view = memory.view(pages, -1)
    order = torch.randperm(pages * page, generator=rng)
    slots = torch.cat([order, torch.tensor([-1, -1])]).to(device)
    tokens = torch.cat([k[order], torch.full((3, 512), math.nan, dtype=k.dtype)]).to(device)
    ops.quantize_and_insert_k_cache(tokens, view, slots, block_size=page)
    assert torch.equal(memory, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page, whole", [(64, False), (2, False), (3, True)])
def test_dequantize_and_gather_k_cache(rng, device, page, whole):
    _, cache, _, values = v4_cache(rng, 8, page, device)
    table = torch.randperm(8, generator=rng).view(4, 2).int()
    lens = ints(rng, 0, 2 * page + 1, 4)
    gathered = lens if whole else torch.minimum(lens, ints(rng, 0, page + 1, 4))
    offset = 5
    out = torch.full((5, 2 * page + offset + 3, 512), 9.0, dtype=torch.bfloat16, device=device)
    expected = out.clone()
    for r in range(4):
        for i in range(int(gathered[r])):
            expected[r, offset + i] = values[row(table, r, int(lens[r] - gathered[r]) + i, page)].to(device)
    ops.dequantize_and_gather_k_cache(
        out,
        cache,
        lens.to(device),
        None if whole else gathered.to(device),
        view_of(table.to(device), 10**6),
        page,
        offset,
    )
    assert torch.equal(out, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [64, 5])
@pytest.mark.parametrize("offsets", [False, True])
def test_cp_gather_and_upconvert_fp8_kv_cache(rng, device, page, offsets):
    latent, rope = keys_of(rng, 8 * page)
    memory, cache = pages_of(8, page, 656, device)
    cache.copy_(record_656(latent, rope).view(8, page, 656))
    codes, scale = tiles(latent, 128, 1e-4, before=False)
    values = codes.double() * scale.double().repeat_interleave(128, -1)
    values = torch.cat([values, rope.double()], -1).bfloat16()
    table = torch.randperm(8, generator=rng).view(4, 2).int()
    first = ints(rng, 0, page, 3) if offsets else torch.zeros(3, dtype=torch.int32)
    counts = ints(rng, 0, page + 1, 3)
    starts = torch.cat([torch.tensor([2]), 2 + counts.cumsum(0)[:-1]]).int()
    rows = 2 + int(counts.sum())
    dst = torch.full((rows + 2, 576), 9.0, dtype=torch.bfloat16, device=device)
    expected = dst.clone()
    for r in range(3):
        for i in range(int(counts[r])):
            expected[int(starts[r]) + i] = values[row(table, r, int(first[r]) + i, page)].to(device)
    ops.cp_gather_and_upconvert_fp8_kv_cache(
        cache, dst[:rows], table.to(device), starts.to(device), 3, first.to(device) if offsets else None
    )
    assert torch.equal(dst, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [64, 3])
def test_index_keys_are_written_and_gathered_bit_for_bit(rng, device, page):
    pages = 6
    keys, _ = keys_of(rng, 13, width=128)
    slots = slots_of(rng, 13, pages, page)
    memory, cache = pages_of(pages, page, 132, device)
    codes, scale = tiles(keys, 128, 1e-4, before=True)
    expected_memory = memory.clone()
    expected = expected_memory.as_strided((pages, page * 132), (cache.stride(0), 1))
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            part, at = expected[slot // page], slot % page
            part[at * 128 : (at + 1) * 128] = codes[t].view(torch.uint8).to(device)
            part[page * 128 + at * 4 : page * 128 + at * 4 + 4] = scale[t].view(torch.uint8).to(device)
    padded = torch.cat([keys, torch.full((2, 128), math.nan, dtype=keys.dtype)]).to(device)
    ops.indexer_k_quant_and_cache(padded, cache, slots.to(device), 128, "ue8m0")
    assert torch.equal(memory, expected_memory)

    table = torch.randperm(pages, generator=rng).view(3, 2).int()
    counts = ints(rng, 0, 2 * page + 1, 3)
    cu = torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0).int()])
    total = int(cu[-1])
    dst_k = torch.full((total + 2, 128), 0x55, dtype=torch.uint8, device=device)
    dst_scale = torch.full((total + 2, 4), 0x55, dtype=torch.uint8, device=device)
    want_k, want_scale = dst_k.clone(), dst_scale.clone()
    for r in range(3):
        for i in range(int(counts[r])):
            slot = row(table, r, i, page)
            part, at = expected[slot // page], slot % page
            want_k[int(cu[r]) + i] = part[at * 128 : (at + 1) * 128]
            want_scale[int(cu[r]) + i] = part[page * 128 + at * 4 : page * 128 + at * 4 + 4]
    ops.cp_gather_indexer_k_quant_cache(cache, dst_k, dst_scale, table.to(device), cu.to(device))
    assert torch.equal(dst_k, want_k) and torch.equal(dst_scale, want_scale)
    plain = torch.zeros(total + 2, 1, device=device)
    ops.cp_gather_indexer_k_quant_cache(cache, dst_k.view(E4M3), plain, table.to(device), cu.to(device))
    assert torch.equal(plain[:total].view(torch.uint8), want_scale[:total])


# --- logits and top-k ---------------------------------------------------------------------------------------


def codes_of(rng, *shape):
    return normal(rng, *shape).mul(60).clamp(-448, 448).to(E4M3)


def logits_of(q, weights, keys, scale):
    """[M,N] in float64, and the sum of absolute terms: a bound of what f32 may lose."""
    products = torch.einsum("mhd,nd->mhn", q.double(), keys.double()).relu()
    weighted = weights.double()[:, :, None] * products
    return weighted.sum(1) * scale.double(), weighted.abs().sum(1) * scale.double()


def assert_logits(got, wanted, bound, inside):
    got = got.cpu().double()
    assert (got[~inside] == -math.inf).all()
    assert ((got - wanted).abs()[inside] <= (2**-20 * bound + 1e-30)[inside]).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads, keys", [(64, 200), (1, 1), (5, 67)])
def test_fp8_mqa_logits(rng, device, heads, keys):
    tokens = 9
    q, k = codes_of(rng, tokens, heads, 128), codes_of(rng, keys, 128)
    scale, weights = torch.rand(keys, generator=rng) + 0.1, normal(rng, tokens, heads)
    starts, ends = ints(rng, 0, keys + 1, tokens), ints(rng, 0, keys + 1, tokens)  # empty windows too
    k.view(torch.uint8)[: int(starts.min())] = 0x7F  # NaN where no token looks
    got = ops.fp8_mqa_logits_triton(
        view_of(q.view(torch.uint8), 0x7F).view(E4M3).to(device),
        (k.to(device), scale[:, None].to(device)),
        weights.to(device),
        starts.to(device),
        ends.to(device),
    )
    columns = torch.arange(keys)
    inside = (columns >= starts[:, None]) & (columns < ends[:, None])
    assert got.shape == (tokens, keys) and got.dtype == torch.float32
    assert_logits(got, *logits_of(q, weights, k, scale), inside)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("next_n, page, per_token", [(1, 64, False), (3, 16, False), (2, 5, True)])
def test_fp8_paged_mqa_logits(rng, device, next_n, page, per_token):
    batch, heads, blocks, columns = 5, 7, 4, 4 * page + 9  # more columns than the table has
    pages = batch * blocks
    memory, cache = pages_of(pages, page, 132, "cpu", gap=44, fill=0x7F)
    k, scale = codes_of(rng, pages * page, 128), torch.rand(pages * page, generator=rng) + 0.1
    for p in range(pages):
        part = slice(p * page, (p + 1) * page)
        page_bytes = torch.cat([k[part].view(torch.uint8).flatten(), scale[part].view(torch.uint8).flatten()])
        memory[p * cache.stride(0) : p * cache.stride(0) + 132 * page] = page_bytes
    table = torch.randperm(pages, generator=rng).view(batch, blocks).int()
    q, weights = codes_of(rng, batch, next_n, heads, 128), normal(rng, batch * next_n, heads)
    lens = ints(rng, 0, blocks * page + 1, batch)
    lens[0] = 0  # a request of padding
    seen = (lens[:, None] - next_n + 1 + torch.arange(next_n)).clamp(min=0).int()
    if per_token:
        seen = ints(rng, 0, blocks * page + 1, batch, next_n)
    memory = memory.to(device)
    cache = memory.as_strided((pages, page, 1, 132), (cache.stride(0), 132, 132, 1))
    got = ops.fp8_paged_mqa_logits_triton(
        q.to(device),
        cache,
        weights.to(device),
        (seen if per_token else lens).to(device),
        table.to(device),
        columns,
    )
    assert got.shape == (batch * next_n, columns)
    inside = torch.zeros(batch * next_n, columns, dtype=torch.bool)
    wanted, bound = torch.zeros(2, batch * next_n, columns, dtype=torch.float64)
    for b in range(batch):
        rows = [row(table, b, p, page) for p in range(blocks * page)]
        lines = slice(b * next_n, (b + 1) * next_n)
        wanted[lines, : len(rows)], bound[lines, : len(rows)] = logits_of(
            q[b], weights[lines], k[rows], scale[rows]
        )
        inside[lines] = torch.arange(columns) < seen[b][:, None]
    assert_logits(got, wanted, bound, inside)


@pytest.mark.parametrize("device", DEVICES)
def test_warm_ups_compute_nothing_and_refuse_what_calls_refuse(device):
    for heads in (64, 3):
        ops.warmup_fp8_mqa_logits_triton(num_heads=heads, head_dim=128, device=torch.device(device))
        ops.warmup_fp8_paged_mqa_logits_triton(heads, 128, 64, torch.device(device))
    with pytest.raises(smla.InvalidArgument, match=r"kv\[0\]"):
        ops.warmup_fp8_mqa_logits_triton(64, 96, torch.device(device))
    with pytest.raises(smla.InvalidArgument, match="kv_cache"):
        ops.warmup_fp8_paged_mqa_logits_triton(64, 96, 64, torch.device(device))


def best(line, start, end, k):
    """The k best columns of line[start:end], counted from start, ascending; ties to the lowest."""
    order = sorted(range(start, end), key=lambda j: (-line[j], j))[:k]
    return sorted(j - start for j in order)


def padded(lists, k):
    return [found + [-1] * (k - len(found)) for found in lists]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("k", [5, 128])
def test_top_k_per_row_prefill(rng, device, k):
    rows, columns = 9, 70
    scores = normal(rng, rows + 1, columns).mul(4).round() / 4  # many ties
    starts, ends = ints(rng, 0, columns, rows + 1), ints(rng, 0, columns + 1, rows + 1)
    wanted = [best(scores[t].tolist(), int(starts[t]), int(ends[t]), k) for t in range(rows)]
    outside = (torch.arange(columns) < starts[:, None]) | (torch.arange(columns) >= ends[:, None])
    logits = view_of(torch.where(outside, math.nan, scores).to(device), math.nan)
    out = torch.full((rows + 2, k + 3), 99, dtype=torch.int32, device=device)
    ops.top_k_per_row_prefill(
        logits, starts.to(device), ends.to(device), out, rows, logits.stride(0), logits.stride(1), k
    )
    same(out[:rows, :k], padded(wanted, k))
    assert (out[rows:] == 99).all() and (out[:, k:] == 99).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("next_n, per_token", [(1, False), (3, False), (2, True)])
def test_top_k_per_row_decode(rng, device, next_n, per_token):
    batch, columns, k = 6, 70, 8
    rows = batch * next_n
    scores = normal(rng, rows, columns)
    lens = ints(rng, 0, columns + 1, batch)
    seen = (lens[:, None] - next_n + 1 + torch.arange(next_n)).clamp(min=0).int()
    if per_token:
        lens = seen = ints(rng, 0, columns + 1, batch, next_n)
    scores[torch.arange(columns) >= seen.flatten()[:, None]] = math.nan
    out = torch.full((rows, k), 99, dtype=torch.int32, device=device)
    ops.top_k_per_row_decode(scores.to(device), next_n, lens.to(device), out, rows, columns, 1, k)
    same(out, padded([best(scores[t].tolist(), 0, int(seen.flatten()[t]), k) for t in range(rows)], k))


# --- attention ----------------------------------------------------------------------------------------------


def attention(q, keys, rows, scale, width):
    """out, lse, largest logit in float64."""
    out = torch.zeros(*q.shape[:2], width, dtype=torch.float64)
    lse, largest = torch.full((2, *q.shape[:2]), -math.inf, dtype=torch.float64)
    for t, listed in enumerate(rows.tolist()):
        some = keys[[r for r in listed if 0 <= r < len(keys)]].double()
        if len(some):
            logits = scale * q[t].double() @ some.T
            lse[t], largest[t] = logits.logsumexp(-1), logits.amax(-1)
            out[t] = logits.softmax(-1) @ some[:, :width]
    return out, lse, largest


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads, listed, splits", [(16, 48, None), (5, 7, 1), (1, 0, 4), (128, 33, 0)])
def test_triton_mla_sparse_attention(rng, device, heads, listed, splits):
    tokens, rows, scale = 4, 90, 192**-0.5
    q, keys = (
        normal(rng, tokens, heads, 576, dtype=torch.bfloat16),
        normal(rng, rows, 576, dtype=torch.bfloat16),
    )
    index = with_holes(rng, ints(rng, 0, rows + 3, tokens, listed))  # rows past the end too
    index[-1] = -1  # a token without rows
    unlisted = [r for r in range(rows) if r not in index.flatten().tolist()]
    keys[unlisted] = math.nan
    kv = view_of(keys.to(device), math.nan)[:, None]
    arguments = view_of(q.to(device), math.nan), kv, index[:, None].to(device)
    wanted, lse, largest = attention(q, keys, index, scale, 512)
    got = ops.triton_mla_sparse_attention(*arguments, sm_scale=scale, num_kv_splits=splits, sm_count=132)
    assert got.shape == (tokens, heads, 512) and got.dtype == torch.bfloat16
    assert torch.allclose(got.cpu().double(), wanted, rtol=2**-6, atol=2**-6)
    assert (got[-1] == 0).all()
    out, got_largest, got_lse = ops.triton_bf16_mla_sparse_interface(*arguments, scale)
    assert torch.equal(out, got)
    assert torch.allclose(got_lse.cpu().double(), lse, rtol=1e-3, atol=2e-3)
    assert torch.allclose(got_largest.cpu().double(), largest, rtol=1e-3, atol=2e-3)
    narrow = ops.triton_bf16_mla_sparse_interface(*arguments, scale, d_v=64)[0]
    assert torch.allclose(narrow.cpu().double(), wanted[..., :64], rtol=2**-6, atol=2**-6)


def test_attention_over_no_keys():
    q, kv = torch.ones(2, 3, 576, dtype=torch.bfloat16), torch.zeros(0, 1, 576, dtype=torch.bfloat16)
    index = torch.zeros(2, 1, 16, dtype=torch.int32)
    assert (ops.triton_mla_sparse_attention(q, kv, index, 1.0) == 0).all()


# --- signatures and refusals --------------------------------------------------------------------------------

SIGNATURES = {
    "_lse2_to_lse": "lse_base2",
    "build_flashinfer_mixed_sparse_indices": (
        "decode_swa_indices, decode_compressed_indices, decode_compressed_topk_lens, "
        "prefill_topk_indices, query_start_loc, seq_lens, token_to_req_indices, swa_block_table, "
        "swa_block_size, compressed_block_table, compressed_block_size, window_size, compress_ratio, "
        "topk, decode_compressed_indices_are_local=False, decode_is_valid_token=None"
    ),
    "combine_topk_swa_indices": (
        "topk_indices, query_start_loc, seq_lens, gather_lens, window_size, compress_ratio, topk, M, N"
    ),
    "compute_global_topk_indices_and_lens": (
        "topk_indices, token_to_req_indices, block_table, block_size, is_valid_token"
    ),
    "concat_and_cache_mla": "kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale",
    "cp_gather_and_upconvert_fp8_kv_cache": (
        "src_cache, dst, block_table, workspace_starts, batch_size, seq_starts=None"
    ),
    "cp_gather_indexer_k_quant_cache": "kv_cache, dst_k, dst_scale, block_table, cu_seq_lens",
    "dequantize_and_gather_k_cache": (
        "out, k_cache, seq_lens, gather_lens, block_table, block_size, offset, use_fnuz=False"
    ),
    "fp8_mqa_logits_triton": "q, kv, weights, cu_seqlen_ks, cu_seqlen_ke",
    "fp8_paged_mqa_logits_triton": "q, kv_cache, weights, context_lens, block_tables, max_model_len",
    "indexer_k_quant_and_cache": "k, kv_cache, slot_mapping, quant_block_size, kv_cache_dtype",
    "quantize_and_insert_k_cache": "k, k_cache, slot_mapping, block_size=64, is_ue8m0=True, use_fnuz=False",
    "top_k_per_row_decode": (
        "logits, next_n, seq_lens, raw_topk_indices, num_rows, stride0, stride1, topk_tokens"
    ),
    "top_k_per_row_prefill": (
        "logits, cu_seqlen_ks, cu_seqlen_ke, raw_topk_indices, num_rows, stride0, stride1, topk_tokens"
    ),
    "triton_bf16_mla_sparse_interface": "q, kv, indices, sm_scale, d_v=512",
    "triton_convert_req_index_to_global_index": (
        "req_id, block_table, token_indices, BLOCK_SIZE=64, NUM_TOPK_TOKENS=2048, BLOCK_N=128, "
        "HAS_PREFILL_WORKSPACE=False, prefill_workspace_request_ids=None, prefill_workspace_starts=None, "
        "return_valid_counts=False, out=None, valid_counts_out=None, *, BLOCK_STRIDE_ROWS=None"
    ),
    "triton_filter_and_convert_dcp_index": (
        "req_id, block_table, token_indices, dcp_size, dcp_rank, cp_kv_cache_interleave_size=1, "
        "BLOCK_SIZE=64, NUM_TOPK_TOKENS=2048, BLOCK_N=128, return_valid_counts=False, "
        "compact_valid_to_front=True"
    ),
    "triton_mla_sparse_attention": "q, kv, indices, sm_scale, num_kv_splits=None, sm_count=None",
    "warmup_fp8_mqa_logits_triton": "num_heads, head_dim, device",
    "warmup_fp8_paged_mqa_logits_triton": "num_heads, head_dim, block_size, device",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(ops, name)).parameters.values()
    plain = inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])
    assert str(plain) == f"({SIGNATURES[name]})"


def test_every_public_name_is_tested_for_its_signature():
    functions = {name for name in ops.__all__ if callable(getattr(ops, name))}
    assert functions - set(SIGNATURES) == {"filter_prefill_indices", "latent_cache", "lse2_to_lse"}


def i32(*shape):
    return torch.zeros(shape, dtype=torch.int32)


def convert(**changes):
    arguments = {"req_id": i32(2), "block_table": i32(1, 2), "token_indices": i32(2, 8), "NUM_TOPK_TOKENS": 8}
    return ops.triton_convert_req_index_to_global_index(**{**arguments, **changes})


def dcp(**changes):
    arguments = {"req_id": i32(2), "block_table": i32(1, 2), "token_indices": i32(2, 8), "NUM_TOPK_TOKENS": 8}
    return ops.triton_filter_and_convert_dcp_index(**{**arguments, "dcp_size": 2, "dcp_rank": 0, **changes})


def combine(**changes):
    arguments = dict(topk_indices=i32(0, 4), query_start_loc=i32(2), seq_lens=i32(1), gather_lens=i32(1))
    return ops.combine_topk_swa_indices(
        **{**arguments, "window_size": 4, "compress_ratio": 4, "topk": 4, "M": 8, "N": 4, **changes}
    )


def mixed(**changes):
    arguments = dict(
        decode_swa_indices=i32(1, 4),
        decode_compressed_indices=i32(1, 4),
        decode_compressed_topk_lens=None,
        prefill_topk_indices=i32(0, 4),
        query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=torch.ones(1, dtype=torch.int32),
        token_to_req_indices=i32(1),
        swa_block_table=i32(1, 2),
        swa_block_size=4,
        compressed_block_table=i32(1, 2),
        compressed_block_size=4,
        window_size=4,
        compress_ratio=4,
        topk=4,
    )
    return ops.build_flashinfer_mixed_sparse_indices(**{**arguments, **changes})


def concat(kv_c=None, k_pe=None, kv_cache=None, kv_cache_dtype="auto", slots=None):
    pick = {"kv_c": torch.ones(2, 512).bfloat16(), "k_pe": torch.ones(2, 64).bfloat16()}
    return ops.concat_and_cache_mla(
        pick["kv_c"] if kv_c is None else kv_c,
        pick["k_pe"] if k_pe is None else k_pe,
        torch.zeros(2, 4, 576).bfloat16() if kv_cache is None else kv_cache,
        torch.zeros(2, dtype=torch.int64) if slots is None else slots,
        kv_cache_dtype,
        torch.ones(1),
    )


def topk(**changes):
    arguments = dict(
        logits=torch.zeros(2, 8), cu_seqlen_ks=i32(2), cu_seqlen_ke=i32(2), raw_topk_indices=i32(2, 4)
    )
    return ops.top_k_per_row_prefill(
        **{**arguments, "num_rows": 2, "stride0": 8, "stride1": 1, "topk_tokens": 4, **changes}
    )


BYTES = torch.zeros(2, 4, 656, dtype=torch.uint8)
REFUSALS = [
    (convert, {"req_id": torch.zeros(2)}, "req_id.dtype"),
    (convert, {"block_table": i32(1, 2).long()}, "block_table.dtype"),
    (convert, {"token_indices": i32(2, 8).double()}, "token_indices.dtype"),
    (convert, {"token_indices": i32(2, 1, 8)}, "token_indices.ndim"),
    (convert, {"NUM_TOPK_TOKENS": 2048}, "NUM_TOPK_TOKENS"),
    (convert, {"req_id": i32(3)}, "req_id.shape[0]"),
    (convert, {"HAS_PREFILL_WORKSPACE": True}, "prefill_workspace_request_ids"),
    (convert, {"BLOCK_SIZE": 0}, "page_tokens"),
    (convert, {"BLOCK_STRIDE_ROWS": 3}, "page_rows"),
    (dcp, {"dcp_rank": 2}, "dcp_rank"),
    (dcp, {"dcp_size": 0}, "dcp_rank"),
    (dcp, {"cp_kv_cache_interleave_size": 7}, "cp_kv_cache_interleave_size"),
    (combine, {"topk": 5}, "topk"),
    (combine, {"M": 2**31}, "M"),
    (combine, {"seq_lens": torch.zeros(1)}, "seq_lens.dtype"),
    (mixed, {"decode_swa_indices": i32(1, 5)}, "decode_swa_indices.shape[1]"),
    (mixed, {"decode_compressed_indices": i32(2, 4)}, "decode_compressed_indices.shape[0]"),
    (mixed, {"decode_compressed_indices_are_local": True}, "decode_is_valid_token"),
    (
        mixed,
        {"decode_compressed_indices_are_local": True, "decode_is_valid_token": torch.zeros(1)},
        "decode_is_valid_token",
    ),
    (mixed, {"token_to_req_indices": i32(0)}, "token_to_req_indices.shape[0]"),
    (mixed, {"prefill_topk_indices": i32(1, 3), "token_to_req_indices": i32(2)}, "topk"),
    (mixed, {"seq_lens": torch.ones(1)}, "seq_lens.dtype"),
    (concat, {"kv_cache": torch.zeros(2, 4, 576)}, "kv_c.dtype"),
    (concat, {"kv_cache": torch.zeros(2, 4, 576).half()}, "kv_cache.dtype"),
    (concat, {"kv_cache": torch.zeros(2, 4, 580).bfloat16()[..., :576]}, "kv_cache.stride"),
    (concat, {"kv_cache": torch.zeros(2, 576).bfloat16()}, "kv_cache.ndim"),
    (concat, {"kv_cache": BYTES, "kv_cache_dtype": "fp8"}, "kv_cache.shape"),
    (concat, {"kv_cache": BYTES[..., :600].contiguous(), "kv_cache_dtype": "fp8_ds_mla"}, "kv_cache.shape"),
    (concat, {"kv_cache": BYTES.float(), "kv_cache_dtype": "fp8_ds_mla"}, "kv_cache.dtype"),
    (concat, {"kv_cache": BYTES, "kv_cache_dtype": "nvfp4_ds_mla"}, "kv_cache_dtype"),
    (concat, {"k_pe": torch.ones(2, 32).bfloat16()}, "args.tail"),
    (concat, {"slots": torch.zeros(2)}, "args.slots"),
    (topk, {"stride0": 9}, "stride0, stride1"),
    (topk, {"topk_tokens": 5}, "topk_tokens"),
    (topk, {"num_rows": 3}, "logits.shape"),
    (topk, {"raw_topk_indices": i32(1, 4)}, "raw_topk_indices.shape"),
]


@pytest.mark.parametrize("call, changes, field", REFUSALS, ids=lambda x: x if isinstance(x, str) else "")
def test_refusals_name_the_argument(call, changes, field):
    with pytest.raises((smla.InvalidArgument, smla.Unsupported)) as caught:
        call(**changes)
    assert field in caught.value.field and caught.value.wanted


def test_refusals_of_formats_that_there_are_not():
    k, cache = torch.zeros(1, 512).bfloat16(), torch.zeros(1, 37440, dtype=torch.uint8)
    slots = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(smla.Unsupported, match="use_fnuz"):
        ops.quantize_and_insert_k_cache(k, cache, slots, use_fnuz=True)
    with pytest.raises(smla.Unsupported, match="is_ue8m0"):
        ops.quantize_and_insert_k_cache(k, cache, slots, is_ue8m0=False)
    with pytest.raises(smla.InvalidArgument, match="k_cache"):
        ops.quantize_and_insert_k_cache(k, torch.zeros(2, 64, 656, dtype=torch.uint8), slots)
    with pytest.raises(smla.InvalidArgument, match="offset"):
        ops.dequantize_and_gather_k_cache(torch.zeros(1, 4, 512), cache, i32(1), None, i32(1, 1), 64, 5)
    keys, index = torch.zeros(1, 128), torch.zeros(2, 4, 132, dtype=torch.uint8)
    with pytest.raises(smla.Unsupported, match="ue8m0"):
        ops.indexer_k_quant_and_cache(keys, index, slots, 128, "fp32")
    with pytest.raises(smla.InvalidArgument, match="quant_block_size"):
        ops.indexer_k_quant_and_cache(keys, index, slots, 64, "ue8m0")
    with pytest.raises(smla.InvalidArgument, match="dst_scale"):
        ops.cp_gather_indexer_k_quant_cache(
            index, torch.zeros(4, 128, dtype=torch.uint8), torch.zeros(4, 2), i32(1, 1), i32(2)
        )
    with pytest.raises(smla.InvalidArgument, match="dst_k"):
        ops.cp_gather_indexer_k_quant_cache(index, torch.zeros(4, 128), torch.zeros(4, 1), i32(1, 1), i32(2))


def test_refusals_of_attention_and_logits():
    q, kv = torch.zeros(1, 2, 576).bfloat16(), torch.zeros(4, 1, 576).bfloat16()
    rows = i32(1, 1, 4)
    for bad, field in (({"indices": i32(1, 4)}, "indices.shape"), ({"kv": torch.zeros(4, 2, 576)}, "kv")):
        with pytest.raises(smla.InvalidArgument) as caught:
            ops.triton_mla_sparse_attention(**{"q": q, "kv": kv, "indices": rows, "sm_scale": 1.0, **bad})
        assert caught.value.field == field
    with pytest.raises(smla.InvalidArgument, match="num_kv_splits"):
        ops.triton_mla_sparse_attention(q, kv, rows, 1.0, num_kv_splits=-1)
    code, scale, weights = torch.zeros(3, 128).to(E4M3), torch.ones(3), torch.ones(2, 4)
    bounds, query = i32(2), torch.zeros(2, 4, 128).to(E4M3)
    with pytest.raises(smla.InvalidArgument, match=r"kv\[1\]"):
        ops.fp8_mqa_logits_triton(query, (code, scale[:2]), weights, bounds, bounds)
    cache = torch.zeros(2, 4, 1, 132, dtype=torch.uint8)
    with pytest.raises(smla.InvalidArgument, match="context_lens"):
        ops.fp8_paged_mqa_logits_triton(query[:, None], cache, weights, i32(3), i32(2, 1), 4)
    with pytest.raises(smla.InvalidArgument, match="q.ndim"):
        ops.fp8_paged_mqa_logits_triton(query, cache, weights, bounds, i32(2, 1), 4)
    with pytest.raises(smla.InvalidArgument, match="num_rows"):
        ops.top_k_per_row_decode(torch.zeros(4, 8), 1, i32(2), i32(4, 2), 4, 8, 1, 2)


# --- on a GPU -----------------------------------------------------------------------------------------------


@GPU
def test_calls_may_be_captured_in_a_cuda_graph():
    rng = torch.Generator().manual_seed(0)
    table, positions = (x.cuda() for x in table_of(rng, 3, 6, 64))
    request = ints(rng, 0, 3, 7).cuda()
    latent, rope = (x.cuda() for x in keys_of(rng, 7))
    cache = torch.zeros(64, 64, 656, dtype=torch.uint8, device="cuda")
    slots = torch.randperm(4096, generator=rng)[:7].cuda()

    def step():
        ops.concat_and_cache_mla(latent, rope, cache, slots, "fp8_ds_mla", torch.ones(1))
        rows, lens = ops.triton_convert_req_index_to_global_index(
            request, table, positions, NUM_TOPK_TOKENS=19, return_valid_counts=True
        )
        return rows, lens

    for _ in range(2):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    positions.copy_(ints(rng, 0, 300, 7, 19).cuda())
    latent.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    replayed, written = [x.clone() for x in captured], cache.clone()
    cache.zero_()
    for got, wanted in zip(replayed, step(), strict=True):
        assert torch.equal(got, wanted)
    assert torch.equal(cache, written)
