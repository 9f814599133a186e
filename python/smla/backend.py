"""Attention backends: attention implementations for inference engines (smla/backend.h, docs/backends)."""

from __future__ import annotations

import ctypes as c
import functools
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import _abi, _views
from ._abi import DeviceType, Dtype, Family, Format, GraphSupport, Precision, Wants
from ._dtypes import parse
from ._fill import Struct
from ._handles import Handle, Shared
from ._library import check, lib, names, sized_text
from ._outputs import new, rank
from ._types import Array, FamilyName, NewArray, PrecisionName
from .cache import Cache
from .call import Call, owners
from .context import Context, Workspace, default_context
from .errors import flag, invalid, name_bytes, one_of
from .plan import Groups, bits_of, fill_batch, group_bits
from .tensor import DtypeLike, device_of, dtype_of, owner_of, plain, stream_of_call

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Backend", "Metadata", "backends", "select_backend", "why_not"]

_ARGS = Struct(_abi.BackendArgs)
_DEVICE = Struct(_abi.DeviceInfo)
_FORWARD = Struct(_abi.BackendForwardArgs, ["out", "lse", "kv_cache", "swa_cache"])
_FAMILIES = {kind.name.lower(): kind for kind in Family}
_WANTS = {kind.name.lower(): kind for kind in Wants}
_PRECISIONS = {kind.name.lower(): kind for kind in Precision}
_DEVICE_FIELDS = [name for name in _DEVICE.places if name != "struct_size"]


class BackendOptions(_abi.BackendNumbers, total=False):
    """Options of a backend."""

    device: str | dict[str, Any] | None
    kv_cache_dtype: str | None
    dtype: DtypeLike
    wants: Iterable[str]
    plan_groups: Iterable[str]
    precision: PrecisionName


def backends() -> list[str]:
    """Returns the names of all backends, in the order of the library.

    Example:
        >>> "FLASHMLA_SPARSE" in smla.backends()
        True
    """
    return names(lib.smla_backend_list)


def _text(value, name):
    """Returns a string as a char*; None and "" mean absent."""
    return None if value is None or value == "" else name_bytes(name, value)


def _require_known(values, names, prefix=""):
    for name in values:
        if name not in names:
            raise invalid(f"{prefix}{name}", values[name], "one of " + ", ".join(names))


def _device(device):
    """Returns the smla_device_info of a name ("sm_90") or a dict of its fields; None selects this machine's
    processor.
    """
    if device is None:
        return _abi.DeviceInfo()
    if isinstance(device, str):
        out = _DEVICE.fill({}, [])
        check(lib.smla_describe_device(name_bytes("device", device), c.byref(out)))
        return out
    if not isinstance(device, dict):
        raise invalid("device", repr(device), 'a name ("sm_90") or a dict')
    _require_known(device, _DEVICE_FIELDS, "device.")
    kinds = {"cpu": DeviceType.CPU, "cuda": DeviceType.CUDA}
    return _DEVICE.fill({**device, "type": one_of("device.type", device.get("type", "cuda"), kinds)}, [])


def _args(
    family,
    device=None,
    kv_cache_dtype=None,
    dtype="bf16",
    wants=(),
    plan_groups=(),
    precision="default",
    **numbers,
):
    """Returns smla_backend_args; rejects unknown names."""
    _require_known(numbers, _abi.BackendNumbers.__annotations__)
    out = _ARGS.fill(
        {
            "family": one_of("family", family, _FAMILIES),
            "dtype": parse(dtype),
            "wants": bits_of("wants", wants, _WANTS),
            "plan_groups": group_bits(plan_groups),
            "precision": one_of("precision", precision, _PRECISIONS),
            **numbers,
        },
        [],
    )
    out.kv_cache_dtype = _text(kv_cache_dtype, "kv_cache_dtype")
    out.device = _device(device)
    return out


def why_not(
    name: str | None, family: FamilyName, *, original: bool = False, **options: Unpack[BackendOptions]
) -> list[str]:
    """Returns the reasons why a backend does not support these options: a list, empty if the backend supports
    them.

    Args:
        name, family, options: as in Backend.
        original: apply the checks of the published backend instead.

    Example:
        >>> sizes = {"max_tokens": 4, "max_requests": 2, "max_seq_len": 128}
        >>> options = {"heads": 16, "topk": 64, "softmax_scale": 0.1, "device": "sm_90", "wants": ["alibi"]}
        >>> smla.why_not("FLASHMLA_SPARSE", "dsa", **options, **sizes)[0]
        'ALiBi slopes are not supported'
    """
    args = _args(family, **options)
    text = sized_text(
        lambda buffer, size: lib.smla_backend_why_not(
            _text(name, "name"), c.byref(args), flag("original", original), buffer, size
        )
    )
    return text.splitlines()


def select_backend(
    family: FamilyName, *, wanted: str | None = None, **options: Unpack[BackendOptions]
) -> dict[str, Any]:
    """Returns a dict with the backend that is selected for these options, and why the others are not.

    Args:
        family, options: as in Backend.
        wanted: name of a required backend. Default: the environment variable SMLA_BACKEND.

    Example:
        >>> sizes = {"max_tokens": 4, "max_requests": 2, "max_seq_len": 128}
        >>> options = {"heads": 16, "topk": 64, "softmax_scale": 0.1, "device": "sm_90"}
        >>> smla.select_backend("dsa", **options, **sizes)["backend"]
        'FLASHMLA_SPARSE'
    """
    args = _args(family, **options)
    return json.loads(
        sized_text(
            lambda buffer, size: lib.smla_backend_select(c.byref(args), _text(wanted, "wanted"), buffer, size)
        )
    )


class Backend(Shared):
    """An attention backend for one kind of layer.

    Any number of threads may use a backend concurrently. A backend is immutable; copying returns the same
    object. A backend cannot be pickled.

    Args:
        name: a name from backends(). None selects a backend.
        family: "dsa" (V3.2, GLM-5.x; GLM-5.3-Flash with rope_dim=-1 and ratio=index_kpool), "hybrid" (one
            compression ratio of V4) or "hybrid_shared" (one of V4.1).
        context: context of the calls. Default: the default context.
        heads, max_tokens, max_requests, max_seq_len, softmax_scale: required.
        topk: index_topk of the model; required for "dsa".
        kv_cache_dtype: "bfloat16", "fp8_ds_mla", ... "auto" selects the backend's default, or rows in the
            dtype of queries if the default is row_bf16 and queries are f32 or f64.
        dtype: dtype of queries.
        wants: required features, such as "alibi". A backend without a required feature is rejected.
        plan_groups: additional groups for the metadata.
        device: "sm_90", ... Default: the device of the context.
        precision: "exact" or "rounded", as in smla.attend.

    Other options, with defaults in smla/backend.h: kv_lora_rank, rope_dim, nope_dim, v_head_dim, head_dim,
    page_tokens, window_page_tokens, window, ratio, speculative_tokens, batch_invariant, q_scale, kv_scale,
    max_logits_bytes.

    Example:
        >>> sizes = {"max_tokens": 4, "max_requests": 2, "max_seq_len": 128}
        >>> backend = smla.Backend(None, "dsa", heads=16, topk=64, softmax_scale=0.1, **sizes)
        >>> backend.info["family"], backend.cache_shape(8)["shape"]
        ('dsa', (8, 64, 576))
    """

    _instead = "create one in each process, with the same options"
    context: Context

    def __init__(
        self,
        name: str | None,
        family: FamilyName,
        *,
        context: Context | None = None,
        **options: Unpack[BackendOptions],
    ) -> None:
        self.context = default_context() if context is None else context
        args, handle = _args(family, **options), c.c_void_p()
        check(
            lib.smla_backend_create(self.context.handle, _text(name, "name"), c.byref(args), c.byref(handle))
        )
        self._values = args
        self._acquire(lib.smla_backend_destroy, handle.value, self.context)

    def _text(self):
        info = self.info
        heads, most = f"{self._values.heads} heads", f"up to {self._values.max_tokens} tokens"
        return (
            f"{info['name']}, {info['family']}, {info['format']}, {heads}, {most}, {self.context.description}"
        )

    @property
    def info(self) -> dict[str, Any]:
        """A dict: name, family, kv_cache_dtype, format, head_size, page_tokens, window_page_tokens,
        reorder_threshold, padded_heads, graph_support and compressed_format ("none" if there is no such
        cache).
        """
        out = _abi.BackendInfo(struct_size=c.sizeof(_abi.BackendInfo))
        check(lib.smla_backend_get_info(self.handle, c.byref(out)))
        info = {name: getattr(out, name) for name, _ in out._fields_ if name != "struct_size"}
        info.update(
            name=out.name.decode(),
            kv_cache_dtype=out.kv_cache_dtype.decode(),
            family=Family(out.family).name.lower(),
            format=Format(out.format).name.lower(),
            graph_support=GraphSupport(out.graph_support).name.lower(),
            compressed_format=Format(out.compressed_format).name.lower(),
        )
        return info

    def cache_shape(self, pages: int, group: str = "primary") -> dict[str, Any]:
        """Returns a dict: shape [pages, tokens per page, record], dtype, page_stride_bytes and bytes of a
        cache.

        group: "primary" for "dsa"; "window" or "compressed" for V4 and V4.1.
        """
        out = _abi.CacheShape(struct_size=c.sizeof(_abi.CacheShape))
        check(lib.smla_backend_cache_shape(self.handle, group_bits([group]), pages, c.byref(out)))
        return {
            "shape": tuple(out.shape),
            "dtype": Dtype(out.dtype).name.lower(),
            "page_stride_bytes": out.page_stride_bytes,
            "bytes": out.bytes,
        }

    def metadata(self) -> Metadata:
        """Returns new Metadata, with persistent buffers sized for the maxima."""
        return Metadata(self)

    def forward(
        self,
        metadata: Metadata | None,
        q: Array,
        out: Array | None = None,
        *,
        kv_cache: Cache | None = None,
        swa_cache: Cache | None = None,
        stage_budget: int = 0,
        workspace: Workspace | None = None,
        stream: int | None = None,
        **tensors: Array | None,
    ) -> NewArray:
        """Runs one step of one layer. All tensors have N rows, beginning with the tokens of the step.

        Args:
            metadata: metadata of this step. None is a warm-up, which sets out to 0 and accesses no cache.
            q: DSA [N,H,nope + rope], rotated; HYBRID [N,H,D].
            out: DSA [N,H * v] or [N,H,v]; HYBRID [N,>=H,D]. Default: new, in the dtype of q (bf16 for e4m3).
            kv_cache, swa_cache: smla.Cache.
            stage_budget: as in Layer.forward.
            tensors: q_pe, k_c, k_pe, topk_indices, w_uk_t, w_uv, sink, lse (smla/backend.h).

        Returns:
            out.
        """
        out = self._out(q, tensors) if out is None else out
        stream = stream_of_call(stream, device_of(q, "q"), q)
        keep: list[Any] = []
        values = {"q": q, "out": out, "kv_cache": kv_cache, "swa_cache": swa_cache, **tensors}
        call = self.handle, c.byref(self._fill(metadata, values, stage_budget, keep, stream))
        size = lib.smla_backend_workspace_size
        self.context._run(workspace, q, stream, size, lib.smla_backend_forward, *call)
        return plain(out)

    def call(
        self,
        metadata: Metadata,
        moving: Sequence[str],
        *,
        stage_budget: int = 0,
        **tensors: Array | Cache | None,
    ) -> Call:
        """Prepares a call of `forward` with these tensors and returns it as a Call. Computes nothing.

        Args:
            metadata: metadata of the steps, which may be rebuilt between runs with the same number of tokens.
            moving: names as in Call: "q", "out", "kv_cache", "kv_cache.scale", ...
            tensors, stage_budget: as in `forward`; `out` is required.
        """
        args = self._fill(metadata, tensors, stage_budget, [])
        create = functools.partial(lib.smla_backend_call_create, self.handle)
        held, q = (self, metadata, owners(tensors, moving)), tensors.get("q")
        return Call.__new__(Call)._create(create, _FORWARD, args, moving, self.context, q, held)

    def _fill(self, metadata, tensors, stage_budget, keep, stream=0):
        """Returns the arguments of a step."""
        for name in tensors:
            if name not in _TENSORS:
                raise invalid(name, "an unknown name", "one of " + ", ".join(sorted(_TENSORS - _NAMED)))
        handle = None if metadata is None else metadata.handle
        return _FORWARD.fill({"stage_budget": stage_budget, "metadata": handle, **tensors}, keep, stream)

    def _out(self, q, tensors):
        tokens, heads, width = rank(q, "q", 3)
        if self._values.family == Family.DSA:
            w_uv = tensors.get("w_uv")
            width = (self._values.kv_lora_rank or 512) if w_uv is None else rank(w_uv, "w_uv", 3)[2]
        dtype = dtype_of(q, "q")
        return new(q, (tokens, heads, width), Dtype.BF16 if dtype is Dtype.E4M3 else dtype)


_NAMED = {"q", "out", "kv_cache", "swa_cache"}  # parameters of forward
_TENSORS = {name for name, (what, _) in _FORWARD.places.items() if what is _abi.Tensor} | _NAMED


class Metadata(Handle):
    """Metadata of a step, built once and then read by forward() in every layer of one kind.

    Metadata buffers have fixed addresses. Any number of threads may read metadata concurrently. A build that
    overlaps with another build or read raises InvalidArgument. Metadata cannot be copied or pickled.

    Example:
        >>> sizes = {"max_tokens": 4, "max_requests": 2, "max_seq_len": 128}
        >>> backend = smla.Backend(None, "dsa", heads=16, topk=64, softmax_scale=0.1, **sizes)
        >>> metadata, table = backend.metadata(), smla.PlanGroup(np.array([[5, 6]], np.int32), page_tokens=64)
        >>> metadata.build(np.array([0, 1], np.int32), np.array([66], np.int32), decodes=1, primary=table)
        >>> metadata.field("slot_mapping").tolist()
        [385]
    """

    _instead = "create another one with backend.metadata()"
    backend: Backend

    def __init__(self, backend: Backend) -> None:
        handle = c.c_void_p()
        check(lib.smla_backend_metadata_create(backend.handle, c.byref(handle)))
        self.backend = backend
        self._batch: list[Any] = []
        self._acquire(lib.smla_backend_metadata_destroy, handle.value, backend)

    def _text(self):
        return f"of {self.backend!r}"

    def build(
        self,
        query_start_loc: Array,
        seq_lens: Array,
        *,
        tokens: int = 0,
        rope_positions: Array | None = None,
        stream: int | None = None,
        decodes: int = 0,
        decode_tokens: int = 0,
        query_tokens: int = 0,
        max_query_len: int = 0,
        max_seq_len: int = 0,
        **groups: Unpack[Groups],
    ) -> None:
        """Builds the metadata of a step. An invalid batch changes nothing.

        All arrays must be on the host, or on the context's GPU. A build on a GPU does not synchronize, can be
        captured in a CUDA graph, and needs the arguments marked "GPU", which a build on the host computes.

        Lifetime: arrays on the host may be changed after build() has returned; block_table fields show
        copies. Arrays on a GPU must stay unchanged until the work on the stream has finished, and block
        tables, which the block_table fields show, until the last forward() of the step has finished. The
        object keeps references to these tables until the next build.

        Args:
            query_start_loc, seq_lens, rope_positions, groups: as in Plan.build, which lists the required
                pages. Pages must not be smaller than the backend's.
            tokens: T with padding (GPU).
            stream: address of the CUDA stream that orders the changes. Default: the current stream of
                query_start_loc's library, or the default stream for arrays on the host.
            decodes, decode_tokens: number of leading decode requests, and of their tokens (GPU).
            query_tokens: tokens of all requests (GPU). Default: tokens.
            max_query_len, max_seq_len: upper bounds (GPU). Default: query_tokens, max_seq_len.
        """
        keep: list[Any] = []
        batch = fill_batch(locals(), keep)
        check(lib.smla_backend_metadata_build(self.handle, c.byref(batch)))
        given: dict[str, Any] = {**groups}
        # On a GPU, block_table fields are views of the caller's tables.
        tables = [group.block_table for group in given.values() if group is not None]
        self._batch = [owner_of(table, "block_table") for table in tables if table is not None]

    def field(self, name: str) -> Any:
        """Returns a field by its name in the original ("req_id_per_token", "plan.position"), as a NumPy view
        or a GpuView.
        """
        return _views.field(lib.smla_backend_metadata_field, self.handle, name, (self, self._batch))

    @property
    def fields(self) -> list[str]:
        """Returns the names of all fields."""
        return names(lambda array, count: lib.smla_backend_metadata_fields(self.handle, array, count))
