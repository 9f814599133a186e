"""The interface to an array library: what smla needs to know of an array, and how it makes new ones."""

import struct
from typing import Any, NamedTuple

from .._abi import DeviceType, Dtype
from .._handles import Bounded
from ..errors import invalid

CPU, CUDA = int(DeviceType.CPU), int(DeviceType.CUDA)
E2M1 = Dtype.E2M1  # members of enumerations are slow to reach
MAX_NDIM = 4
STRIDE_REPEAT = -(2**31)  # SMLA_STRIDE_REPEAT: zeros alone would mean dense

# smla_tensor: its address, and the rest: dtype, device type, device, ndim, shape[4], strides[4].
PACKED = struct.Struct("=Q80s")
_REST = struct.Struct("=iiii4q4q")
_PAD = ((0, 0, 0, 0), (0, 0, 0), (0, 0), (0,), ())
_rests = Bounded()  # what `rest` gave, by keys of the libraries


class Memory(NamedTuple):
    """An array as memory.

    item: bytes per element; an element of e2m1 is a byte of two values. dtype: None for integers that smla
    has no type for. strides: in elements. owner: object that keeps the memory alive, even if the array gets
    other memory. array: the array, or an alias of its memory if the library can assign other memory to the
    array. now: function that returns the current address (None if the memory is gone), if the library can
    move the memory, else None.
    hand_over: function that each later use on a GPU calls, hand_over(memory, name, keep, stream), or None.
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
    """One array library. name: what errors call the array. stream: of the GPU that will use the array."""

    def owns(self, array):
        """Whether this library is the one to ask about the array."""
        raise NotImplementedError

    # What an array is.

    def memory(self, array, name, stream=0):
        """The Memory of an array. Refuses what no stage can read."""
        raise NotImplementedError

    def describe(self, array, name, keep, stream=0):
        """(address, rest) of a smla_tensor. What must outlive the call is appended to `keep`."""
        memory = self.memory(array, name, stream)
        if memory.dtype is None:
            raise unknown_dtype(name, array)
        keep.append(memory.owner)
        shape, strides = memory.shape, memory.strides
        if memory.dtype is E2M1:
            shape, strides = values_of_pairs(shape, strides, name)
        return memory.address, rest(memory.dtype, memory.device_type, memory.device, shape, strides, name)

    def device(self, array, name="array"):
        """(device type, index)."""
        return self.memory(array, name)[3:5]

    def dtype(self, array, name):
        """The Dtype; None if smla has none of it."""
        return self.memory(array, name).dtype

    def shape(self, array, name):
        """The shape in values: e2m1 holds two per byte."""
        memory = self.memory(array, name)
        shape = memory.shape
        return (*shape[:-1], shape[-1] * 2) if memory.dtype is E2M1 else shape

    def access(self, array, name):
        """(strides, whether it may be written)."""
        memory = self.memory(array, name)
        return memory.strides, memory.writable

    # Its GPU.

    def stream(self, array):
        """The stream that the library works on now, as an address; 0: the default one; None: it is not known,
        or the memory is not a GPU's.
        """
        return None

    def is_capturing(self):
        """Whether the library's current stream is being captured in a CUDA graph."""
        return False

    # New arrays, on the device of `like`.

    def empty(self, like, shape, dtype):
        """A new array for values of a Dtype (shape: of the array; half as many bytes as values of e2m1)."""
        raise NotImplementedError

    def zeros(self, like, shape):
        """Zeros of like's own element type."""
        raise NotImplementedError

    def strided(self, array, shape, strides):
        """A view of a dense 1-D array. strides: in elements."""
        raise NotImplementedError


def moved(name):
    """Returns the error for memory that its library has moved or freed although smla holds it."""
    return invalid(
        name, "memory whose storage was resized in place", "a new smla object over the resized array"
    )


def unknown_dtype(name, array):
    """The error for an array whose dtype smla does not have."""
    dtype = getattr(array, "dtype", "an unknown dtype")
    return invalid(
        f"{name}.dtype", dtype, "a dtype of smla; smla.tensor(array, dtype) names one for raw memory"
    )


def no_array(name, array):
    """The error for what is no array."""
    return invalid(name, type(array).__name__, "an array: NumPy, PyTorch, or any with __dlpack__")


def rest(dtype, device_type, index, shape, strides, name):
    """A smla_tensor without its address, as bytes; none without dimensions, which say that it is absent."""
    ndim = len(shape)
    if ndim > MAX_NDIM:
        raise invalid(f"{name}.ndim", ndim, f"at most {MAX_NDIM}")
    if ndim and not any(strides) and any(extent > 1 for extent in shape):  # one element, again and again
        strides = (STRIDE_REPEAT,) * ndim
    pad = _PAD[ndim]
    return _REST.pack(dtype, device_type, index, ndim, *shape, *pad, *strides, *pad) if ndim else b""


known_rest, remember = _rests.get, _rests.keep


def dense(shape):
    """Strides of a dense array, row by row."""
    out, stride = [], 1
    for extent in reversed(shape):
        out.append(stride)
        stride *= extent or 1
    return tuple(reversed(out))


def values_of_pairs(shape, strides, name):
    """Shape and strides of e2m1 values, from those of their bytes."""
    if not shape or (strides[-1] != 1 and shape[-1] > 1):
        raise invalid(f"{name}.stride_elems", strides, "bytes side by side in the last dimension")
    return (*shape[:-1], shape[-1] * 2), (*(stride * 2 for stride in strides[:-1]), 1)


def pairs_of_values(shape, strides):
    """Shape and strides of bytes, from those of their e2m1 values."""
    return (*shape[:-1], shape[-1] // 2), (*(stride // 2 for stride in strides[:-1]), 1)
