"""The interface to an array library: properties of arrays, and creation of new arrays."""

import struct
from typing import Any, NamedTuple

from .._abi import DeviceType, Dtype
from .._handles import Bounded
from ..errors import invalid

CPU, CUDA = int(DeviceType.CPU), int(DeviceType.CUDA)
E2M1 = Dtype.E2M1  # access to enumeration members is slow
MAX_NDIM = 4
STRIDE_REPEAT = -(2**31)  # SMLA_STRIDE_REPEAT: strides that are all 0 would mean dense

# smla_tensor after its address: dtype, device type, device, ndim, shape[4], strides[4].
PACKED = struct.Struct("=Q80s")
_REST = struct.Struct("=iiii4q4q")
_PAD = ((0, 0, 0, 0), (0, 0, 0), (0, 0), (0,), ())
_rests = Bounded()  # results of `rest`, by keys of the libraries


class Memory(NamedTuple):
    """An array as memory.

    Attributes:
        item: bytes per element; an e2m1 element is a byte of two values.
        dtype: None for integers that smla has no type for.
        strides: strides in elements.
        owner: object that keeps the memory alive, even if the array gets other memory.
        array: the array, or an alias of its memory if the library can assign other memory to the array.
        now: function that returns the current address (None if the memory is gone), if the library can move
            the memory, else None.
        hand_over: function that each later use on a GPU calls, hand_over(memory, name, keep, stream), or
            None.
    """

    address: int
    item: int
    dtype: Dtype | None
    device_type: int
    device: int
    shape: tuple
    strides: tuple
    writable: bool
    owner: Any
    array: Any
    now: Any = None
    hand_over: Any = None


class Library:
    """One array library. In its methods, `name` names the array in errors, and `stream` is the GPU stream
    that will use it.
    """

    def owns(self, array):
        """Returns whether the array belongs to this library."""
        raise NotImplementedError

    # Properties of an array.

    def memory(self, array, name, stream=0):
        """Returns the Memory of an array; rejects arrays that no stage can read."""
        raise NotImplementedError

    def describe(self, array, name, keep, stream=0):
        """Returns (address, rest) of a smla_tensor. Appends objects that must outlive the call to `keep`."""
        memory = self.memory(array, name, stream)
        if memory.dtype is None:
            raise unknown_dtype(name, array)
        keep.append(memory.owner)
        shape, strides = memory.shape, memory.strides
        if memory.dtype is E2M1:
            shape, strides = values_of_pairs(shape, strides, name)
        return memory.address, rest(memory.dtype, memory.device_type, memory.device, shape, strides, name)

    def device(self, array, name="array"):
        """Returns (device type, index)."""
        return self.memory(array, name)[3:5]

    def dtype(self, array, name):
        """Returns the Dtype, or None if smla has no such dtype."""
        return self.memory(array, name).dtype

    def shape(self, array, name):
        """Returns the shape in values; e2m1 has two per byte."""
        memory = self.memory(array, name)
        shape = memory.shape
        return (*shape[:-1], shape[-1] * 2) if memory.dtype is E2M1 else shape

    def access(self, array, name):
        """Returns (strides, whether the array is writable)."""
        memory = self.memory(array, name)
        return memory.strides, memory.writable

    # State of the GPU.

    def stream(self, array):
        """Returns the library's current stream as an address: 0 is the default stream, None means unknown or
        no GPU memory.
        """
        return None

    def is_capturing(self):
        """Returns whether the library's current stream is being captured in a CUDA graph."""
        return False

    # New arrays on the device of `like`.

    def empty(self, like, shape, dtype):
        """Returns a new array of a Dtype. shape: shape of the array, in bytes for e2m1."""
        raise NotImplementedError

    def zeros(self, like, shape):
        """Returns zeros of like's element type."""
        raise NotImplementedError

    def strided(self, array, shape, strides):
        """Returns a view of a dense 1-D array. strides: in elements."""
        raise NotImplementedError


def moved(name):
    """Returns the error for memory that its library has moved or freed while smla uses it."""
    return invalid(
        name, "memory whose storage was resized in place", "a new smla object over the resized array"
    )


def unknown_dtype(name, array):
    """Returns the error for an array whose dtype smla does not have."""
    dtype = getattr(array, "dtype", "an unknown dtype")
    return invalid(
        f"{name}.dtype", dtype, "a dtype of smla; smla.tensor(array, dtype) assigns one to raw memory"
    )


def no_array(name, array):
    """Returns the error for an object that is not an array."""
    return invalid(name, type(array).__name__, "an array of NumPy, PyTorch or a library with __dlpack__")


def rest(dtype, device_type, index, shape, strides, name):
    """Returns a smla_tensor without its address, as bytes; empty for 0 dimensions, which mean an absent
    tensor.
    """
    ndim = len(shape)
    if ndim > MAX_NDIM:
        raise invalid(f"{name}.ndim", ndim, f"at most {MAX_NDIM}")
    if ndim and not any(strides) and any(extent > 1 for extent in shape):  # one repeated element
        strides = (STRIDE_REPEAT,) * ndim
    pad = _PAD[ndim]
    return _REST.pack(dtype, device_type, index, ndim, *shape, *pad, *strides, *pad) if ndim else b""


known_rest, remember = _rests.get, _rests.keep


def dense(shape):
    """Returns the strides of a dense row-major array."""
    out, stride = [], 1
    for extent in reversed(shape):
        out.append(stride)
        stride *= extent or 1
    return tuple(reversed(out))


def values_of_pairs(shape, strides, name):
    """Returns shape and strides of e2m1 values from shape and strides of their bytes."""
    if not shape or (strides[-1] != 1 and shape[-1] > 1):
        raise invalid(f"{name}.stride_elems", strides, "contiguous bytes in the last dimension")
    return (*shape[:-1], shape[-1] * 2), (*(stride * 2 for stride in strides[:-1]), 1)


def pairs_of_values(shape, strides):
    """Returns shape and strides of bytes from shape and strides of their e2m1 values."""
    return (*shape[:-1], shape[-1] // 2), (*(stride // 2 for stride in strides[:-1]), 1)
