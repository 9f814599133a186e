"""NumPy arrays."""

import ctypes as c
import sys
import weakref

import numpy as np

from .._abi import Dtype
from .._dtypes import NAMES, STORAGE, of_array
from ..errors import invalid
from .interface import CPU, Library, Memory, dense, known_rest, remember, rest, unknown_dtype

_ML_DTYPES = (Dtype.BF16, Dtype.E4M3, Dtype.E8M0)
_known: dict[np.dtype, Dtype | None] = {}  # numpy.dtype: Dtype, or None
_capsule_pointer = c.pythonapi.PyCapsule_GetPointer
_first_byte = c.c_char.from_buffer


def dtype_of(array):
    """Returns the Dtype of an array of NumPy or CuPy, or None if smla has no such dtype."""
    return _known.get(array.dtype) or _learn(array.dtype)


def _learn(dtype):
    known = of_array(dtype.name) if dtype.isnative else None
    _known[dtype] = known
    return known


def dtype_of_memory(array, name):
    """Returns dtype_of(array), or None for raw memory (integers, void); rejects other types."""
    dtype = dtype_of(array)
    if dtype is None and (array.dtype.kind not in "iubV" or not array.dtype.isnative):
        raise unknown_dtype(name, array)
    return dtype


def strides_of(array, name):
    """Returns strides in elements."""
    item, shape = array.itemsize, array.shape
    if array.size == 0:  # NumPy gives such arrays strides of 0
        return dense(shape)
    strides = array.strides
    if any([stride % item for stride in strides]):
        raise invalid(f"{name}.stride", f"{strides} bytes", f"multiples of {item} bytes, the element size")
    return tuple([stride // item for stride in strides])


def _address(array):
    """Returns the data pointer, three times faster than __array_interface__."""
    capsule = array.__array_struct__  # owns the struct: PyArrayInterface, data at 40
    return c.c_uint64.from_address(_capsule_pointer(capsule, None) + 40).value


def _held(array):
    """Returns an object that keeps the memory: NumPy does not resize an array in place if it has weak
    references.
    """
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return array, weakref.ref(root)


class NumPy(Library):
    def owns(self, array):
        return isinstance(array, np.ndarray)

    def memory(self, array, name, stream=0):
        dtype, strides = dtype_of_memory(array, name), strides_of(array, name)
        writable, held = array.flags.writeable, _held(array)
        shape = array.shape
        return Memory(_address(array), array.itemsize, dtype, CPU, 0, shape, strides, writable, held, array)

    def describe(self, array, name, keep, stream=0):
        if not array.flags.carray:  # dense, aligned and writable
            strides = strides_of(array, name)
            return _address(array), rest(self._dtype(array, name), CPU, 0, array.shape, strides, name)
        # Fast path for the common case: everything except the address follows from shape and dtype.
        key = (array.shape, array.dtype)
        packed = known_rest(key)
        if packed is None:
            shape = array.shape
            packed = remember(key, rest(self._dtype(array, name), CPU, 0, shape, dense(shape), name))
        try:
            return c.addressof(_first_byte(array)), packed
        except ValueError:  # no elements, or dtypes of ml_dtypes, which the buffer protocol does not support
            return _address(array), packed

    @staticmethod
    def _dtype(array, name):
        dtype = dtype_of(array)
        if dtype is None:
            raise unknown_dtype(name, array)
        return dtype

    def device(self, array, name="array"):
        return CPU, 0

    def dtype(self, array, name):
        return dtype_of(array)

    def shape(self, array, name):
        return array.shape

    def access(self, array, name):
        return array.strides, array.flags.writeable

    def empty(self, like, shape, dtype):
        """Returns bf16, e4m3 and e8m0 arrays of ml_dtypes if `like` has such a type (JAX)."""
        types = sys.modules.get("ml_dtypes")
        is_plain = types is None or (isinstance(like, np.ndarray) and like.dtype.kind in "fiu")
        if is_plain or dtype not in _ML_DTYPES:
            return np.empty(shape, STORAGE[dtype])
        return np.empty(shape, np.dtype(getattr(types, NAMES[dtype])))

    def zeros(self, like, shape):
        return np.zeros(shape, like.dtype)

    def strided(self, array, shape, strides):
        strides = [stride * array.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(array, shape, strides)
