"""Types of the arguments and results of public functions, for type checkers."""

from typing import Any, Literal, Protocol, TypeAlias, TypedDict


class HasShape(Protocol):
    """Array of NumPy, PyTorch or CuPy, or a smla.Tensor."""

    @property
    def shape(self) -> Any: ...


class HasDlpack(Protocol):
    """Array of another library that exports its memory with DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


Array: TypeAlias = HasShape | HasDlpack
NewArray: TypeAlias = Any  # an array of the library of the call's first array
DtypeLike: TypeAlias = Any  # "bf16", numpy.float32, torch.bfloat16, ...

# Names of enumerators; for arguments of stages, in the order of their values.
EngineName: TypeAlias = Literal["auto", "reference", "cpu", "cuda"]
IsaName: TypeAlias = Literal["auto", "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon"]
FamilyName: TypeAlias = Literal["dsa", "hybrid", "hybrid_shared"]
NormName: TypeAlias = Literal["rms", "layer"]
RopeName: TypeAlias = Literal["interleaved", "half"]
PrecisionName: TypeAlias = Literal["default", "exact", "rounded"]
LseName: TypeAlias = Literal["ln", "log2"]
EmptyLseName: TypeAlias = Literal["-inf", "+inf"]
WeightsName: TypeAlias = Literal["converted", "as_stored"]


class Maxima(TypedDict, total=False):
    """Maxima that determine the sizes of the caches and the scratch of a smla.Session."""

    max_requests: int
    max_tokens: int
    max_step_tokens: int
    rewind_tokens: int
    stage_budget: int
