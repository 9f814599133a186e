"""Names of dtypes: smla's own, and those of NumPy, ml_dtypes and PyTorch."""

from typing import Any

from ._abi import Dtype
from .errors import one_of

_NAMES: dict[str, Dtype] = {
    "float64": Dtype.F64,
    "float32": Dtype.F32,
    "bfloat16": Dtype.BF16,
    "float16": Dtype.F16,
    "float8_e4m3fn": Dtype.E4M3,
    "float4_e2m1fn": Dtype.E2M1,
    "float4_e2m1fn_x2": Dtype.E2M1,
    "float8_e8m0fnu": Dtype.E8M0,
    "uint8": Dtype.U8,
    "int32": Dtype.I32,
    "int64": Dtype.I64,
}
_BY_NAME: dict[Any, Dtype] = {
    **_NAMES,
    **{kind.name.lower(): kind for kind in Dtype},
    **{kind: kind for kind in Dtype},
}

ITEM_BYTES = {
    Dtype.F64: 8,
    Dtype.F32: 4,
    Dtype.BF16: 2,
    Dtype.F16: 2,
    Dtype.E4M3: 1,
    Dtype.E2M1: 1,
    Dtype.E8M0: 1,
    Dtype.U8: 1,
    Dtype.I32: 4,
    Dtype.I64: 8,
}


def parse(dtype, field="dtype"):
    """A Dtype from its name ("bf16", "bfloat16"), from a dtype of NumPy or PyTorch, or from itself."""
    if type(dtype) is Dtype:
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return one_of(field, name.removeprefix("torch."), _BY_NAME)


def of_array(name):
    """The Dtype of an array library's dtype name, None if there is none."""
    return _NAMES.get(name)
