"""norm, rope and the products against float64 NumPy. Bounds: how often f32 rounds, on what is added up."""

import numpy as np
import pytest
import smla
from arrays import padded, worlds
from numpy_formats import from_bits, rounded, to_bits
from numpy_model import U, norm, project, rope

ROUNDING = {"f64": 2.0**-53, "f32": U, "bf16": 2.0**-8, "f16": 2.0**-11}
TYPES = [("f32", "f32"), ("bf16", "f32"), ("f16", "bf16"), ("bf16", "f16"), ("f64", "f64"), ("f32", "f64")]


def expect_close(bits, dtype, want, magnitude, roundings):
    """An output that was rounded so often in its arithmetic, then once to its type."""
    unit = 2.0**-53 if dtype == "f64" else U
    bound = roundings * unit * magnitude + ROUNDING[dtype] * np.abs(want) + 2.0**-25 * (dtype == "f16")
    assert (np.abs(from_bits(bits, dtype) - want) <= bound).all()


@worlds()
@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norm(world, kind, types, shape=(3, 2, 37)):
    rng = np.random.default_rng(50)
    dtype, out_dtype = types
    x = rounded(rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 3, (*shape[:2], 1)), dtype)
    x[0, 0] = 0  # eps alone
    weight, bias = (rounded(rng.standard_normal(shape[-1]), "bf16") for _ in range(2))
    out = world.guarded(shape, out_dtype)
    got = smla.norm(
        world.wrap(padded(to_bits(x, dtype)), dtype),
        world.wrap(to_bits(weight, "bf16"), "bf16"),
        world.wrap(to_bits(bias, "bf16"), "bf16") if kind == "layer" else None,
        eps=1e-5,
        kind=kind,
        out=out.array,
        context=world.context,
    )
    assert world.bits(got).shape == shape
    want, magnitude = norm(x, 1e-5, weight, bias if kind == "layer" else None, kind == "layer")
    expect_close(out.check(), out_dtype, want, magnitude, 3 * shape[-1] + 12)


@worlds()
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_norm_in_place_and_without_weight(world, dtype):
    rng = np.random.default_rng(51)
    x = rounded(rng.standard_normal((2, 3, 8)), dtype)
    array = world.wrap(to_bits(x, dtype), dtype)
    fresh = smla.norm(array, eps=1e-6, context=world.context)
    want, magnitude = norm(x, 1e-6)
    expect_close(world.bits(fresh), dtype, want, magnitude, 40)
    np.testing.assert_array_equal(from_bits(world.bits(plain(array)), dtype), x)  # x is as it was
    smla.norm(array, eps=1e-6, out=array, context=world.context)
    np.testing.assert_array_equal(world.bits(plain(array)), world.bits(fresh))


def plain(array):
    return array.array if isinstance(array, smla.Tensor) else array


@worlds()
@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("half", [False, True], ids=["interleaved", "half"])
@pytest.mark.parametrize("first, inverse", [(0, False), (5, True)])
def test_rope(world, half, first, inverse, types, shape=(4, 3, 21), pairs=7):
    rng = np.random.default_rng(52)
    dtype, out_dtype = types
    x = rounded(rng.standard_normal(shape), dtype)
    positions = np.array([0, 1_000_003, 17, 2**31 - 1])
    frequencies = 10000.0 ** -(np.arange(pairs) / pairs)
    want, magnitude = rope(x, positions, frequencies, first, half, inverse)
    rotated = slice(first, first + 2 * pairs)
    for width, part in ((shape[-1], slice(None)), (2 * pairs, rotated)):
        for position_type in ("i32", "i64"):
            out = world.guarded((*shape[:2], width), out_dtype)
            smla.rope(
                world.wrap(padded(to_bits(x, dtype)), dtype),
                world.wrap(to_bits(positions, position_type), position_type),
                world.wrap(frequencies, "f64"),
                style="half" if half else "interleaved",
                first=first,
                inverse=inverse,
                out=out.array,
                context=world.context,
            )
            expect_close(out.check(), out_dtype, want[..., part], magnitude[..., part], 4)


@worlds()
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rope_in_place_and_back(world, dtype):
    rng = np.random.default_rng(53)
    x = rounded(rng.standard_normal((3, 2, 12)), dtype)
    positions = world.wrap(np.array([5, 900, 31], np.int32), "i32")
    frequencies = world.wrap(np.array([1.0, 0.3, 0.01]), "f64")
    array = world.wrap(to_bits(x, dtype), dtype)
    fresh = smla.rope(array, positions, frequencies, first=6, context=world.context)
    same = smla.rope(array, positions, frequencies, first=6, out=array, context=world.context)
    np.testing.assert_array_equal(world.bits(same), world.bits(fresh))
    np.testing.assert_array_equal(from_bits(world.bits(plain(array)), dtype)[..., :6], x[..., :6])
    assert (from_bits(world.bits(plain(array)), dtype)[..., 6:] != x[..., 6:]).mean() > 0.9
    smla.inverse_rope(array, positions, frequencies, first=6, out=array, context=world.context)
    back = from_bits(world.bits(plain(array)), dtype)
    np.testing.assert_allclose(back, x, rtol=0, atol=4 * 2 * ROUNDING[dtype] * np.abs(x).max())


@worlds()
@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_project(world, types, transposed, tokens=5, groups=3, k=33, n=19):
    rng = np.random.default_rng(54)
    dtype, out_dtype = types
    x, w = rounded(rng.standard_normal((tokens, groups, k)), dtype), rng.standard_normal((groups, n, k))
    w_dtype = "bf16" if dtype == "bf16" else dtype
    bits = to_bits(w, w_dtype)
    view = (
        padded(np.ascontiguousarray(bits.transpose(0, 2, 1))).transpose(0, 2, 1)
        if transposed
        else padded(bits)
    )
    out = world.guarded((tokens, groups, n), out_dtype)
    arguments = world.wrap(padded(to_bits(x, dtype)), dtype), world.wrap(view, w_dtype)
    want, magnitude = project(x, from_bits(bits, w_dtype))
    smla.project(*arguments, out=out.array, context=world.context)
    expect_close(out.check(), out_dtype, want, magnitude, k + 2)
    for alias in (smla.absorb, smla.up_project, smla.out_project):
        again = alias(*arguments, out_dtype=out_dtype, context=world.context)
        expect_close(world.bits(again), out_dtype, want, magnitude, k + 2)


@worlds()
@pytest.mark.parametrize("shape", [(0, 2, 8), (3, 0, 8)])
def test_linear_stages_of_nothing(world, shape):
    tokens, groups, width = shape
    x = world.wrap(np.ones(shape, np.float32), "f32")
    positions = world.wrap(np.zeros(tokens, np.int32), "i32")
    frequencies = world.wrap(np.ones(2), "f64")
    w = world.wrap(np.ones((groups, 5, width), np.float32), "f32")
    assert world.bits(smla.norm(x, eps=1e-6, context=world.context)).shape == shape
    assert world.bits(smla.rope(x, positions, frequencies, context=world.context)).shape == shape
    assert world.bits(smla.project(x, w, context=world.context)).shape == (tokens, groups, 5)


def test_outputs_follow_their_input():
    x = np.ones((2, 1, 4), np.float16)
    w = np.ones((1, 3, 4), np.float32)
    assert smla.norm(x, eps=1e-6).dtype == np.float16
    assert smla.project(x, w).dtype == np.float16 and smla.project(x, w, out_dtype="f32").dtype == np.float32
    bf16 = smla.project(x, w, out_dtype="bf16")  # NumPy has none: bits
    assert bf16.dtype == np.uint16 and (from_bits(bf16, "bf16") == 4).all()


@pytest.mark.parametrize("w_dtype", ["f64", "f32", "bf16", "f16"])
@pytest.mark.parametrize("x_dtype", ["f64", "f32", "bf16", "f16"])
@pytest.mark.parametrize("name", ["project", "absorb", "up_project", "out_project"])
def test_products_of_mixed_types(name, x_dtype, w_dtype, shape=(3, 2, 5, 40)):
    """Values are multiplied as they are: rounding either one to the other's type would show."""
    tokens, groups, columns, inner = shape
    rng = np.random.default_rng(60)
    x = rounded(rng.standard_normal((tokens, groups, inner)), x_dtype)
    w = rounded(rng.standard_normal((groups, columns, inner)), w_dtype)
    arrays = [smla.tensor(to_bits(x, x_dtype), x_dtype), smla.tensor(to_bits(w, w_dtype), w_dtype)]
    got = getattr(smla, name)(*arrays, out_dtype="f32")
    want, magnitude = project(x, w)
    expect_close(got, "f32", want, magnitude, inner + 4)
    wide = getattr(smla, name)(*arrays, out_dtype="f64")
    expect_close(wide, "f64", want, magnitude, inner + 4)
    assert getattr(smla, name)(*arrays).dtype == to_bits(x, x_dtype).dtype  # by default x's
