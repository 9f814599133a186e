"""Arrays of other libraries with DLPack. A capsule is borrowed, not consumed, and keeps the memory alive."""

import ctypes as c
import sys
from typing import Any, NamedTuple

from .._abi import DeviceType, Dtype
from ..errors import invalid
from .interface import CPU, Library, Memory, dense

# (type code, bits) of DLDataType with one lane.
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
_E2M1_PAIR = (17, 4, 2)  # with lanes
_INTEGERS = (0, 1, 6)  # signed, unsigned, bool: raw memory for smla.Tensor
# DLDeviceType of memory that the CPU or the GPU can read. 3: pinned, 13: managed.
_DEVICES = {1: DeviceType.CPU, 3: DeviceType.CPU, 2: DeviceType.CUDA, 13: DeviceType.CUDA}
_DEFAULT_STREAM = (
    1  # the legacy default stream in DLPack, which reserves 0; 2 is the per-thread default stream
)
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
    """Returns whether an exporter's memory is on a GPU; rejects devices other than the CPU and CUDA GPUs."""
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
    """Returns a capsule for an array.

    stream: None for CPU memory; else the address of the stream that will use the array. The exporter makes
    this stream wait for pending work on the array. Exporters on a GPU always get a stream: None means the
    default stream in the protocol, but JAX then waits for the GPU itself; -1 means no synchronization, but
    JAX accepts any number as a stream.
    """
    arguments = {} if stream is None else {"stream": stream or _DEFAULT_STREAM}
    try:
        try:
            return array.__dlpack__(max_version=(_MAJOR, 0), **arguments)
        except TypeError:  # an exporter of DLPack 0
            return array.__dlpack__(**arguments)
    except BufferError as error:
        raise _refused(name, error) from None


def _refused(name, error):
    """Returns the error for a BufferError, by which an exporter reports that it cannot export its memory."""
    return invalid(name, f"an array that DLPack cannot export ({error})", "an exportable array")


def _open(capsule, name):
    """Returns (the DLTensor in a capsule, whether it is writable)."""
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != _MAJOR:
            raise invalid(name, f"DLPack version {versioned.major}.{versioned.minor}", f"version {_MAJOR}")
        return versioned.tensor, not versioned.flags & _READ_ONLY
    if not _is_valid(capsule, b"dltensor"):
        raise invalid(name, "a consumed capsule, or no capsule", "a new capsule from __dlpack__()")
    return _Tensor.from_address(_pointer(capsule, b"dltensor")), True


class _Loan(NamedTuple):
    """Objects that keep memory from DLPack alive."""

    array: Any
    capsule: Any


def _hand_over(memory, name, keep, stream):
    """Makes `stream` wait for pending work of other streams on GPU memory. For PyTorch and CuPy, the caller
    must do so.
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
    """Adapter for DLPack. numpy: Library that allocates arrays on a CPU, because DLPack cannot."""

    def __init__(self, numpy):
        self._numpy = numpy

    def owns(self, array):
        return hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")

    def memory(self, array, name, stream=0):
        return read(array, name, stream)

    def access(self, array, name):
        memory = self.memory(array, name)
        jax = sys.modules.get("jax")  # its arrays are immutable, but their capsules are not marked read-only
        return memory.strides, memory.writable and not (jax is not None and isinstance(array, jax.Array))

    def empty(self, like, shape, dtype):
        if self.device(like)[0] != CPU:
            library = type(like).__module__
            raise invalid("out", "nothing", f"an output: smla cannot allocate arrays of {library} on a GPU")
        return self._numpy.empty(like, shape, dtype)

    def zeros(self, like, shape):
        got = f"memory of {type(like).__module__}"
        raise invalid("cache.data", got, "an array of NumPy, PyTorch or CuPy, which smla can copy")
