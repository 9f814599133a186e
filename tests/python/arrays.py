"""Arrays of NumPy, of PyTorch and of a library that has DLPack alone, over the same bits; contexts."""

import functools

import numpy as np
import pytest
import smla
from numpy_formats import STORAGE

try:
    import torch
except ImportError:
    torch = None

_NATIVE = ("f64", "f32", "f16", "u8", "i32", "i64")  # to NumPy
_TORCH = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e8m0": "float8_e8m0fnu"}


class Exporter:
    """An array that only speaks DLPack. `calls`: keyword arguments of each __dlpack__."""

    def __init__(self, array):
        self.source, self.calls = array, []

    def __dlpack__(self, **keywords):
        self.calls.append(keywords)
        return self.source.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.source.__dlpack_device__()


@functools.cache
def context(engine, **options):
    threads = {"threads": 2} if engine == "cpu" else {}
    return smla.Context(engine, **threads, **options)


class World:
    """A library's arrays, and an engine."""

    def __init__(self, library, engine):
        self.library, self.engine = library, engine

    @property
    def context(self):
        return context(self.engine)

    def wrap(self, bits, dtype):
        """An array of smla's dtype over these bits, which it shares."""
        if self.library == "torch":
            array = torch.from_numpy(bits)
            return array.view(getattr(torch, _TORCH[dtype])) if dtype in _TORCH else _named(array, dtype)
        return _named(Exporter(bits) if self.library == "dlpack" else bits, dtype)

    @staticmethod
    def bits(array):
        """The bits of an output, as NumPy holds them."""
        if torch is not None and isinstance(array, torch.Tensor):
            whole = {1: torch.uint8, 2: torch.uint16}
            array = array.view(whole[array.element_size()]) if array.dtype not in _TORCH_NATIVE else array
            return array.numpy()
        return array.source if isinstance(array, Exporter) else array

    def guarded(self, shape, dtype):
        """A poisoned output inside a larger array: see Guarded."""
        return Guarded(self, shape, dtype)


def _named(array, dtype):
    return array if dtype in _NATIVE else smla.tensor(array, dtype)


_TORCH_NATIVE = torch and (torch.float64, torch.float32, torch.float16, torch.uint8, torch.int32, torch.int64)


class Guarded:
    """`array`: an output full of poison, whose neighbours in every dimension must stay as they are."""

    def __init__(self, world, shape, dtype):
        storage = np.dtype(STORAGE.get(dtype, np.uint8))
        stored = (*shape[:-1], shape[-1] // 2) if dtype == "e2m1" else shape
        # 0xff is NaN in every float, and so is what a float is compared with; no row or count is 0x7f7f7f7f.
        self._poison = 0x7F if dtype in ("i32", "i64") else 0xFF
        self._whole = np.full([extent + 3 for extent in stored], 0, storage)
        self._whole.view(np.uint8)[...] = self._poison
        self._inside = tuple(slice(2, 2 + extent) for extent in stored)
        self.bits = self._whole[self._inside]
        self.array = world.wrap(self.bits, dtype)

    def check(self):
        """Nothing outside was written. Returns the bits inside."""
        outside = self._whole.copy().view(np.uint8)
        item = self._whole.itemsize
        *most, last = self._inside
        outside[(*most, slice(last.start * item, last.stop * item))] = self._poison
        assert (outside == self._poison).all(), "written beyond the output"
        return self.bits

    def untouched(self):
        return bool((self._whole.view(np.uint8) == self._poison).all())


WITH_TORCH = () if torch is not None else (pytest.mark.skip(reason="no PyTorch"),)


def worlds(*engines):
    """Parametrises a test over libraries and engines."""
    return pytest.mark.parametrize(
        "world",
        [
            pytest.param(
                World(library, engine),
                id=f"{library}-{engine}",
                marks=WITH_TORCH if library == "torch" else (),
            )
            for engine in engines or ("cpu", "reference")
            for library in ("numpy", "torch", "dlpack")
        ],
    )


def padded(bits, extra=2):
    """A view of equal values whose rows lie further apart: not contiguous, but in the last dimension."""
    if bits.ndim < 2:
        return bits
    wide = np.full(
        (*bits.shape[:-1], bits.shape[-1] + extra), 0xFF if bits.dtype.kind == "u" else 77, bits.dtype
    )
    view = wide[..., 1 : 1 + bits.shape[-1]]
    view[...] = bits
    return view
