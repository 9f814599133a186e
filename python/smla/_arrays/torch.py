"""PyTorch tensors, if the program has imported PyTorch."""

import sys
from typing import Any

from .._abi import Dtype
from .._dtypes import NAMES, of_array
from ..errors import invalid, unsupported
from .interface import (
    CPU,
    CUDA,
    E2M1,
    Library,
    Memory,
    dense,
    known_rest,
    remember,
    rest,
    unknown_dtype,
    values_of_pairs,
)

_known: dict[Any, Dtype | None] = {}  # torch.dtype: Dtype, or None


def torch_dtype(dtype):
    """Returns the torch.dtype that stores a Dtype: bytes for e2m1, and for e8m0 before PyTorch 2.7."""
    torch = sys.modules["torch"]
    return getattr(torch, NAMES[dtype], torch.uint8)


def _dtype(array):
    dtype = array.dtype
    return _known.get(dtype) or _learn(dtype)


def _learn(dtype):
    known = of_array(str(dtype).removeprefix("torch."))
    _known[dtype] = known
    return known


def _check(array, name):
    """Rejects tensors whose memory differs from their values, and tensors that require a gradient."""
    torch = sys.modules["torch"]
    if array.layout is not torch.strided:
        raise invalid(name, f"layout {array.layout}", "a strided tensor")
    if array.requires_grad and torch.is_grad_enabled():
        wanted = "a tensor that does not: smla has no backward pass; use torch.no_grad() or x.detach()"
        raise unsupported(name, "a tensor that requires grad", wanted)
    if array.is_conj() or array.is_neg():
        raise invalid(name, "a lazy conjugate or negative view", "x.resolve_conj().resolve_neg()")
    if array.device.type not in ("cpu", "cuda"):
        raise invalid(f"{name}.device", array.device, "cpu or cuda")


class Torch(Library):
    module = "torch"
    _tensor = None  # torch.Tensor, once torch is imported

    def owns(self, array):
        if self._tensor is None:
            torch = sys.modules.get("torch")
            if torch is None or not hasattr(torch, "Tensor"):  # absent, or its import is in progress
                return False
            self._tensor = torch.Tensor
        return isinstance(array, self._tensor)

    def memory(self, array, name, stream=0):
        _check(array, name)
        index, dtype, shape = array.get_device(), _dtype(array), tuple(array.shape)
        if dtype is None and (array.is_floating_point() or array.is_complex() or array.is_quantized):
            raise unknown_dtype(name, array)
        strides = dense(shape) if 0 in shape else array.stride()
        device = (CUDA, index) if index >= 0 else (CPU, 0)
        # `array.data = ...` and array.set_() do not change the storage of an alias. Resizing a storage in
        # place frees its memory; a smaller one may get the same address.
        alias = array.detach()
        storage, end = alias.untyped_storage(), 0
        if 0 not in shape:
            last = sum([(extent - 1) * stride for extent, stride in zip(shape, strides)])
            end = (alias.storage_offset() + last + 1) * alias.element_size()
        return Memory(
            alias.data_ptr(),
            array.element_size(),
            dtype,
            *device,
            shape,
            strides,
            True,
            alias,
            alias,
            lambda: alias.data_ptr() if storage.nbytes() >= end else None,
        )

    def describe(self, array, name, keep, stream=0):
        if type(array) is not self._tensor or array.requires_grad or array.is_neg():
            _check(array, name)
        try:
            strides, address = array.stride(), array.data_ptr()
        except RuntimeError:  # a layout without strides or memory
            _check(array, name)
            raise
        shape = array.shape
        if not address:  # no elements (with any strides), or a device without memory
            _check(array, name)
            strides = dense(shape)
        index = array.get_device()  # -1: not a GPU
        key = (shape, strides, array.dtype, index if index < 0 else array.device)
        packed = known_rest(key)
        return address, remember(key, self._rest(array, strides, name)) if packed is None else packed

    @staticmethod
    def _rest(array, strides, name):
        dtype, shape, index = _dtype(array), array.shape, array.get_device()
        if dtype is None:
            raise unknown_dtype(name, array)
        _check(array, name)
        if dtype is E2M1:  # float4_e2m1fn_x2: two values per element
            shape, strides = values_of_pairs(shape, strides, name)
        return rest(dtype, CUDA if index >= 0 else CPU, max(index, 0), shape, strides, name)

    def device(self, array, name="array"):
        index = array.get_device()
        return (CUDA, index) if index >= 0 else (CPU, 0)

    def dtype(self, array, name):
        return _dtype(array)

    def shape(self, array, name):
        shape = tuple(array.shape)
        return (*shape[:-1], shape[-1] * 2) if _dtype(array) is E2M1 else shape

    def access(self, array, name):
        return array.stride(), True

    def stream(self, array):
        index = array.get_device()
        return self._stream(index) if index >= 0 else None

    def _stream(self, index):
        """Returns the handle of a GPU's current stream, by PyTorch's raw accessor if there is one."""
        torch = sys.modules["torch"]
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._stream = raw or (lambda index: torch.cuda.current_stream(index).cuda_stream)
        return self._stream(index)

    def is_capturing(self):
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        return cuda is not None and cuda.is_available() and cuda.is_current_stream_capturing()

    def empty(self, like, shape, dtype):
        # PyTorch reads a tuple of sizes more slowly.
        return like.new_empty(*(shape or ((),)), dtype=torch_dtype(dtype))

    def zeros(self, like, shape):
        return like.new_zeros(shape)

    def strided(self, array, shape, strides):
        return array.as_strided(shape, strides)

    def on_device(self, index):
        """Returns an empty tensor on a GPU, as `like` of allocations, or None without PyTorch or a GPU."""
        try:
            import torch
        except ImportError:
            return None
        return (
            torch.empty(0, dtype=torch.uint8, device=f"cuda:{index}") if torch.cuda.is_available() else None
        )
