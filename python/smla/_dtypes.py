"""Names of dtypes in smla, NumPy, ml_dtypes and PyTorch."""

from typing import Any

import numpy as np

from ._abi import Dtype
from .errors import one_of, words

# Name in PyTorch and ml_dtypes, and the NumPy dtype that stores the values. A byte has two e2m1 values.
_TABLE = {
    Dtype.F64: ("float64", "float64"),
    Dtype.F32: ("float32", "float32"),
    Dtype.BF16: ("bfloat16", "uint16"),
    Dtype.F16: ("float16", "float16"),
    Dtype.E4M3: ("float8_e4m3fn", "uint8"),
    Dtype.E2M1: ("float4_e2m1fn", "uint8"),
    Dtype.E8M0: ("float8_e8m0fnu", "uint8"),
    Dtype.U8: ("uint8", "uint8"),
    Dtype.I32: ("int32", "int32"),
    Dtype.I64: ("int64", "int64"),
}
NAMES = {dtype: name for dtype, (name, _) in _TABLE.items()}
STORAGE = {dtype: np.dtype(held) for dtype, (_, held) in _TABLE.items()}
ITEM_BYTES = {dtype: held.itemsize for dtype, held in STORAGE.items()}
_OF_ARRAYS = {**{name: dtype for dtype, name in NAMES.items()}, "float4_e2m1fn_x2": Dtype.E2M1}
_BY_NAME: dict[Any, Dtype] = {**_OF_ARRAYS, **words(*Dtype)}


def parse(dtype, field="dtype"):
    """Returns the Dtype for a name ("bf16", "bfloat16"), a dtype of NumPy or PyTorch, or a Dtype."""
    if type(dtype) is Dtype:
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return one_of(field, name.removeprefix("torch."), _BY_NAME)


def of_array(name):
    """Returns the Dtype for an array library's dtype name, or None."""
    return _OF_ARRAYS.get(name)
