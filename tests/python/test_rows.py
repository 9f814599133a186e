"""smla.rows against plain loops in Python, written from the comments of include/smla/rows.h."""

import inspect
from typing import get_args

import numpy as np
import pytest
import smla
from row_arrays import INT32_MAX, both_libraries, hostile, i32, strided
from smla import rows


def table_row(table, request, place, page_tokens, page_rows):
    """-1 for requests and places that are none."""
    if not 0 <= request < len(table) or not 0 <= place // page_tokens < table.shape[1]:
        return -1
    block = int(table[request, place // page_tokens])
    row = block * (page_rows or page_tokens) + place % page_tokens
    return row if block >= 0 and row <= INT32_MAX else -1


# request_rows


def request_rows_in_python(positions, request_of_token, block_table, page_tokens, page_rows=0, **more):
    ranks, rank = max(more.get("ranks", 0), 1), more.get("rank", 0)
    deal = max(more.get("interleave", 0), 1)
    out, counts = np.full(positions.shape, -1, np.int64), np.zeros(len(positions), np.int64)
    for t, line in enumerate(positions):
        start = -1
        if (where := more.get("workspace_of_token")) is not None and where[t] >= 0:
            start = max(int(more["workspace_starts"][where[t]]), 0)
        for j, p in enumerate(map(int, line)):
            if p < 0 or p // deal % ranks != rank:
                continue
            p = p // (ranks * deal) * deal + p % deal
            if start < 0:
                out[t, j] = table_row(block_table, int(request_of_token[t]), p, page_tokens, page_rows)
            elif p // page_tokens < block_table.shape[1] and start + p <= INT32_MAX:
                out[t, j] = start + p
        found = out[t][out[t] >= 0]
        counts[t] = len(found)
        if more.get("compact"):
            out[t] = [*found, *[-1] * (len(line) - len(found))]
        if (valid := more.get("is_valid")) is not None and not valid[t]:
            counts[t] = 0
    return out, counts


@pytest.mark.parametrize("seed", range(25))
def test_request_rows(seed):
    random = np.random.default_rng(seed)
    tokens, columns, requests = random.integers(0, 8), random.integers(0, 40), random.integers(1, 5)
    page = int(random.choice([1, 3, 64]))
    blocks = random.integers(0, 6)
    table = hostile(random, (requests, blocks), 1000, 0.1)
    options = {"page_tokens": page, "page_rows": int(random.choice([0, page, page + 5]))}
    options |= {"compact": bool(random.integers(2))}
    if random.integers(2):
        ranks = int(random.integers(1, 5))
        options |= {"ranks": ranks, "rank": int(random.integers(ranks))}
        options |= {"interleave": int(random.integers(0, 4))}
    extra = {}
    if random.integers(2):
        extra["is_valid"] = random.integers(0, 2, tokens).astype(np.uint8)
    if random.integers(2):
        extra["workspace_starts"] = i32(random.choice([-5, 0, 17, INT32_MAX - 20], 3))
        extra["workspace_of_token"] = i32(random.integers(-2, 3, tokens))
    given = {
        "positions": hostile(random, (tokens, columns), page * blocks * options.get("ranks", 1)),
        "request_of_token": hostile(random, tokens, requests - 1, 0.1),
        "block_table": table,
        **extra,
    }
    wanted, counts = request_rows_in_python(**given, **options)
    for arrays in both_libraries(**given):
        got = rows.request_rows(**arrays, **options)
        assert type(got.rows) is type(arrays["positions"])
        assert np.array_equal(got.rows, wanted) and np.array_equal(got.lens, counts)
    given = {name: strided(array) for name, array in given.items()}
    out, lens = strided(np.full(wanted.shape, 5, np.int32)), strided(np.full(len(wanted), 5, np.int32))
    got = rows.request_rows(**given, **options, rows=out, counts=lens)
    assert got.rows is out and got.lens is lens
    assert np.array_equal(out, wanted) and np.array_equal(lens, counts)
    assert all((array.base == -777).sum() >= array.base.size // 2 for array in (out, lens) if array.size)


def test_request_rows_refusals():
    good = {
        "positions": np.zeros((2, 3), np.int32),
        "request_of_token": np.zeros(2, np.int32),
        "block_table": np.zeros((1, 4), np.int32),
        "page_tokens": 4,
    }
    same = good["positions"]
    starts = np.zeros(1, np.int32)
    for field, change in {
        "page_tokens": {"page_tokens": 0},
        "page_tokens: got 4294967300": {"page_tokens": 2**32 + 4},
        "page_tokens: got 4.0": {"page_tokens": 4.0},
        "page_rows": {"page_rows": 3},
        "ranks": {"ranks": -1},
        "rank:": {"ranks": 2, "rank": 2},
        "interleave": {"interleave": -1},
        "positions.dtype": {"positions": same.astype(np.int64)},
        "positions.ndim": {"positions": same[0]},
        "request_of_token": {"request_of_token": np.zeros(3, np.int32)},
        "block_table": {"block_table": np.zeros(4, np.int32)},
        "is_valid": {"is_valid": np.zeros(2, np.int32)},
        "workspace_starts": {"workspace_of_token": np.zeros(2, np.int32)},
        r"workspace_of_token\[1\]": {"workspace_of_token": i32([0, 1]), "workspace_starts": starts},
        "rows": {"rows": np.zeros((2, 4), np.int32)},
        "rows.data": {"rows": same},
        "counts": {"counts": np.zeros(1, np.int32)},
        "positions: got list": {"positions": [[0]]},
    }.items():
        with pytest.raises(smla.InvalidArgument, match=field):
            rows.request_rows(**{**good, **change})


# split_context, lse_from_log2


@pytest.mark.parametrize("seed", range(8))
def test_split_context(seed):
    random = np.random.default_rng(seed)
    shape = random.integers(0, 6), random.integers(0, 50)
    positions = hostile(random, shape, 40)
    lens = i32(random.choice([0, 1, 20, 41, INT32_MAX], shape[0]))
    context = np.where((positions >= 0) & (positions < lens[:, None]), positions, -1)
    new = np.where((positions >= 0) & (positions >= lens[:, None]), positions - lens[:, None].astype(int), -1)
    for arrays in both_libraries(positions=positions, context_lens=lens):
        old, behind = rows.split_context(**arrays)
        assert np.array_equal(old, context) and np.array_equal(behind, new)
    out = strided(np.zeros(shape, np.int32)), strided(np.zeros(shape, np.int32))
    rows.split_context(strided(positions), strided(lens), context_rows=out[0], new_rows=out[1])
    assert np.array_equal(out[0], context) and np.array_equal(out[1], new)


def test_split_context_refusals():
    positions, lens = np.zeros((2, 3), np.int32), np.zeros(2, np.int32)
    for field, arguments in {
        r"context_lens\[1\]": (positions, i32([0, -1])),
        "context_lens": (positions, lens[:1]),
        "positions.ndim": (lens, lens),
        "positions.dtype": (positions.astype(np.float32), lens),
    }.items():
        with pytest.raises(smla.InvalidArgument, match=field):
            rows.split_context(*arguments)
    with pytest.raises(smla.InvalidArgument, match="new_rows"):
        rows.split_context(positions, lens, new_rows=np.zeros((2, 2), np.int32))


def test_lse_from_log2():
    random = np.random.default_rng(0)
    given = (random.standard_normal((7, 9)) * 30).astype(np.float32)
    given[0, :3] = [-np.inf, np.inf, np.nan]
    wanted = given * np.float32(np.log(2))
    for arrays in both_libraries(log2_lse=given):
        assert np.array_equal(rows.lse_from_log2(**arrays), wanted, equal_nan=True)
    assert rows.lse_from_log2(given[:, :0]).shape == (7, 0)
    wide = strided(given)
    assert rows.lse_from_log2(wide, wide) is wide  # in place
    assert np.array_equal(wide, wanted, equal_nan=True) and (wide.base[:, ::2] == -777).all()
    frozen = given.copy()
    frozen.flags.writeable = False
    for field, arguments in {
        "log2_lse": (given[0],),
        "log2_lse.dtype": (given.astype(np.float64), given),
        "lse: got a read-only": (given, frozen),
        "lse": (given, given[:6].copy()),
    }.items():
        with pytest.raises(smla.InvalidArgument, match=field):
            rows.lse_from_log2(*arguments)


# combined_rows


def prefill_columns(position, ratio, topk, window):
    entries = min((position + 1) // ratio if ratio else 0, topk)
    return entries, min(position + 1, window)


def combined_rows_in_python(selected, starts, seq_lens, gather_lens, columns, **o):
    out, lens = np.full((starts[-1] - starts[0], columns), -1, np.int64), []
    for b, (begin, end) in enumerate(zip(starts - starts[0], (starts - starts[0])[1:])):
        for t in range(begin, end):
            position = int(seq_lens[b]) - (end - t)
            entries, seen = prefill_columns(position, o["ratio"], o["topk"], o["window"])
            first = o["stride"] * b
            listed = selected[t, :entries].tolist() if entries else []
            picked = [first + e if 0 <= e < o["entries"] else -1 for e in listed]
            kept = int(seq_lens[b] - gather_lens[b])  # first gathered token
            near = range(position - seen + 1, position + 1)
            picked += [first + o["entries"] + p - kept if p >= kept else -1 for p in near]
            out[t, : len(picked)] = [p if p <= INT32_MAX else -1 for p in picked]
            lens.append(entries + seen)
    return out, lens


@pytest.mark.parametrize("seed", range(20))
def test_combined_rows(seed):
    random = np.random.default_rng(seed)
    requests, ratio = int(random.integers(0, 4)), int(random.choice([0, 1, 4, 128]))
    topk = int(random.integers(0, 30)) if ratio else 0
    window = int(random.choice([1, 5, 128]))
    lengths = random.integers(0, 9, requests)
    starts = i32(np.cumsum([random.integers(0, 50), *lengths]))
    seq_lens = i32(lengths + random.choice([0, 3, 130], requests))
    gather_lens = i32([random.integers(0, n + 1) for n in seq_lens])
    entries = int(random.integers(0, 60))
    options = {"window": window, "ratio": ratio, "topk": topk, "entries": entries}
    options["stride"] = entries + int(gather_lens.max(initial=0)) + int(random.choice([0, 7, 2**30]))
    selected = hostile(random, (starts[-1] - starts[0], topk + random.integers(3)), 40) if topk else None
    columns = -(-(topk + window) // 128) * 128
    wanted, lens = combined_rows_in_python(selected, starts, seq_lens, gather_lens, columns, **options)
    given = {
        "selected": selected,
        "query_start_loc": starts,
        "seq_lens": seq_lens,
        "gather_lens": gather_lens,
    }
    tokens = {} if topk else {"tokens": len(wanted)}
    for arrays in both_libraries(**given):
        got = rows.combined_rows(**arrays, **options, **tokens)
        assert np.array_equal(got.rows, wanted) and np.array_equal(got.lens, lens)
    narrow = rows.combined_rows(**given, **options, **tokens, columns=topk + window)
    assert np.array_equal(narrow.rows, wanted[:, : topk + window])


def test_combined_rows_refusals():
    good = {
        "selected": np.zeros((3, 4), np.int32),
        "query_start_loc": i32([2, 5]),
        "seq_lens": i32([9]),
        "gather_lens": i32([5]),
        **{"window": 4, "ratio": 4, "topk": 4, "stride": 20, "entries": 10},
    }
    rows.combined_rows(**good)
    for field, change in {
        "window": {"window": 0},
        "ratio": {"ratio": -1},
        "topk": {"ratio": 0},
        "selected": {"topk": 5},
        "selected.ndim": {"selected": np.zeros(3, np.int32)},
        "entries": {"entries": -1},
        "stride": {"stride": 9},
        r"gather_lens\[0\]": {"gather_lens": i32([11])},
        r"seq_lens\[0\]": {"seq_lens": i32([2])},
        "query_start_loc": {"query_start_loc": i32([2])},
        "tokens: got None": {"selected": None},
        "tokens: got 4, wanted 3 .selected.shape": {"tokens": 4},
        "rows.shape": {"columns": 7},
        "query_start_loc.dtype": {"query_start_loc": np.array([2, 5])},
    }.items():
        with pytest.raises(smla.InvalidArgument, match=field):
            rows.combined_rows(**{**good, **change})


# mixed_rows


def mixed_rows_in_python(g, o, width):
    """g: arrays, o: numbers. [T, window + P] and lens."""
    decodes = len(g["decode_window_rows"])
    tokens = len(g["request_of_token"])
    window, local = o["window"], o.get("local", False)
    out, lens = np.full((tokens, width), -1, np.int64), np.zeros(tokens, np.int64)
    page, gap = o.get("entry_page_tokens", 0), o.get("entry_page_rows", 0)
    for t in range(decodes):
        request = int(g["request_of_token"][t])
        out[t, :window] = g["decode_window_rows"][t]
        listed = [] if g.get("decode_entries") is None else g["decode_entries"][t].tolist()
        n = len(listed) if g.get("decode_lens") is None else int(g["decode_lens"][t])
        if local:
            listed = [table_row(g["entry_table"], request, e, page, gap) if e >= 0 else -1 for e in listed]
            listed = [row for row in listed if row >= 0]
            n = len(listed) if g["is_valid"][t] else 0
        out[t, window : window + len(listed)] = listed
        lens[t] = window + n
    for t in range(decodes, tokens):
        request = int(g["request_of_token"][t])
        position = int(g["seq_lens"][request]) - (int(g["query_start_loc"][request + 1]) - t)
        entries, seen = prefill_columns(position, o["ratio"], o["topk"], window)
        near = range(position - seen + 1, position + 1)
        pages = o["window_page_tokens"], o.get("window_page_rows", 0)
        out[t, :seen] = [table_row(g["window_table"], request, p, *pages) for p in near]
        for c in range(entries):
            e = int(g["prefill_entries"][t - decodes, c])
            out[t, window + c] = table_row(g["entry_table"], request, e, page, gap) if e >= 0 else -1
        lens[t] = window + entries
    return out, lens


@pytest.mark.parametrize("seed", range(24))
def test_mixed_rows(seed):
    random = np.random.default_rng(seed)
    ratio, kind = [(0, "none"), (4, "local"), (128, "rows")][seed % 3]
    window, requests = int(random.integers(1, 9)), int(random.integers(1, 5))
    decode_requests = int(random.integers(0, requests + 1))
    lengths = [1 if r < decode_requests else int(random.integers(0, 12)) for r in range(requests)]
    starts = i32(np.cumsum([0, *lengths]))
    decodes, tokens = decode_requests, int(starts[-1])
    page, entry_page = int(random.choice([1, 4])), int(random.choice([1, 2, 16]))
    topk = int(random.integers(0, 7)) if ratio else 0
    g = {
        "decode_window_rows": hostile(random, (decodes, window), 500),
        "query_start_loc": starts,
        "seq_lens": i32(np.array(lengths) + random.choice([0, 2, 300], requests)),
        "request_of_token": i32(np.repeat(np.arange(requests), lengths)),
        "window_table": hostile(random, (requests, 320 // page), 90, 0.1),
        "entry_table": hostile(random, (requests, 3), 90, 0.1) if ratio else None,
        "decode_entries": None,
        "prefill_entries": hostile(random, (tokens - decodes, topk), 60) if topk else None,
    }
    o = {"window": window, "ratio": ratio, "topk": topk, "window_page_tokens": page}
    o["window_page_rows"] = int(random.choice([0, page + 1]))
    if ratio:
        o |= {"entry_page_tokens": entry_page, "entry_page_rows": int(random.choice([0, entry_page + 3]))}
        g["decode_entries"] = hostile(random, (decodes, random.integers(0, 9)), 60)
    listed = 0 if g["decode_entries"] is None else g["decode_entries"].shape[1]
    if kind == "local":
        o["local"], g["is_valid"] = True, random.integers(0, 2, decodes + 1).astype(np.uint8)
    elif kind == "rows" and random.integers(2):
        g["decode_lens"] = i32(random.integers(0, listed + 1, decodes))
    width = window + -(-max(topk, listed) // 4) * 4
    wanted, lens = mixed_rows_in_python(g, o, width)
    for arrays in both_libraries(**g):
        got = rows.mixed_rows(**arrays, **o)
        assert np.array_equal(got.rows, wanted) and np.array_equal(got.lens, lens)
    out, longer = np.full(wanted.shape, 9, np.int32), np.append(g["request_of_token"], i32([99]))
    got = rows.mixed_rows(**{**g, "request_of_token": longer}, **o, tokens=tokens, rows=out)
    assert got.rows is out and np.array_equal(out, wanted)


ONE, TABLE = i32([1]), np.zeros((1, 2), np.int32)
SMALL = {
    "request_rows": {
        "positions": TABLE,
        "request_of_token": i32([0]),
        "block_table": TABLE,
        "page_tokens": 4,
    },
    "combined_rows": {"selected": TABLE, "query_start_loc": i32([0, 1]), "seq_lens": ONE, "gather_lens": ONE}
    | dict(window=2, ratio=4, topk=2, stride=4, entries=2),
    "mixed_rows": {"decode_window_rows": TABLE, "query_start_loc": i32([0, 1]), "seq_lens": ONE}
    | {"request_of_token": i32([0]), "window_table": TABLE, "entry_table": TABLE}
    | dict(window=2, ratio=4, topk=0, window_page_tokens=4, entry_page_tokens=4),
    "decode_schedule": {"lens": ONE, "parts": 2},
    "prefill_chunks": {"query_start_loc": i32([0, 1]), "seq_lens": ONE},
}


@pytest.mark.parametrize("name", SMALL)
def test_integers_that_are_none(name):
    function = getattr(rows, name)
    function(**SMALL[name])
    for parameter, each in inspect.signature(function).parameters.items():
        if not {int, bool} & {each.annotation, *get_args(each.annotation)}:
            continue
        for wrong in ("x", "2", 1.5, 2**32, 2**64, -(2**31) - 1, -1, object()):
            if wrong == 2**32 and parameter in ("max_rows", "max_logits_bytes"):
                continue  # of 64 bits
            with pytest.raises(smla.InvalidArgument) as caught:
                function(**{**SMALL[name], parameter: wrong})
            assert parameter in caught.value.field, (parameter, wrong, str(caught.value))


def test_mixed_rows_refusals():
    good = {
        "decode_window_rows": np.zeros((1, 4), np.int32),
        "query_start_loc": i32([0, 1, 3]),
        "seq_lens": i32([5, 2]),
        "request_of_token": i32([0, 1, 1]),
        "window_table": np.zeros((2, 2), np.int32),
        "entry_table": np.zeros((2, 2), np.int32),
        "prefill_entries": np.zeros((2, 3), np.int32),
        "decode_entries": np.zeros((1, 5), np.int32),
        **{"window": 4, "ratio": 4, "topk": 3, "window_page_tokens": 4, "entry_page_tokens": 4},
    }
    assert rows.mixed_rows(**good).rows.shape == (3, 12)
    for field, change in {
        "window": {"window": 3},
        "ratio": {"ratio": -1},
        "window_page_tokens": {"window_page_tokens": 0},
        "window_page_rows": {"window_page_rows": 3},
        "entry_page_tokens": {"entry_page_tokens": 0},
        "entry_table": {"entry_table": None},
        "is_valid": {"local": True},
        "decode_lens": {"local": True, "is_valid": np.ones(1, np.uint8), "decode_lens": i32([1])},
        "topk": {"topk": -1},
        "prefill_entries": {"topk": 4},
        "tokens: got 0": {"tokens": 0},
        "decode_window_rows.ndim": {"decode_window_rows": np.zeros(4, np.int32)},
        "decode_entries.ndim": {"decode_entries": np.zeros(5, np.int32)},
        "decode_entries.shape": {"decode_entries": np.zeros((2, 5), np.int32)},
        r"request_of_token\[2\]": {"request_of_token": i32([0, 1, 2])},
        r"query_start_loc\[1\]": {"request_of_token": i32([0, 0, 1])},
        "lens": {"lens": np.zeros(2, np.int32)},
    }.items():
        with pytest.raises(smla.InvalidArgument, match=field):
            rows.mixed_rows(**{**good, **change})
