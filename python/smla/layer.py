"""Attention layers of a checkpoint or of tensors in memory, from hidden states to hidden states."""

from __future__ import annotations

import ctypes as c
import os
import re
import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import _abi, _views
from ._abi import Format, WeightStorage
from ._arrays.interface import PACKED
from ._dtypes import parse
from ._fill import Struct
from ._handles import Handle, InUse, Shared
from ._library import check, lib
from ._outputs import new, rank
from ._types import Array, Maxima, NewArray, WeightsName
from ._units import bytes_text
from .cache import FORMATS, Cache
from .context import Context, Workspace, default_context
from .errors import integer, invalid, name_bytes, one_of, path_bytes
from .model import Config, info_dict, set_config
from .plan import GROUPS, Plan
from .tensor import DtypeLike, describe, device_of, dtype_of, owner_of, plain, shape_of, stream_of_call

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Layer", "Session"]

_LAYER = Struct(_abi.LayerArgs)
_SESSION = Struct(_abi.SessionArgs)
_STEP = Struct(_abi.LayerStep, ["out", "topk", "best_blocks", *[f"{group}.cache" for group in GROUPS]])
_SESSION_STEP = Struct(_abi.SessionStep, ["out"])
_STEP.ignore(("self", "caches", "stage_budget", "workspace", "stream"))
_SESSION_STEP.ignore(("self",))
_REQUEST = struct.Struct("=ii")
assert _REQUEST.size == c.sizeof(_abi.StepRequest)
_STORAGE = {kind.name.lower(): kind for kind in WeightStorage}


class SessionOptions(Maxima, total=False):
    """Options of a session."""

    kv_format: str | None
    index_format: str | None
    page_tokens: int
    kv_scale: float
    kv_writer: int
    entries_of: Session | None


class Layer(Shared):
    """One attention layer, created by Layer.from_pretrained or Layer.from_tensors.

    `forward` runs over the caller's caches; `session` creates caches. Any number of threads may use a layer
    concurrently. A layer is immutable; copying returns the same object. A layer cannot be pickled.

    Example:
        >>> layer = smla.Layer.from_pretrained(checkpoint, 0)
        >>> hidden = np.zeros((2, layer.info["hidden_size"]), np.float32)
        >>> layer.session(max_tokens=64).forward(hidden).shape == hidden.shape
        True
    """

    _instead = "open it again with from_pretrained or from_tensors"
    context: Context
    _groups: frozenset[str]

    def __init__(self, *_: Any, **__: Any) -> None:
        raise invalid("Layer", "a call of the class", "Layer.from_pretrained or Layer.from_tensors")

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        layer: int,
        *,
        config: str | os.PathLike[str] | None = None,
        activations: DtypeLike = "f32",
        queries: DtypeLike | None = None,
        weights: WeightsName = "converted",
        context: Context | None = None,
    ) -> Layer:
        """Opens layer `layer` of a checkpoint in Hugging Face layout.

        Args:
            folder: folder with config.json and model.safetensors (or shards), or a .safetensors file, with
                `config`.
            activations: "f32"; "f64" (only the reference engine); or "bf16", which rounds operands of matrix
                products to bf16, as a bf16 model does. "bf16" is faster with bf16 weights.
            queries: dtype of queries in attention, "f32" or "bf16". Default: as activations.
            weights: "converted" stores matrices in the dtype of activations, "as_stored" keeps f32 and bf16.
            context: context of the layer. Default: the CPU's default context.

        Raises:
            DataError: tensors are missing or have wrong shapes; the message lists all of them.
        """
        args = _layer_args(layer, activations, queries, weights)
        args.checkpoint = path_bytes("folder", folder)
        args.config = None if config is None else path_bytes("config", config)
        return cls._create(args, context)

    @classmethod
    def from_tensors(
        cls,
        config: Config,
        tensors: Mapping[str, Any],
        layer: int = 0,
        *,
        activations: DtypeLike = "f32",
        queries: DtypeLike | None = None,
        weights: WeightsName = "as_stored",
        context: Context | None = None,
    ) -> Layer:
        """Creates layer `layer` from weights in memory, and copies only the weights that it cannot use in
        place.

        The layer borrows dense f32 and bf16 matrices and dense f32 vectors on its device: it keeps them alive
        and uses their current contents in each call. Do not write borrowed weights during a call. All other
        weights are copied: f16, quantized or strided weights, bf16 vectors, and with weights="converted" all
        weights in another dtype than activations. info["borrowed_bytes"] is the size of borrowed weights.
        Tensors on a GPU are not checked for non-finite values. Unused tensors, such as the bias of a
        projection, are ignored; smla.transformers rejects them.

        Args:
            config: a dict, a configuration of transformers, or the path of a config.json.
            tensors: {name: array} with the names of a checkpoint (model.layers.0.self_attn.o_proj.weight),
                such as a model's state_dict(). Tensors of other layers are ignored. Quantized matrices need
                their scales.
            activations, queries, weights, context: as in from_pretrained.
        """
        args = _layer_args(layer, activations, queries, weights)
        keep: list[Any] = []
        set_config(args, config)
        listed = _named_tensors(tensors, layer, keep)
        args.tensors, args.tensor_count = c.addressof(listed), len(listed)
        return cls._create(args, context, keep)

    @classmethod
    def _create(cls, args, context, keep=None):
        context = default_context() if context is None else context
        handle = c.c_void_p()
        check(lib.smla_layer_create(context.handle, c.byref(args), c.byref(handle)))
        layer = cls.__new__(cls)
        layer.context = context
        layer._acquire(lib.smla_layer_destroy, handle.value, context, keep)  # some weights are borrowed
        layer._groups = frozenset(layer.info["plan_groups"])
        return layer

    def _text(self):
        info = self.info
        shape = f"{info['heads']} heads, hidden size {info['hidden_size']}, top {info['topk']}"
        return f"{info['kind']}, {shape}, {bytes_text(info['weight_bytes'])}, {self.context.description}"

    @property
    def info(self) -> dict[str, Any]:
        """A dict: kind, hidden_size, heads, kv_width, index_width, topk, window, ratio, plan_groups,
        weight_bytes, borrowed_bytes, entries_of, selection_of, candidates_of (numbers of the layers whose
        results this layer reads, or -1), candidate_blocks, index_heads, index_rope_style, rope_width,
        rope_theta and softmax_scale. smla.layer_info returns it without weights.
        """
        if self._info is None:  # cached because steps read it
            out = _abi.LayerInfo(struct_size=c.sizeof(_abi.LayerInfo))
            check(lib.smla_layer_get_info(self.handle, c.byref(out)))
            self._info = info_dict(out)
        return {**self._info, "plan_groups": list(self._info["plan_groups"])}

    _info: dict[str, Any] | None = None

    def forward(
        self,
        hidden: Array,
        plan: Plan,
        *,
        caches: Mapping[str, tuple[Cache, Array]],
        out: Array | None = None,
        forced_topk: Array | None = None,
        topk: Array | None = None,
        candidates: Array | None = None,
        best_blocks: Array | None = None,
        max_columns: int = 0,
        stage_budget: int = 0,
        workspace: Workspace | None = None,
        stream: int | None = None,
    ) -> NewArray:
        """Runs one step over the caller's caches.

        Args:
            hidden: [T,X] f32, bf16 or f16.
            plan: smla.Plan, built for this step with the layer's groups.
            caches: {"primary": (smla.Cache, block_table [R,MB] i32), "index": ...}, for each of
                info["plan_groups"].
            forced_topk: [T,k] i32, ascending, padded with -1: positions (V4: entries, GLM-5.3: pools) to
                attend to. Shared layers require it; layers without selection reject it.
            topk: optional output [T,topk] i32: the selection.
            candidates: [T,B] i32 (V4.1): blocks of entries that the indexer scores.
            best_blocks: optional output of the layer info["candidates_of"], for `candidates` of other layers.
            max_columns: upper bound of seq_lens (V4: of entries, GLM-5.3: of pools). Default: the plan's
                maximum.
            stage_budget: bytes of scratch for stages that can work in several passes. Default: no limit.
            workspace: smla.Workspace.

        Returns:
            out [T,X], in the dtype of hidden.
        """
        if out is None:
            out = new(hidden, shape_of(hidden), dtype_of(hidden, "hidden"))
        values = locals()
        values["plan"] = plan.handle
        for name, groups in (("plan", plan.groups), ("caches", caches)):
            if not self._groups.issubset(groups):
                raise invalid(name, sorted(groups), "the groups " + ", ".join(sorted(self._groups)))
        for group, pair in caches.items():
            one_of("caches", group, GROUPS)
            if not isinstance(pair, tuple) or len(pair) != 2 or pair[1] is None:
                raise invalid(f"caches[{group!r}]", repr(pair), "a tuple: (smla.Cache, block_table)")
            values[f"{group}.cache"], values[f"{group}.block_table"] = pair
        stream = stream_of_call(stream, device_of(hidden, "hidden"), hidden)
        keep: list[Any] = []
        step = _STEP.fill(values, keep, stream)
        call = self.handle, c.byref(step), stage_budget
        size = lib.smla_layer_workspace_size
        self.context._run(workspace, hidden, stream, size, lib.smla_layer_forward, *call)
        return plain(out)

    def session(self, **options: Unpack[SessionOptions]) -> Session:
        """Returns a Session of this layer. The options are the arguments of Session."""
        return Session(self, **options)


class Session(Handle):
    """A layer with caches for several requests.

    A session serves one call at a time; a concurrent call of another thread raises InvalidArgument and
    changes nothing. Sessions of one layer may run concurrently. copy.deepcopy(session) is session.clone():
    the layer is shared and the caches are copied. A session cannot be pickled. To store a request, keep its
    tokens and run them in another session.

    Args:
        kv_format: a record format. Default: row_f32 (row_f64 with f64 activations).
        index_format: a record format. Default: kv_format if that is row_*, else index_fp8_132.
        page_tokens: tokens per page.
        max_requests, max_tokens, max_step_tokens: maximum number of requests, tokens per request, and tokens
            of all requests in a step. resize() changes them.
        kv_scale: scale of fp8_576 and fp8_512, > 0.
        kv_writer: bits of smla.Writer for kv_format. Default: as vLLM.
        stage_budget: bytes of scratch for stages that can work in several passes. Default: enough for full
            speed.
        rewind_tokens: tokens before the last step that truncate() may also remove (only V4 and GLM-5.3).
        entries_of: Session of the layer info["entries_of"], if that is another layer (V4.1). That session
            must run each step first.

    Example:
        >>> layer = smla.Layer.from_pretrained(checkpoint, 0)
        >>> session, size = layer.session(max_requests=2), layer.info["hidden_size"]
        >>> out = session.forward(np.zeros((3, size), np.float32), [(0, 2), (1, 1)])
        >>> session.length(0), session.length(1)
        (2, 1)
    """

    _instead = (
        "clone() and copy.deepcopy copy its caches; to store a request, keep its tokens and feed them again"
    )
    layer: Layer

    def __init__(
        self,
        layer: Layer,
        *,
        kv_format: str | None = None,
        index_format: str | None = None,
        page_tokens: int = 64,
        max_requests: int = 1,
        max_tokens: int = 4096,
        max_step_tokens: int = 512,
        kv_scale: float = 0.0,
        stage_budget: int = 0,
        rewind_tokens: int = 0,
        kv_writer: int = 0,
        entries_of: Session | None = None,
    ) -> None:
        values = _SESSION.only(locals())
        for name in ("kv_format", "index_format"):
            values[name] = None if values[name] is None else one_of(name, values[name], FORMATS)
        if entries_of is not None:
            if not isinstance(entries_of, Session):
                raise invalid("entries_of", type(entries_of).__name__, "a smla.Session")
            values["entries_of"] = entries_of.handle
        args, handle = _SESSION.fill(values, []), c.c_void_p()
        check(lib.smla_session_create(layer.handle, c.byref(args), c.byref(handle)))
        self._set(handle.value, layer, entries_of)

    def _set(self, handle, layer, entries_of):
        self.layer, self._entries_of = layer, entries_of
        self._in_use = InUse("session", "run its steps one after the other, or create a session per thread")
        self._acquire(lib.smla_session_destroy, handle, layer, entries_of)

    def _text(self):
        held = self.options
        room = f"{held['max_requests']} requests of up to {held['max_tokens']} tokens"
        return f"{held['kv_format']}, {room}, {bytes_text(self.cache_bytes)} of caches, {self.layer!r}"

    def _call(self, function, *arguments):
        with self._in_use:
            check(function(self.handle, *arguments))

    def forward(
        self,
        hidden: Array,
        requests: Iterable[tuple[int, int]] | None = None,
        *,
        out: Array | None = None,
        rope_positions: Array | None = None,
        forced_topk: Array | None = None,
        candidates: Array | None = None,
    ) -> NewArray:
        """Runs one step. Arrays are in host memory or on the context's device.

        Args:
            hidden: [T,X], the requests' tokens one after the other.
            requests: [(request, tokens), ...], each request at most once. Default: all tokens belong to
                request 0.
            rope_positions: [T] i32 or i64. Default: the order in the request.
            forced_topk, candidates: as in Layer.forward.

        Returns:
            out [T,X], in the dtype of hidden.
        """
        if out is None:
            out = new(hidden, shape_of(hidden), dtype_of(hidden, "hidden"))
        requests = [(0, rank(hidden, "hidden", 2)[0])] if requests is None else requests
        values, listed = locals(), _step_requests(requests)
        keep: list[Any] = []
        values.update(requests=c.addressof(listed), request_count=len(listed))
        step = _SESSION_STEP.fill(values, keep)
        self._call(lib.smla_session_forward, c.byref(step))
        return plain(out)

    @property
    def topk(self) -> Any:
        """Returns a copy of the selection of the last step without forced_topk, [T,k] i32, or None without an
        indexer.
        """
        return self._copy_of(lib.smla_session_topk)

    @property
    def candidates(self) -> Any:
        """Returns a copy of the blocks of entries that the layer selected in the last step, [T,B] i32, or
        None.
        """
        return self._copy_of(lib.smla_session_candidates)

    def _copy_of(self, getter):
        out = _abi.Tensor()
        with self._in_use:  # another step would write the view
            check(getter(self.handle, c.byref(out)))
            view = _views.view(out, self)
            return None if view is None else view.copy()

    def length(self, request: int = 0) -> int:
        """Returns the number of tokens of a request."""
        out = c.c_int32()
        self._call(lib.smla_session_length, request, c.byref(out))
        return out.value

    def end_request(self, request: int = 0) -> None:
        """Removes all tokens of a request and frees its pages for other requests."""
        self._call(lib.smla_session_end_request, request)

    def truncate(self, tokens: int, request: int = 0) -> None:
        """Removes all tokens of a request except the first `tokens`, for example after rejected speculation.

        The next step gives the same bits as in a session that never had the removed tokens. Layers that only
        keep a window (V4 and GLM-5.3) accept 0, or at least the length before the last step minus
        rewind_tokens. Other layers accept any length.
        """
        self._call(lib.smla_session_truncate, request, tokens)

    def copy_request(self, source: int, target: int) -> None:
        """Replaces request `target` by a copy of request `source`, in separate pages."""
        self._call(lib.smla_session_copy_request, source, target)

    def reorder(self, sources: Iterable[int]) -> None:
        """Replaces each request i by the previous request sources[i], for beam search. Requests after the
        list are unchanged.

        A request may be listed several times; only then are pages copied.
        """
        try:
            listed = list(sources)
        except TypeError:
            raise invalid("sources", repr(sources), "numbers of requests") from None
        listed = [integer(f"sources[{i}]", source) for i, source in enumerate(listed)]
        self._call(lib.smla_session_reorder, (c.c_int32 * len(listed))(*listed), len(listed))

    def clone(self, **maxima: Unpack[Maxima]) -> Session:
        """Returns a session of the same layer with copies of all requests.

        maxima: new values of max_requests, max_tokens, max_step_tokens, rewind_tokens or stage_budget.
        """
        handle = c.c_void_p()
        self._call(lib.smla_session_clone, c.byref(_maxima(maxima)), c.byref(handle))
        out = object.__new__(type(self))
        out._set(handle.value, self.layer, self._entries_of)
        return out

    def resize(self, **maxima: Unpack[Maxima]) -> None:
        """Changes maxima, as in clone(), for example to grow beyond max_tokens. Old and new caches coexist
        during the call.
        """
        self._call(lib.smla_session_resize, c.byref(_maxima(maxima)))
        self._options = None

    @property
    def options(self) -> dict[str, Any]:
        """A dict with the arguments of the session, including defaults."""
        if self._options is None:  # cached because steps read them
            out = _abi.SessionArgs(struct_size=c.sizeof(_abi.SessionArgs))
            self._call(lib.smla_session_get_args, c.byref(out))
            hidden = ("struct_size", "entries_of")
            options = {name: getattr(out, name) for name, _ in out._fields_ if name not in hidden}
            for name in ("kv_format", "index_format"):
                options[name] = Format(options[name]).name.lower()
            self._options = options
        return dict(self._options)

    _options: dict[str, Any] | None = None  # None until the first use, and after resize()

    def __deepcopy__(self, memo: Any) -> Session:
        return self.clone()

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches."""
        return self._bytes()[0]

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the scratch memory."""
        return self._bytes()[1]

    def _bytes(self):
        caches, workspace = c.c_size_t(), c.c_size_t()
        self._call(lib.smla_session_bytes, c.byref(caches), c.byref(workspace))
        return caches.value, workspace.value


def _maxima(given):
    for name in given:
        one_of("options", name, dict.fromkeys(Maxima.__annotations__))
    return _SESSION.fill(given, [])


def _layer_args(layer, activations, queries, weights):
    return _LAYER.fill(
        {
            "layer": layer,
            "activations": parse(activations, "activations"),
            "queries": parse(queries or activations, "queries"),
            "weights": one_of("weights", weights, _STORAGE),
        },
        [],
    )


def _named_tensors(tensors, layer, keep):
    """Returns an array of smla_named_tensor for one layer. Appends the referenced objects to `keep`."""
    if not isinstance(tensors, Mapping):
        raise invalid("tensors", type(tensors).__name__, "a dict: {name: array}")
    # MTP layers have separate numbers. Other tensors of a layer need not be kept or be readable.
    own = re.compile(
        rf"(?:.*\.)?(?:layers\.{layer}|mtp\.\d+)\.(?:self_attn|attn|input_layernorm|attn_norm)\."
    )
    listed = [(name, array) for name, array in tensors.items() if own.match(name)]
    out = (_abi.NamedTensor * len(listed))()
    for each, (name, array) in zip(out, listed):
        detach = getattr(array, "detach", None)  # parameters of PyTorch
        array = detach() if callable(detach) else array
        address, rest = describe(array, f"tensors[{name!r}]", keep)
        each.name = name_bytes("tensors", name)
        PACKED.pack_into(each, _abi.NamedTensor.tensor.offset, address, rest)
        keep.append(owner_of(array, name))
    return out


def _step_requests(requests):
    """Returns an array of smla_step_request."""
    try:
        packed = b"".join([_REQUEST.pack(*request) for request in requests])
    except (struct.error, TypeError):
        raise invalid("requests", repr(requests), "pairs of integers: (request, tokens)") from None
    return (_abi.StepRequest * (len(packed) // _REQUEST.size)).from_buffer_copy(packed)
