"""Views of tensors that the library owns: NumPy arrays on a CPU, GpuView on a GPU."""

import ctypes as c
from typing import Any

import numpy as np

from ._abi import DeviceType, Dtype, Tensor
from ._dtypes import ITEM_BYTES, STORAGE
from ._handles import Handle
from ._library import check
from ._units import array_text
from .errors import name_bytes


class _Memory:
    """Memory with an __array_interface__; keeps its owner alive."""

    def __init__(self, interface, owner):
        self.__array_interface__, self._owner = interface, owner


class GpuView(Handle):
    """Read-only GPU memory that smla owns.

    `cupy.asarray(view)` and `torch.as_tensor(view, device="cuda")` return arrays over the same memory. Work
    queued on a build's stream after that build sees its results. A view keeps its owner alive. A view cannot
    be copied or pickled, but its contents can.

    Attributes:
        shape: tuple.
        dtype: NumPy dtype.
        device: index of the GPU.
    """

    _instead = 'torch.as_tensor(view, device="cuda").clone() or cupy.array(view) copies its contents'

    def __init__(self, interface: dict[str, Any], owner: Any, device: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = interface
        self._owner: Any = owner
        self.device: int = device
        self.shape: tuple[int, ...] = interface["shape"]
        self.dtype: np.dtype[Any] = np.dtype(interface["typestr"])

    def _text(self):
        return array_text(self)


def view(tensor, owner):
    """Returns a read-only NumPy array or a GpuView over a smla_tensor, or None if it is absent. Contents
    change with the next build.
    """
    if tensor.ndim == 0:
        return None
    dtype, gpu = Dtype(tensor.dtype), tensor.device_type != DeviceType.CPU
    shape = tuple(tensor.shape[: tensor.ndim])
    if not gpu and (0 in shape or not tensor.data):
        return np.empty(shape, STORAGE[dtype])
    interface = {
        "version": 3,
        "data": (tensor.data or 0, not gpu),  # PyTorch rejects GPU memory that is marked read-only
        "shape": shape,
        "strides": tuple(stride * ITEM_BYTES[dtype] for stride in tensor.stride_elems[: tensor.ndim]),
        "typestr": STORAGE[dtype].str,
    }
    if gpu:
        return GpuView(interface, owner, tensor.device_index)
    return np.asarray(_Memory(interface, owner))


def field(function, handle, name, owner):
    """Returns the view of the tensor that function(handle, name, smla_tensor*) sets."""
    out = Tensor()
    check(function(handle, name_bytes("name", name), c.byref(out)))
    return view(out, owner)
