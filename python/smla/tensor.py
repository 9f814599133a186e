"""Views of other libraries' arrays, as the C ABI wants them, and new arrays of the same library."""

import ctypes as c
import struct
import sys
from typing import Any, TypeAlias

import numpy as np

from . import _dlpack, _dtypes
from ._abi import DeviceType, Dtype
from .errors import InvalidArgument, Unsupported, invalid

Array: TypeAlias = Any  # of NumPy, PyTorch or any library with DLPack, or a smla.Tensor
DtypeLike: TypeAlias = Any  # "bf16", numpy.float32, torch.bfloat16, ...

# smla_tensor: data, dtype, device type, device, ndim, shape[4], strides[4].
PACKED = struct.Struct("=Qiiii4q4q")
_MAX_NDIM = 4
_PAD = ((0, 0, 0, 0), (0, 0, 0), (0, 0), (0,), ())
_CPU, _CUDA = int(DeviceType.CPU), int(DeviceType.CUDA)
_capsule_pointer = c.pythonapi.PyCapsule_GetPointer
_numpy_dtypes = {}  # numpy.dtype: Dtype, or None
_torch_dtypes = {}  # torch.dtype: Dtype, or None; filled when torch is first met


class Tensor:
    """A view of an array under another dtype: uint16 memory as "bf16", uint8 as "e4m3", "e2m1" or "e8m0".

    shape and strides count elements of that dtype: e2m1 holds two per byte. The array stays alive with it.
    """

    __slots__ = ("array", "dtype", "desc", "device", "shape", "writable")

    def __init__(self, array, dtype, name="tensor"):
        self.dtype = _dtypes.parse(dtype, f"{name}.dtype")
        address, item, own, device_type, index, shape, strides, self.writable, owner = _memory(array, name)
        self.array = owner
        wanted = _dtypes.ITEM_BYTES[self.dtype]
        if item != wanted or (own not in (None, Dtype.U8) and own != self.dtype and own not in _INTEGERS):
            raise invalid(
                f"{name}.dtype",
                f"{item}-byte elements as {self.dtype.name.lower()}",
                f"an array of {wanted}-byte integers, or of that dtype",
            )
        if self.dtype is Dtype.E2M1 and own is not Dtype.E2M1:
            if not shape or (strides[-1] != 1 and shape[-1] > 1):
                raise invalid(f"{name}.stride_elems", strides, "bytes side by side in the last dimension")
            shape = (*shape[:-1], shape[-1] * 2)
            strides = (*(stride * 2 for stride in strides[:-1]), 1)
        self.shape, self.device = shape, (device_type, index)
        self.desc = _describe(address, self.dtype, device_type, index, shape, strides, name)

    def __repr__(self):
        return f"smla.Tensor({self.dtype.name.lower()}, {list(self.shape)})"


_INTEGERS = (Dtype.I32, Dtype.I64)


def tensor(array, dtype, name="tensor"):
    """A view of `array` whose elements are of `dtype`: see Tensor."""
    return Tensor(array, dtype, name)


def _describe(address, dtype, device_type, index, shape, strides, name):
    ndim = len(shape)
    if ndim > _MAX_NDIM:
        raise invalid(f"{name}.ndim", ndim, f"at most {_MAX_NDIM}")
    pad = _PAD[ndim]
    return (address, dtype, device_type, index, ndim, *shape, *pad, *strides, *pad)


def _is_torch(array):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _learn_torch(dtype):
    """The Dtype of a torch.dtype; None if smla has none of it."""
    known = _dtypes.of_array(str(dtype).removeprefix("torch."))
    _torch_dtypes[dtype] = known
    return known


def _check_torch(array, name):
    torch = sys.modules["torch"]
    if array.layout is not torch.strided:
        raise invalid(name, f"layout {array.layout}", "a strided tensor")
    if array.requires_grad and torch.is_grad_enabled():
        raise Unsupported(
            f"{name}: got a tensor that requires grad, wanted one that does not: smla has no backward "
            "pass; call it under torch.no_grad() or on x.detach()",
            name,
            "requires_grad",
            "no grad",
        )
    if array.is_conj() or array.is_neg():
        raise invalid(name, "a lazy conjugate or negative view", "resolve_conj().resolve_neg()")
    if array.device.type not in ("cpu", "cuda"):
        raise invalid(f"{name}.device", array.device, "cpu or cuda")


def describe(array, name, keep):
    """The values of a smla_tensor over an array. What must outlive the call is appended to `keep`."""
    if type(array) is Tensor:
        return array.desc
    if _is_torch(array):
        kind = array.dtype
        dtype = _torch_dtypes.get(kind)
        if dtype is None and (dtype := _learn_torch(kind)) is None:
            raise _unknown_dtype(name, kind)
        index = array.get_device()  # -1: not a GPU
        if (
            index >= 0
            or array.requires_grad
            or array.is_sparse
            or type(array) is not sys.modules["torch"].Tensor
        ):
            _check_torch(array, name)
        shape, strides = tuple(array.shape), array.stride()
        if dtype is Dtype.E2M1:  # float4_e2m1fn_x2: elements of two values
            shape, strides = (*shape[:-1], shape[-1] * 2), (*(stride * 2 for stride in strides[:-1]), 1)
        ndim = len(shape)
        if ndim > _MAX_NDIM:
            raise invalid(f"{name}.ndim", ndim, f"at most {_MAX_NDIM}")
        pad = _PAD[ndim]
        if index >= 0:
            return (array.data_ptr(), dtype, _CUDA, index, ndim, *shape, *pad, *strides, *pad)
        return (array.data_ptr(), dtype, _CPU, 0, ndim, *shape, *pad, *strides, *pad)
    if type(array) is np.ndarray:
        dtype = _numpy_dtypes.get(array.dtype)
        if dtype is None and (dtype := _learn_numpy(array.dtype)) is None:
            raise _unknown_dtype(name, array.dtype)
        shape = array.shape
        ndim = len(shape)
        if ndim <= _MAX_NDIM:
            pad = _PAD[ndim]
            return (
                _numpy_address(array),
                dtype,
                _CPU,
                0,
                ndim,
                *shape,
                *pad,
                *_numpy_strides(array, name),
                *pad,
            )
    address, _, dtype, device_type, index, shape, strides, _, owner = _memory(array, name)
    if dtype is None:
        raise _unknown_dtype(name, getattr(array, "dtype", "an unknown dtype"))
    keep.append(owner)
    return _describe(address, dtype, device_type, index, shape, strides, name)


def _unknown_dtype(name, dtype):
    return invalid(
        f"{name}.dtype", dtype, "a dtype of smla; smla.tensor(array, dtype) names one for raw memory"
    )


def _memory(array, name):
    """(address, bytes per element, Dtype or None, device type, device, shape, strides in elements, writable,
    owner).
    """
    if type(array) is Tensor:
        array = array.array
    if _is_torch(array):
        _check_torch(array, name)
        index = array.get_device()
        kind = _torch_dtypes.get(array.dtype) or _learn_torch(array.dtype)
        return (
            array.data_ptr(),
            array.element_size(),
            kind,
            DeviceType.CUDA if index >= 0 else DeviceType.CPU,
            max(index, 0),
            tuple(array.shape),
            array.stride(),
            True,
            array,
        )
    if isinstance(array, np.ndarray):
        dtype = _numpy_dtypes.get(array.dtype) or _learn_numpy(array.dtype)
        return (
            _numpy_address(array),
            array.itemsize,
            dtype,
            DeviceType.CPU,
            0,
            array.shape,
            _numpy_strides(array, name),
            array.flags.writeable,
            array,
        )
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        address, bits, dtype, device_type, index, shape, strides, writable, capsule = _dlpack.read(
            array, name, stream_of(array)
        )
        strides = _dense(shape) if strides is None or 0 in shape else strides
        return (
            address,
            max(bits // 8, 1),
            dtype,
            device_type,
            index,
            shape,
            strides,
            writable,
            (array, capsule),
        )
    raise InvalidArgument(
        f"{name}: got {type(array).__name__}, wanted an array: NumPy, PyTorch, or any with __dlpack__",
        name,
        type(array).__name__,
        "an array",
    )


def _learn_numpy(dtype):
    """The Dtype of a NumPy dtype; None if smla has none of it."""
    known = _dtypes.of_array(dtype.name) if dtype.isnative else None
    _numpy_dtypes[dtype] = known
    return known


def _numpy_address(array):
    """The data pointer, in a third of the time that __array_interface__ takes."""
    capsule = array.__array_struct__  # owns the struct: PyArrayInterface, data at 40
    return c.c_uint64.from_address(_capsule_pointer(capsule, None) + 40).value


def _numpy_strides(array, name):
    item, shape = array.itemsize, array.shape
    if array.size == 0:  # NumPy gives such arrays strides of 0
        return _dense(shape)
    strides = array.strides
    if any([stride % item for stride in strides]):
        raise invalid(f"{name}.stride", f"{strides} bytes", f"multiples of the element's {item} bytes")
    return tuple([stride // item for stride in strides])


def _dense(shape):
    """Strides of a dense array, row by row."""
    out, stride = [], 1
    for extent in reversed(shape):
        out.append(stride)
        stride *= extent or 1
    return tuple(reversed(out))


def require_writable(array, name):
    """Refuses an output that its library declares read-only."""
    if isinstance(array, np.ndarray):
        writable = array.flags.writeable
    else:
        writable = _is_torch(array) or (array.writable if type(array) is Tensor else _memory(array, name)[7])
    if not writable:
        raise invalid(name, "a read-only array", "one that may be written")


def device_of(array):
    """(device type, index) of an array, a Tensor or a Cache."""
    if (device := getattr(array, "device", None)) and type(device) is tuple:
        return device
    if _is_torch(array):
        index = array.get_device()
        return (_CUDA, index) if index >= 0 else (_CPU, 0)
    if isinstance(array, np.ndarray):
        return _CPU, 0
    return _memory(array, "array")[3:5]


def stream_of(array):
    """The stream that the array's library works on now, as an address; 0 or None: the default one."""
    if type(array) is Tensor:
        array = array.array[0] if type(array.array) is tuple else array.array
    if _is_torch(array):
        index = array.get_device()
        return sys.modules["torch"].cuda.current_stream(index).cuda_stream if index >= 0 else None
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy.cuda.get_current_stream().ptr
    return None


def empty(like, shape, dtype):
    """A new array of the library and on the device of `like`; NumPy where that library cannot allocate for
    us.
    """
    dtype = _dtypes.parse(dtype)
    if dtype is Dtype.E2M1:
        shape = (*shape[:-1], shape[-1] // 2)
    like = getattr(like, "array", like)  # of a Tensor or Cache
    if type(like) is tuple:
        like = like[0]
    if _is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, _dtypes.TORCH[dtype]), device=like.device)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(like, cupy.ndarray):
        return cupy.empty(shape, _dtypes.NUMPY[dtype])
    if not isinstance(like, np.ndarray) and device_of(like)[0] != _CPU:
        raise invalid(
            "out", "nothing", f"an output: smla cannot allocate arrays of {type(like).__module__} on a GPU"
        )
    return np.empty(shape, _dtypes.NUMPY[dtype])


def typed(array, dtype):
    """An array from `empty` with its dtype spelt out, for libraries that have no such type."""
    dtype = _dtypes.parse(dtype)
    return (
        array if _dtypes.of_array(str(array.dtype).removeprefix("torch.")) is dtype else Tensor(array, dtype)
    )


def plain(array):
    """An output as the array that was allocated or given for it; None stays None."""
    return array.array if type(array) is Tensor else array


def dtype_of(array, name):
    """The Dtype of an array."""
    if type(array) is Tensor:
        return array.dtype
    if _is_torch(array):
        dtype = _torch_dtypes.get(array.dtype) or _learn_torch(array.dtype)
    else:
        dtype = _memory(array, name)[2]
    if dtype is None:
        raise _unknown_dtype(name, getattr(array, "dtype", "an unknown dtype"))
    return dtype


def shape_of(array):
    """The shape of an array, in elements of its Dtype."""
    return tuple(array.shape)
