"""DLPack capsules of both versions, made by hand: what is read, what is refused, how long memory is held."""

import ctypes as c
import functools

import numpy as np
import pytest
import smla
from arrays import Exporter
from smla._arrays import dlpack as _dlpack
from smla.tensor import device_of, stream_of
from test_tensor import norm, ones, refused


class Capsule:
    """Exports memory by hand, with fields of the DLTensor as given. let_go: called when a capsule ends."""

    def __init__(self, array, *, version=None, flags=0, device=(1, 0), strides=True, let_go=None, **fields):
        self.array, self.version, self.device = array, version, device
        self.shape = (c.c_int64 * max(array.ndim, 1))(*array.shape)
        self.strides = (c.c_int64 * max(array.ndim, 1))(
            *(stride // array.itemsize for stride in array.strides)
        )
        self.managed = _dlpack._Versioned() if version else _Legacy()
        if version:
            self.managed.major, self.managed.minor = version
            self.managed.flags = flags
        code = {"f": 2, "i": 0, "u": 1}[array.dtype.kind]
        tensor = {"data": array.ctypes.data, "device_type": 1, "ndim": array.ndim, "code": code, "lanes": 1}
        for name, value in {**tensor, "bits": 8 * array.itemsize, **fields}.items():
            setattr(self.managed.tensor, name, value)
        self.managed.tensor.shape = self.shape
        if strides:
            self.managed.tensor.strides = self.strides
        # Nobody renamed the capsule, so its own end is the end of the loan.
        self._end = _DESTROY(lambda capsule: let_go()) if let_go else _DESTROY()

    def __dlpack__(self, **keywords):
        if not self.version and "max_version" in keywords:
            raise TypeError("an exporter from before version 1")
        name = b"dltensor_versioned" if self.version else b"dltensor"
        return _new_capsule(c.addressof(self.managed), name, self._end)

    def __dlpack_device__(self):
        return self.device


class _Legacy(c.Structure):
    _fields_ = (("tensor", _dlpack._Tensor), ("context", c.c_void_p), ("deleter", c.c_void_p))


_DESTROY = c.CFUNCTYPE(None, c.c_void_p)
_new_capsule = c.PYFUNCTYPE(c.py_object, c.c_void_p, c.c_char_p, _DESTROY)(("PyCapsule_New", c.pythonapi))


class Loans:
    """Lends a copy at each export, and poisons it when it comes back. `open`: how many are out."""

    def __init__(self, array, version=(1, 0)):
        self.source, self.version, self.open, self.made, self._lent = array, version, 0, 0, []

    def __dlpack__(self, **keywords):
        lent = self.source.copy()
        capsule = Capsule(lent, version=self.version, let_go=lambda: self._back(lent))
        self._lent.append(capsule)
        self.open, self.made = self.open + 1, self.made + 1
        return capsule.__dlpack__(**({} if self.version is None else keywords))

    def _back(self, lent):
        lent.view(np.uint8)[...] = 0xFF
        self.open -= 1

    def __dlpack_device__(self):
        return 1, 0


@pytest.mark.parametrize("version", [None, (1, 0), (1, 7)], ids=str)
@pytest.mark.parametrize("strides", [True, False], ids=["strided", "dense"])
def test_capsules(version, strides):
    x = np.random.default_rng(2).standard_normal((2, 3, 4)).astype(np.float32)
    capsule = Capsule(x, version=version, strides=strides)
    np.testing.assert_array_equal(norm(capsule), norm(x))
    out = Capsule(np.zeros((2, 3, 4), np.float32), version=version, strides=strides)
    assert norm(x, out=out) is out
    np.testing.assert_array_equal(out.array, norm(x))
    far = Capsule(x, version=version, byte_offset=48)
    far.managed.tensor.data -= 48
    np.testing.assert_array_equal(norm(far), norm(x))


def test_16_bit_floats_are_told_apart():
    x = np.random.default_rng(5).standard_normal((2, 3, 4)).astype(np.float32)
    half = x.astype(np.float16)
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)  # NumPy has no bf16
    for held, exact in (
        (Capsule(half), half.astype(np.float32)),
        (Capsule(bits, code=4), (bits.astype(np.uint32) << 16).view(np.float32)),
    ):
        out = np.zeros_like(x)
        norm(held, out=out)
        np.testing.assert_array_equal(out, norm(exact))


@pytest.mark.parametrize("version", [None, (1, 0)], ids=str)
def test_memory_is_held_as_long_as_it_is_used(version):
    """Every capsule is let go exactly once: after the call, or with the object that was made over it."""
    plain = np.random.default_rng(3).standard_normal((2, 3, 4)).astype(np.float32)
    x = Loans(plain, version)
    np.testing.assert_array_equal(norm(x), norm(plain))
    assert x.made >= 1 and x.open == 0
    named = smla.tensor(x, "f32")
    again = smla.tensor(named, "f32")
    assert x.open == 1 and named.array is again.array is x
    del named
    np.testing.assert_array_equal(norm(again), norm(plain))
    assert x.open == 1
    del again
    assert x.open == 0


@pytest.mark.parametrize("named", [False, True])
def test_a_cache_holds_its_memory(named):
    rows = np.random.default_rng(4).standard_normal((2, 4, 8)).astype(np.float32)
    memory, scale = Loans(rows), Loans(np.full(1, 0.5, np.float32))
    cache = smla.Cache(smla.tensor(memory, "f32") if named else memory, "row_f32", 4)
    scaled = smla.Cache(np.full((1, 1, 576), 0x38, np.uint8), "fp8_576", 1, scale=scale)
    assert memory.open == scale.open == 1 and cache.array is memory
    out = np.zeros((8, 8), np.float32)
    smla.gather(cache, np.array([[0, 1]], np.int32), np.array([0, 8], np.int32), out)
    np.testing.assert_array_equal(out, rows.reshape(8, 8))
    wide = np.zeros((1, 576), np.float32)
    smla.gather(scaled, np.array([[0]], np.int32), np.array([0, 1], np.int32), wide)
    assert (wide == 0.5).all()
    del cache, scaled
    assert memory.open == scale.open == 0


def test_versions_and_flags():
    refused(Capsule(ones(), version=(2, 0)), "x")
    out = Capsule(ones(), version=(1, 0), flags=1)
    refused(out, "out", call=lambda out: norm(ones(), out=out))
    np.testing.assert_array_equal(norm(out), norm(ones()))  # read-only is fine for reading
    norm(ones(), out=Capsule(ones(), version=(1, 0), flags=2))  # a copy, but ours to write

    class Used(Capsule):
        def __dlpack__(self, **keywords):
            return _new_capsule(c.addressof(self.managed), b"used_dltensor", self._end)

    refused(Used(ones()), "x")


@pytest.mark.parametrize(
    "code, bits, lanes", [(5, 64, 1), (12, 8, 1), (2, 32, 2), (1, 16, 2), (3, 64, 1), (17, 4, 1)]
)
def test_types_of_dlpack_that_smla_has_not(code, bits, lanes):
    refused(Capsule(ones(), code=code, bits=bits, lanes=lanes), "x.dtype")
    for name in ("f64", "f32", "e4m3"):
        odd = Capsule(ones(), code=code, bits=bits, lanes=lanes)
        refused(odd, "tensor.dtype", call=lambda x, name=name: smla.tensor(x, name))


def test_devices_of_dlpack():
    pinned = Capsule(ones(), device=(3, 0))  # of the host, for a GPU
    np.testing.assert_array_equal(norm(pinned), norm(ones()))
    for device in (7, 8, 10, 14):  # Vulkan, Metal, ROCm, oneAPI
        error = refused(Capsule(ones(), device=(device, 0)), "x.device")
        assert str(device) in error.got


def test_memory_of_a_gpu_beside_that_of_the_host():
    """Only claimed here: nothing may follow the pointer."""
    for kind in (2, 13):  # CUDA, managed
        claimed = Capsule(ones(), device=(kind, 0), version=(1, 0), device_id=0)
        assert device_of(claimed) == (1, 0) and stream_of(claimed) is None
        refused(claimed, "args.weight.device", call=lambda weight: norm(ones(), weight=Capsule(
            np.ones(4, np.float32), device=weight.device)))  # fmt: skip
        scale = Capsule(np.ones(1, np.float32), device=(kind, 0))
        cache, rows = smla.Cache.empty("row_f32", 1, 2, width=4), np.zeros((2, 1), np.int32)
        attend = functools.partial(smla.attend, ones(), cache, rows)
        refused(scale, "softmax_scale.device", call=lambda s, attend=attend: attend(softmax_scale=s))
        with pytest.raises(smla.InvalidArgument, match="cache.scale"):
            smla.Cache(np.zeros((1, 2, 576), np.uint8), "fp8_576", 2, scale=scale)


def test_streams_are_named_to_exporters_of_a_gpu_alone():
    x = Exporter(ones())
    norm(x)
    assert x.calls and all("stream" not in keywords and keywords.get("max_version") for keywords in x.calls)


def test_an_exporter_that_fails():
    class Busy(Exporter):
        def __dlpack__(self, **keywords):
            raise BufferError("is on another device's stream")

    error = refused(Busy(ones()), "x")
    assert "another device's stream" in error.got


def test_shape_and_device_of_an_object_are_its_exports():
    """Attributes of the same names may mean anything in other libraries."""

    class Other(Exporter):
        shape, device, array, dtype = "?", (1, 0), None, "?"

    np.testing.assert_array_equal(norm(Other(ones())), norm(ones()))


def test_a_device_that_cannot_be_told():
    """As of JAX, whose arrays may lie on many."""

    class Spread(Exporter):
        def __dlpack_device__(self):
            raise BufferError("only supported for unsharded arrays")

    error = refused(Spread(ones()), "x")
    assert "unsharded" in error.got
