"""Arrays of any other library with DLPack. A capsule keeps the memory alive and is never consumed: it is only
borrowed.
"""

import ctypes as c
import sys
from typing import Any, NamedTuple

from .._abi import DeviceType, Dtype
from ..errors import invalid
from .interface import CPU, Library, Memory, dense

# (type code, bits) of DLDataType, of one lane.
_DTYPES = {
    (2, 64): Dtype.F64,
    (2, 32): Dtype.F32,
    (2, 16): Dtype.F16,
    (4, 16): Dtype.BF16,
    (10, 8): Dtype.E4M3,
    (14, 8): Dtype.E8M0,
    (1, 8): Dtype.U8,
    (0, 32): Dtype.I32,
    (0, 64): Dtype.I64,
}
_E2M1_PAIR = (17, 4, 2)  # and lanes
_INTEGERS = (0, 1, 6)  # signed, unsigned, bool: what a `dtype` may stand over
# DLDeviceType: memory that the processor, or the GPU, reads as its own. 3: pinned, 13: managed.
_DEVICES = {1: DeviceType.CPU, 3: DeviceType.CPU, 2: DeviceType.CUDA, 13: DeviceType.CUDA}
_DEFAULT_STREAM = 1  # the legacy default stream, which must not be called 0; 2 is that of the thread
_READ_ONLY = 1
_MAJOR = 1


class _Tensor(c.Structure):
    _fields_ = (
        ("data", c.c_void_p),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    )


class _Versioned(c.Structure):
    _fields_ = (
        ("major", c.c_uint32),
        ("minor", c.c_uint32),
        ("context", c.c_void_p),
        ("deleter", c.c_void_p),
        ("flags", c.c_uint64),
        ("tensor", _Tensor),
    )


_pointer = c.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c.c_void_p, (c.py_object, c.c_char_p)
_is_valid = c.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c.c_int, (c.py_object, c.c_char_p)


def is_on_gpu(array, name):
    """Whether an exporter's memory is a GPU's. Refuses other devices than that and the processor."""
    try:
        device_type = int(array.__dlpack_device__()[0])
    except BufferError as error:
        raise _refused(name, error) from None
    if device_type not in _DEVICES:
        raise invalid(
            f"{name}.device", f"DLPack device type {device_type}", "memory of the CPU or of a CUDA GPU"
        )
    return _DEVICES[device_type] is DeviceType.CUDA


def capsule_of(array, name, stream):
    """A capsule over an array. stream: None for memory of the processor; else the address of what is about to
    use the array, which the exporter makes wait for whatever it still has in flight there.

    Exporters of a GPU are always told one. None means the default stream by the protocol, but JAX then waits
    for the GPU itself; -1 means not to wait, but JAX takes any number for a stream.
    """
    arguments = {} if stream is None else {"stream": stream or _DEFAULT_STREAM}
    try:
        try:
            return array.__dlpack__(max_version=(_MAJOR, 0), **arguments)
        except TypeError:  # an exporter from before version 1
            return array.__dlpack__(**arguments)
    except BufferError as error:
        raise _refused(name, error) from None


def _refused(name, error):
    """BufferError is the protocol's word for memory that cannot be given."""
    return invalid(name, f"an array that DLPack cannot hand over ({error})", "one that it can")


def _open(capsule, name):
    """(the DLTensor in a capsule, whether it may be written)."""
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != _MAJOR:
            raise invalid(name, f"DLPack version {versioned.major}.{versioned.minor}", f"version {_MAJOR}")
        return versioned.tensor, not versioned.flags & _READ_ONLY
    if not _is_valid(capsule, b"dltensor"):
        raise invalid(name, "a used capsule, or no capsule, of __dlpack__()", "a new one")
    return _Tensor.from_address(_pointer(capsule, b"dltensor")), True


class _Loan(NamedTuple):
    """Objects that keep memory from DLPack alive."""

    array: Any
    capsule: Any


def _hand_over(memory, name, keep, stream):
    """Makes `stream` wait for work that other streams have queued on memory of a GPU. For PyTorch and CuPy,
    the user waits for that work.
    """
    keep.append(capsule_of(memory.array, name, stream or 0))


def read(array, name, stream=0):
    """Returns the Memory of an exporter. stream: CUDA stream that uses it; 0: the default stream."""
    on_gpu = is_on_gpu(array, name)
    capsule = capsule_of(array, name, (stream or 0) if on_gpu else None)
    tensor, writable = _open(capsule, name)
    dtype = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if (tensor.code, tensor.bits, tensor.lanes) == _E2M1_PAIR:
        dtype = Dtype.E2M1
    elif dtype is None and (tensor.code not in _INTEGERS or tensor.lanes != 1 or tensor.bits % 8):
        raise invalid(
            f"{name}.dtype", f"DLPack type ({tensor.code}, {tensor.bits}, {tensor.lanes})", "a dtype of smla"
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if not tensor.strides or 0 in shape:
        strides = dense(shape)
    else:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    return Memory(
        (tensor.data or 0) + tensor.byte_offset,
        tensor.bits * tensor.lanes // 8,
        dtype,
        DeviceType.CUDA if on_gpu else DeviceType.CPU,
        tensor.device_id if on_gpu else 0,
        shape,
        strides,
        writable,
        _Loan(array, capsule),
        array,
        hand_over=_hand_over if on_gpu else None,
    )


class DLPack(Library):
    """numpy: the library that allocates in its place on a CPU."""

    def __init__(self, numpy):
        self._numpy = numpy

    def owns(self, array):
        return hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")

    def memory(self, array, name, stream=0):
        return read(array, name, stream)

    def access(self, array, name):
        memory = self.memory(array, name)
        jax = sys.modules.get("jax")  # its arrays never change, though their capsules do not say so
        return memory.strides, memory.writable and not (jax is not None and isinstance(array, jax.Array))

    def empty(self, like, shape, dtype):
        if self.device(like)[0] != CPU:
            library = type(like).__module__
            raise invalid("out", "nothing", f"an output: smla cannot allocate arrays of {library} on a GPU")
        return self._numpy.empty(like, shape, dtype)

    def zeros(self, like, shape):
        got = f"memory of {type(like).__module__}"
        raise invalid("cache.data", got, "that of NumPy, PyTorch or CuPy: smla copies no other library's")
