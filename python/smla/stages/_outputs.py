"""Outputs that a caller did not bring, and the shapes they follow from."""

from .._abi import Dtype
from ..errors import integer, invalid
from ..tensor import dtype_of, empty, shape_of, typed

_F32, _F64, _BF16 = Dtype.F32, Dtype.F64, Dtype.BF16
_FLOATS = frozenset((_F64, _F32, _BF16, Dtype.F16))


def sums(array, name):
    """The dtype of sums over an input: f64 for f64, else f32."""
    return _F64 if dtype_of(array, name) is _F64 else _F32


def float_of(array, name="x"):
    """The dtype of an output beside a floating input: its own; bf16, which attend wants, for fp8."""
    dtype = dtype_of(array, name)
    return dtype if dtype in _FLOATS else _BF16


def new(like, shape, dtype):
    return typed(empty(like, tuple(shape), dtype), dtype)


def extent(value, name):
    """A size that the caller chose, as an int."""
    return integer(name, value, 32, least=0)


def rank(array, name, ndim):
    shape = shape_of(array, name)
    if len(shape) != ndim:
        raise invalid(f"{name}.ndim", len(shape), str(ndim))
    return shape
