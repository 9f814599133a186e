"""How arrays that claim to lie on a GPU are taken, where there need be none: nothing follows their pointers.

Streams by the Python specification of DLPack: 1 is the legacy default stream, 2 that of the thread, others
are addresses; 0 is not allowed, None leaves it to the exporter, and -1 waits for nothing.
"""

import struct
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import smla
from smla._abi import Dtype
from smla._arrays import TORCH, on_device
from smla._arrays.interface import PACKED
from smla.plan import fill_batch
from smla.tensor import describe, device_of, dtype_of, empty, shape_of, stream_of
from test_dlpack import Capsule
from test_tensor import norm, ones, refused


class Claimed(Capsule):
    """An array of a GPU, it says. `calls`: keyword arguments of each __dlpack__."""

    def __init__(self, array, kind=2, version=(1, 0)):
        super().__init__(array, version=version, device=(kind, 0), device_id=0)
        self.calls = []

    def __dlpack__(self, **keywords):
        self.calls.append(keywords)
        return super().__dlpack__(**keywords)

    @property
    def streams(self):
        """That were named to it; a call that named none counts as None."""
        return [keywords.get("stream") for keywords in self.calls]


def on_claimed(x, **options):
    """A call over such memory, which a context of the processor refuses once all arguments are read."""
    with pytest.raises(smla.InvalidArgument) as caught:
        norm(x, context=smla.default_context(), **options)
    assert caught.value.field == "args.x.device"


@pytest.mark.parametrize("version", [None, (1, 0)], ids=str)
@pytest.mark.parametrize("kind", [2, 13], ids=["cuda", "managed"])
@pytest.mark.parametrize("given, told", [(None, 1), (0, 1), (1, 1), (2, 2), (0x55550000, 0x55550000)])
def test_exporters_are_told_the_stream_of_the_call(given, told, kind, version):
    """In the end; those that are only looked at before may be told the default one, but always one."""
    x, weight, out = (Claimed(ones(shape=shape), kind, version) for shape in ((2, 3, 4), (4,), (2, 3, 4)))
    on_claimed(x, weight=weight, out=out, **({} if given is None else {"stream": given}))
    for array in (x, weight, out):
        assert array.streams[-1] == told
        assert {*array.streams} <= {1, told}


@pytest.mark.parametrize("stream", [0, 7])
def test_named_arrays_are_handed_over_at_every_call(stream):
    """What was exported when the Tensor was made may have been written since, or not yet then."""
    memory = Claimed(ones())
    x = smla.tensor(memory, "f32")
    made = len(memory.calls)
    for n in range(1, 3):
        on_claimed(x, out=Claimed(ones()), stream=stream)
        assert memory.streams[made:] == [stream or 1] * n


def test_caches_are_handed_over_at_every_call():
    codes = np.zeros((1, 2, 576), np.uint8)
    memory, scale = Claimed(codes), Claimed(np.ones(1, np.float32))
    cache = smla.Cache(memory, "fp8_576", 2, scale=scale)
    made = len(memory.calls), len(scale.calls)
    q, rows = Claimed(ones(shape=(1, 1, 576))), Claimed(np.zeros((1, 1), np.int32))
    given = {"out": Claimed(ones(shape=(1, 1, 512))), "softmax_scale": 1.0, "context": smla.default_context()}
    with pytest.raises(smla.InvalidArgument, match=r"\.device"):
        smla.attend(q, cache, rows, stream=9, **given)
    assert memory.streams[made[0] :] == scale.streams[made[1] :] == rows.streams[-1:] == [9]


def test_memory_of_the_host_is_never_given_a_stream():
    pinned = Claimed(ones(), kind=3)
    norm(pinned, stream=5)
    norm(smla.tensor(pinned, "f32"), stream=5)
    assert {*pinned.streams} == {None}


# what libraries on a GPU cannot give


def test_outputs_and_workspaces_that_nobody_can_allocate():
    """A call that was refused for want of a workspace leaves none behind for the next one."""
    error = refused(Claimed(ones()), "out")
    assert Claimed.__module__ in error.wanted
    context = smla.Context("cpu")
    with pytest.raises(smla.InvalidArgument) as caught:
        context.own_workspace(Claimed(ones()), 0, 5000)
    assert caught.value.field == "workspace" and "like=" in caught.value.wanted
    assert context.own_workspace(ones(), 0, 5000).bytes >= 5000


def test_a_captured_call_gets_memory_of_its_own_and_only_if_it_needs_some(monkeypatch):
    """A capture records the zeroing of a workspace: another call of the graph must not rely on it."""
    context, checked = smla.Context("cpu"), smla.Context("cpu", check_indices=True)
    eager = context.own_workspace(ones(), 0, 4096)
    assert eager.bytes >= 4096 and context.own_workspace(ones(), 0, 100) is eager
    monkeypatch.setattr("smla.context.is_capturing", lambda: True)
    assert context.own_workspace(ones(), 1, 4096).bytes == 0  # counters, which a call can do without
    first, second = (context.own_workspace(ones(), 1, 5000) for _ in range(2))
    assert first is not second and min(first.bytes, second.bytes) >= 5000
    assert checked.own_workspace(ones(), 1, 100).bytes >= 4096  # the error word
    monkeypatch.undo()
    assert context.own_workspace(ones(), 1, 5000) not in (first, second)


# CuPy, played by NumPy


class Played:
    """An array with what smla reads of cupy.ndarray."""

    def __init__(self, array, device=0):
        self.array, self.device = array, Device(device)
        self.data = SimpleNamespace(ptr=array.ctypes.data)

    def __getattr__(self, name):
        return getattr(self.array, name)


class Device:
    current = 0

    def __init__(self, index):
        self.id = index

    def __enter__(self):
        self._before, Device.current = Device.current, self.id

    def __exit__(self, *_):
        Device.current = self._before


@pytest.fixture
def cupy(monkeypatch):
    module = ModuleType("cupy")
    module.ndarray = Played
    module.empty = lambda shape, dtype: Played(np.empty(shape, dtype), Device.current)
    module.cuda = SimpleNamespace(
        runtime=SimpleNamespace(is_hip=False, CUDARuntimeError=RuntimeError),
        Device=Device,
        get_current_stream=lambda device=-1: SimpleNamespace(ptr=100 + device, is_capturing=lambda: False),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_arrays_of_cupy(cupy):
    memory = np.zeros((4, 6), np.float32)
    x = Played(memory[::2, 1:4], device=1)
    assert struct.unpack("=Qiiii4q4q", PACKED.pack(*describe(x, "x", []))) == (
        *(memory.ctypes.data + 4, Dtype.F32, 1, 1, 2),
        *(2, 3, 0, 0),
        *(12, 1, 0, 0),
    )
    assert device_of(x) == (1, 1) and shape_of(x) == (2, 3) and stream_of(x) == 101
    named = smla.tensor(Played(np.zeros((2, 3), np.uint16), device=1), "bf16")
    assert named.device == (1, 1) and stream_of(named) == 101 and dtype_of(named, "x").name == "BF16"
    refused(Played(np.zeros((2, 3, 4), np.uint16)), "x.dtype")
    refused(Played(np.zeros((2, 3), ">u2")), "tensor.dtype", call=lambda x: smla.tensor(x, "bf16"))


def test_batches_are_built_on_the_stream_of_their_library(cupy):
    starts, lens = (np.zeros(n, np.int32) for n in (3, 2))
    there = Played(starts, device=1), Played(lens, device=1)

    def stream_of_build(query_start_loc, seq_lens, stream=None):
        groups: dict = {}
        return fill_batch(locals(), []).stream

    assert stream_of_build(*there) == 101
    assert stream_of_build(*there, stream=7) == 7
    assert stream_of_build(starts, lens) is None


def test_new_arrays_of_cupy_lie_beside_the_first(cupy):
    for like in (Played(ones(), device=1), smla.tensor(Played(ones(), device=1), "f32")):
        for dtype, storage in (("bf16", "uint16"), ("f32", "float32"), ("e4m3", "uint8")):
            new = empty(like, (2, 4), dtype)
            assert type(new) is Played and new.device.id == 1 and new.dtype == storage
    assert empty(Played(ones()), (2, 4), "e2m1").shape == (2, 2) and Device.current == 0


def test_new_memory_without_an_array_beside_it(cupy, monkeypatch):
    """Where a context runs: of CuPy here, as PyTorch has no GPU."""
    monkeypatch.setattr(TORCH, "on_device", lambda index: None)
    like = on_device((1, 1))
    assert type(like) is Played and like.device.id == 1 and Device.current == 0
    assert isinstance(on_device((0, 0)), np.ndarray)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(smla.InvalidArgument) as caught:
        on_device((1, 0))
    assert caught.value.field == "like" and "PyTorch or CuPy" in caught.value.wanted


def test_cupy_without_cuda_is_left_to_dlpack(cupy):
    """Which names the device (ROCm), and smla refuses it."""
    cupy.cuda.runtime.is_hip = True
    cupy.ndarray = Claimed
    refused(Claimed(ones(), kind=10), "x.device")
