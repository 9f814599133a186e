"""smla.attend and smla.merge against float64 NumPy, on hostile input."""

import numpy as np
import pytest
import smla
from arrays import padded, worlds
from numpy_formats import from_bits, pack, page_bytes, rounded, to_bits, unpack, views, width_of
from numpy_model import Source, U, attend, locate, merge

ROUNDING = {"f64": 2.0**-53, "f32": U, "bf16": 2.0**-8, "f16": 2.0**-11}  # of an output, relative
HOLES = (-1, -(2**31), 2**31 - 1)


class Paged:
    """A cache whose memory is NaN but for rows that are listed. `source`: what it holds, for the model."""

    def __init__(
        self, rng, format, tokens, k, *, width=0, page_tokens=5, pages=4, gap=0, row_gap=0, scale=None
    ):
        self.format, self.page_tokens, self.pages = format, page_tokens, pages
        self.width, self.scale = width_of(format, width), scale
        self.page_rows = page_tokens + 2
        record = views(np.empty(1, np.uint8), format, 0, 1, width)[0].shape[2] + row_gap
        self.stride = page_bytes(format, page_tokens, width) + page_tokens * row_gap + gap
        self.memory = np.full(pages * self.stride, 0xFF, np.uint8)
        self.layout = {"page_stride_bytes": self.stride, "row_stride_bytes": record if row_gap else 0}
        records, behind = views(self.memory, format, pages, page_tokens, width, self.stride, record)
        # Half of the rows hold values; the others are NaN, and are listed only where nobody may look.
        offsets = rng.permutation(pages * page_tokens)
        good, bad = np.array_split(offsets, 2)
        values = to_bits(rng.standard_normal((len(good), self.width)), "f32").astype(np.float64)
        packed = pack(format, values, scale or 1.0, odd_scales(rng, format, values))
        for place, *bits in zip(good, *packed):
            at = divmod(place, page_tokens)
            records[at], behind[at] = bits
        values = unpack(format, records, behind, scale or 1.0)
        self.lengths = rng.integers(1, k + 1, tokens, dtype=np.int32)
        self.lengths[:3] = -5, k + 7, 0
        self.rows = np.array([self._list(rng, good, bad, k, length) for length in self.lengths], np.int32)
        self.rows = self.rows.reshape(tokens, k)
        self.source = Source(values, self.rows, self.lengths, self.page_rows)

    def _list(self, rng, good, bad, k, length):
        capacity = (self.pages - 1) * self.page_rows + self.page_tokens
        holes = (*HOLES, capacity, self.page_tokens, self.page_rows * 2 - 1)
        listed = self._row(rng.choice(good, k))
        listed = np.where(rng.random(k) < 0.3, rng.choice(holes, k), listed)
        return np.where(np.arange(k) < length, listed, self._row(rng.choice(bad, k)))

    def _row(self, place):
        return place // self.page_tokens * self.page_rows + place % self.page_tokens

    def cache(self, world):
        memory = world.wrap(self.memory, "u8")
        width = 0 if self.format.startswith("fp8") else self.width
        return smla.Cache(
            memory,
            self.format,
            self.page_tokens,
            width=width,
            page_rows=self.page_rows,
            scale=self.scale,
            pages=self.pages,
            **self.layout,
        )


def odd_scales(rng, format, values):
    """Scales that are no powers of two, for formats that store them as f32."""
    if format not in ("fp8_656", "fp8_528"):
        return None
    return np.float32(rng.uniform(0.01, 0.05, (len(values), 4))).astype(np.float64)


def expect_close(got, want, bound):
    """|got - want| <= bound, and NaN and infinities where they are wanted."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    same = (got == want) | np.isnan(want)
    with np.errstate(invalid="ignore"):
        assert (same | (np.abs(got - want) <= bound)).all(), np.nanmax(np.abs(got - want) - bound)


def weight_error(want, k, kernel, unit):
    """The relative error of a softmax weight: logits, exp, sums; kernels of bf16 round it to 8 bits."""
    rounds = "_bf16_" in kernel or "_amx_" in kernel
    return 2 * want.logit_error[..., None] + (k + 16) * unit + (2.0**-8 if rounds else 0)


CASES = {  # format, width, dtype of q, of out
    "row_f32": ("row_f32", 17, "f32", "f32"),
    "row_f32 of one value": ("row_f32", 1, "f32", "f32"),
    "row_bf16": ("row_bf16", 33, "bf16", "bf16"),
    "row_bf16 576": ("row_bf16", 576, "bf16", "f32"),
    "row_f64": ("row_f64", 19, "f64", "f64"),
    "fp8_656": ("fp8_656", 0, "bf16", "bf16"),
    "fp8_656 f32": ("fp8_656", 0, "f32", "f16"),
    "fp8_584": ("fp8_584", 0, "bf16", "f32"),
    "fp8_528": ("fp8_528", 0, "f16", "f16"),
    "fp8_576": ("fp8_576", 0, "e4m3", "bf16"),
    "fp8_512": ("fp8_512", 0, "f32", "f32"),
}


@worlds()
@pytest.mark.parametrize("case", CASES)
def test_attend(world, case, heads=3, tokens=5, k=9):
    format, width, dtype, out_dtype = CASES[case]
    rng = np.random.default_rng(list(case.encode()))
    scale = 0.37 if format in ("fp8_576", "fp8_512") else None
    row_gap = 0 if format == "fp8_584" else 8
    paged = Paged(rng, format, tokens, k, width=width, gap=64, row_gap=row_gap, scale=scale)
    q = rounded(rng.standard_normal((tokens, heads, paged.width)), dtype)
    q_scale = 0.21 if dtype == "e4m3" else None
    value_width = (
        max(paged.width - 64, 1) if case == "fp8_656 f32" else 512 if paged.width == 576 else paged.width
    )
    softmax_scale = 0.7 / np.sqrt(paged.width)
    sink = np.array([-np.inf, 0.3, np.inf])
    stat = "f64" if dtype == "f64" else "f32"
    out = world.guarded((tokens, heads, value_width), out_dtype)
    lse, peak = world.guarded((tokens, heads), stat), world.guarded((tokens, heads), stat)
    arguments = (
        world.wrap(padded(to_bits(q, dtype)), dtype),
        paged.cache(world),
        world.wrap(padded(paged.rows), "i32"),
        world.wrap(paged.lengths, "i32"),
    )
    options = {
        "softmax_scale": softmax_scale,
        "q_scale": q_scale,
        "sink": world.wrap(to_bits(sink, stat), stat),
        "lse_base": "log2",
        "out": out.array,
        "lse": lse.array,
        "max_logits": peak.array,
        "context": world.context,
    }
    kernel = chosen(smla.explain_call(smla.attend, *arguments, **options))
    assert out.untouched() and lse.untouched()  # explaining is not computing
    got = smla.attend(*arguments, **options)
    assert world.bits(got.out) is out.bits or world.library == "torch"
    want = attend(q * (q_scale or 1), [paged.source], softmax_scale, value_width, sink, log2=True)
    assert (want.lse == -np.inf).any() and (want.lse > -np.inf).any()  # tokens with and without rows
    unit = ROUNDING[stat]
    error = weight_error(want._replace(logit_error=want.logit_error * unit / U), k, kernel, unit)
    rounding = ROUNDING[out_dtype] * np.abs(want.out) + 2.0**-24 * (out_dtype == "f16")
    expect_close(from_bits(out.check(), out_dtype), want.out, error * want.magnitude + rounding)
    loose = 2 * want.logit_error * unit / U + (k + 16) * unit
    expect_close(from_bits(lse.check(), stat), want.lse, loose + 4 * unit * np.abs(want.lse))
    expect_close(from_bits(peak.check(), stat), want.max_logits, loose + 4 * unit * np.abs(want.max_logits))


def chosen(explained):
    (kernel,) = [row["kernel"] for row in explained["candidates"] if row["chosen"]]
    return kernel


@worlds()
@pytest.mark.parametrize("formats", [("fp8_584", "fp8_584", 512), ("row_f32", "row_f32", 24)])
def test_attend_over_two_caches(world, formats, heads=2, tokens=6):
    rng = np.random.default_rng(3)
    first, second, width = formats
    one = Paged(rng, first, tokens, 7, width=width, page_tokens=64 if first == "fp8_584" else 3)
    two = Paged(rng, second, tokens, 11, width=width, page_tokens=2, pages=9)
    q = rounded(rng.standard_normal((tokens, heads, width)), "f32")
    scales = [np.full(shape, 0.11, np.float32) for shape in ((), (1,))]  # of the device, here the processor
    for extra_lengths, softmax_scale in (
        (two.lengths, 0.11),
        (two.lengths, scales[0]),
        (two.lengths, scales[1]),
    ):
        number = isinstance(softmax_scale, float)
        got = smla.attend(
            world.wrap(q.astype(np.float32), "f32"),
            one.cache(world),
            world.wrap(one.rows, "i32"),
            world.wrap(one.lengths, "i32"),
            extra=two.cache(world),
            extra_rows=world.wrap(two.rows, "i32"),
            extra_lengths=world.wrap(extra_lengths, "i32"),
            softmax_scale=softmax_scale if number else world.wrap(softmax_scale, "f32"),
            lse=True,
            context=world.context,
        )
        want = attend(q, [one.source, two.source], np.float64(np.float32(0.11)), width)
        error = weight_error(want, 18, "", U)
        expect_close(world.bits(got.out), want.out, error * want.magnitude + U * np.abs(want.out))
        expect_close(world.bits(got.lse), want.lse, 2 * want.logit_error + 40 * U * (1 + np.abs(want.lse)))
        assert got.max_logits is None


@worlds()
@pytest.mark.parametrize("dtype", ["bf16", "e4m3", "f32"])
@pytest.mark.parametrize("format, width", [("row_bf16", 576), ("row_bf16", 40), ("fp8_584", 512)])
def test_what_attend_allocates(world, format, width, dtype):
    rng = np.random.default_rng(6)
    paged = Paged(rng, format, 4, 6, width=width)
    q = rounded(rng.standard_normal((4, 2, width)), dtype)
    arguments = (world.wrap(to_bits(q, dtype), dtype), paged.cache(world), world.wrap(paged.rows, "i32"))
    options = {"softmax_scale": 0.05, "context": world.context, "q_scale": 1.0 if dtype == "e4m3" else None}
    lengths = world.wrap(paged.lengths, "i32")
    want = attend(q, [paged.source], 0.05, 512 if width == 576 else width)
    own = "bf16" if dtype == "e4m3" else dtype  # which is the only output of such queries
    for value_width, out_dtype in ((None, None), (7, None), (None, "bf16")):
        got = smla.attend(
            *arguments, lengths, value_width=value_width, out_dtype=out_dtype, max_logits=True, **options
        )
        out = from_bits(world.bits(got.out), out_dtype or own)
        assert out.shape == (4, 2, value_width or (512 if width == 576 else width)) and got.lse is None
        within = 2.0**-6 * want.magnitude  # of values: the arithmetic is looked at above
        assert (np.abs(out - want.out[..., : out.shape[2]]) <= within[..., : out.shape[2]]).all()
        assert world.bits(got.max_logits).shape == (4, 2)


@worlds()
def test_lists_without_lengths_count_duplicates(world):
    rng = np.random.default_rng(4)
    values = rng.standard_normal((2, 3, 4)).astype(np.float32)
    q = rng.standard_normal((1, 1, 4)).astype(np.float32)
    rows = np.array([[4, -1, 4, 4, 0]], np.int32)
    cache = smla.Cache(world.wrap(values, "f32"), "row_f32", 3)
    options = {"softmax_scale": 1.0, "lse": False, "max_logits": False, "context": world.context}
    got = smla.attend(world.wrap(q, "f32"), cache, world.wrap(rows, "i32"), **options)
    want = attend(q.astype(np.float64), [Source(values, rows)], 1.0, 4)
    assert got.lse is None and got.max_logits is None
    expect_close(world.bits(got.out), want.out, 64 * U * want.magnitude)


@worlds()
def test_nan_in_a_listed_row_reaches_that_token_alone(world):
    rng = np.random.default_rng(5)
    values = rng.standard_normal((1, 6, 16)).astype(np.float32)
    values[0, 2] = np.nan
    rows = np.array([[0, 1], [1, 2], [3, -1]], np.int32)
    q = world.wrap(rng.standard_normal((3, 2, 16)).astype(np.float32), "f32")
    cache = smla.Cache(world.wrap(values, "f32"), "row_f32", 6)
    got = smla.attend(q, cache, world.wrap(rows, "i32"), softmax_scale=0.3, lse=True, context=world.context)
    assert np.isnan(world.bits(got.out)).all((1, 2)).tolist() == [False, True, False]
    assert np.isnan(world.bits(got.lse)).any(1).tolist() == [False, True, False]


@worlds()
@pytest.mark.parametrize("tokens, k", [(0, 4), (3, 0), (0, 0)])
def test_attend_of_nothing(world, tokens, k):
    cache = smla.Cache.empty("row_f32", 2, 3, width=8)
    got = smla.attend(
        world.wrap(np.ones((tokens, 2, 8), np.float32), "f32"),
        cache,
        world.wrap(np.zeros((tokens, k), np.int32), "i32"),
        softmax_scale=1.0,
        sink=world.wrap(np.ones(2, np.float32), "f32"),
        lse=True,
        max_logits=True,
        context=world.context,
    )
    assert world.bits(got.out).shape == (tokens, 2, 8) and not world.bits(got.out).any()
    assert (world.bits(got.lse) == -np.inf).all() and (world.bits(got.max_logits) == -np.inf).all()


@worlds()
@pytest.mark.parametrize(
    "dtype, log2, parts", [("f32", False, 3), ("bf16", True, 4), ("f16", False, 1), ("f64", 0, 2)]
)
def test_merge(world, dtype, log2, parts, tokens=4, heads=3, width=7):
    rng = np.random.default_rng(parts)
    stat = "f64" if dtype == "f64" else "f32"
    partials = rounded(rng.standard_normal((parts, tokens, heads, width)), dtype)
    lse = rounded(rng.normal(0, 3, (parts, tokens, heads)), stat)
    empty = rng.random(lse.shape) < 0.3
    empty[:, 0] = True  # a token without any part
    lse[empty], partials[empty] = -np.inf, np.nan
    sink = np.array([-np.inf, 0.5, np.inf])
    out, joined = world.guarded((tokens, heads, width), dtype), world.guarded((tokens, heads), stat)
    smla.merge(
        world.wrap(padded(to_bits(partials, dtype)), dtype),
        world.wrap(padded(to_bits(lse, stat)), stat),
        sink=world.wrap(to_bits(sink, stat), stat),
        lse_base="log2" if log2 else "ln",
        out=out.array,
        lse_out=joined.array,
        context=world.context,
    )
    want, magnitude, want_lse = merge(partials, lse, sink, log2)
    unit = ROUNDING[stat]
    # A weight is exp of a difference: it loses that difference's rounding, and 2 ulps of exp; n are added.
    error = (parts + 16 + 2 * np.nanmax(np.where(empty, 0, np.abs(lse)))) * unit
    expect_close(
        from_bits(out.check(), dtype), want, error * magnitude + ROUNDING[dtype] * np.abs(want) + 2.0**-25
    )
    expect_close(joined.check(), want_lse, error + 4 * unit * np.abs(want_lse))
    assert not from_bits(out.bits, dtype)[0].any() and (joined.bits[0] == -np.inf).all()


@worlds("cpu")
def test_merge_of_parts_is_attention_over_all(world):
    rng = np.random.default_rng(8)
    values = rng.standard_normal((4, 5, 12)).astype(np.float32)
    q = world.wrap(rng.standard_normal((3, 2, 12)).astype(np.float32), "f32")
    rows = rng.permutation(20)[:15].reshape(3, 5).astype(np.int32)
    cache = smla.Cache(world.wrap(values, "f32"), "row_f32", 5)
    cuts = (rows[:, :2].copy(), rows[:, 2:].copy(), rows[:, :0].copy())
    parts = [smla.attend(q, cache, world.wrap(cut, "i32"), softmax_scale=0.4, lse=True) for cut in cuts]
    sink = world.wrap(np.array([0.1, -0.2], np.float32), "f32")
    whole = smla.attend(q, cache, world.wrap(rows, "i32"), softmax_scale=0.4, sink=sink, lse=True)
    stack = [np.stack([world.bits(part[i]) for part in parts]) for i in (0, 1)]
    joined = smla.merge(*(world.wrap(part, "f32") for part in stack), sink=sink, lse_out=True)
    assert smla.merge(*(world.wrap(part, "f32") for part in stack), lse_out=False).lse is None
    np.testing.assert_allclose(world.bits(joined.out), world.bits(whole.out), rtol=0, atol=64 * U * 4)
    np.testing.assert_allclose(world.bits(joined.lse), world.bits(whole.lse), rtol=0, atol=64 * U * 4)


def test_the_model_knows_holes():
    """Page 1 ends at row 9: rows 7 and 8 stand between its pages' tokens."""
    values = np.arange(12.0).reshape(2, 3, 2)
    assert [locate(values, row, 7) is None for row in (-1, 0, 2, 3, 6, 7, 9, 10)] == [
        True, False, False, True, True, False, False, True,
    ]  # fmt: skip
