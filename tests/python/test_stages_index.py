"""The indexer's stages in NumPy: select exactly, score within what f32 loses, score_select to the bit."""

import numpy as np
import pytest
import smla
from arrays import padded, worlds
from numpy_formats import E8M0, from_bits, pack, page_bytes, rounded, to_bits, unpack, views
from numpy_model import U, hadamard, locate, quant_index_q, score, select

FORMATS = {  # format of keys: width, dtype of q
    "index_fp8_132": (128, "e4m3"),
    "index_mxfp4_68": (128, "e2m1"),
    "row_bf16": (128, "bf16"),
    "row_f32": (19, "f32"),
    "row_f64": (24, "f64"),
}


class Keys:
    """Index keys in a paged cache with gaps, all NaN but for the rows that some window names."""

    def __init__(self, rng, format, *, pages=6, page_tokens=5):
        self.format, self.page_tokens, (self.width, self.dtype) = format, page_tokens, FORMATS[format]
        self.stride = page_bytes(format, page_tokens, self.width) + 64
        self.memory = np.full(pages * self.stride, 0xFF, np.uint8)
        layout = views(self.memory, format, pages, page_tokens, self.width, self.stride)
        values = to_bits(rng.standard_normal((pages, page_tokens, self.width)), "f32").astype(np.float64)
        scales = None
        if format == "index_fp8_132":  # readers take any f32
            scales = np.float32(rng.uniform(0.004, 0.02, (pages, page_tokens, 1))).astype(np.float64)
        self._packed, self._layout = pack(format, values, scales=scales), layout
        self.pages = pages

    def reveal(self, rows):
        """Writes rows, page * page_tokens + offset, over the NaN."""
        at = np.divmod(np.asarray(sorted(rows), int), self.page_tokens)
        for bits, view in zip(self._packed, self._layout):
            view[at] = bits[at]

    @property
    def values(self):
        return unpack(self.format, *self._layout)

    def cache(self, world):
        plain = self.format.startswith("row")
        return smla.Cache(
            world.wrap(self.memory, "u8"),
            self.format,
            self.page_tokens,
            width=self.width if plain else 0,
            pages=self.pages,
            page_stride_bytes=self.stride,
        )


def queries(rng, world, dtype, tokens, heads, width):
    """(values, q, q_scales or None)."""
    values, scales = rng.standard_normal((tokens, heads, width)), None
    if dtype == "e2m1":
        exponents = rng.integers(125, 130, (tokens, heads, width // 32)).astype(np.uint8)
        scales = world.wrap(padded(exponents), "e8m0")
        bits = to_bits(values * 3, "e2m1")
        return from_bits(bits, "e2m1") * np.repeat(E8M0[exponents], 32, -1), world.wrap(bits, "e2m1"), scales
    bits = to_bits(values, dtype)
    return from_bits(bits, dtype), world.wrap(padded(bits), dtype), None


class Problem:
    """Index queries. Ragged windows name rows; paged ones tokens of a request, some without a key."""

    def __init__(self, world, format, paged, seed, tokens=7, heads=5):
        rng = np.random.default_rng(seed)
        self.world, self.keys = world, Keys(rng, format)
        self.columns = 23 if paged else 30
        dtype = self.stat = "f64" if self.keys.dtype == "f64" else "f32"
        self.q, q, q_scales = queries(rng, world, self.keys.dtype, tokens, heads, self.keys.width)
        self.w = rounded(rng.standard_normal((tokens, heads)), dtype)
        self.starts = rng.integers(0, 12, tokens, dtype=np.int32)
        self.ends = self.starts + rng.integers(0, 12, tokens, dtype=np.int32)
        self.starts[:3], self.ends[:3] = (-4, 9, 20), (5, 3, 10**6)  # clamped, empty, clamped
        self.table = rng.permutation(6)[:4].reshape(1, 4).repeat(3, 0).astype(np.int32)
        self.table[1, 1], self.table[2, :2] = -1, (6, 2**31 - 1)
        self.requests = rng.integers(0, 3, tokens, dtype=np.int32)
        self.requests[-2:] = -1, 3  # no such request: no key
        self.paged = paged
        self.keys.reveal(
            {row for t in range(tokens) for j in self.window(t) if (row := self.row(t, j)) is not None}
        )
        self.arguments = (q, world.wrap(padded(self.w.astype(dtype.replace("f", "float"))), dtype))
        self.arguments += (self.keys.cache(world), world.wrap(self.ends, "i32"))
        self.options = {
            "starts": world.wrap(self.starts, "i32"),
            "q_scales": q_scales,
            "columns": self.columns,
        }
        self.options["context"] = world.context
        if paged:
            self.options["block_table"] = world.wrap(padded(self.table), "i32")
            self.options["request_of_token"] = world.wrap(self.requests, "i32")

    def window(self, t):
        return range(max(self.starts[t], 0), min(self.ends[t], self.columns))

    def row(self, t, j):
        """The cache row of a column, None without a key."""
        if not self.paged:
            return j if j < self.keys.pages * self.keys.page_tokens else None
        page, offset = divmod(j, self.keys.page_tokens)
        if (
            not 0 <= self.requests[t] < 3
            or page >= 4
            or not 0 <= self.table[self.requests[t], page] < self.keys.pages
        ):
            return None
        return int(self.table[self.requests[t], page]) * self.keys.page_tokens + offset

    def wanted(self):
        values = self.keys.values

        def key_of(t, j):
            row = self.row(t, j)
            return None if row is None else locate(values, row)

        return score(self.q, self.w, key_of, self.starts, self.ends, self.columns)


@worlds()
@pytest.mark.parametrize("paged", [False, True], ids=["ragged", "paged"])
@pytest.mark.parametrize("format", FORMATS)
def test_score(world, format, paged):
    problem = Problem(world, format, paged, 11)
    want, bound = problem.wanted()
    if problem.stat == "f64":
        bound *= 2.0**-29
    for fill in (True, False):
        logits = world.guarded(want.shape, problem.stat)
        smla.score(*problem.arguments, fill=fill, logits=logits.array, **problem.options)
        got = logits.check()
        inside = np.zeros(want.shape, bool)
        for t in range(len(want)):
            inside[t, problem.window(t)] = True
        assert inside.any() and not inside.all() and np.isneginf(want[inside]).any() == paged
        outside = got[~inside]
        assert np.isneginf(outside).all() if fill else np.isnan(outside).all()  # NaN: the poison
        found = np.isfinite(want)
        np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want) & (inside | fill))
        assert (np.abs(got[found] - want[found]) <= bound[found]).all()
        if fill and problem.stat != "f64":  # bf16 has the upper half of the bits, rounded
            half = smla.score(*problem.arguments, logits_dtype="bf16", **problem.options)
            half = from_bits(world.bits(half), "bf16")
            np.testing.assert_allclose(half[found], got[found], rtol=2.0**-8)
            np.testing.assert_array_equal(np.isneginf(half), np.isneginf(got))
            assert (half[found] != got[found]).any()


@worlds()
def test_columns_follow_from_table_or_keys(world):
    for paged, columns in ((True, 4 * 5), (False, 6 * 5)):
        problem = Problem(world, "row_f32", paged, 14)
        del problem.options["columns"]
        problem.columns = columns
        problem.keys.reveal(range(30))
        want, bound = problem.wanted()
        arguments = (*problem.arguments[:2], problem.keys.cache(world), problem.arguments[3])
        got = world.bits(smla.score(*arguments, **problem.options))
        assert got.shape == (len(want), columns)
        found = np.isfinite(want)
        assert (np.isfinite(got) == found).all() and (np.abs(got[found] - want[found]) <= bound[found]).all()
        both = smla.score_select(*arguments, 6, **problem.options)
        indices, selected, counts = select(got.astype(np.float64), 6, problem.starts, problem.ends)
        np.testing.assert_array_equal(world.bits(both.indices), indices)
        np.testing.assert_array_equal(world.bits(both.counts), counts)


@worlds()
@pytest.mark.parametrize("format", ["index_fp8_132", "index_mxfp4_68", "row_f32"])
def test_a_nan_key_reaches_its_own_logit_alone(world, format):
    problem = Problem(world, format, False, 12)
    t = 3
    problem.starts[t], problem.ends[t] = 2, 9
    problem.keys.reveal(range(30))
    for view in problem.keys._layout:
        view[1, 0] = 0xFF  # row 5
    problem.arguments = (*problem.arguments[:2], problem.keys.cache(world), world.wrap(problem.ends, "i32"))
    problem.options["starts"] = world.wrap(problem.starts, "i32")
    got = world.bits(smla.score(*problem.arguments, **problem.options))
    windows = [5 in problem.window(i) for i in range(len(got))]
    assert windows[t] and np.isnan(got).sum(1).tolist() == [int(inside) for inside in windows]
    assert np.isnan(got[t, 5])


@worlds()
@pytest.mark.parametrize("k", [1, 4, 40])
@pytest.mark.parametrize("paged", [False, True], ids=["ragged", "paged"])
@pytest.mark.parametrize("format", ["index_fp8_132", "index_mxfp4_68", "row_bf16", "row_f32"])
def test_score_select_is_score_then_select_bit_for_bit(world, format, paged, k):
    problem = Problem(world, format, paged, 13 + k)
    tokens = len(problem.q)
    outputs = [
        world.guarded((tokens, k), "i32"),
        world.guarded((tokens,), "i32"),
        world.guarded((tokens, k), "f32"),
    ]
    given = dict(zip(("indices", "counts", "selected"), (output.array for output in outputs)))
    workspace = world.context.workspace(budget=1)
    smla.score_select(*problem.arguments, k, relative=True, workspace=workspace, **given, **problem.options)
    logits = world.bits(smla.score(*problem.arguments, **problem.options))
    for got, want in zip((output.check() for output in outputs), two_steps(logits, k, problem)):
        np.testing.assert_array_equal(got, want)


def two_steps(logits, k, problem):
    indices, selected, counts = select(
        logits.astype(np.float64), k, problem.starts, problem.ends, relative=True
    )
    return indices, counts, selected


@worlds()
@pytest.mark.parametrize("listed", [False, True], ids=["all", "listed"])
@pytest.mark.parametrize("format", ["index_fp8_132", "row_f32"])
def test_score_select_blocks_chooses_within_the_blocks(world, format, listed):
    problem, size, k, keep = Problem(world, format, True, 15), 3, 6, 3
    tokens, count = len(problem.q), -(-problem.columns // size)
    blocks = np.random.default_rng(16).integers(-2, count + 2, (tokens, 4)).astype(np.int32)
    got = smla.score_select_blocks(
        *problem.arguments,
        k,
        block_size=size,
        blocks=world.wrap(blocks, "i32") if listed else None,
        keep=keep,
        selected=True,
        block_maxima=True,
        best_blocks=True,
        **problem.options,
    )
    logits = world.bits(smla.score(*problem.arguments, **problem.options))
    for t in range(tokens):
        columns = list(problem.window(t))
        by_block = {b: columns[b * size : (b + 1) * size] for b in range(-(-len(columns) // size))}
        newest = max(by_block, default=None)
        if listed:
            by_block = {b: by_block[b] for b in by_block if b in blocks[t]}
        candidates = [j for b in sorted(by_block) for j in by_block[b]]
        chosen = sorted(sorted(candidates, key=lambda j: (-logits[t, j], j))[:k])
        maxima = {b: np.inf if b == newest else max(logits[t, by_block[b]]) for b in by_block}
        best = sorted(sorted(maxima, key=lambda b: (b != newest, -maxima[b], b))[:keep])
        assert world.bits(got.indices)[t].tolist() == chosen + [-1] * (k - len(chosen))
        assert world.bits(got.counts)[t] == len(chosen)
        assert world.bits(got.selected)[t, : len(chosen)].tolist() == logits[t, chosen].tolist()
        assert world.bits(got.block_maxima)[t].tolist() == [maxima.get(b, -np.inf) for b in range(count)]
        assert world.bits(got.best_blocks)[t].tolist() == best + [-1] * (keep - len(best))


def hostile_scores(rng, dtype, tokens, columns):
    """Few distinct values, both zeros, infinities and NaN; some rows without them."""
    values = rng.choice([-2.5, -0.0, 0.0, 1.0, 1.0, 7.0, -np.inf, np.inf, np.nan], (tokens, columns))
    values[::2] = rng.standard_normal((len(values[::2]), columns))
    return to_bits(values, dtype)


@worlds()
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("k", [0, 1, 5, 17, 64])
def test_select(world, dtype, k, tokens=9, columns=33):
    rng = np.random.default_rng(20 + k)
    bits = hostile_scores(rng, dtype, tokens, columns)
    scores = world.wrap(padded(bits), dtype)
    stat = "f64" if dtype == "f64" else "f32"
    starts = rng.integers(-3, columns, tokens, dtype=np.int32)
    ends = rng.integers(-3, columns + 9, tokens, dtype=np.int32)
    for windows, relative in (((None, None), False), ((starts, ends), False), ((starts, None), True)):
        want = select(from_bits(bits, dtype), k, *windows, relative=relative)
        outputs = [
            world.guarded((tokens, k), "i32"),
            world.guarded((tokens, k), stat),
            world.guarded((tokens,), "i32"),
        ]
        smla.select(
            scores,
            starts=None if windows[0] is None else world.wrap(windows[0], "i32"),
            ends=None if windows[1] is None else world.wrap(windows[1], "i32"),
            relative=relative,
            indices=outputs[0].array,
            selected=outputs[1].array,
            counts=outputs[2].array,
            context=world.context,
        )
        for got, wanted in zip(outputs, want):
            np.testing.assert_array_equal(got.check(), wanted)
    signs = np.signbit(outputs[1].bits) == np.signbit(want[1])
    assert signs.all() or np.isnan(want[1][~signs]).all()  # the zeros' own bits


@worlds()
def test_select_of_long_rows(world, tokens=3, columns=5000, k=515):
    """Long enough for the kernels that guess a floor; ties across it."""
    rng = np.random.default_rng(30)
    bits = rng.standard_normal((tokens, columns)).astype(np.float32)
    bits[1] = np.round(bits[1] * 2) / 2
    bits[2, rng.random(columns) < 0.95] = np.nan
    got = smla.select(world.wrap(bits, "f32"), k, selected=True, context=world.context)
    for mine, want in zip((got.indices, got.selected, got.counts), select(bits.astype(np.float64), k)):
        np.testing.assert_array_equal(world.bits(mine), want)


@worlds()
def test_select_merges_lists_by_ids(world, tokens=6, columns=40, k=13):
    rng = np.random.default_rng(31)
    bits = hostile_scores(rng, "f32", tokens, columns)
    ids = np.stack([rng.permutation(1000)[:columns] for _ in range(tokens)]).astype(np.int32)
    ids[rng.random(ids.shape) < 0.2] = -1
    ends = rng.integers(0, columns + 1, tokens, dtype=np.int32)
    got = smla.select(
        world.wrap(bits, "f32"),
        k,
        ends=world.wrap(ends, "i32"),
        ids=world.wrap(padded(ids), "i32"),
        selected=True,
        context=world.context,
    )
    want = select(bits.astype(np.float64), k, None, ends, ids)
    for mine, wanted in zip((got.indices, got.selected, got.counts), want):
        np.testing.assert_array_equal(world.bits(mine), wanted)


def test_selected_is_made_when_asked_for():
    scores = np.float32([[1, 3, 2]])
    assert smla.select(scores, 2).selected is None and smla.select(scores, 2, selected=False).selected is None
    assert smla.select(scores, 2, selected=True).selected.tolist() == [[3, 2]]
    assert smla.select(
        scores.astype(np.float64), 2, selected=True, context=smla.Context("reference")
    ).selected.dtype == (np.float64)


@worlds()
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("kind", ["e4m3", "e2m1"])
def test_quant_index_q(world, kind, dtype, tokens=4, heads=3, width=64):
    rng = np.random.default_rng(40)
    q = rng.standard_normal((tokens, heads, width)) * np.exp2(rng.integers(-20, 9, (tokens, heads, 1)))
    q[0, 0] = 0  # the floor's scale
    q[0, 1] = np.float32(448) * np.sign(q[0, 1])  # exactly a power of two
    q[1, 1, 5] = np.nan
    q, w = rounded(q, dtype), rounded(rng.standard_normal((tokens, heads)), dtype)
    codes = world.guarded(q.shape, kind)
    weights = world.guarded(w.shape, "f32")
    scales = world.guarded((tokens, heads, width // 32), "e8m0") if kind == "e2m1" else None
    arguments = world.wrap(padded(to_bits(q, dtype)), dtype), world.wrap(to_bits(w, dtype), dtype)
    for floor in (0.0, 1e-10):
        smla.quant_index_q(
            *arguments,
            factor=0.011,
            amax_floor=floor,
            q_out=codes.array,
            scales=None if scales is None else scales.array,
            w_out=weights.array,
            context=world.context,
        )
        want, want_scales, want_w = quant_index_q(q, w, 0.011, kind, floor or 1e-4)
        good = ~np.isnan(q)
        if kind == "e2m1":  # it has no NaN: the scale of the block is one
            good = np.repeat(~np.isnan(q.reshape(tokens, heads, -1, 32)).any(-1), 16, -1)
        np.testing.assert_array_equal(codes.check()[good], want[good])
        np.testing.assert_allclose(weights.check(), want_w, rtol=3 * U, atol=0)
        if scales is not None:
            np.testing.assert_array_equal(from_bits(scales.check(), "e8m0"), want_scales)
        else:
            assert np.isnan(from_bits(codes.bits, kind)[~good]).all()


@worlds()
@pytest.mark.parametrize("dtype", ["e4m3", "e2m1", "bf16", "f32"])
def test_quantised_queries_are_allocated(world, dtype, width=64):
    rng = np.random.default_rng(41)
    q = rng.standard_normal((2, 3, width)).astype(np.float32)
    w = world.wrap(np.ones((2, 3), np.float32), "f32")
    got = smla.quant_index_q(world.wrap(q, "f32"), w, factor=0.5, dtype=dtype, context=world.context)
    values = from_bits(world.bits(got.q), dtype)
    assert values.shape == q.shape and (got.scales is not None) == (dtype == "e2m1")
    if got.scales is not None:
        values = values * np.repeat(from_bits(world.bits(got.scales), "e8m0"), 32, -1)
    unit = world.bits(got.w)[..., None] / 0.5 if dtype == "e4m3" else 1
    # Half a step of the type: 3 bits of mantissa of e4m3, 1 of e2m1; below their normals steps are even.
    step = {"e4m3": 2.0**-4, "e2m1": 2.0**-2, "bf16": 2.0**-8, "f32": 0}[dtype]
    smallest = {"e4m3": 2.0**-10 * unit, "e2m1": np.abs(q).reshape(2, 3, -1, 32).max(-1).max() / 8}.get(
        dtype, 0
    )
    assert (np.abs(values * unit - q) <= step * np.abs(q) + smallest).all()


@worlds()
def test_rotated_queries(world, width=64):
    """H_D / sqrt(D), then e4m3 of it: right to half a step, plus what 6 additions and a product lose."""
    rng = np.random.default_rng(42)
    q = rng.standard_normal((3, 2, width)).astype(np.float32)
    w = world.wrap(np.ones((3, 2), np.float32), "f32")
    got = smla.quant_index_q(world.wrap(q, "f32"), w, factor=1.0, hadamard=True, context=world.context)
    scales = world.bits(got.w)[..., None].astype(np.float64)
    values, rotated = from_bits(world.bits(got.q), "e4m3") * scales, q @ hadamard(width)
    peak = np.abs(rotated).max(-1, keepdims=True)
    assert (scales * 448 >= peak * (1 - 1e-6)).all() and (scales * 224 <= peak * (1 + 1e-6)).all()
    assert (
        np.abs(values - rotated) <= 2.0**-4 * np.abs(rotated) + 2.0**-10 * scales + 8 * U * np.sqrt(width)
    ).all()


@worlds()
def test_index_stages_of_no_tokens(world):
    keys = smla.Cache.empty("row_f32", 2, 3, width=8)
    q, w = world.wrap(np.ones((0, 2, 8), np.float32), "f32"), world.wrap(np.ones((0, 2), np.float32), "f32")
    ends = world.wrap(np.zeros(0, np.int32), "i32")
    assert world.bits(smla.score(q, w, keys, ends, context=world.context)).shape == (0, 6)
    assert world.bits(smla.score_select(q, w, keys, ends, 4, context=world.context).indices).shape == (0, 4)
    scores = world.wrap(np.ones((0, 5), np.float32), "f32")
    assert world.bits(smla.select(scores, 2, context=world.context).counts).shape == (0,)
    none = world.wrap(np.ones((3, 0), np.float32), "f32")
    assert (world.bits(smla.select(none, 2, context=world.context).indices) == -1).all()
    assert world.bits(smla.quant_index_q(q, w, factor=1.0, context=world.context).q).shape == (0, 2, 8)


def test_index_queries_are_rotated_on_their_way():
    rng = np.random.default_rng(8)
    q, w = rng.standard_normal((3, 4, 32)).astype(np.float32), np.ones((3, 4), np.float32)
    positions, frequencies = np.array([5, 70, 900]), 10000.0 ** -(np.arange(0, 16, 2) / 16)
    rotated = np.empty_like(q)
    at = {"positions": positions, "frequencies": frequencies}
    got = smla.quant_index_q(q, w, factor=0.1, **at, rope_first=16, rotated=rotated)
    wanted = smla.rope(q, positions, frequencies, first=16)
    np.testing.assert_array_equal(rotated, wanted)
    again = smla.quant_index_q(wanted, w, factor=0.1)
    np.testing.assert_array_equal(got.q.view(np.uint8), again.q.view(np.uint8))
    np.testing.assert_array_equal(got.w, again.w)
