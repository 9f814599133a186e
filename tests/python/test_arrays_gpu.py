"""Arrays of CuPy and of JAX on a GPU: results, views, streams, and what is refused.

Each test of a way to hand arrays over also runs with NumPy, so that a machine without a GPU tries it.
"""

import os

import numpy as np
import pytest
import smla
from numpy_formats import from_bits, to_bits
from test_stages import calls, same_as_with_numpy

TOLERANCE = 2.0**-7  # as of the other comparisons of a GPU with a CPU: bf16 results
TOKENS, HEADS, LISTED, PAGES, PAGE = 5, 16, 96, 4, 64


class Numpy:
    """A library: how its arrays are made and read back. `kind`: their type."""

    name, kind = "numpy", np.ndarray
    asarray = staticmethod(np.asarray)
    asnumpy = staticmethod(np.asarray)

    def empty(self, shape, dtype):
        return self.asarray(np.full(shape, 0x7F, dtype))

    def address(self, array):
        return array.ctypes.data


class Cupy(Numpy):
    name = "cupy"

    def __init__(self):
        self.cupy = pytest.importorskip("cupy", reason="no CuPy")
        self.kind, self.asarray, self.asnumpy = self.cupy.ndarray, self.cupy.asarray, self.cupy.asnumpy

    def address(self, array):
        return array.data.ptr


class Torch(Numpy):
    name = "torch"

    def __init__(self):
        self.torch = pytest.importorskip("torch", reason="no PyTorch")
        self.kind = self.torch.Tensor

    def asarray(self, array):
        return self.torch.from_numpy(array.copy()).cuda()

    def asnumpy(self, array):
        return array.cpu().numpy()


LIBRARIES = {kind.name: kind for kind in (Numpy, Cupy, Torch)}


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def library(request):
    return LIBRARIES[request.param]()


@pytest.fixture
def cupy():
    return Cupy()


def problem(seed=3):
    """Arguments of attend, as NumPy arrays: bf16 as its bits."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-1, PAGES * PAGE, (TOKENS, LISTED), np.int32)
    lengths = np.array([0, 1, LISTED // 2, LISTED - 1, LISTED], np.int32)
    return {
        "q": to_bits(rng.standard_normal((TOKENS, HEADS, 576)), "bf16"),
        "rows": rows,
        "lengths": lengths,
        "sink": rng.standard_normal(HEADS).astype(np.float32),
    }


def cache_memory(format, seed=4):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((PAGES * PAGE, 576)).astype(np.float32)
    width = {"width": 576} if format == "row_bf16" else {}
    cache = smla.Cache.empty(format, PAGES, PAGE, **width)
    slots = np.arange(PAGES * PAGE)
    smla.write_kv(values[:, :512].copy(), slots, cache, tail=values[:, 512:].copy())
    return cache.array if format == "fp8_656" else cache.array.view(np.uint16).reshape(PAGES, PAGE, 576)


def attend(arrays, memory, format, **options):
    """smla.attend; q of bits."""
    q = smla.tensor(arrays["q"], "bf16")
    pages = PAGES if format == "fp8_656" else None
    cache = smla.Cache(memory, format, PAGE, pages=pages)
    inputs = {name: arrays[name] for name in ("rows", "lengths", "sink")}
    return smla.attend(q, cache, softmax_scale=0.05, lse=options.pop("lse", True), **inputs, **options)


def wanted(arrays, memory, format):
    """(out, lse) of the CPU."""
    out = np.empty((TOKENS, HEADS, 512), np.float32)
    got = attend(arrays, memory, format, out=out)
    assert got.out.any(axis=(1, 2)).tolist() == [False, *[True] * (TOKENS - 1)]
    return out, got.lse


def same(out, lse, want):
    np.testing.assert_allclose(from_bits(out, "bf16"), want[0], rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(lse, want[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("given", [False, True], ids=["allocated", "given"])
@pytest.mark.parametrize("format", ["row_bf16", "fp8_656"])
def test_attend(library, format, given):
    arrays, memory = problem(), cache_memory(format)
    want = wanted(arrays, memory, format)
    mine = {name: library.asarray(array) for name, array in arrays.items()}
    options, places = {}, []
    if given:
        out = library.empty((TOKENS, HEADS, 512), np.uint16)
        lse = library.empty((TOKENS, HEADS), np.float32)
        options = {"out": smla.tensor(out, "bf16"), "lse": lse}
        places = [library.address(out), library.address(lse)]
    got = attend(mine, library.asarray(memory), format, **options)
    assert type(got.out) is type(got.lse) is library.kind
    assert got.out.dtype == np.uint16 and got.lse.dtype == np.float32
    if given:  # no copies
        assert got.out is out and got.lse is lse
        assert [library.address(got.out), library.address(got.lse)] == places
    if library.name == "cupy":
        assert got.out.device == got.lse.device == mine["q"].device
    same(library.asnumpy(got.out), library.asnumpy(got.lse), want)


def spread(array):
    """The same values in a larger array of others, rows apart and shifted: (all of it, the view)."""
    whole = np.full([extent + 3 for extent in array.shape], 0x7F, array.dtype)
    inside = tuple(slice(1, 1 + extent) for extent in array.shape)
    whole[inside] = array
    return whole, inside


def test_views(library):
    arrays, memory = problem(5), cache_memory("row_bf16")
    want = wanted(arrays, memory, "row_bf16")
    mine = {}
    for name, array in arrays.items():
        whole, inside = spread(array)
        # The kernels of a GPU read whole vectors: rows of q start at multiples of 16 bytes.
        if name == "q":
            whole = np.full((TOKENS + 2, HEADS + 3, 576 + 64), 0x7F, array.dtype)
            inside = (slice(1, 1 + TOKENS), slice(2, 2 + HEADS), slice(32, 32 + 576))
            whole[inside] = array
        mine[name] = library.asarray(whole)[inside]
    whole = library.empty((TOKENS, HEADS + 2, 512 + 64), np.uint16)
    before = library.asnumpy(whole).copy()
    out = whole[:, 1 : 1 + HEADS, 32 : 32 + 512]
    got = attend(mine, library.asarray(memory), "row_bf16", out=smla.tensor(out, "bf16"))
    assert got.out is out
    after = library.asnumpy(whole)
    same(after[:, 1 : 1 + HEADS, 32 : 32 + 512], library.asnumpy(got.lse), want)
    after[:, 1 : 1 + HEADS, 32 : 32 + 512] = before[:, 1 : 1 + HEADS, 32 : 32 + 512]
    np.testing.assert_array_equal(after, before)


def test_codes_of_e4m3(library):
    """Queries that are bytes, as the indexer's."""
    rng = np.random.default_rng(6)
    q, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 32, 128), (3, 32)))
    keys = smla.Cache.empty("index_fp8_132", 2, 64)
    smla.write_index(rng.standard_normal((128, 128)).astype(np.float32), np.arange(128), keys)
    codes = np.empty(q.shape, np.uint8)
    quantized = smla.quant_index_q(q, w, factor=1.0, q_out=smla.tensor(codes, "e4m3"))
    ends = np.array([128, 1, 77], np.int32)
    want = smla.score(smla.tensor(codes, "e4m3"), quantized.w, keys, ends)
    mine = smla.Cache(library.asarray(keys.array), "index_fp8_132", 64, pages=2)
    given = smla.tensor(library.asarray(codes), "e4m3"), library.asarray(quantized.w)
    got = smla.score(*given, mine, library.asarray(ends))
    assert type(got) is library.kind
    assert np.abs(want[0]).mean() > 1  # and not lost in the tolerance
    np.testing.assert_allclose(library.asnumpy(got), want, rtol=TOLERANCE, atol=TOLERANCE)
    new = smla.quant_index_q(library.asarray(q), library.asarray(w), factor=1.0)
    assert type(new.q) is library.kind and new.q.dtype == np.uint8
    mine, theirs = from_bits(library.asnumpy(new.q), "e4m3"), from_bits(codes, "e4m3")
    np.testing.assert_allclose(mine, theirs, rtol=2.0**-3, atol=2.0**-8)  # a code's distance


@pytest.mark.parametrize("name", sorted(calls()))
def test_every_stage(name, library):
    """As with NumPy, what is written in place too."""
    got = same_as_with_numpy(name, library.asarray, library.asnumpy, library.kind, TOLERANCE)
    assert all(type(mine) is library.kind for mine in got)


@pytest.mark.gpu
@pytest.mark.parametrize("field", ["q", "rows", "lengths", "sink", "out", "lse", "cache"])
def test_memory_of_the_host_beside_that_of_the_gpu(field, cupy):
    arrays, memory = problem(), cache_memory("row_bf16")
    mine = {name: cupy.asarray(array) for name, array in arrays.items() if name != field}
    options = {"out": cupy.empty((TOKENS, HEADS, 512), np.float32), "lse": cupy.empty((TOKENS, HEADS), "f4")}
    options.update({field: cupy.asnumpy(options[field])} if field in options else {})
    memory = memory if field == "cache" else cupy.asarray(memory)
    with pytest.raises(smla.InvalidArgument) as caught:
        attend({**arrays, **mine}, memory, "row_bf16", context=smla.default_context("cuda"), **options)
    error = caught.value
    assert field in error.field and "device" in error.field and error.got and error.wanted, error
    assert "cpu" in error.got.lower()


# streams

_LATE = r"""
extern "C" __global__ void late(const unsigned short* from, unsigned short* to, int n, long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {}
    for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i];
}
"""
CYCLES = 300_000_000  # some 150 ms


@pytest.fixture
def late(cupy):
    """late(from, to): copies after a long while, on the current stream."""
    kernel = cupy.cupy.RawKernel(_LATE, "late")

    def copy(source, target, cycles=CYCLES):
        kernel((1,), (256,), (source, target, np.int32(source.size), np.int64(cycles)))

    one = cupy.asarray(np.zeros(1, np.uint16))
    copy(one, one, cycles=1)  # compiled before a clock runs
    cupy.cupy.cuda.Device().synchronize()
    return copy


def a_stream(cupy, kind):
    cuda = cupy.cupy.cuda
    return {
        "default": lambda: cuda.Stream.null,
        "of the thread": lambda: cuda.Stream.ptds,
        "blocking": cuda.Stream,
        "of its own": lambda: cuda.Stream(non_blocking=True),
    }[kind]()


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["current", "named"])
@pytest.mark.parametrize("kind", ["default", "of the thread", "blocking", "of its own"])
def test_calls_follow_the_stream_and_wait_for_nothing(kind, how, cupy, late):
    """Behind slow work that writes the input, without a wait by anyone in between."""
    arrays, memory = problem(), cache_memory("row_bf16")
    want = wanted(arrays, memory, "row_bf16")
    mine, memory = {name: cupy.asarray(array) for name, array in arrays.items()}, cupy.asarray(memory)
    source, mine["q"] = mine["q"], cupy.empty(arrays["q"].shape, np.uint16)
    out, lse = cupy.empty((TOKENS, HEADS, 512), np.uint16), cupy.empty((TOKENS, HEADS), np.float32)
    stream = a_stream(cupy, kind)
    options = {"out": smla.tensor(out, "bf16"), "lse": lse}

    def call():
        if how == "current":
            with stream:
                attend(mine, memory, "row_bf16", **options)
        else:
            attend(mine, memory, "row_bf16", stream=stream.ptr, **options)

    call()  # loads kernels and grows the workspace
    cupy.cupy.cuda.Device().synchronize()
    with stream:
        late(source, mine["q"])
    call()
    assert not stream.done  # the call came back long before
    stream.synchronize()
    same(cupy.asnumpy(out), cupy.asnumpy(lse), want)


# JAX: inputs alone


@pytest.fixture
def jax():
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other tests share the GPU
    module = pytest.importorskip("jax", reason="no JAX")
    try:
        device = module.devices("gpu")[0]
    except RuntimeError as error:
        pytest.skip(f"no GPU in JAX: {error}")
    with module.default_device(device):
        yield module


@pytest.fixture(params=["cupy", "torch"])
def beside(request):
    """Another library, of the outputs and of the workspace."""
    return LIBRARIES[request.param]()


def jax_call(jax, beside, arrays, memory, **options):
    """attend of JAX's arrays in a context without workspaces of its own: (arguments, keywords)."""
    context = options.pop("context", None) or smla.Context("cuda")
    cache = smla.Cache(memory, "row_bf16", PAGE)
    like = beside.empty((1,), np.float32)
    keywords = {
        "softmax_scale": 0.05,
        "out": beside.empty((TOKENS, HEADS, 512), np.float32),
        "lse": beside.empty((TOKENS, HEADS), np.float32),
        "context": context,
        "workspace": context.workspace(like=like),
    }
    keywords.update({name: arrays[name] for name in ("lengths", "sink")}, **options)
    return (arrays["q"], cache, arrays["rows"]), keywords


def on_jax(jax, arrays):
    bf16 = {"q": arrays["q"].view(np.dtype(jax.numpy.bfloat16))}
    return {name: jax.device_put(array) for name, array in {**arrays, **bf16}.items()}


def same_floats(library, out, lse, want):
    np.testing.assert_allclose(library.asnumpy(out), want[0], rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(library.asnumpy(lse), want[1], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_inputs_of_jax(jax, beside):
    arrays, memory = problem(), cache_memory("row_bf16")
    want = wanted(arrays, memory, "row_bf16")
    mine, held = on_jax(jax, arrays), jax.device_put(memory.view(np.dtype(jax.numpy.bfloat16)))
    arguments, keywords = jax_call(jax, beside, mine, held)
    got = smla.attend(*arguments, **keywords)
    assert got.out is keywords["out"] and got.lse is keywords["lse"]
    same_floats(beside, got.out, got.lse, want)


@pytest.mark.gpu
def test_what_jax_cannot_give(jax, beside):
    arrays, memory = problem(), cache_memory("row_bf16")
    mine, held = on_jax(jax, arrays), jax.device_put(memory.view(np.dtype(jax.numpy.bfloat16)))
    arguments, keywords = jax_call(jax, beside, mine, held)
    for name, field in (("out", "out"), ("lse", "out"), ("workspace", "workspace")):
        left = {**keywords, name: True if name == "lse" else None}
        with pytest.raises(smla.InvalidArgument) as caught:
            smla.attend(*arguments, **left)
        assert caught.value.field == field and caught.value.wanted
    frozen = jax.numpy.zeros((TOKENS, HEADS, 512))
    with pytest.raises(smla.InvalidArgument, match="read-only"):
        smla.attend(*arguments, **{**keywords, "out": frozen})
    with pytest.raises(smla.InvalidArgument, match="read-only"):
        smla.write_kv(mine["sink"].reshape(1, HEADS), mine["lengths"][:1], smla.Cache(held, "row_bf16", PAGE))


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["q", "cache", "named"])
@pytest.mark.parametrize("kind", ["default", "of its own"])
def test_calls_wait_for_what_jax_computes(kind, place, jax, cupy):
    """JAX returns arrays before they are computed, by streams of its own; nobody waits here either."""
    arrays, memory = problem(), cache_memory("row_bf16")
    want = wanted(arrays, memory, "row_bf16")
    mine, held = on_jax(jax, arrays), jax.device_put(memory.view(np.dtype(jax.numpy.bfloat16)))
    slow = jax.numpy.full((4096, 4096), 2.0**-12)

    @jax.jit
    def later(values, slow, nothing):
        power = jax.lax.fori_loop(0, 40, lambda _, x: x @ slow, slow)
        return values + (power[0, 0] * nothing).astype(values.dtype)

    nothing = jax.device_put(np.float32(0))
    source = held if place == "cache" else mine["q"]
    later(source, slow, nothing).block_until_ready()
    stream = a_stream(cupy, kind)
    context = smla.Context("cuda")
    for _ in range(2):  # the first call loads kernels, and may wait
        computed = later(source, slow, nothing)
        held_now = computed if place == "cache" else held
        mine_now = {**mine, "q": mine["q"] if place == "cache" else computed}
        if place == "named":
            mine_now["q"] = smla.tensor(computed, "bf16")
        with stream:  # that fills the outputs
            arguments, keywords = jax_call(jax, cupy, mine_now, held_now, context=context)
        got = smla.attend(*arguments, **keywords, stream=stream.ptr)
        stream.synchronize()
        same_floats(cupy, got.out, got.lse, want)
