"""CuPy arrays, if the program has imported CuPy."""

import sys

from .._dtypes import STORAGE
from ..errors import invalid
from .interface import CUDA, Library, Memory
from .numpy import dtype_of, dtype_of_memory, strides_of


def _cupy():
    return sys.modules["cupy"]


class CuPy(Library):
    module = "cupy"

    def owns(self, array):
        kind = getattr(sys.modules.get("cupy"), "ndarray", None)  # absent during the import
        # CuPy on ROCm is left to DLPack, which reports the device as unsupported.
        return kind is not None and isinstance(array, kind) and not _cupy().cuda.runtime.is_hip

    def memory(self, array, name, stream=0):
        dtype, strides = dtype_of_memory(array, name), strides_of(array, name)
        index = array.device.id
        data, shape = array.data, array.shape
        return Memory(data.ptr, array.itemsize, dtype, CUDA, index, shape, strides, True, data, array)

    def stream(self, array):
        return _cupy().cuda.get_current_stream(array.device.id).ptr

    def is_capturing(self):
        return "cupy" in sys.modules and _cupy().cuda.get_current_stream().is_capturing()

    def empty(self, like, shape, dtype):
        kind = like.dtype if dtype_of(like) is dtype else STORAGE[dtype]
        with like.device:  # else CuPy uses the current device
            return _cupy().empty(shape, kind)

    def zeros(self, like, shape):
        with like.device:
            return _cupy().zeros(shape, like.dtype)

    def strided(self, array, shape, strides):
        strides = [stride * array.itemsize for stride in strides]
        return _cupy().lib.stride_tricks.as_strided(array, shape, strides)

    def on_device(self, index):
        """Returns an empty array on a GPU, as `like` of allocations, or None without CuPy."""
        try:
            import cupy
        except ImportError:
            return None
        try:
            with cupy.cuda.Device(index):
                return cupy.empty(0, "uint8")
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise invalid("device", f"cuda:{index} ({error})", "a GPU that CuPy can use") from None
