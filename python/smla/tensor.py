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

# smla_tensor: its address, and the rest: dtype, device type, device, ndim, shape[4], strides[4].
PACKED = struct.Struct("=Q80s")
_REST = struct.Struct("=iiii4q4q")
ALIGNMENT = 16  # bytes: kernels choose by where addresses lie between multiples of it
_MAX_NDIM = 4
_PAD = ((0, 0, 0, 0), (0, 0, 0), (0, 0), (0,), ())
_CPU, _CUDA = int(DeviceType.CPU), int(DeviceType.CUDA)
_E2M1 = Dtype.E2M1  # members of enumerations are slow to reach
_capsule_pointer = c.pythonapi.PyCapsule_GetPointer
_first_byte = c.c_char.from_buffer
_NUMPY = {dtype: np.dtype(name) for dtype, name in _dtypes.NUMPY.items()}
_EXTENDED = {Dtype.BF16: "bfloat16", Dtype.E4M3: "float8_e4m3fn", Dtype.E8M0: "float8_e8m0fnu"}
_numpy_dtypes: dict[np.dtype, Dtype | None] = {}  # numpy.dtype: Dtype, or None
# What _rest gave for (shape, numpy.dtype) of dense arrays, and for (shape, strides, torch.dtype, torch.device
# or -1).
_rests: dict[tuple, bytes] = {}
_torch_tensor = None  # torch.Tensor, when torch is first met
_torch_dtypes: dict[Any, Dtype | None] = {}  # torch.dtype: Dtype, or None; filled when torch is first met


class Tensor:
    """A view of an array under another dtype: uint16 memory as "bf16", uint8 as "e4m3", "e2m1" or "e8m0".

    shape and strides count elements of that dtype: e2m1 holds two per byte. The array stays alive with it.
    """

    __slots__ = ("array", "_owner", "dtype", "device", "shape", "strides", "address", "rest", "writable")

    def __init__(self, array, dtype, name="tensor"):
        self.dtype = _dtypes.parse(dtype, f"{name}.dtype")
        self.address, item, own, device_type, index, shape, strides, self.writable, self._owner = _memory(
            array, name
        )
        self.array = array.array if type(array) is Tensor else array
        wanted = _dtypes.ITEM_BYTES[self.dtype]
        if item != wanted or (own not in (None, Dtype.U8) and own != self.dtype and own not in _INTEGERS):
            raise invalid(
                f"{name}.dtype",
                f"{item}-byte elements as {self.dtype.name.lower()}",
                f"an array of {wanted}-byte integers, or of that dtype",
            )
        if self.dtype is Dtype.E2M1:
            shape, strides = _pairs(shape, strides, name)
        self.shape, self.strides, self.device = shape, strides, (device_type, index)
        self.rest = _rest(self.dtype, device_type, index, shape, strides, name)

    def __repr__(self):
        return f"smla.Tensor({self.dtype.name.lower()}, {list(self.shape)})"


_INTEGERS = (Dtype.I32, Dtype.I64)


def tensor(array, dtype, name="tensor"):
    """A view of `array` whose elements are of `dtype`: see Tensor."""
    return Tensor(array, dtype, name)


def _pairs(shape, strides, name):
    """Shape and strides of e2m1 values, from those of their bytes."""
    if not shape or (strides[-1] != 1 and shape[-1] > 1):
        raise invalid(f"{name}.stride_elems", strides, "bytes side by side in the last dimension")
    return (*shape[:-1], shape[-1] * 2), (*(stride * 2 for stride in strides[:-1]), 1)


def _rest(dtype, device_type, index, shape, strides, name):
    """A smla_tensor without its address, as bytes; none without dimensions, which say that it is absent."""
    ndim = len(shape)
    if ndim > _MAX_NDIM:
        raise invalid(f"{name}.ndim", ndim, f"at most {_MAX_NDIM}")
    pad = _PAD[ndim]
    return _REST.pack(dtype, device_type, index, ndim, *shape, *pad, *strides, *pad) if ndim else b""


def _remember(key, rest):
    if len(_rests) >= 4096:  # shapes of a server change for ever
        _rests.clear()
    _rests[key] = rest
    return rest


def _is_torch(array):
    global _torch_tensor
    if _torch_tensor is None:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "Tensor"):  # absent, or being imported
            return False
        _torch_tensor = torch.Tensor
    return isinstance(array, _torch_tensor)


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


def _is_cupy(array):
    cupy = sys.modules.get("cupy")
    kind = getattr(cupy, "ndarray", None)  # absent while it is being imported
    return kind is not None and isinstance(array, kind) and not cupy.cuda.runtime.is_hip


def hand_over(owner, device, name, keep, stream):
    """Has `stream` wait for what is queued on other streams for memory of _memory's `owner`, where that is
    known: for arrays through DLPack. What PyTorch and CuPy queued elsewhere is the caller's to wait for.
    """
    if type(owner) is tuple and device[0]:
        keep.append(_dlpack.capsule_of(owner[0], name, stream or 0))


def describe(array, name, keep, stream=0):
    """(address, _rest) of a smla_tensor over an array that `stream` is about to use. What must outlive the
    call is appended to `keep`.
    """
    kind = type(array)
    if kind is _torch_tensor:
        return _describe_torch(array, name)
    if kind is np.ndarray and array.ndim <= _MAX_NDIM:
        return _describe_numpy(array, name)
    if kind is Tensor:
        hand_over(array._owner, array.device, name, keep, stream)
        return array.address, array.rest
    if _is_torch(array):
        return _describe_torch(array, name)
    address, _, dtype, device_type, index, shape, strides, _, owner = _memory(array, name, stream)
    if dtype is None:
        raise _unknown_dtype(name, getattr(array, "dtype", "an unknown dtype"))
    keep.append(owner)
    if dtype is Dtype.E2M1:
        shape, strides = _pairs(shape, strides, name)
    return address, _rest(dtype, device_type, index, shape, strides, name)


def _describe_torch(array, name):
    if type(array) is not _torch_tensor or array.requires_grad or array.is_neg():
        _check_torch(array, name)
    try:
        strides, address = array.stride(), array.data_ptr()
    except RuntimeError:  # a layout without strides, or without memory of its own
        _check_torch(array, name)
        raise
    shape = array.shape
    if not address:  # no elements, then any strides; or a device without memory
        _check_torch(array, name)
        strides = _dense(shape)
    index = array.get_device()  # -1: not a GPU
    key = (shape, strides, array.dtype, index if index < 0 else array.device)
    rest = _rests.get(key)
    return address, _remember(key, _torch_rest(array, strides, name)) if rest is None else rest


def _torch_rest(array, strides, name):
    dtype, shape, index = _torch_dtype(array, name), array.shape, array.get_device()
    _check_torch(array, name)
    if dtype is _E2M1:  # float4_e2m1fn_x2: elements of two values
        shape, strides = _pairs(shape, strides, name)
    return _rest(dtype, _CUDA if index >= 0 else _CPU, max(index, 0), shape, strides, name)


def _torch_dtype(array, name):
    dtype = _torch_dtypes.get(array.dtype) or _learn_torch(array.dtype)
    if dtype is None:
        raise _unknown_dtype(name, array.dtype)
    return dtype


def _describe_numpy(array, name):
    if not array.flags.carray:  # dense, aligned and writable
        shape, strides = array.shape, _numpy_strides(array, name)
        return _numpy_address(array), _rest(_numpy_dtype(array, name), _CPU, 0, shape, strides, name)
    # The common case in half the time: all but the address follows from shape and dtype.
    key = (array.shape, array.dtype)
    rest = _rests.get(key)
    if rest is None:
        shape = array.shape
        rest = _remember(key, _rest(_numpy_dtype(array, name), _CPU, 0, shape, _dense(shape), name))
    try:
        return c.addressof(_first_byte(array)), rest
    except ValueError:  # no elements, or dtypes that the buffer protocol has no letter for: ml_dtypes'
        return _numpy_address(array), rest


def _numpy_dtype(array, name):
    dtype = _numpy_dtypes.get(array.dtype) or _learn_numpy(array.dtype)
    if dtype is None:
        raise _unknown_dtype(name, array.dtype)
    return dtype


def _unknown_dtype(name, dtype):
    return invalid(
        f"{name}.dtype", dtype, "a dtype of smla; smla.tensor(array, dtype) names one for raw memory"
    )


def _memory(array, name, stream=0):
    """(address, bytes per element, Dtype or None for other integers, device type, device, shape, strides in
    elements, writable, owner). An element of e2m1 is a byte of two. owner: (array, capsule) through DLPack.
    """
    if type(array) is Tensor:
        dtype, shape, strides = array.dtype, tuple(array.shape), tuple(array.strides)
        if dtype is Dtype.E2M1:
            shape = (*shape[:-1], shape[-1] // 2)
            strides = (*(stride // 2 for stride in strides[:-1]), 1)
        item = _dtypes.ITEM_BYTES[dtype]
        return array.address, item, dtype, *array.device, shape, strides, array.writable, array._owner
    if _is_torch(array):
        _check_torch(array, name)
        index = array.get_device()
        kind = _torch_dtypes.get(array.dtype) or _learn_torch(array.dtype)
        if kind is None and (array.is_floating_point() or array.is_complex() or array.is_quantized):
            raise _unknown_dtype(name, array.dtype)
        return (
            array.data_ptr(),
            array.element_size(),
            kind,
            DeviceType.CUDA if index >= 0 else DeviceType.CPU,
            max(index, 0),
            tuple(array.shape),
            _dense(array.shape) if 0 in array.shape else array.stride(),
            True,
            array,
        )
    is_numpy = isinstance(array, np.ndarray)
    if is_numpy or _is_cupy(array):
        dtype = _numpy_dtypes.get(array.dtype) or _learn_numpy(array.dtype)
        if dtype is None and (array.dtype.kind not in "iubV" or not array.dtype.isnative):
            raise _unknown_dtype(name, array.dtype)
        return (
            _numpy_address(array) if is_numpy else array.data.ptr,
            array.itemsize,
            dtype,
            DeviceType.CPU if is_numpy else DeviceType.CUDA,
            0 if is_numpy else array.device.id,
            array.shape,
            _numpy_strides(array, name),
            not is_numpy or array.flags.writeable,
            array,
        )
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        *memory, shape, strides, writable, capsule = _dlpack.read(array, name, stream)
        strides = _dense(shape) if strides is None or 0 in shape else strides
        return (*memory, shape, strides, writable, (array, capsule))
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
    """Refuses an output that its library declares read-only, or whose elements share memory."""
    if type(array) is _torch_tensor:
        writable, strides = True, array.stride()
    elif type(array) is Tensor:
        writable, strides = array.writable, array.strides
    elif isinstance(array, np.ndarray):
        writable, strides = array.flags.writeable, array.strides
    elif _is_torch(array):
        writable, strides = True, array.stride()
    else:
        *_, strides, writable, _ = _memory(array, name)
        jax = sys.modules.get("jax")  # its arrays never change, though their capsules do not say so
        writable = writable and not (jax is not None and isinstance(array, jax.Array))
    if not writable:
        raise invalid(name, "a read-only array", "one that may be written")
    if 0 in strides:
        shape = shape_of(array, name)
        if 0 not in shape and any(extent > 1 and not stride for extent, stride in zip(shape, strides)):
            raise invalid(f"{name}.stride", list(strides[: len(shape)]), "elements that do not share memory")


def device_of(array, name="array"):
    """(device type, index) of an array, a Tensor or a Cache."""
    if isinstance(array, np.ndarray):
        return _CPU, 0
    if type(array) is _torch_tensor or _is_torch(array):
        index = array.get_device()
        return (_CUDA, index) if index >= 0 else (_CPU, 0)
    if type(array) is Tensor or hasattr(array, "_packed"):  # a Cache
        return array.device
    return _memory(array, name)[3:5]


def stream_of(array):
    """The stream that the array's library works on now, as an address; 0: the default one; None: it is not
    known, or the memory is not a GPU's.
    """
    if type(array) is Tensor:
        array = array.array
    if _is_torch(array):
        index = array.get_device()
        return sys.modules["torch"].cuda.current_stream(index).cuda_stream if index >= 0 else None
    if _is_cupy(array):
        return sys.modules["cupy"].cuda.get_current_stream(array.device.id).ptr
    return None


def is_capturing():
    """Whether PyTorch or CuPy captures its current stream in a CUDA graph."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return True
    return cupy is not None and cupy.cuda.get_current_stream().is_capturing()


def empty(like, shape, dtype):
    """A new array of the library and on the device of `like`; NumPy where that library cannot allocate for
    us.
    """
    dtype = _dtypes.parse(dtype)
    if dtype is _E2M1:
        shape = (*shape[:-1], shape[-1] // 2)
    if type(like) is Tensor or hasattr(like, "_packed"):  # a Cache
        like = like.array
    if type(like) is tuple:  # an array and its capsule
        like = like[0]
    if isinstance(like, np.ndarray):
        return np.empty(shape, _numpy_type(like, dtype))
    if type(like) is _torch_tensor or _is_torch(like):
        torch = sys.modules["torch"]  # before 2.7 without e8m0
        kind = getattr(torch, _dtypes.TORCH[dtype], torch.uint8)
        return like.new_empty(*(shape or ((),)), dtype=kind)  # PyTorch reads a tuple of sizes more slowly
    if _is_cupy(like):
        own = _numpy_dtypes.get(like.dtype) or _learn_numpy(like.dtype)
        with like.device:  # or it would be the current one
            return sys.modules["cupy"].empty(shape, like.dtype if own is dtype else _NUMPY[dtype])
    if device_of(like)[0] != _CPU:
        raise invalid(
            "out", "nothing", f"an output: smla cannot allocate arrays of {type(like).__module__} on a GPU"
        )
    return np.empty(shape, _numpy_type(like, dtype))


def _numpy_type(like, dtype):
    """The NumPy type of a new array: ml_dtypes' bf16, e4m3 and e8m0 beside arrays of such types (JAX's)."""
    extended = sys.modules.get("ml_dtypes")
    if extended is None or (isinstance(like, np.ndarray) and like.dtype.kind in "fiu"):
        return _NUMPY[dtype]
    return np.dtype(getattr(extended, _EXTENDED[dtype])) if dtype in _EXTENDED else _NUMPY[dtype]


def typed(array, dtype):
    """An array from `empty` with its dtype spelt out, for libraries that have no such type."""
    dtype = _dtypes.parse(dtype)
    if type(array) is _torch_tensor or _is_torch(array):
        own = _torch_dtypes.get(array.dtype)
    else:
        own = _numpy_dtypes.get(array.dtype) or _learn_numpy(array.dtype)
    return array if own is dtype else Tensor(array, dtype)


def plain(array):
    """An output as the array that was allocated or given for it; None stays None."""
    return array.array if type(array) is Tensor else array


def dtype_of(array, name):
    """The Dtype of an array."""
    if type(array) is np.ndarray:
        return _numpy_dtype(array, name)
    if type(array) is _torch_tensor or _is_torch(array):
        return _torch_dtype(array, name)
    if type(array) is Tensor:
        return array.dtype
    dtype = _memory(array, name)[2]
    if dtype is None:
        raise _unknown_dtype(name, getattr(array, "dtype", "an unknown dtype"))
    return dtype


def shape_of(array, name="array"):
    """The shape of an array, in elements of its Dtype."""
    if type(array) is Tensor or isinstance(array, np.ndarray):
        return array.shape
    if type(array) is _torch_tensor or _is_torch(array):
        if (_torch_dtypes.get(array.dtype) or _learn_torch(array.dtype)) is not _E2M1:
            return tuple(array.shape)
    _, _, dtype, _, _, shape, *_ = _memory(array, name)
    return (*shape[:-1], shape[-1] * 2) if dtype is Dtype.E2M1 else shape
