"""Decode and prefill of smla.compat.flash_mla against attention in float64."""

import zlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import smla
from flash_mla_world import (
    DEVICES,
    PACKED_DTYPES,
    RECORD_BYTES,
    PackedCache,
    attention,
    check,
    i32,
    some_bf16,
    some_queries,
    some_rows,
    unlisted,
    valid_rows,
)
from smla.compat import flash_mla


def plain_cache(rng, width, pages, page_tokens, dtype=torch.bfloat16, poison=(), gap=0):
    """[pages,page,1,width] with a gap of NaN between pages, and its values [rows,width]."""
    values = some_bf16(rng, (pages * page_tokens, width))
    memory = torch.full((pages, page_tokens * width + gap), float("nan"), dtype=dtype)
    held = torch.from_numpy(values.reshape(pages, page_tokens * width))
    memory[:, : page_tokens * width] = held.to(dtype)
    cache = memory[:, : page_tokens * width].unflatten(1, (page_tokens, 1, width))
    for row in poison:
        cache[row // page_tokens, row % page_tokens] = float("nan")
    return cache, values


def spread(rng, tensor):
    """The same values in a view with gaps in every dimension but the last, full of NaN or of bad rows."""
    *outer, inner = tensor.shape
    padded = torch.empty([*(extent + 1 for extent in outer), inner + 8], dtype=tensor.dtype)
    padded.fill_(float("nan") if tensor.is_floating_point() else 2**31 - 1)
    view = padded[tuple(slice(0, extent) for extent in tensor.shape)]
    view.copy_(tensor)
    return view


def check_statistic(got, want, what):
    """lse or max_logits. On a CPU at most 5e-7 off when this was written; a GPU sums in another order."""
    bound = 4e-6 if got.device.type == "cpu" else 3e-5
    got = np.asarray(got.cpu(), float)
    infinite = np.isinf(want)
    np.testing.assert_array_equal(got[infinite], want[infinite], what)
    np.testing.assert_allclose(got[~infinite], want[~infinite], rtol=bound, atol=bound, err_msg=what)


def plus_infinity(lse):
    return np.where(np.isneginf(lse), np.inf, lse)


def some_sink(rng, heads):
    return np.where(rng.random(heads) < 0.3, rng.choice([-np.inf, np.inf], heads), rng.standard_normal(heads))


def f32(array, device):
    return torch.from_numpy(np.asarray(array, "float32")).to(device)


def decode(q, cache, rows=None, **others):
    """flash_mla_with_kvcache on the device of the cache."""
    device = cache.device
    others.setdefault("block_table", None)
    others.setdefault("cache_seqlens", None)
    return flash_mla.flash_mla_with_kvcache(
        q=q.to(device),
        k_cache=cache,
        head_dim_v=512,
        tile_scheduler_metadata=None,
        is_fp8_kvcache=cache.dtype in PACKED_DTYPES.values(),
        indices=None if rows is None else i32(rows, device),
        **others,
    )


DECODE_CASES = [
    # width, heads, b, s_q, page, pages, topk, dtype, lengths, extra (page, pages, topk), gap
    (576, 128, 2, 1, 64, 3, 128, "uint8", False, None, 0),
    (576, 1, 3, 2, 61, 2, 37, "fp8", True, None, 0),
    (576, 7, 2, 3, 2, 9, 64, "int8", True, (5, 4, 19), 656),
    (512, 64, 2, 2, 64, 3, 64, "uint8", True, (2, 20, 33), 576),
    (512, 13, 3, 1, 256, 1, 5, "fp8", False, (64, 2, 70), 0),
    (512, 256, 1, 2, 69, 3, 130, "int8", True, None, 8),
    (512, 5, 4, 3, 1, 40, 1, "uint8", False, (72, 1, 1), 0),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", DECODE_CASES, ids=str)
@pytest.mark.parametrize("views", [False, True], ids=["dense", "views"])
def test_decode_over_packed_caches(case, views, device):
    width, heads, b, s_q, page, pages, topk, dtype, with_lengths, extra, gap = case
    rng = np.random.default_rng(zlib.crc32(repr((case, views)).encode()))
    listed, lengths, caches, sources = [], [], [], []
    for place, (p, n, k) in enumerate([(page, pages, topk)] + ([extra] if extra else [])):
        rows = some_rows(rng, (b, s_q, k), p * n)
        length = rng.integers(-1, k + 2, b) if with_lengths else None
        valid = valid_rows(rows, p * n, None if length is None else np.repeat(length, s_q))
        cache = PackedCache(rng, width, n, p, dtype, poison=unlisted(p * n, valid), gap=0 if place else gap)
        listed.append(torch.from_numpy(rows))
        lengths.append(None if length is None else i32(length, device))
        caches.append(cache.on(device))
        sources.append((cache.values, valid))
    q, sink = some_queries(rng, b, s_q, heads, width), some_sink(rng, heads)
    if views:
        q, listed = spread(rng, q), [spread(rng, rows) for rows in listed]
    scale = width**-0.55
    out, lse = flash_mla.flash_mla_with_kvcache(
        q.to(device),
        caches[0],
        None,
        None,
        512,
        flash_mla.get_mla_metadata()[0],
        None,
        scale,
        False,
        True,
        listed[0].to(device),
        f32(sink, device),
        caches[1] if extra else None,
        listed[1].to(device) if extra else None,
        lengths[0],
        lengths[1] if extra else None,
    )
    queries = np.asarray(q.double()).reshape(b * s_q, heads, width)
    want, want_lse, _, size = attention(queries, scale, sources, sink)
    assert out.shape == (b, s_q, heads, 512) and out.dtype == torch.bfloat16 and out.is_contiguous()
    assert lse.shape == (b, heads, s_q) and lse.dtype == torch.float32
    assert lse.transpose(1, 2).is_contiguous() and str(lse.device) == str(out.device)
    check(out.flatten(0, 1), want, size)
    check_statistic(lse.transpose(1, 2).flatten(0, 1), plus_infinity(want_lse), "lse")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [576, 512])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_decode_over_plain_caches(width, dtype, device):
    rng = np.random.default_rng(width)
    b, s_q, heads, page, pages = 3, 2, 9, 7, 5
    rows = some_rows(rng, (b, s_q, 21), page * pages)
    extra_rows = some_rows(rng, (b, s_q, 4), 3)
    lists, extra_lists = valid_rows(rows, page * pages), valid_rows(extra_rows, 3)
    cache, values = plain_cache(rng, width, pages, page, dtype, unlisted(page * pages, lists), gap=32)
    more, more_values = plain_cache(rng, width, 3, 1, dtype, unlisted(3, extra_lists))
    q = some_queries(rng, b, s_q, heads, width)
    out, lse = decode(
        q,
        cache.to(device),
        rows,
        extra_k_cache=more.to(device),
        extra_indices_in_kvcache=i32(extra_rows, device),
    )
    sources = [(values, lists), (more_values, extra_lists)]
    queries = np.asarray(q.double()).reshape(b * s_q, heads, width)
    want, want_lse, _, size = attention(queries, width**-0.5, sources)  # the scale is d^-0.5 by default
    check(out.flatten(0, 1), want, size)
    check_statistic(lse.transpose(1, 2).flatten(0, 1), plus_infinity(want_lse), "lse")


@pytest.mark.parametrize("device", DEVICES)
def test_parts_merge_into_the_whole_where_a_token_has_no_rows_in_one(device):
    rng = np.random.default_rng(62)
    cache, values = plain_cache(rng, 576, 2, 8)
    rows = some_rows(rng, (3, 1, 12), 16)
    rows[1, :, 6:] = -1  # the second part of this query is empty
    rows[2] = -1  # all of this query is
    q = some_queries(rng, 3, 1, 4, 576)
    parts = [decode(q, cache.to(device), rows[..., half]) for half in (slice(0, 6), slice(6, 12))]
    assert parts[1][1][1:].isposinf().all()
    partials = torch.stack([out[:, 0].float() for out, _ in parts])
    merged = smla.merge(partials, torch.stack([lse[..., 0] for _, lse in parts]), lse_out=True)
    sources = [(values, valid_rows(rows, 16))]
    want, want_lse, _, size = attention(np.asarray(q.double())[:, 0], 576**-0.5, sources)
    check(merged.out.to(torch.bfloat16), want, size)
    check_statistic(merged.lse, want_lse, "lse")
    assert (merged.out[2] == 0).all() and merged.lse[2].isneginf().all()


@pytest.mark.parametrize("device", DEVICES)
def test_scales_that_are_no_powers_of_two_round_the_keys_to_bf16_on_a_cpu(device):
    rng = np.random.default_rng(5)
    rows = some_rows(rng, (2, 1, 40), 60)
    lists = valid_rows(rows, 60)
    cache = PackedCache(rng, 576, 2, 30, even=False, poison=unlisted(60, lists))
    bits = cache.values.astype("float32").view("uint32").astype("uint64")
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    keys = bits.astype("uint32").view("float32").astype(float)
    assert (keys != cache.values)[rows[(rows >= 0) & (rows < 60)]].mean() > 0.5
    q = some_queries(rng, 2, 1, 16, 576)
    out, lse = decode(q, cache.on(device), rows)
    keys = keys if device == "cpu" else cache.values
    want, want_lse, _, size = attention(np.asarray(q.double())[:, 0], 576**-0.5, [(keys, lists)])
    check(out[:, 0], want, size)
    check_statistic(lse[:, :, 0], plus_infinity(want_lse), "lse")


@pytest.mark.parametrize("device", DEVICES)
def test_lengths_may_be_given_for_each_query_token(device):
    rng = np.random.default_rng(6)
    rows, lengths = some_rows(rng, (2, 3, 30), 50, holes=0.1), rng.integers(0, 31, (2, 3))
    lists = valid_rows(rows, 50, lengths)
    cache = PackedCache(rng, 576, 1, 50, poison=unlisted(50, lists))
    q = some_queries(rng, 2, 3, 4, 576)
    out, lse = decode(q, cache.on(device), rows, topk_length=i32(lengths, device))
    want, want_lse, _, size = attention(
        np.asarray(q.double()).reshape(6, 4, 576), 576**-0.5, [(cache.values, lists)]
    )
    check(out.flatten(0, 1), want, size)
    check_statistic(lse.transpose(1, 2).flatten(0, 1), plus_infinity(want_lse), "lse")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sink", [None, 0.5, -np.inf, np.inf])
def test_queries_without_rows(sink, device):
    rng = np.random.default_rng(7)
    cache = PackedCache(rng, 512, 1, 64, poison=range(64)).on(device)
    rows = some_rows(rng, (3, 2, 8), 64, holes=0)
    rows[0] = -1  # all holes; the others by length
    attn_sink = None if sink is None else torch.full((6,), sink, device=device)
    q, lengths = some_queries(rng, 3, 2, 6, 512), i32([8, 0, -3], device)
    out, lse = decode(q, cache, rows, attn_sink=attn_sink, topk_length=lengths)
    assert (out == 0).all() and (lse == np.inf).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a_sink_takes_part_but_leaves_lse_alone(device):
    rng = np.random.default_rng(8)
    cache = PackedCache(rng, 512, 1, 16)
    rows, sink = np.arange(16)[None, None], np.array([-np.inf, np.inf, 1.0])
    q = some_queries(rng, 1, 1, 3, 512)

    plain, lse = decode(q, cache.on(device), rows)
    sunk, sunk_lse = decode(q, cache.on(device), rows, attn_sink=f32(sink, device))
    assert torch.equal(lse, sunk_lse) and torch.equal(plain[0, 0, 0], sunk[0, 0, 0])
    assert (sunk[0, 0, 1] == 0).all()
    share = torch.sigmoid(lse[0, 2, 0] - 1).item()
    want, _, _, size = attention(np.asarray(q.double())[0], 512**-0.5, [(cache.values, [range(16)])])
    check(sunk[0, 0, 2], share * want[0, 2], size[0, 2])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "b,s_q,topk,pages", [(0, 2, 4, 1), (2, 0, 4, 1), (2, 2, 0, 1), (2, 2, 4, 0), (0, 0, 0, 0)]
)
@pytest.mark.parametrize("width", [576, 512])
def test_nothing_to_do(b, s_q, topk, pages, width, device):
    q = torch.ones(b, s_q, 3, width, dtype=torch.bfloat16, device=device)
    cache = torch.zeros(pages, 72, 1, RECORD_BYTES[width], dtype=torch.uint8, device=device)
    out, lse = decode(q, cache, np.zeros((b, s_q, topk)))
    assert out.shape == (b, s_q, 3, 512) and lse.shape == (b, 3, s_q)
    assert (out == 0).all() and (lse == np.inf).all()
    if pages == 0:
        kv = torch.zeros(0, 1, width, dtype=torch.bfloat16, device=device)
        rows = torch.zeros(b * s_q, 1, topk, dtype=torch.int32, device=device)
        out, largest, lse = flash_mla.flash_mla_sparse_fwd(q.flatten(0, 1), kv, rows, 0.1)
        assert (out == 0).all() and (largest == -np.inf).all() and (lse == np.inf).all()


@pytest.mark.parametrize("page,tight", [(64, 37376), (2, 1168), (69, 40296)])
def test_pages_of_584_bytes_are_padded_to_576_or_not(page, tight):
    rng = np.random.default_rng(page)
    cache = PackedCache(rng, 512, 3, page)
    q, rows = some_queries(rng, 1, 1, 2, 512), np.arange(page * 3)[None, None]
    want, want_lse, _, size = attention(
        np.asarray(q.double())[0], 512**-0.5, [(cache.values, [range(page * 3)])]
    )
    out, lse = decode(q, cache.on("cpu"), rows)  # the view ends before the padding of the last page
    check(out[0], want, size)
    check_statistic(lse[0, :, 0], want_lse[0], "lse")
    unpadded = cache.memory.as_strided((3, tight), (cache.strides[0], 1)).clone()
    assert torch.equal(decode(q, unpadded.view(cache.shape), rows)[0], out)
    short = cache.memory.flatten()[: cache.strides[0] * 2 + tight].clone()  # as does the memory
    assert torch.equal(decode(q, short.as_strided(cache.shape, cache.strides), rows)[0], out)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width,packed", [(576, False), (512, False), (576, True), (512, True)])
@pytest.mark.parametrize("s_q", [1, 2, 4])
def test_decode_over_whole_requests(s_q, width, packed, causal, device):
    rng = np.random.default_rng(s_q)
    page, blocks, heads = 6, 4, 5
    seq_lens = np.array([23, 0, 6, 7, 2, 24, 1])  # empty, on and off a page's end, shorter than s_q
    b = len(seq_lens)
    pages = b * blocks + 3
    table = rng.permutation(pages)[: b * blocks].reshape(b, blocks)
    lists = []
    for r in range(b):
        for s in range(s_q):
            end = seq_lens[r] - (s_q - 1 - s) * causal
            lists.append([table[r, p // page] * page + p % page for p in range(max(end, 0))])
    poison = unlisted(pages * page, lists)
    for r in range(b):  # blocks that are not needed may hold anything
        needed = -(-seq_lens[r] // page)
        table[r, needed:] = rng.choice([-1, 0, 2147480000, 2**31 - 1], blocks - needed)
    if packed:
        cache = PackedCache(rng, width, pages, page, poison=poison)
        k_cache, values = cache.on(device), cache.values
    else:
        k_cache, values = plain_cache(rng, width, pages, page, poison=poison, gap=64)
        k_cache = k_cache.to(device)
    q, sink = some_queries(rng, b, s_q, heads, width), some_sink(rng, heads)
    out, lse = decode(
        q,
        k_cache,
        block_table=i32(table, device),
        cache_seqlens=i32(seq_lens, device),
        causal=causal,
        attn_sink=f32(sink, device),
    )
    want, want_lse, _, size = attention(
        np.asarray(q.double()).reshape(b * s_q, heads, width), width**-0.5, [(values, lists)], sink
    )
    check(out.flatten(0, 1), want, size)
    check_statistic(lse.transpose(1, 2).flatten(0, 1), plus_infinity(want_lse), "lse")


PREFILL_CASES = [
    # width, heads, s_q, s_kv, topk, lengths
    (576, 128, 3, 95, 128, False),
    (512, 64, 5, 153, 256, True),
    (576, 3, 62, 40, 17, True),
    (512, 96, 1, 1, 1, False),
    (512, 1, 4, 300, 7, True),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", PREFILL_CASES, ids=str)
@pytest.mark.parametrize("views", [False, True], ids=["dense", "views"])
def test_prefill(case, views, device):
    width, heads, s_q, s_kv, topk, with_lengths = case
    rng = np.random.default_rng(zlib.crc32(repr((case, views)).encode()))
    rows = some_rows(rng, (s_q, 1, topk), s_kv)
    if s_q > 1:
        rows[1] = s_kv  # nothing listed
    lengths = rng.integers(-1, topk + 2, s_q) if with_lengths else None
    lists = valid_rows(rows, s_kv, lengths)
    kv, values = plain_cache(rng, width, s_kv, 1, poison=unlisted(s_kv, lists))
    kv = kv.squeeze(1)
    q, sink, indices = some_queries(rng, s_q, heads, width), some_sink(rng, heads), torch.from_numpy(rows)
    if views:
        q, kv, indices = spread(rng, q), spread(rng, kv), spread(rng, indices)
    length = None if lengths is None else i32(lengths, device)
    arguments = [tensor.to(device) for tensor in (q, kv, indices)]
    out, largest, lse = flash_mla.flash_mla_sparse_fwd(*arguments, 0.1, 512, f32(sink, device), length)
    want, want_lse, want_largest, size = attention(np.asarray(q.double()), 0.1, [(values, lists)], sink)
    assert out.shape == (s_q, heads, 512) and out.dtype == torch.bfloat16
    assert largest.shape == lse.shape == (s_q, heads) and largest.dtype == lse.dtype == torch.float32
    check(out, want, size)
    check_statistic(largest, want_largest, "max_logits")
    check_statistic(lse, plus_infinity(want_lse), "lse")


@pytest.mark.parametrize("device", DEVICES)
def test_prefill_of_2025_is_in_base_two(device):
    rng = np.random.default_rng(9)
    rows = some_rows(rng, (6, 1, 20), 30)
    rows[2] = 30  # nothing listed
    lists = valid_rows(rows, 30)
    kv, values = plain_cache(rng, 576, 30, 1, poison=unlisted(30, lists))
    q = some_queries(rng, 6, 16, 576)
    arguments = [q.to(device), kv.squeeze(1).to(device), i32(rows, device), 0.06]
    out, largest, lse = flash_mla.flash_mla_sparse_prefill(*arguments)
    want, want_lse, want_largest, size = attention(np.asarray(q.double()), 0.06, [(values, lists)])
    check(out, want, size)
    check_statistic(largest, want_largest / np.log(2), "max_logits")
    check_statistic(lse, want_lse / np.log(2), "lse")
    assert (lse[2] == -np.inf).all() and (largest[2] == -np.inf).all()
    assert torch.equal(out, flash_mla.flash_mla_sparse_fwd(*arguments)[0])


@pytest.mark.parametrize("device", DEVICES)
def test_prefill_reads_656_byte_records_too(device):
    rng = np.random.default_rng(10)
    rows = some_rows(rng, (4, 1, 30), 50)
    lists = valid_rows(rows, 50)
    cache = PackedCache(rng, 576, 1, 50, poison=unlisted(50, lists))
    kv = cache.memory.view(50, 1, 656).to(device)
    q = some_queries(rng, 4, 8, 576)
    out, largest, lse = flash_mla.flash_mla_sparse_fwd(q.to(device), kv, i32(rows, device), 0.04)
    want, want_lse, want_largest, size = attention(np.asarray(q.double()), 0.04, [(cache.values, lists)])
    check(out, want, size)
    check_statistic(lse, plus_infinity(want_lse), "lse")
    check_statistic(largest, want_largest, "max_logits")
