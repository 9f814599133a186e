"""Which arrays of NumPy, PyTorch and DLPack smla takes, as which dtype, and which it refuses."""

import numpy as np
import pytest
import smla
from arrays import Exporter
from numpy_formats import from_bits, to_bits
from smla.tensor import dtype_of, empty, shape_of

try:
    import torch
except ImportError:
    torch = None
needs_torch = pytest.mark.skipif(torch is None, reason="no PyTorch")


def norm(x, **options):
    """The stage that all of these arrays go through."""
    return smla.norm(x, eps=1e-6, **options)


def ones(dtype=np.float32, shape=(2, 3, 4)):
    return np.ones(shape, dtype)


def refused(x, field, kind=smla.InvalidArgument, call=norm):
    with pytest.raises(kind) as caught:
        call(x)
    assert caught.value.field == field, caught.value
    assert caught.value.got and caught.value.wanted and field in str(caught.value)
    return caught.value


# dtypes


@pytest.mark.parametrize(
    "dtype, name",
    [
        (np.float64, "f64"),
        (np.float32, "f32"),
        (np.float16, "f16"),
        (np.uint8, "u8"),
        (np.int32, "i32"),
        (np.int64, "i64"),
    ],
)
def test_numpy_dtypes(dtype, name):
    assert dtype_of(np.zeros(3, dtype), "x").name.lower() == name
    assert dtype_of(Exporter(np.zeros(3, dtype)), "x").name.lower() == name
    assert smla.tensor(np.zeros(3, dtype), dtype).dtype is smla.tensor(np.zeros(3, dtype), name).dtype


@needs_torch
@pytest.mark.parametrize(
    "dtype, name",
    [
        ("float64", "f64"),
        ("float32", "f32"),
        ("bfloat16", "bf16"),
        ("float16", "f16"),
        ("float8_e4m3fn", "e4m3"),
        ("float8_e8m0fnu", "e8m0"),
        ("uint8", "u8"),
        ("int32", "i32"),
        ("int64", "i64"),
    ],
)
def test_torch_dtypes(dtype, name):
    kind = getattr(torch, dtype)
    array = torch.zeros(2, 3, dtype=kind)
    assert dtype_of(array, "x").name.lower() == name and shape_of(array) == (2, 3)
    assert smla.tensor(array, kind).dtype is smla.tensor(array, dtype).dtype is smla.tensor(array, name).dtype
    assert dtype_of(Exporter(array), "x").name.lower() == name  # by DLPack's own codes


@needs_torch
@pytest.mark.parametrize("through", [lambda x: x, Exporter], ids=["torch", "dlpack"])
def test_pairs_of_e2m1(through):
    """An element of float4_e2m1fn_x2 is two values, by any library, and so is a byte named e2m1."""
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this PyTorch has no float4")
    array = torch.zeros(2, 3, 32, dtype=torch.uint8)
    pairs = array.view(torch.float4_e2m1fn_x2)
    if through is Exporter:
        try:
            pairs.__dlpack__()
        except (BufferError, RuntimeError):
            pytest.skip("this PyTorch cannot export float4")
    pairs = through(pairs)
    for named in (pairs, smla.tensor(pairs, "e2m1"), smla.tensor(through(array), "e2m1")):
        assert dtype_of(named, "x").name == "E2M1" and shape_of(named) == (2, 3, 64)
    w = torch.ones(2, 3)
    q = torch.randn(2, 3, 64)
    want = smla.quant_index_q(q, w, factor=1.0, dtype="e2m1")
    got = smla.quant_index_q(q, w, factor=1.0, q_out=pairs)
    assert torch.equal(array, want.q) and torch.equal(
        got.scales.view(torch.uint8), want.scales.view(torch.uint8)
    )


@pytest.mark.parametrize("through", [lambda x: x, Exporter], ids=["numpy", "dlpack"])
@pytest.mark.parametrize(
    "storage, dtype", [("uint16", "bf16"), ("int16", "bf16"), ("uint16", "f16"), ("uint32", "f32")]
)
def test_named_memory(through, storage, dtype):
    bits = to_bits(np.array([[[1.0, -2.0, 3.0, -4.0]]]), dtype)
    x = smla.tensor(through(bits.view(storage)), dtype)
    assert x.shape == (1, 1, 4) and x.device == (0, 0) and repr(x) == f"smla.Tensor({dtype} [1, 1, 4])"
    out = np.zeros((1, 1, 4), bits.dtype)
    norm(x, out=smla.tensor(out, dtype))
    want = np.array([1, -2, 3, -4]) / np.sqrt(7.5)
    np.testing.assert_allclose(from_bits(out, dtype)[0, 0], want, rtol=2.0**-8)


def test_a_tensor_of_a_tensor():
    whole = ones(np.uint16)
    view = smla.tensor(smla.tensor(whole, "bf16"), "bf16")
    assert view.array is whole and view.shape == whole.shape
    pairs = smla.tensor(smla.tensor(np.zeros((3, 8), np.uint8), "e2m1"), "e2m1")
    assert pairs.shape == (3, 16)
    refused(smla.tensor(whole, "bf16"), "tensor.dtype", call=lambda x: smla.tensor(x, "f16"))


@pytest.mark.parametrize(
    "dtype, name",
    [
        ("f2", "bf16"),  # of the right size, but not what it is
        ("f4", "bf16"),
        ("u1", "bf16"),
        ("f8", "i64"),
        (">u2", "bf16"),
        (">f4", "f32"),
        ("O", "f64"),
        ("c8", "f64"),
        ("M8[s]", "i64"),
        ("S4", "f32"),
    ],
)
def test_memory_that_is_not_what_its_name_says(dtype, name):
    array = np.zeros(4, dtype)
    refused(array, "tensor.dtype", call=lambda x: smla.tensor(x, name))
    if np.dtype(dtype).kind in "fc" and dtype[0] != ">":
        refused(Exporter(array), "tensor.dtype", call=lambda x: smla.tensor(x, name))


@needs_torch
@pytest.mark.parametrize(
    "dtype, name", [("float8_e5m2", "e4m3"), ("float8_e4m3fnuz", "e4m3"), ("complex64", "f64")]
)
def test_other_floats_of_torch(dtype, name):
    array = torch.zeros(2, 3, 4, dtype=getattr(torch, dtype))
    refused(array, "tensor.dtype", call=lambda x: smla.tensor(x, name))
    refused(array, "x.dtype")


@pytest.mark.parametrize("name", ["float", "bf8", "", None, 3, float, np.int8, object()])
def test_names_that_are_no_dtype(name):
    error = refused(ones(), "x.dtype", call=lambda x: smla.tensor(x, name, "x"))
    assert "bf16" in error.wanted and "float8_e4m3fn" in error.wanted


@pytest.mark.parametrize(
    "dtype", ["i1", "u2", "i2", "u4", "u8", "?", "c16", "O", "S4", ">f4", ">i4", "f16", "M8[s]"]
)
def test_dtypes_that_no_stage_has(dtype):
    refused(ones("f4").astype(dtype) if dtype != "M8[s]" else ones("i8").view(dtype), "x.dtype")


# what is no array


class Half:
    """Has one half of DLPack's protocol."""

    def __dlpack__(self, **keywords):
        raise AssertionError("never asked")


@pytest.mark.parametrize(
    "thing", [None, 1.0, "x", [[[1.0]]], (), {}, np.float32(1), Half(), object(), np.ones], ids=repr
)
def test_what_is_no_array(thing):
    error = refused(thing, "x")
    assert error.got == type(thing).__name__
    refused(thing, "tensor", call=lambda x: smla.tensor(x, "f32"))
    if thing is not None:  # there it means: not given
        refused(thing, "weight", call=lambda weight: norm(ones(), weight=weight))


# shapes and strides


@pytest.mark.parametrize(
    "through", [lambda x: x, Exporter, lambda x: smla.tensor(x, "f32")], ids=["numpy", "dlpack", "named"]
)
def test_views(through):
    base = np.random.default_rng(0).standard_normal((6, 8, 10)).astype(np.float32)
    for view in (
        base[1:5, 2:7, 3:8],
        base[::2, ::3],
        base.transpose(2, 0, 1),
        base[:, :1],
        base[2:2],
        base[:0, :0],
    ):
        want = norm(view.copy())
        np.testing.assert_array_equal(norm(through(view)), want)
        whole = np.full((21, 11, 12), 7, np.float32)
        out = whole[: 2 * len(view) : 2, 1 : 1 + view.shape[1], : view.shape[2]]
        norm(view, out=through(out))
        np.testing.assert_array_equal(out, want)
        out[...] = 7
        assert (whole == 7).all()


def test_dtypes_that_the_buffer_protocol_cannot_name(monkeypatch):
    """Such as those of ml_dtypes, whose arrays ctypes refuses to read."""

    def refuse(array):
        raise ValueError("cannot include dtype 'E' in a buffer")

    want = norm(ones())
    from smla._arrays import numpy as module

    monkeypatch.setattr(module, "_first_byte", refuse)
    np.testing.assert_array_equal(norm(ones()), want)


@needs_torch
def test_torch_views():
    base = torch.randn(6, 8, 10)
    for view in (
        base[1:5, 2:7, 3:8],
        base[::2, ::3],
        base.transpose(0, 1),
        base[2:2],
        base[:0],
        base.expand(6, 8, 10),
    ):
        assert torch.equal(norm(view), norm(view.clone()))
    shared = torch.randn(1, 1, 10).expand(4, 3, 10)  # inputs may repeat memory
    assert torch.equal(norm(shared), norm(shared.contiguous()))
    empty_strides = torch.from_numpy(np.ones((0, 2, 4), np.float32))  # all strides are 0
    assert norm(empty_strides).shape == (0, 2, 4)


BAD_VIEWS = {"first": lambda x: x[::-1], "all": lambda x: x[::-1, ::-1, ::-1], "last": lambda x: x[..., ::-1]}


@pytest.mark.parametrize(
    "through", [lambda x: x, Exporter, lambda x: smla.tensor(x, "f32")], ids=["numpy", "dlpack", "named"]
)
@pytest.mark.parametrize("view", BAD_VIEWS)
def test_strides_that_no_stage_takes(view, through):
    with pytest.raises(smla.InvalidArgument) as caught:
        norm(through(BAD_VIEWS[view](ones())))
    assert caught.value.field.startswith("args.x.stride_elems[")


def test_odd_bytes():
    raw = np.zeros(200, np.uint8)
    odd = np.ndarray((2, 3, 4), np.float32, raw, strides=(50, 17, 4))
    refused(odd, "x.stride")
    refused(odd, "out.stride", call=lambda out: norm(ones(), out=out))
    away = np.ndarray((2, 3, 4), np.float32, raw, offset=1)
    refused(away, "args.x.data")
    refused(smla.tensor(away, "f32"), "args.x.data")
    within = np.zeros(24, [("tag", "u1"), ("value", "f4")])["value"].reshape(
        2, 3, 4
    )  # a field of packed records
    refused(within, "x.stride")


@pytest.mark.parametrize("through", [lambda x: x, Exporter, lambda x: smla.tensor(x, "f32", "weight")])
def test_five_dimensions_and_none(through):
    many, none = np.ones((1, 1, 1, 2, 4), np.float32), np.array(1, np.float32)
    refused(many, "weight.ndim", call=lambda x: norm(ones(), weight=through(x)))
    refused(none, "weight.ndim", call=lambda x: norm(ones(), weight=through(x)))  # not the same as no weight
    refused(none, "args.x.shape" if through is None else "x.ndim", call=lambda x: norm(through(x)))


@needs_torch
def test_five_dimensions_and_none_of_torch():
    refused(torch.ones(1, 1, 1, 2, 4), "weight.ndim", call=lambda x: norm(ones(), weight=x))
    refused(torch.tensor(1.0), "weight.ndim", call=lambda x: norm(ones(), weight=x))


# outputs


@pytest.mark.parametrize("through", [lambda x: x, Exporter, lambda x: smla.tensor(x, "f32", "out")])
def test_read_only_outputs(through):
    out = np.full((2, 3, 4), 7, np.float32)
    out.flags.writeable = False
    refused(through(out), "out", call=lambda out: norm(ones(), out=out))
    assert (out == 7).all()
    frozen = ones()
    frozen.flags.writeable = False
    norm(through(frozen))  # as an input it is fine
    refused(frozen, "out", call=lambda x: norm(x, out=x))
    refused(frozen, "out", call=lambda x: smla.rope(x, np.zeros(2, np.int32), np.ones(2), out=x))
    cache = smla.Cache(through(np.frombuffer(bytes(32), np.float32)), "row_f32", 2, width=4)
    refused(cache, "cache.data", call=lambda kept: smla.write_kv(ones()[:, 0], np.arange(2), kept))


def test_outputs_that_share_memory():
    one = np.zeros(4, np.float32)
    repeated = np.lib.stride_tricks.as_strided(one, (2, 3, 4), (0, 0, 4))
    for out in (repeated, smla.tensor(repeated, "f32"), Exporter(repeated)):
        refused(out, "out.stride", call=lambda out: norm(ones(), out=out))
    assert not one.any()
    norm(ones(shape=(1, 1, 4)), out=repeated[:1, :1])  # nothing is shared there
    assert one.all()


@needs_torch
def test_torch_outputs_that_share_memory():
    refused(torch.zeros(1, 1, 4).expand(2, 3, 4), "out.stride", call=lambda out: norm(ones(), out=out))


@needs_torch
def test_libraries_mix_on_a_processor():
    x, out = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32), torch.zeros(2, 3, 4)
    assert norm(x, out=out) is out
    np.testing.assert_array_equal(out.numpy(), norm(Exporter(x)))
    assert isinstance(norm(torch.from_numpy(x)), torch.Tensor) and isinstance(norm(Exporter(x)), np.ndarray)


def test_outputs_come_back_as_they_were_given():
    bits, exporter = np.zeros((2, 3, 4), np.uint16), Exporter(np.zeros((2, 3, 4), np.float32))
    assert norm(ones(), out=smla.tensor(bits, "bf16")) is bits
    assert norm(ones(), out=exporter) is exporter
    named = Exporter(bits)
    assert norm(ones(), out=smla.tensor(named, "bf16")) is named


@needs_torch
def test_a_torch_without_e8m0(monkeypatch):
    monkeypatch.delattr(torch, "float8_e8m0fnu")
    got = smla.quant_index_q(torch.randn(1, 2, 64), torch.ones(1, 2), factor=1.0, dtype="e2m1")
    assert got.scales.dtype is torch.uint8 and got.scales.shape == (1, 2, 2) and got.scales.all()


def test_new_arrays():
    assert empty(ones(), (2, 4), "bf16").dtype == np.uint16 and empty(
        Exporter(ones()), (3,), "i32"
    ).shape == (3,)
    assert empty(smla.tensor(Exporter(ones(np.uint16)), "bf16"), (2, 4), "e2m1").shape == (2, 2)
    if torch is not None:
        assert empty(smla.tensor(torch.ones(2), "f32"), (2, 4), "e4m3").dtype is torch.float8_e4m3fn


# PyTorch's own states


@needs_torch
def test_tensors_that_require_grad():
    x = torch.ones(2, 3, 4, requires_grad=True)
    error = refused(x, "x", smla.Unsupported)
    assert "no_grad" in str(error) and isinstance(error, NotImplementedError)
    refused(x, "out", smla.Unsupported, call=lambda out: norm(ones(), out=out))
    refused(torch.nn.Parameter(x.detach()), "x", smla.Unsupported)
    refused(Exporter(x), "x")  # PyTorch will not export it
    with torch.no_grad():
        assert not norm(x).requires_grad
        norm(torch.nn.Parameter(x.detach()))
    with torch.inference_mode():
        norm(torch.ones(2, 3, 4))
    norm(x.detach())


@needs_torch
def test_tensor_subclasses():
    class Named(torch.Tensor):
        pass

    x = torch.randn(2, 3, 4)
    out = norm(x.as_subclass(Named), out=torch.zeros(2, 3, 4).as_subclass(Named))
    assert type(out) is Named and torch.equal(out.as_subclass(torch.Tensor), norm(x))


@needs_torch
@pytest.mark.filterwarnings("ignore:Sparse")
def test_tensors_without_plain_memory():
    x = torch.randn(2, 3, 4)
    refused(torch.zeros(2, 3, 4, dtype=torch.complex64).conj().imag, "x")  # lazily negative
    refused(torch.view_as_complex(torch.zeros(2, 3, 4, 2)).conj(), "x.dtype")
    refused(x.to_sparse(), "x")
    refused(x[0].to_sparse_csr(), "weight", call=lambda w: norm(x, weight=w))
    if torch.backends.mkldnn.is_available():
        refused(x.to_mkldnn(), "x")
    error = refused(torch.ones(2, 3, 4, device="meta"), "x.device")
    assert error.got == "meta"


def test_numpy_subclasses(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 3, 4))
    mapped[...] = 3
    np.testing.assert_allclose(norm(mapped), 1, rtol=1e-6)
    norm(ones(), out=mapped)
    np.testing.assert_allclose(np.array(mapped), 1, rtol=1e-6)
    frozen = np.memmap(tmp_path / "x", np.float32, "r", shape=(2, 3, 4))
    refused(frozen, "out", call=lambda out: norm(ones(), out=out))
