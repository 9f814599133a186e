"""Norm, rope, and the matrix products around attention (smla/stages_linear.h)."""

from .. import _abi
from .._run import StageCall
from .._types import Array, DtypeLike, NewArray, NormName, RopeName
from ..context import Context, Workspace

__all__ = ["absorb", "inverse_rope", "norm", "out_project", "project", "rope", "up_project"]

_norm = StageCall("norm", _abi.NormArgs, "out")
_rope = StageCall("rope", _abi.RopeArgs, "out")
_inverse_rope = StageCall("inverse_rope", _abi.RopeArgs, "out")
_project = StageCall("project", _abi.ProjectArgs, "out")
_absorb = StageCall("absorb", _abi.ProjectArgs, "out")
_up_project = StageCall("up_project", _abi.ProjectArgs, "out")
_out_project = StageCall("out_project", _abi.ProjectArgs, "out")


@_norm.of
def norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float,
    kind: NormName = "rms",
    out: Array | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> NewArray:
    """Computes x / sqrt(mean(x^2) + eps) * weight over the last dimension; "layer" first subtracts the mean,
    and adds bias.

    Computes in f32, or in f64 if out is f64. All arrays are float, in any combination of dtypes.

    Args:
        x: [T,G,D].
        weight, bias: optional [D].
        eps: > 0.
        kind: "rms" or "layer".
        out: [T,G,D]; may be x. Default: new, in the dtype of x.

    Returns:
        out.

    Example:
        >>> smla.norm(np.array([[[3, -3]]], np.float32), eps=1e-6).round(3).tolist()
        [[[1.0, -1.0]]]
    """
    return _norm(locals())


@_rope.of
def rope(
    x: Array,
    positions: Array,
    frequencies: Array,
    *,
    style: RopeName = "interleaved",
    first: int = 0,
    inverse: bool = False,
    out: Array | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> NewArray:
    """Rotates channels [first, first + 2n) of x by the angles positions[t] * frequencies[i].

    Args:
        x: [T,G,D] float.
        positions: [T] i32 or i64.
        frequencies: [n] f64: radians per position of each channel pair.
        style: "interleaved" (pairs 2i, 2i+1) or "half" (pairs i, i+n).
        inverse: rotate by the negated angles.
        out: [T,G,D] for whole rows, or [T,G,2n] for only the rotated channels, float; may be x. Default: new
            [T,G,D], in the dtype of x.

    Returns:
        out.

    Example:
        >>> x, quarter = np.array([[[1, 2]]], np.float32), np.array([np.pi / 2])
        >>> smla.rope(x, np.array([1]), quarter).round().tolist()
        [[[-2.0, 1.0]]]
    """
    return _rope(locals())


@_inverse_rope.of
def inverse_rope(
    x: Array,
    positions: Array,
    frequencies: Array,
    *,
    style: RopeName = "interleaved",
    first: int = 0,
    out: Array | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> NewArray:
    """Rotates by the negated angles, as DeepSeek-V4 does with attention outputs. Arguments are the same as in
    rope.

    Example:
        >>> x, quarter = np.array([[[-2, 1]]], np.float32), np.array([np.pi / 2])
        >>> smla.inverse_rope(x, np.array([1]), quarter).round().tolist()
        [[[1.0, 2.0]]]
    """
    return _inverse_rope(locals())


@_project.of
def project(
    x: Array,
    w: Array,
    *,
    out: Array | None = None,
    out_dtype: DtypeLike | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> NewArray:
    """Computes out[t,g,n] = sum_k x[t,g,k] * w[g,n,k].

    Sums are computed in f32, or in f64 if out is f64. All arrays are float, in any combination of dtypes;
    inputs are multiplied without conversion, and only out is rounded.

    Args:
        x: [T,G,K].
        w: [G,N,K], with unit stride in one of the last two dimensions.
        out: [T,G,N]. Default: new, in out_dtype.
        out_dtype: dtype of a new out. Default: dtype of x.

    Returns:
        out.

    Example:
        >>> smla.project(np.ones((1, 1, 3), np.float32), np.ones((1, 2, 3), np.float32)).tolist()
        [[[3.0, 3.0]]]
    """
    return _project(locals())


@_absorb.of
def absorb(
    x: Array,
    w: Array,
    *,
    out: Array | None = None,
    out_dtype: DtypeLike | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> NewArray:
    """Projects queries into the latent space: x [T,H,nope], w [H,latent,nope] (W_UK). See project.

    Example:
        >>> smla.absorb(np.ones((1, 16, 128), np.float32), np.ones((16, 512, 128), np.float32)).shape
        (1, 16, 512)
    """
    return _absorb(locals())


@_up_project.of
def up_project(
    x: Array,
    w: Array,
    *,
    out: Array | None = None,
    out_dtype: DtypeLike | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> NewArray:
    """Projects attended latents to values: x [T,H,latent], w [H,v,latent] (W_UV). See project.

    Example:
        >>> smla.up_project(np.ones((1, 16, 512), np.float32), np.ones((16, 128, 512), np.float32)).shape
        (1, 16, 128)
    """
    return _up_project(locals())


@_out_project.of
def out_project(
    x: Array,
    w: Array,
    *,
    out: Array | None = None,
    out_dtype: DtypeLike | None = None,
    context: Context | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> NewArray:
    """Projects the values of all heads to the hidden size, in groups for V4: x [T,G,K], w [G,N,K]. See
    project.

    Example:
        >>> smla.out_project(np.ones((1, 1, 256), np.float32), np.ones((1, 64, 256), np.float32)).shape
        (1, 1, 64)
    """
    return _out_project(locals())
