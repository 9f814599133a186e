"""Writing, compressing, gathering and mapping: byte for byte against docs/formats.md."""

import numpy as np
import pytest
import smla
from arrays import padded, worlds
from numpy_formats import (
    PLAIN,
    from_bits,
    pack,
    page_bytes,
    rounded,
    tile_scales,
    to_bits,
    unpack,
    views,
    width_of,
)
from numpy_model import U, compress, hadamard, locate, map_rows

PAGES, PAGE_TOKENS, PAGE_ROWS = 4, 5, 7
KV_FORMATS = ("row_f32", "row_bf16", "row_f64", "fp8_656", "fp8_576", "fp8_584", "fp8_512", "fp8_528")
INDEX_FORMATS = ("index_fp8_132", "index_mxfp4_68", "row_f32", "row_bf16")
POISON = 0xA5
SCALE = {"fp8_576": 0.37, "fp8_512": 0.0625}


class Memory:
    """A cache's memory with gaps between pages and, where the format has them, between records."""

    def __init__(self, format, *, width=0, fill=POISON):
        self.format, self.width, self.scale = format, width_of(format, width), SCALE.get(format)
        by_page = format in ("fp8_584", "index_fp8_132", "index_mxfp4_68")
        record = views(np.empty(1, np.uint8), format, 0, 1, self.width)[0].shape[2]
        self.row_stride = 0 if by_page else record + 16
        self.stride = page_bytes(format, PAGE_TOKENS, self.width) + PAGE_TOKENS * 16 + 64
        self.bytes = np.full(PAGES * self.stride, fill, np.uint8)

    def views(self, memory=None):
        memory = self.bytes if memory is None else memory
        return views(memory, self.format, PAGES, PAGE_TOKENS, self.width, self.stride, self.row_stride)

    @property
    def values(self):
        return unpack(self.format, *self.views(), self.scale or 1.0)

    def store(self, place, values):
        for view, bits in zip(self.views(), pack(self.format, values, self.scale or 1.0)):
            view[place] = bits

    def cache(self, world):
        return smla.Cache(
            world.wrap(self.bytes, "u8"),
            self.format,
            PAGE_TOKENS,
            width=self.width if self.format in PLAIN else 0,
            pages=PAGES,
            page_rows=PAGE_ROWS,
            page_stride_bytes=self.stride,
            row_stride_bytes=self.row_stride,
            scale=self.scale,
        )


def slots_with_holes(rng, tokens, dtype):
    """Different rows of pages of PAGE_TOKENS, PAGE_ROWS apart; holes among them."""
    rows = rng.permutation(
        [page * PAGE_ROWS + offset for page in range(PAGES) for offset in range(PAGE_TOKENS)]
    )
    slots = rows[:tokens].astype(np.int64 if dtype == "i64" else np.int32)
    slots[::4] = rng.choice([-1, -(2**31), PAGE_TOKENS, PAGE_ROWS * PAGES, 2**31 - 1], len(slots[::4]))
    if dtype == "i64":
        slots[0] = 2**40
    return slots


@worlds()
@pytest.mark.parametrize("format", KV_FORMATS)
@pytest.mark.parametrize("dtype, slot_type", [("f32", "i64"), ("bf16", "i32"), ("f16", "i64")])
def test_write_kv(world, format, dtype, slot_type, tokens=13, listed=11):
    rng = np.random.default_rng(60)
    memory = Memory(format, width=24)
    values = rounded(
        rng.standard_normal((tokens, memory.width)) * np.exp2(rng.integers(-9, 5, (tokens, 1))), dtype
    )
    values[1] = 0  # the floor of the scale rules
    values[2, :8] = rounded(np.array(3000.0), dtype)  # saturates where the scale is one per cache
    values[3] = -448.0  # exact powers of two
    values[5, 3] = np.nan
    slots = slots_with_holes(rng, listed, slot_type)
    slots[[1, 2, 3, 5]] = [0, 1, PAGE_ROWS, PAGE_ROWS + 4]
    slots[[6, 7, 9, 10]] = [2, 3 * PAGE_ROWS, PAGE_ROWS * 2, PAGE_ROWS * 2 + 1]
    want = Memory(format, width=24)
    for t, slot in enumerate(slots):
        if locate(want.views()[0], slot, PAGE_ROWS) is not None:
            want.store(divmod(int(slot), PAGE_ROWS), values[t])
    split = {"fp8_656": 512, "fp8_576": 512, "fp8_584": 448, "fp8_512": 448}.get(format)
    bits = to_bits(values, dtype)
    head, tail = (bits, None) if split is None else (bits[:, :split], bits[:, split:])
    smla.write_kv(
        world.wrap(padded(head), dtype),
        world.wrap(slots, slot_type),
        memory.cache(world),
        tail=None if tail is None else world.wrap(tail, dtype),
        context=world.context,
    )
    np.testing.assert_array_equal(memory.values, want.values)
    different = memory.bytes != want.bytes  # NaN has codes to choose from
    assert different.sum() <= 2 * np.isnan(values[5]).sum()


@worlds()
def test_f64_values_keep_their_bits(world):
    values = np.random.default_rng(61).standard_normal((2, 24))
    memory = Memory("row_f64", width=24)
    slots = world.wrap(np.array([8, 0]), "i64")
    smla.write_kv(world.wrap(values, "f64"), slots, memory.cache(world), context=world.context)
    np.testing.assert_array_equal(memory.values[[1, 0], [1, 0]], values)


@worlds()
@pytest.mark.parametrize("rotate", [False, True], ids=["plain", "hadamard"])
@pytest.mark.parametrize("format", INDEX_FORMATS)
def test_write_index(world, format, rotate, tokens=7):
    rng = np.random.default_rng(62)
    memory = Memory(format, width=32)
    values = rounded(rng.standard_normal((tokens, memory.width)), "bf16")
    slots = slots_with_holes(rng, tokens, "i64")
    smla.write_index(
        world.wrap(padded(to_bits(values, "bf16")), "bf16"),
        world.wrap(slots, "i64"),
        memory.cache(world),
        hadamard=rotate,
        context=world.context,
    )
    want = Memory(format, width=32)
    places = [
        divmod(int(slot), PAGE_ROWS) for slot in slots if locate(want.views()[0], slot, PAGE_ROWS) is not None
    ]
    kept = [t for t in range(tokens) if locate(want.views()[0], slots[t], PAGE_ROWS) is not None]
    assert 3 <= len(kept) < tokens
    exact = values @ hadamard(memory.width) if rotate else values
    for place, t in zip(places, kept):
        want.store(place, exact[t])
    if not rotate:
        np.testing.assert_array_equal(memory.bytes, want.bytes)
        return
    scales = tile_scales(format, exact)
    unit = {"index_fp8_132": 2.0**-4, "index_mxfp4_68": 2.0**-2, "row_bf16": 2.0**-8, "row_f32": 0}[format]
    for place, t in zip(places, kept):
        step = 0 if scales is None else np.repeat(scales[t], memory.width // scales.shape[1])
        least = step * {"index_fp8_132": 2.0**-10, "index_mxfp4_68": 0.25}.get(format, 0)
        bound = unit * np.abs(exact[t]) + least + 16 * U * np.sqrt(memory.width)
        assert (np.abs(memory.values[place] - exact[t]) <= bound).all()
    for mine, wanted in zip(memory.views(), want.views()):  # what no token wrote
        mine[tuple(np.transpose(places))] = wanted[tuple(np.transpose(places))]
    np.testing.assert_array_equal(memory.bytes, want.bytes)


def filled(rng, format, width=24):
    """A cache of values, and those; two rows are NaN."""
    memory = Memory(format, width=width, fill=0xFF)
    values = rounded(rng.standard_normal((PAGES, PAGE_TOKENS, memory.width)), "f32")
    memory.store(..., values)
    for view in memory.views():
        view[1, 2] = view[2, 4] = 0xFF
    return memory


@worlds()
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("format", (*KV_FORMATS, "index_fp8_132", "index_mxfp4_68"))
def test_gather(world, format, dtype):
    rng = np.random.default_rng(63)
    memory = filled(rng, format)
    table = np.array([[2, 0, 1], [3, -1, 2**31 - 1], [PAGES, 1, 2]], np.int32)
    starts = np.array([3, 2, -2], np.int32)
    cu = np.array([1, 8, 8 + 9, 8 + 9 + 17], np.int32)
    rows = 40
    for first in (starts, None):
        want = np.full((rows, memory.width), np.nan)  # the poison
        for r in range(3):
            for i in range(cu[r], cu[r + 1]):
                token = i - cu[r] + (0 if first is None else first[r])
                page, offset = divmod(int(token), PAGE_TOKENS)
                known = token >= 0 and page < 3 and 0 <= table[r, page] < PAGES
                want[i] = memory.values[table[r, page], offset] if known else 0
        out = world.guarded((rows, memory.width), dtype)
        got = smla.gather(
            memory.cache(world),
            world.wrap(padded(table), "i32"),
            world.wrap(cu, "i32"),
            out.array,
            starts=None if first is None else world.wrap(first, "i32"),
            context=world.context,
        )
        assert got is out.array
        np.testing.assert_array_equal(from_bits(out.check(), dtype), rounded(want, dtype))


@worlds()
def test_gather_raw(world):
    memory = filled(np.random.default_rng(64), "index_fp8_132")
    codes, scales = world.guarded((11, 128), "e4m3"), world.guarded((11,), "f32")
    smla.gather(
        memory.cache(world),
        world.wrap(np.array([[3, -1], [0, 2]], np.int32), "i32"),
        world.wrap(np.array([0, 6, 9], np.int32), "i32"),
        codes.array,
        starts=world.wrap(np.array([0, 4], np.int32), "i32"),
        raw=True,
        scales=scales.array,
        context=world.context,
    )
    places = [(3, i) for i in range(5)] + [None, (0, 4), (2, 0), (2, 1)]
    records, behind = memory.views()
    for row, place in enumerate(places):
        assert (codes.check()[row] == (0 if place is None else records[place])).all()
        assert scales.check()[row : row + 1].tobytes() == (
            bytes(4) if place is None else behind[place].tobytes()
        )
    assert (codes.bits[9:] == 0xFF).all() and np.isnan(scales.bits[9:]).all()


@worlds()
@pytest.mark.parametrize("format", ["row_bf16", "fp8_656", "fp8_584", "index_fp8_132"])
def test_copy_pages(world, format):
    rng = np.random.default_rng(65)
    source, target, want = (Memory(format, width=24) for _ in range(3))
    source.bytes[:] = rng.integers(0, 256, len(source.bytes))
    pairs = np.array([[1, 3], [1, 0], [-1, 1], [2, PAGES], [2**31 - 1, 2]], np.int32)
    smla.copy_pages(
        source.cache(world), target.cache(world), world.wrap(padded(pairs), "i32"), context=world.context
    )
    for from_view, to_view in zip(source.views(), want.views()):
        to_view[[3, 0]] = from_view[1]
    np.testing.assert_array_equal(target.bytes, want.bytes)


@worlds()
@pytest.mark.parametrize("page_tokens, page_rows", [(1, 0), (3, 0), (64, 0), (4, 11)])
def test_map(world, page_tokens, page_rows, tokens=7, k=9, requests=3, blocks=5):
    rng = np.random.default_rng(66)
    positions = rng.integers(-3, blocks * page_tokens + 4, (tokens, k), dtype=np.int32)
    positions[0, :2] = 2**31 - 1, -(2**31)
    of_token = rng.integers(-1, requests + 1, tokens, dtype=np.int32)
    of_token[:4] = 0, 1, -(2**31), 2**31 - 1
    table = rng.integers(-2, 10**6, (requests, blocks), dtype=np.int32)
    table[0, 0] = 2**31 - 1  # its rows pass int32 unless a page is a row
    want, counts = map_rows(positions, of_token, table, page_tokens, page_rows)
    assert 0 < counts.sum() < tokens * k
    arguments = [
        world.wrap(padded(positions), "i32"),
        world.wrap(of_token, "i32"),
        world.wrap(padded(table), "i32"),
    ]
    options = {"page_tokens": page_tokens, "page_rows": page_rows, "context": world.context}
    rows, held = world.guarded((tokens, k), "i32"), world.guarded((tokens,), "i32")
    smla.map(*arguments, rows=rows.array, counts=held.array, **options)
    np.testing.assert_array_equal(rows.check(), want)
    np.testing.assert_array_equal(held.check(), counts)
    limits, ends = rng.integers(-1, k + 2, tokens, dtype=np.int32), world.guarded((tokens,), "i32")
    limited = np.where(np.arange(k) < limits[:, None], want, -1)
    rows = world.guarded((tokens, k), "i32")
    smla.map(*arguments, limits=world.wrap(limits, "i32"), rows=rows.array, lengths=ends.array, **options)
    np.testing.assert_array_equal(rows.check(), limited)
    np.testing.assert_array_equal(ends.check(), ((limited >= 0) * np.arange(1, k + 1)).max(1))
    np.testing.assert_array_equal(world.bits(smla.map(*arguments, **options)), want)
    smla.map(*arguments, rows=arguments[0], **options)  # in place
    np.testing.assert_array_equal(world.bits(arguments[0]), want)


@worlds()
def test_map_of_pools(world, tokens=6, pools=4, pool=3, blocks=5, page_tokens=4):
    rng = np.random.default_rng(67)
    lists = np.sort(rng.integers(0, 6, (tokens, pools), dtype=np.int32), 1)
    lists[np.arange(pools) >= rng.integers(0, pools + 1, tokens)[:, None]] = -1
    lists[0, 1:] = -1, 2, -1  # a hole within
    of_token = rng.integers(0, 2, tokens, dtype=np.int32)
    visible = rng.integers(0, blocks * page_tokens, tokens, dtype=np.int32)
    table = rng.integers(0, 10**6, (2, blocks), dtype=np.int32)
    positions = np.full((tokens, pools * pool + pool - 1), -1, np.int32)
    for row, listed, seen in zip(positions, lists, visible):
        own = [-1 if p < 0 else p * pool + i for p in np.trim_zeros(listed + 1, "b") - 1 for i in range(pool)]
        own += range(seen // pool * pool, seen)
        row[: len(own)] = own
    want, _ = map_rows(positions, of_token, table, page_tokens, 0)
    arguments = [world.wrap(lists, "i32"), world.wrap(of_token, "i32"), world.wrap(table, "i32")]
    ends = world.guarded((tokens,), "i32")
    got = smla.map(
        *arguments,
        page_tokens=page_tokens,
        pool_tokens=pool,
        visible_tokens=world.wrap(visible, "i32"),
        lengths=ends.array,
        context=world.context,
    )
    np.testing.assert_array_equal(world.bits(got), want)
    np.testing.assert_array_equal(ends.check(), ((want >= 0) * np.arange(1, want.shape[1] + 1)).max(1))
    whole = smla.map(*arguments, page_tokens=page_tokens, pool_tokens=pool, context=world.context)
    assert world.bits(whole).shape == (tokens, pools * pool)


class Compression:
    """One V4 compressor: state, tables of two requests, entries that are due."""

    def __init__(self, rng, ratio, width, dtype="bf16"):
        self.ratio, self.width, self.coff = ratio, width, 2 if ratio == 4 else 1
        self.lengths = (3 * ratio + 2, 2 * ratio)  # tokens of each request
        self.positions = np.concatenate([np.arange(length) for length in self.lengths])
        self.requests = np.repeat([0, 1], self.lengths).astype(np.int32)
        self.pages = 2 * (max(self.lengths) // 4 + 1)
        self.table = rng.permutation(self.pages).reshape(2, -1).astype(np.int32)
        tokens = len(self.positions)
        self.kv, self.score = (
            rounded(rng.standard_normal((tokens, self.coff * width)), dtype) for _ in range(2)
        )
        self.ape = rounded(rng.standard_normal((ratio, self.coff * width)), "f32")
        self.weight = rounded(1 + 0.1 * rng.standard_normal(width), "f32")
        self.frequencies = 10000.0 ** -(np.arange(width // 4) / (width // 4))
        self.state = np.full((self.pages, 4, 2 * self.coff * width), np.nan, np.float32)

    def state_slots(self):
        blocks = self.table[self.requests, self.positions // 4]
        return blocks.astype(np.int64) * 4 + self.positions % 4

    def save(self, world, slots):
        smla.save_state(
            world.wrap(padded(to_bits(self.kv, "bf16")), "bf16"),
            world.wrap(padded(to_bits(self.score, "bf16")), "bf16"),
            world.wrap(to_bits(self.ape, "f32"), "f32"),
            world.wrap(self.positions, "i64"),
            world.wrap(slots, "i64"),
            smla.Cache(world.wrap(self.state, "f32"), "state_f32", 4),
            context=world.context,
        )

    def compress(self, world, slots, cache, **options):
        smla.compress(
            smla.Cache(world.wrap(self.state, "f32"), "state_f32", 4),
            world.wrap(padded(self.table), "i32"),
            world.wrap(self.requests, "i32"),
            world.wrap(self.positions, "i64"),
            world.wrap(slots, "i64"),
            world.wrap(to_bits(self.weight, "f32"), "f32"),
            world.wrap(self.frequencies, "f64"),
            cache,
            ratio=self.ratio,
            eps=1e-6,
            context=world.context,
            **options,
        )


@worlds()
@pytest.mark.parametrize("ratio", [4, 6])
def test_save_state(world, ratio):
    problem = Compression(np.random.default_rng(70), ratio, 16)
    slots = problem.state_slots()
    slots[2], slots[5] = -1, problem.pages * 4  # holes
    problem.save(world, slots[:-3])  # the last three tokens are padding
    want = np.full_like(problem.state, np.nan).reshape(-1, problem.state.shape[-1])
    for t, slot in enumerate(slots[:-3]):
        if 0 <= slot < len(want):
            summed = np.float32(problem.score[t]) + np.float32(problem.ape[problem.positions[t] % ratio])
            want[slot] = np.concatenate([np.float32(problem.kv[t]), summed])
    np.testing.assert_array_equal(problem.state.reshape(want.shape), want)


@worlds()
@pytest.mark.parametrize("format", ["row_f32", "row_bf16", "fp8_584", "index_fp8_132", "index_mxfp4_68"])
@pytest.mark.parametrize("ratio", [4, 6])
def test_compress(world, ratio, format):
    rng = np.random.default_rng(71)
    width = width_of(format, 16)
    problem = Compression(rng, ratio, width)
    if format == "fp8_584":  # rope is its last 64 values
        problem.frequencies = problem.frequencies[:32]
    problem.save(world, problem.state_slots())
    state = problem.state.astype(np.float64)
    due = (problem.positions + 1) % ratio == 0
    slots = (
        np.arange(len(problem.positions)) % PAGE_TOKENS
        + np.arange(len(problem.positions)) // PAGE_TOKENS * PAGE_ROWS
    )
    slots = np.where(slots < PAGES * PAGE_ROWS, slots, -1)
    slots[np.flatnonzero(due)[1]] = -1  # due, but has no place
    memory, want = Memory(format, width=16), Memory(format, width=16)
    entries = world.guarded((len(slots), width), "f32")
    problem.compress(world, slots, memory.cache(world), entries=entries.array)
    made = 0
    for t in range(len(slots)):
        if not due[t] or slots[t] < 0:
            assert np.isnan(entries.bits[t]).all()  # the poison
            continue
        made += 1
        where = problem.requests[t], problem.positions[t]
        entry, magnitude = compress(
            state, problem.table, *where, ratio, 1e-6, problem.weight, problem.frequencies
        )
        # Rounding of 8 weights, their sum, a mean of D squares, products and a rotation.
        assert (np.abs(entries.check()[t] - entry) <= (width + 40) * U * magnitude).all()
        stored = entries.bits[t].astype(np.float64)
        want.store(divmod(int(slots[t]), PAGE_ROWS), stored if format in PLAIN else rounded(stored, "bf16"))
    assert made >= 2
    np.testing.assert_array_equal(memory.bytes, want.bytes)


@worlds()
def test_latents_are_entries_before_the_rotation(world, ratio=2, width=16):
    problem = Compression(np.random.default_rng(72), ratio, width)
    problem.save(world, problem.state_slots())
    state = problem.state.astype(np.float64)
    due = (problem.positions + 1) % ratio == 0
    slots = np.where(due, np.cumsum(due) - 1, -1)
    slots = np.where(slots >= 0, slots % PAGE_TOKENS + slots // PAGE_TOKENS * PAGE_ROWS, -1)
    latents, entries = (world.guarded((len(slots), width), "f32") for _ in range(2))
    memory = Memory("row_f32", width=width)
    problem.compress(world, slots, memory.cache(world), entries=entries.array, latents=latents.array)
    still = np.zeros_like(problem.frequencies)
    for t in range(len(slots)):
        if not due[t]:
            assert np.isnan(latents.bits[t]).all()  # the poison
            continue
        where = problem.requests[t], problem.positions[t]
        latent, magnitude = compress(state, problem.table, *where, ratio, 1e-6, problem.weight, still)
        assert (np.abs(latents.check()[t] - latent) <= (width + 40) * U * magnitude).all()
    plain = width - 2 * len(still)
    np.testing.assert_array_equal(latents.bits[:, :plain], entries.bits[:, :plain])
    assert (latents.bits[due][:, plain:] != entries.bits[due][:, plain:]).any()


@worlds("cpu")
def test_compress_rotates_index_entries(world):
    problem = Compression(np.random.default_rng(72), 4, 16)
    problem.save(world, problem.state_slots())
    slots = np.arange(len(problem.positions))
    plain, rotated = (smla.Cache.empty("row_f32", 3, 8, width=16) for _ in range(2))
    problem.compress(world, slots, plain)
    problem.compress(world, slots, rotated, hadamard=True)
    values = [unpack("row_f32", *views(cache.array, "row_f32", 3, 8, 16)) for cache in (plain, rotated)]
    assert np.count_nonzero(values[0].any(-1)) == 5
    np.testing.assert_allclose(
        values[1], values[0] @ hadamard(16), rtol=0, atol=64 * U * np.abs(values[0]).max()
    )


@worlds()
def test_cache_stages_of_nothing(world):
    cache = smla.Cache.empty("row_f32", 2, 3, width=8)
    none = smla.Cache.empty("row_f32", 0, 3, width=8)
    head, slots = world.wrap(np.ones((2, 8), np.float32), "f32"), world.wrap(np.array([0, 1]), "i64")
    smla.write_kv(head, world.wrap(np.zeros(0, np.int64), "i64"), cache, context=world.context)
    smla.write_kv(head, slots, none, context=world.context)
    assert not cache.array.any()
    out = world.guarded((3, 8), "f32")
    table, cu = world.wrap(np.zeros((0, 4), np.int32), "i32"), world.wrap(np.zeros(1, np.int32), "i32")
    smla.gather(cache, table, cu, out.array, context=world.context)
    smla.copy_pages(cache, cache, world.wrap(np.zeros((0, 2), np.int32), "i32"), context=world.context)
    assert out.untouched()
    of_token = world.wrap(np.zeros(3, np.int32), "i32")
    rows = smla.map(world.wrap(np.zeros((3, 0), np.int32), "i32"), of_token, table, page_tokens=4)
    assert world.bits(rows).shape == (3, 0)


def test_rows_are_normed_and_rotated_on_their_way():
    rng = np.random.default_rng(7)
    tokens, latent, rope = 6, 48, 16
    rows = rng.standard_normal((tokens, latent + rope)).astype(np.float32)
    weight, bias = rng.standard_normal((2, latent)).astype(np.float32)
    positions, slots = np.arange(tokens) * 1000, np.array([3, 0, -1, 5, 1, 2])
    frequencies = 10000.0 ** -(np.arange(0, rope, 2) / rope)
    turned = {"positions": positions, "frequencies": frequencies, "rope_style": "half", "rope_first": latent}
    normed = {"norm_weight": weight, "norm_bias": bias, "norm_kind": "layer", "eps": 1e-5}
    caches = [smla.Cache.empty("row_f32", 2, 4, width=latent + rope) for _ in range(2)]
    values = np.empty_like(rows)
    head, tail = rows[:, :latent], rows[:, latent:]
    smla.write_kv(head, slots, caches[0], tail=tail, values=values, **normed, **turned)

    whole = rows[:, None].copy()
    whole[..., :latent] = smla.norm(whole[..., :latent], weight, bias, eps=1e-5, kind="layer")
    smla.rope(whole, positions, frequencies, style="half", first=latent, out=whole)
    smla.write_kv(whole[:, 0], slots, caches[1])
    np.testing.assert_array_equal(values, whole[:, 0])
    table, cu = np.arange(2, dtype=np.int32)[None], np.array([0, 8], np.int32)
    got, wanted = (smla.gather(each, table, cu, np.zeros((8, 64), np.float32)) for each in caches)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(got[[3, 0, 5, 1, 2]], values[slots >= 0])
