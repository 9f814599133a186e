"""Queries on arrays of any library, and smla.Tensor, a view of an array under another dtype."""

from typing import Any

from . import _dtypes
from ._abi import Dtype
from ._arrays import library_of, register
from ._arrays.interface import E2M1, Library, moved, pairs_of_values, rest, unknown_dtype, values_of_pairs
from ._types import Array, DtypeLike
from ._units import Described, array_text
from .errors import invalid

__all__ = ["Array", "DtypeLike", "Tensor", "tensor"]

_INTEGERS = (Dtype.I32, Dtype.I64)


class Tensor(Described):
    """A view of an array under another dtype: uint16 memory as "bf16", or uint8 as "e4m3", "e2m1" or "e8m0".

    shape and strides count elements of that dtype; e2m1 has two per byte. The view keeps its memory alive and
    uses it even if the array gets other memory (`t.data = ...` and t.set_() of PyTorch). copy.deepcopy and
    pickle copy the memory. Any number of threads may use a view concurrently.

    Example:
        >>> smla.Tensor(np.zeros((2, 3), np.uint16), "bf16")
        smla.Tensor(bf16 [2, 3])
    """

    __slots__ = (
        "array",
        "_memory",
        "_now",
        "dtype",
        "device",
        "shape",
        "strides",
        "address",
        "rest",
        "writable",
    )

    array: Any
    dtype: Dtype
    device: tuple[int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    rest: bytes
    writable: bool

    def __init__(self, array: Array, dtype: DtypeLike, name: str = "tensor") -> None:
        self.dtype = _dtypes.parse(dtype, f"{name}.dtype")
        memory = library_of(array, name).memory(array, name)
        self.array, self._memory, self._now = memory.array, memory, memory.now
        self.address, self.writable = memory.address, memory.writable
        wanted = _dtypes.ITEM_BYTES[self.dtype]
        is_raw = memory.dtype is None or memory.dtype is Dtype.U8 or memory.dtype in _INTEGERS
        if memory.item != wanted or not (is_raw or memory.dtype is self.dtype):
            raise invalid(
                f"{name}.dtype",
                f"{memory.item}-byte elements as {self.dtype.name.lower()}",
                f"{wanted}-byte integers, or an array of that dtype",
            )
        self.shape, self.strides = memory.shape, memory.strides
        if self.dtype is E2M1:
            self.shape, self.strides = values_of_pairs(self.shape, self.strides, name)
        self.device = memory.device_type, memory.device
        self.rest = rest(self.dtype, *self.device, self.shape, self.strides, name)

    def __reduce__(self) -> Any:  # copy.copy and copy.deepcopy also call it
        return Tensor, (self.array, self.dtype)

    def _text(self):
        return array_text(self)


class _Tensors(Library):
    """Implements Library for smla.Tensor."""

    def memory(self, array, name, stream=0):
        dtype, shape, strides = array.dtype, tuple(array.shape), tuple(array.strides)
        if dtype is E2M1:
            shape, strides = pairs_of_values(shape, strides)
        item = _dtypes.ITEM_BYTES[dtype]
        return array._memory._replace(item=item, dtype=dtype, shape=shape, strides=strides)

    def describe(self, array, name, keep, stream=0):
        if (now := array._now) is not None:
            if now() != array.address:
                raise moved(name)
        elif hand_over := array._memory.hand_over:
            hand_over(array._memory, name, keep, stream)
        return array.address, array.rest

    def device(self, array, name="array"):
        return array.device

    def dtype(self, array, name):
        return array.dtype

    def shape(self, array, name):
        return array.shape

    def access(self, array, name):
        return array.strides, array.writable

    def stream(self, array):
        return library_of(array.array).stream(array.array)

    def empty(self, like, shape, dtype):
        return library_of(like.array).empty(like.array, shape, dtype)


register(Tensor, _Tensors())


def tensor(array: Array, dtype: DtypeLike, name: str = "tensor") -> Tensor:
    """Returns a view of `array` with elements of `dtype`. See Tensor.

    Example:
        >>> smla.tensor(np.zeros((2, 3), np.uint8), "e2m1").shape  # two values per byte
        (2, 6)
    """
    return Tensor(array, dtype, name)


def describe(array, name, keep, stream=0):
    """Returns (address, rest) of a smla_tensor over an array that `stream` is about to use. Appends objects
    that must outlive the call to `keep`.
    """
    return library_of(array, name).describe(array, name, keep, stream)


def owner_of(array, name):
    """Returns an object that keeps the memory of an array alive, even if the array gets other memory."""
    return library_of(array, name).memory(array, name).owner


def require_writable(array, name):
    """Raises an error if an output is read-only according to its library, or if its elements share memory."""
    strides, writable = library_of(array, name).access(array, name)
    if not writable:
        raise invalid(name, "a read-only array", "a writable array")
    if 0 in strides:
        shape = shape_of(array, name)
        if 0 not in shape and any(extent > 1 and not stride for extent, stride in zip(shape, strides)):
            raise invalid(f"{name}.stride", list(strides[: len(shape)]), "elements that do not share memory")


def device_of(array, name="array"):
    """Returns (device type, index) of an array."""
    return library_of(array, name).device(array, name)


def stream_of(array):
    """Returns the current stream of the array's library as an address: 0 is the default stream, None means
    unknown or no GPU memory.
    """
    return library_of(array).stream(array)


def stream_address(stream):
    """Returns the address of the caller's stream."""
    if type(stream) is not int or not 0 <= stream < 1 << 64:
        raise invalid("stream", repr(stream), "an address, such as stream.cuda_stream of PyTorch")
    return stream


def stream_of_call(stream, device, like):
    """Returns the address of a call's stream: the caller's, or the current stream of like's library; None on
    a CPU.
    """
    if stream is not None:
        return stream_address(stream)
    return (stream_of(like) or 0) if device[0] else None


def empty(like, shape, dtype):
    """Returns a new array of the library and on the device of `like` (an array, a Tensor or a Cache), or of
    NumPy if smla cannot allocate with that library.
    """
    dtype = _dtypes.parse(dtype)
    if dtype is E2M1:
        shape = (*shape[:-1], shape[-1] // 2)
    if hasattr(like, "_borrowed"):  # a Cache
        like = like.array
    return library_of(like, "like").empty(like, shape, dtype)


def typed(array, dtype):
    """Returns an array from `empty`, as a Tensor if its library lacks the dtype."""
    dtype = _dtypes.parse(dtype)
    return array if library_of(array).dtype(array, "array") is dtype else Tensor(array, dtype)


def plain(array):
    """Returns the array under an output; None stays None."""
    return array.array if type(array) is Tensor else array


def dtype_of(array, name):
    """Returns the Dtype of an array, or raises an error for other types."""
    dtype = library_of(array, name).dtype(array, name)
    if dtype is None:
        raise unknown_dtype(name, array)
    return dtype


def shape_of(array, name="array"):
    """Returns the shape of an array, in elements of its Dtype."""
    return library_of(array, name).shape(array, name)
