"""Adapters for array libraries (NumPy, PyTorch, CuPy, DLPack), and the selection of one for an array."""

import sys

from .._abi import Dtype
from ..errors import invalid
from .cupy import CuPy
from .dlpack import DLPack
from .interface import CPU, Library, no_array
from .numpy import NumPy
from .torch import Torch

NUMPY, TORCH, CUPY = NumPy(), Torch(), CuPy()
_LIBRARIES: tuple[Library, ...] = (TORCH, NUMPY, CUPY, DLPack(NUMPY))
_by_type: dict[type, Library] = {}


def library_of(array, name="array"):
    """Returns the Library of an array; rejects other objects."""
    return _by_type.get(type(array)) or _find(array, name)


def _find(array, name):
    for library in _LIBRARIES:
        if library.owns(array):
            _by_type[type(array)] = library
            return library
    raise no_array(name, array)


def register(kind, library):
    """Registers `library` for one of smla's types."""
    _by_type[kind] = library


def is_capturing():
    """Returns whether PyTorch or CuPy captures its current stream in a CUDA graph."""
    return TORCH.is_capturing() or CUPY.is_capturing()


def on_device(device):
    """Returns an empty array on a device (type, index), as `like` of allocations: NumPy on a CPU; on a GPU,
    PyTorch or CuPy, preferring one that the program has imported.
    """
    if device[0] == CPU:
        return NUMPY.empty(None, (0,), Dtype.U8)
    for library in sorted((TORCH, CUPY), key=lambda library: library.module not in sys.modules):
        if (like := library.on_device(device[1])) is not None:
            return like
    raise invalid(
        "like",
        None,
        "an array on the GPU, or PyTorch or CuPy with CUDA, which smla uses to allocate GPU memory",
    )
