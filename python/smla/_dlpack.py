"""Reads DLPack capsules. The capsule keeps the memory alive and is never consumed: it is only borrowed."""

import ctypes as c

from ._abi import DeviceType, Dtype
from .errors import invalid

# (type code, bits) of DLDataType; lanes are 1, except for e2m1 which is packed by two.
_DTYPES = {
    (2, 64): Dtype.F64,
    (2, 32): Dtype.F32,
    (2, 16): Dtype.F16,
    (4, 16): Dtype.BF16,
    (10, 8): Dtype.E4M3,
    (14, 8): Dtype.E8M0,
    (17, 4): Dtype.E2M1,
    (1, 8): Dtype.U8,
    (0, 32): Dtype.I32,
    (0, 64): Dtype.I64,
}
# What a `dtype` may stand over: the same number of bits.
_RAW_BITS = {(1, 16): 16, (0, 16): 16, (1, 8): 8, (0, 8): 8}
# DLDeviceType: memory that the processor, or the GPU, reads as its own. 3: pinned, 13: managed.
_DEVICES = {1: DeviceType.CPU, 3: DeviceType.CPU, 2: DeviceType.CUDA, 13: DeviceType.CUDA}
_READ_ONLY = 1


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


def _capsule(array, stream):
    arguments = {} if stream is None else {"stream": stream or 1}  # 1: the legacy default stream
    try:
        return array.__dlpack__(max_version=(1, 0), **arguments)
    except TypeError:  # an exporter from before version 1
        return array.__dlpack__(**arguments)


def read(array, name, stream=None):
    """(address, raw (code, bits), Dtype or None, device type, device, shape, strides (None: dense), writable,
    owner).
    """
    device_type = array.__dlpack_device__()[0]
    if int(device_type) not in _DEVICES:
        raise invalid(
            f"{name}.device", f"DLPack device type {int(device_type)}", "memory of the CPU or of a CUDA GPU"
        )
    on_gpu = _DEVICES[int(device_type)] is DeviceType.CUDA
    capsule = _capsule(array, stream if on_gpu else None)
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        tensor, writable = versioned.tensor, not versioned.flags & _READ_ONLY
    else:
        tensor, writable = _Tensor.from_address(_pointer(capsule, b"dltensor")), True
    ndim = tensor.ndim
    shape = tuple(tensor.shape[i] for i in range(ndim))
    strides = tuple(tensor.strides[i] for i in range(ndim)) if tensor.strides else None
    raw = (tensor.code, tensor.bits)
    dtype = _DTYPES.get(raw) if tensor.lanes == 1 or raw == (17, 4) else None
    if raw == (17, 4) and tensor.lanes == 2:  # elements of two values
        shape = (*shape[:-1], shape[-1] * 2)
        strides = strides and (*(stride * 2 for stride in strides[:-1]), 1)
    bits = tensor.bits if dtype else _RAW_BITS.get(raw, tensor.bits * tensor.lanes)
    return (
        (tensor.data or 0) + tensor.byte_offset,
        bits,
        dtype,
        _DEVICES[int(device_type)],
        tensor.device_id if on_gpu else 0,
        shape,
        strides,
        writable,
        capsule,
    )
