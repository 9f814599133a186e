"""smla.compat.flash_mla against attention in float64, computed here from the bytes of the caches."""

import inspect
import subprocess
import sys
import zlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import smla  # noqa: E402
from smla.compat import flash_mla  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
RECORD_BYTES = {576: 656, 512: 584}
PACKED_DTYPES = {"uint8": torch.uint8, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
NEVER_A_ROW = [-1, -2, -123456, -(2**31), 2**31 - 1, 2147480000]


# ---------------------------------------------------------------- caches: bytes, and what they stand for


def e4m3_values(codes):
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3) & 15, (codes & 7) / 8.0
    values = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7.0))
    return np.where((codes & 0x7F) == 0x7F, np.nan, sign * values)


def bf16_bits(values):
    """Bits of values that bf16 holds exactly."""
    bits = np.asarray(values, "float32").view("uint32")
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype("uint16")


def some_bf16(rng, shape):
    """Standard normal values with 7 bits after the first."""
    mantissa, exponent = np.frexp(rng.standard_normal(shape))
    return np.ldexp(np.round(mantissa * 128) / 128, exponent)


class PackedCache:
    """Random pages [pages,page,1,656 or 584] in memory whose padding is NaN. values: [rows,d] in float64."""

    def __init__(self, rng, width, pages, page_tokens, dtype="uint8", *, even=True, poison=(), gap=0):
        rows = pages * page_tokens
        codes = rng.integers(0, 256, (rows, 512 if width == 576 else 448), dtype=np.uint8)
        codes[(codes & 0x7F) == 0x7F] = 0x3A
        tiles, tile = (4, 128) if width == 576 else (7, 64)
        exponents = rng.integers(-11, -7, (rows, tiles))
        scales = 2.0**exponents
        if not even:  # scales that are no powers of two
            scales = np.float32(scales * rng.uniform(1, 2, scales.shape)).astype(float)
        rope = some_bf16(rng, (rows, 64))
        self.values = np.concatenate([e4m3_values(codes) * np.repeat(scales, tile, 1), rope], 1)
        poison = np.asarray(list(poison), int)
        codes[poison], rope[poison] = 0x7F, np.nan
        scales[poison], exponents[poison] = np.nan, 128  # e8m0 255: NaN
        rope = np.where(np.isnan(rope), 1.0, rope)
        rope_bytes = bf16_bits(rope)
        rope_bytes[poison] = 0x7FC0
        rope_bytes = rope_bytes[:, :, None].view("uint8").reshape(rows, 128)
        if width == 576:
            scale_bytes = scales.astype("float32").view("uint8").reshape(rows, 16)
            records = np.concatenate([codes, scale_bytes, rope_bytes], 1)
            held = records.reshape(pages, page_tokens * 656)
        else:
            first = np.concatenate([codes, rope_bytes], 1).reshape(pages, page_tokens * 576)
            last = np.zeros((rows, 8), np.uint8)
            last[:, :7] = exponents + 127
            held = np.concatenate([first, last.reshape(pages, page_tokens * 8)], 1)
        bytes_held = held.shape[1]
        stride = bytes_held if width == 576 else -(-bytes_held // 576) * 576
        memory = np.full((pages, stride + gap), 0x7F, np.uint8)
        memory[:, :bytes_held] = held
        self.memory = torch.from_numpy(memory).view(PACKED_DTYPES[dtype])
        self.shape = (pages, page_tokens, 1, RECORD_BYTES[width])
        self.strides = (stride + gap, RECORD_BYTES[width], RECORD_BYTES[width], 1)

    def on(self, device):
        return self.memory.to(device).as_strided(self.shape, self.strides)


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


# ---------------------------------------------------------------- attention in float64


def attention(q, scale, sources, sink=None, value_width=512):
    """q: [T,H,D] float64. sources: (values [rows,D], per token a list of rows). Natural units; no row: -inf.

    Returns out, lse, max_logits, and what each output's terms add up to in size, which bounds its rounding.
    """
    tokens, heads, _ = q.shape
    out, size = np.zeros((2, tokens, heads, value_width))
    lse, largest = np.full((2, tokens, heads), -np.inf)
    for t in range(tokens):
        keys = np.concatenate([values[np.asarray(lists[t], int)] for values, lists in sources])
        if not len(keys):
            continue
        logits = scale * q[t] @ keys.T
        largest[t] = logits.max(1)
        weights = np.exp(logits - largest[t][:, None])
        lse[t] = largest[t] + np.log(weights.sum(1))
        weights = np.exp(logits - lse[t][:, None])
        if sink is not None:
            weights /= 1 + np.exp(np.asarray(sink, float) - lse[t])[:, None]
        out[t], size[t] = weights @ keys[:, :value_width], weights @ np.abs(keys[:, :value_width])
    return out, lse, largest, size


def valid_rows(listed, capacity, lengths=None):
    """The rows of each token that count: before its length, and in the cache."""
    listed = np.asarray(listed).reshape(-1, np.shape(listed)[-1])
    lengths = np.full(len(listed), listed.shape[1]) if lengths is None else np.ravel(lengths).clip(0)
    return [[r for r in row[:n] if 0 <= r < capacity] for row, n in zip(listed, lengths, strict=True)]


def check(got, want, size):
    """Kernels round weights and result to bf16, by 2^-8 at most. Sums are in f32."""
    got = np.asarray(got.double().cpu())
    assert np.isfinite(got).all()
    bound = 2**-8 * (np.abs(want) + size) + 1e-6
    error = np.abs(got - want) / bound
    assert (error <= 1).all(), f"{error.max():.3g} times the bound"


def check_statistic(got, want, what):
    """lse or max_logits. On a CPU at most 5e-7 off when this was written; a GPU sums in another order."""
    bound = 4e-6 if got.device.type == "cpu" else 3e-5
    got = np.asarray(got.cpu(), float)
    infinite = np.isinf(want)
    np.testing.assert_array_equal(got[infinite], want[infinite], what)
    np.testing.assert_allclose(got[~infinite], want[~infinite], rtol=bound, atol=bound, err_msg=what)


def plus_infinity(lse):
    return np.where(np.isneginf(lse), np.inf, lse)


def some_rows(rng, shape, capacity, holes=0.3):
    """Rows in random order, some twice, with holes of every kind anywhere."""
    rows = rng.integers(0, capacity, shape) if capacity else np.full(shape, -1)
    bad = np.concatenate([NEVER_A_ROW, [capacity, capacity + 1]])
    return np.where(rng.random(shape) < holes, rng.choice(bad, shape), rows).astype("int32")


def some_sink(rng, heads):
    return np.where(rng.random(heads) < 0.3, rng.choice([-np.inf, np.inf], heads), rng.standard_normal(heads))


def some_queries(rng, *shape):
    return torch.from_numpy(some_bf16(rng, shape)).to(torch.bfloat16)


def unlisted(capacity, *lists):
    """Rows that no token reads."""
    read = set(int(r) for rows in lists for row in rows for r in row)
    return [r for r in range(capacity) if r not in read]


def i32(array, device):
    return torch.from_numpy(np.ascontiguousarray(array, "int32")).to(device)


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


# ---------------------------------------------------------------- decode, sparse

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
def test_scales_that_are_no_powers_of_two_round_the_keys_to_bf16(device):
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
def test_pages_of_584_bytes_are_padded_to_576(page, tight):
    rng = np.random.default_rng(page)
    cache = PackedCache(rng, 512, 3, page)
    q, rows = some_queries(rng, 1, 1, 2, 512), np.arange(page * 3)[None, None]
    want, want_lse, _, size = attention(
        np.asarray(q.double())[0], 512**-0.5, [(cache.values, [range(page * 3)])]
    )
    out, lse = decode(q, cache.on("cpu"), rows)  # the view ends before the padding of the last page
    check(out[0], want, size)
    check_statistic(lse[0, :, 0], want_lse[0], "lse")
    with pytest.raises(smla.InvalidArgument, match=f"k_cache.data: got {3 * tight} bytes"):
        decode(q, cache.memory.as_strided(cache.shape, (tight, 584, 584, 1)), rows)
    short = cache.memory.flatten()[: cache.strides[0] * 2 + tight].clone()  # as does the memory
    assert torch.equal(decode(q, short.as_strided(cache.shape, cache.strides), rows)[0], out)


# ---------------------------------------------------------------- decode, dense


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


# ---------------------------------------------------------------- prefill

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


# ---------------------------------------------------------------- the forms of 2025


def greedy_schedule(lens, parts):
    """FlashMLA's rule, blocks of 64 rows and an overhead of 5: (request, first, end, split) for each part."""
    blocks = [-(-n // 64) for n in lens]
    payload = -(-sum(n + 5 for n in blocks) // parts) + 5
    work, request, block, split = [], 0, 0, 0
    for _ in range(parts):
        left, mine = payload, []
        while request < len(lens):
            rest = blocks[request] - block
            if left >= rest + 5:
                mine.append((request, block, blocks[request], split))
                left -= rest + 5
                request, block, split = request + 1, 0, 0
                continue
            if left > 5:
                mine.append((request, block, block + left - 5, split))
                block, split = block + left - 5, split + 1
            break
        work.append(mine)
    return work


@pytest.mark.parametrize("device", DEVICES)
def test_metadata_now(device):
    for arguments, keywords in (((), {}), ((), {"cache_seqlens": None}), ((), {"topk": 4})):
        meta, splits = flash_mla.get_mla_metadata(*arguments, **keywords)
        assert type(meta) is flash_mla.FlashMLASchedMeta and splits is None
        assert not meta.have_initialized and meta.tile_scheduler_metadata is None and meta.num_splits is None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "b,s_q,heads,topk", [(1, 1, 128, 2048), (1, 5, 16, 2048), (9, 2, 64, 640), (200, 1, 8, 64)]
)
def test_metadata_of_2025_splits_topk_rows(b, s_q, heads, topk, device):
    lens = torch.arange(b, dtype=torch.int32, device=device)  # of no account beside topk
    schedule, splits = flash_mla.get_mla_metadata(lens, s_q * heads, 1, heads, True, topk)
    by_name = flash_mla.get_mla_metadata(
        cache_seqlens=lens,
        num_q_tokens_per_head_k=s_q * heads,
        topk=topk,
        num_heads_q=heads,
        num_heads_k=1,
        is_fp8_kvcache=True,
    )
    assert torch.equal(schedule, by_name[0]) and torch.equal(splits, by_name[1])
    assert schedule.device == splits.device == lens.device
    assert schedule.dtype == splits.dtype == torch.int32
    if device == "cpu":
        assert len(schedule) == max(66 // s_q, 1)  # 132 multiprocessors, two to a query token of 128 heads
    work = greedy_schedule([topk] * b, len(schedule))
    want = [
        [mine[0][0], mine[0][1], mine[-1][0], mine[-1][2], mine[0][3], 0, 0, 0] if mine else [-1] + [0] * 7
        for mine in work
    ]
    assert schedule.tolist() == want
    shares = np.bincount([request for mine in work for request, *_ in mine], minlength=b)
    assert splits.tolist() == [0, *np.cumsum(shares)]


@pytest.mark.parametrize("device", DEVICES)
def test_metadata_of_2025_without_topk_splits_the_lengths(device):
    lens = [4096, 0, 77, 64]
    tensor = i32(lens, device)
    schedule, splits = flash_mla.get_mla_metadata(tensor, 128, 1)
    older, _ = flash_mla.get_mla_metadata(tensor, num_heads_per_head_k=128, num_heads_k=1)
    assert torch.equal(older, schedule)
    if device == "cpu":
        assert schedule.shape == (66, 8)
    shares = np.bincount([r for mine in greedy_schedule(lens, len(schedule)) for r, *_ in mine], minlength=4)
    assert splits.tolist() == [0, *np.cumsum(shares)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_caller_of_2025(device):
    """The decode call of vLLM's first sparse backend: all tokens are one request, by keyword."""
    rng = np.random.default_rng(11)
    tokens, heads, pages, topk = 5, 16, 4, 96
    rows = some_rows(rng, (tokens, topk), pages * 64)
    lists = valid_rows(rows, pages * 64)
    cache = PackedCache(rng, 576, pages, 64, poison=unlisted(pages * 64, lists))
    q = some_queries(rng, tokens, heads, 576)
    schedule, splits = flash_mla.get_mla_metadata(
        cache_seqlens=i32([topk], device),
        num_q_tokens_per_head_k=tokens * heads,
        topk=topk,
        num_heads_q=heads,
        num_heads_k=1,
        is_fp8_kvcache=True,
    )
    out, _ = flash_mla.flash_mla_with_kvcache(
        q=q.to(device).unsqueeze(0),
        k_cache=cache.on(device).squeeze(2).view(torch.uint8).unsqueeze(-2),
        block_table=torch.empty((1, 1), dtype=torch.int32, device=device),
        head_dim_v=512,
        cache_seqlens=i32([3], device),  # shorter than the rows that are listed
        tile_scheduler_metadata=schedule,
        num_splits=splits,
        is_fp8_kvcache=True,
        indices=i32(rows, device).unsqueeze(0),
        softmax_scale=192**-0.5,
    )
    want, _, _, size = attention(np.asarray(q.double()), 192**-0.5, [(cache.values, lists)])
    check(out[0], want, size)


# ---------------------------------------------------------------- promises


def test_signatures():
    def spelt(function):
        parameters = inspect.signature(function).parameters.values()
        assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        return [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]

    decode_arguments = (
        "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata num_splits=None "
        "softmax_scale=None causal=False is_fp8_kvcache=False indices=None attn_sink=None extra_k_cache=None "
        "extra_indices_in_kvcache=None topk_length=None extra_topk_length=None"
    )
    assert spelt(flash_mla.flash_mla_with_kvcache) == decode_arguments.split()
    prefill_arguments = "q kv indices sm_scale d_v=512 attn_sink=None topk_length=None".split()
    assert spelt(flash_mla.flash_mla_sparse_fwd) == prefill_arguments
    assert spelt(flash_mla.flash_mla_sparse_prefill) == prefill_arguments[:5]


def test_smla_does_not_import_torch_and_the_module_does_not_import_flash_mla():
    program = (
        "import sys, smla; assert 'torch' not in sys.modules\n"
        "import smla.compat; assert 'torch' not in sys.modules\n"
        "from smla.compat import flash_mla; assert 'torch' in sys.modules and 'flash_mla' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"], check=True)


def test_inputs_stay_as_they_are():
    rng = np.random.default_rng(12)
    cache = PackedCache(rng, 512, 2, 64).on("cpu")
    q, kv = some_queries(rng, 2, 2, 4, 512), some_queries(rng, 9, 1, 512)
    rows, lengths = i32(some_rows(rng, (2, 2, 8), 100), "cpu"), i32([3, 9], "cpu")
    sink, table = torch.randn(4), i32([[1, 0], [0, 1]], "cpu")
    held = [q, kv, rows, lengths, sink, table, cache.as_strided((2, 37440), (37440, 1)).view(torch.uint8)]
    before = [tensor.clone() for tensor in held]
    flash_mla.flash_mla_with_kvcache(
        q, cache, None, None, 512, None, None, 0.1, False, True, rows, sink, cache, rows, lengths, lengths
    )
    flash_mla.flash_mla_with_kvcache(q, cache, table, lengths, 512, None, causal=True, is_fp8_kvcache=True)
    for call in (flash_mla.flash_mla_sparse_fwd, flash_mla.flash_mla_sparse_prefill):
        call(q[0], kv, rows[0][:, None], 0.1)
    assert all(torch.equal(was, now) for was, now in zip(before, held, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_calls_are_captured_in_a_cuda_graph():
    rng = np.random.default_rng(13)
    rows, lengths = some_rows(rng, (2, 3, 64), 128), i32([64, 9], "cuda")
    cache = PackedCache(rng, 512, 2, 64).on("cuda")
    q = some_queries(rng, 2, 3, 16, 512).cuda()
    indices, table = i32(rows, "cuda"), i32([[0, 1], [1, 0]], "cuda")

    def run():
        sparse = flash_mla.flash_mla_with_kvcache(
            q, cache, None, None, 512, None, is_fp8_kvcache=True, indices=indices, topk_length=lengths
        )
        dense = flash_mla.flash_mla_with_kvcache(
            q, cache, table, lengths, 512, None, causal=True, is_fp8_kvcache=True
        )
        return [*sparse, *dense]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = run()
        q.copy_(some_queries(rng, 2, 3, 16, 512))
        indices.copy_(i32(some_rows(rng, (2, 3, 64), 128), "cuda"))
        graph.replay()
        want = run()
        stream.synchronize()
    assert all(torch.equal(now, then) for now, then in zip(want, captured, strict=True))


# ---------------------------------------------------------------- refusals


def sparse_arguments():
    return {
        "q": torch.ones(2, 3, 4, 576, dtype=torch.bfloat16),
        "k_cache": torch.zeros(2, 8, 1, 656, dtype=torch.uint8),
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": 512,
        "tile_scheduler_metadata": flash_mla.FlashMLASchedMeta(),
        "is_fp8_kvcache": True,
        "indices": torch.zeros(2, 3, 5, dtype=torch.int32),
    }


ONES = torch.ones(2, 3, 5, dtype=torch.int32)
REFUSALS = [
    ({"q": torch.ones(2, 3, 4, 576, dtype=torch.float64)}, "q.dtype"),
    ({"q": torch.ones(6, 4, 576, dtype=torch.bfloat16)}, "q.shape"),
    ({"q": np.ones((2, 3, 4, 576))}, "q"),
    ({"q": torch.ones(2, 3, 4, 512, dtype=torch.bfloat16)}, "k_cache.shape[-1]"),
    ({"k_cache": None}, "k_cache"),
    ({"k_cache": torch.zeros(2, 8, 1, 656, dtype=torch.float16)}, "k_cache.dtype"),
    ({"k_cache": torch.zeros(2, 8, 2, 656, dtype=torch.uint8)}, "k_cache.shape"),
    ({"k_cache": torch.zeros(2, 8, 656, dtype=torch.uint8)}, "k_cache.shape"),
    ({"k_cache": torch.zeros(2, 8, 1, 584, dtype=torch.uint8)}, "k_cache.shape[-1]"),
    ({"k_cache": torch.zeros(2, 8, 1, 528, dtype=torch.uint8)}, "k_cache.shape[-1]"),
    ({"k_cache": torch.zeros(2, 8, 1, 700, dtype=torch.uint8)[..., :656]}, "k_cache.stride"),
    ({"k_cache": torch.zeros(2, 8, 1, 576, dtype=torch.bfloat16)}, "is_fp8_kvcache"),
    ({"is_fp8_kvcache": False}, "is_fp8_kvcache"),
    ({"is_fp8_kvcache": False, "k_cache": torch.zeros(2, 8, 1, 512).bfloat16()}, "k_cache.shape[-1]"),
    ({"head_dim_v": 577}, "head_dim_v"),
    ({"head_dim_v": 0}, "head_dim_v"),
    ({"head_dim_v": None}, "head_dim_v"),
    ({"tile_scheduler_metadata": 0.1}, "tile_scheduler_metadata"),
    ({"num_splits": 3}, "num_splits"),
    ({"causal": True}, "causal"),
    ({"indices": ONES.long()}, "indices.dtype"),
    ({"indices": ONES[0]}, "indices.shape"),
    ({"indices": ONES.transpose(0, 1)}, "indices.shape"),
    ({"topk_length": torch.ones(2)}, "topk_length.dtype"),
    ({"topk_length": ONES[0, 0, :3]}, "topk_length.shape"),
    ({"topk_length": ONES[:, :2, 0]}, "topk_length.shape"),
    ({"topk_length": 5}, "topk_length"),
    ({"attn_sink": torch.ones(5)}, "attn_sink.shape"),
    ({"attn_sink": torch.ones(4).bfloat16()}, "attn_sink.dtype"),
    ({"attn_sink": torch.ones(4, device="meta")}, "attn_sink.device"),
    ({"extra_k_cache": torch.zeros(2, 8, 1, 656, dtype=torch.uint8)}, "extra_indices_in_kvcache"),
    ({"extra_indices_in_kvcache": ONES}, "extra_indices_in_kvcache"),
    ({"extra_topk_length": ONES[:, 0, 0]}, "extra_topk_length"),
    ({"indices": None}, "block_table"),
    ({"indices": None, "block_table": ONES[0]}, "block_table.shape"),
    ({"indices": None, "block_table": ONES[0, :2]}, "cache_seqlens"),
    ({"indices": None, "block_table": ONES[0, :2], "cache_seqlens": torch.ones(2)}, "cache_seqlens.dtype"),
    ({"indices": None, "topk_length": ONES[:, 0, 0]}, "topk_length"),
    ({"indices": None, "extra_k_cache": ONES}, "extra_k_cache"),
    ({"softmax_scale": 0.0}, "softmax_scale"),
]


@pytest.mark.parametrize("change,field", REFUSALS, ids=lambda value: value if isinstance(value, str) else "")
def test_refusals_of_decode_name_the_argument(change, field):
    with pytest.raises((smla.InvalidArgument, smla.Unsupported)) as caught:
        flash_mla.flash_mla_with_kvcache(**{**sparse_arguments(), **change})
    assert caught.value.field.split("args.")[-1] == field
    assert caught.value.got and caught.value.wanted and field in str(caught.value)


@pytest.mark.parametrize(
    "change,field",
    [
        ({"q": torch.ones(3, 4, 576)[..., ::2]}, "kv.shape[-1]"),
        ({"kv": torch.zeros(9, 576).bfloat16()}, "kv.shape"),
        ({"kv": torch.zeros(9, 2, 576).bfloat16()}, "kv.shape"),
        ({"kv": torch.zeros(9, 1, 576).half()}, "kv.dtype"),
        ({"kv": torch.zeros(9, 1, 1152).bfloat16()[..., ::2]}, "kv.stride"),
        ({"indices": ONES[:, 0]}, "indices.shape"),
        ({"indices": ONES[0][:, None].long()}, "indices.dtype"),
        ({"indices": torch.ones(4, 1, 5, dtype=torch.int32)}, "indices.shape"),
        ({"d_v": 600}, "d_v"),
        ({"topk_length": ONES[0, 0]}, "topk_length.shape"),
        ({"attn_sink": torch.ones(3)}, "attn_sink.shape"),
        ({"sm_scale": -1.0}, "softmax_scale"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals_of_prefill_name_the_argument(change, field):
    arguments = {
        "q": torch.ones(3, 4, 576, dtype=torch.bfloat16),
        "kv": torch.zeros(9, 1, 576, dtype=torch.bfloat16),
        "indices": torch.zeros(3, 1, 5, dtype=torch.int32),
        "sm_scale": 0.1,
    }
    with pytest.raises((smla.InvalidArgument, smla.Unsupported)) as caught:
        flash_mla.flash_mla_sparse_fwd(**{**arguments, **change})
    assert caught.value.field.split("args.")[-1] == field


@pytest.mark.parametrize(
    "arguments,field",
    [
        (([4],), "cache_seqlens"),
        ((torch.ones(2),), "cache_seqlens.dtype"),
        ((torch.ones(2, dtype=torch.int32),), "num_q_tokens_per_head_k"),
        ((torch.ones(2, dtype=torch.int32), 0, 1), "num_q_tokens_per_head_k"),
        ((torch.ones(2, dtype=torch.int32), 8, 0), "num_heads_k"),
        ((torch.ones(2, dtype=torch.int32), 8, 1, 0, True, 64), "num_heads_q"),
        ((-torch.ones(2, dtype=torch.int32), 8, 1), "lens[0]"),
    ],
)
def test_refusals_of_metadata(arguments, field):
    with pytest.raises(smla.InvalidArgument) as caught:
        flash_mla.get_mla_metadata(*arguments)
    assert caught.value.field.split("args.")[-1] == field


def test_gradients_are_refused():
    arguments = sparse_arguments()
    arguments["q"].requires_grad_()
    with pytest.raises(smla.Unsupported, match="no_grad"):
        flash_mla.flash_mla_with_kvcache(**arguments)
    with torch.no_grad():
        flash_mla.flash_mla_with_kvcache(**arguments)
