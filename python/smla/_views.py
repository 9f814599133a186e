"""Tensors that the library owns, as NumPy views."""

import ctypes as c

import numpy as np

from ._abi import DeviceType, Dtype, Tensor
from ._dtypes import ITEM_BYTES, NUMPY
from ._library import check
from .errors import Unsupported


class _Memory:
    """What np.asarray wants of memory that somebody else owns; keeps that owner alive."""

    def __init__(self, interface, owner):
        self.__array_interface__, self._owner = interface, owner


def numpy_view(tensor, owner, name):
    """A read-only view of a smla_tensor on the host; None if it is absent. Contents change with the next
    build.
    """
    if tensor.ndim == 0:
        return None
    if tensor.device_type != DeviceType.CPU:
        raise Unsupported(f"{name}: got memory of a GPU, wanted host memory", name, "cuda", "cpu")
    dtype = Dtype(tensor.dtype)
    shape = tuple(tensor.shape[: tensor.ndim])
    if 0 in shape or not tensor.data:
        return np.empty(shape, NUMPY[dtype])
    strides = tuple(stride * ITEM_BYTES[dtype] for stride in tensor.stride_elems[: tensor.ndim])
    return np.asarray(
        _Memory(
            {
                "version": 3,
                "data": (tensor.data, True),
                "shape": shape,
                "strides": strides,
                "typestr": np.dtype(NUMPY[dtype]).str,
            },
            owner,
        )
    )


def field(function, handle, name, owner):
    """The view that a function (handle, name, smla_tensor*) gives."""
    out = Tensor()
    check(function(handle, name.encode(), c.byref(out)))
    return numpy_view(out, owner, name)
