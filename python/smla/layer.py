"""Attention layers of a checkpoint or of tensors in memory: hidden states in, hidden states out."""

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
    """One attention layer. Layer.from_pretrained reads weights, Layer.from_tensors uses weights in memory.
    `forward` runs over the caller's caches, `session` creates caches. Any number of threads may use a layer
    at once. It never changes; copying it returns the same object. It cannot be pickled.

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
        """Layer `layer` of a checkpoint in Hugging Face layout.

        folder: with config.json and model.safetensors (or shards); or a .safetensors file, with `config`.
        activations: "f32", or "f64" with the reference engine; "bf16": f32 but for what matrix products read,
        which is rounded to bf16, as a model in bf16 does: faster with bf16 weights.
        queries: what attention multiplies with, "f32" or "bf16"; None: as activations. weights: "converted"
        holds matrices in the dtype of activations, "as_stored" holds f32 and bf16 ones as they are. context:
        None: the default one of the CPU. One error lists every missing or misshapen tensor (DataError).
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
        """Layer `layer` of weights in memory, without a second copy of them where none is needed.

        config: a dict, a configuration of transformers, or the path of a config.json.
        tensors: {name: array}, under the names of a checkpoint (model.layers.0.self_attn.o_proj.weight), such
        as a model's state_dict(); those of other layers are left alone. Quantised matrices bring their
        scales.
        activations, queries, weights, context: as in from_pretrained.

        Borrowed: dense f32 and bf16 matrices, and dense f32 vectors, that lie where the layer runs. The layer
        keeps them alive and computes with what stands in them at each call: they must not be written during
        one. All other weights are copied here: f16, quantised or strided ones, vectors of bf16, and with
        weights="converted" all that have another dtype than activations. info tells how many bytes are
        borrowed. A GPU's tensors are not checked for values that are not finite. Tensors that the layer has
        no use for, such as a bias of a projection, are left alone: smla.transformers refuses those.
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
        """kind, hidden_size, heads, kv_width, index_width, topk, window, ratio, plan_groups, weight_bytes,
        borrowed_bytes, entries_of, selection_of, candidates_of (numbers of the layers whose results it reads,
        -1 for none), candidate_blocks, index_heads, index_rope_style, rope_width, rope_theta, softmax_scale:
        a dict. smla.layer_info returns the same without weights.
        """
        if self._info is None:  # it never changes, and steps ask for it
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
        """One step over the caller's caches.

        hidden: [T,X] f32, bf16, f16. plan: smla.Plan, built for this step with the layer's groups. caches:
        {"primary": (smla.Cache, block_table [R,MB] i32), "index": ...}, one for each of info["plan_groups"].
        forced_topk: [T,k] i32 ascending, -1 last: positions (V4: entries, GLM-5.3: pools) to attend to;
        shared layers need it, layers that select nothing refuse it.
        topk: [T,topk] i32, optional output: the selection. candidates, best_blocks: [T,B] i32, of V4.1: the
        blocks of entries that the indexer looks at, and, an optional output, those that the layer named by
        info["candidates_of"] names. max_columns: a bound of the longest seq_len of the
        step (V4: its entries, GLM-5.3: pools), 0: the plan's maximum. stage_budget: bytes of scratch that a
        stage keeps within, where it can, 0: no bound.
        workspace: smla.Workspace. Returns out [T,X], of hidden's dtype.
        """
        if out is None:
            out = new(hidden, shape_of(hidden), dtype_of(hidden, "hidden"))
        values = locals()
        values["plan"] = plan.handle
        for name, groups in (("plan", plan.groups), ("caches", caches)):
            if not self._groups.issubset(groups):
                raise invalid(name, sorted(groups), "those of " + ", ".join(sorted(self._groups)))
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
        """A Session of this layer: its arguments."""
        return Session(self, **options)


class Session(Handle):
    """A layer with caches for a number of requests. It serves one call at a time; a concurrent call of
    another thread raises InvalidArgument and changes nothing. Sessions of one layer may run at once.

    kv_format: a record format; None: row_f32 (row_f64 with f64 activations). index_format: a record format;
    None: kv_format if that is row_*, else index_fp8_132. page_tokens: per page. max_requests, max_tokens (per
    request), max_step_tokens (of
    all requests in a step): caches and scratch are made for these, 0: as by default; resize() changes them.
    kv_scale: scale of fp8_576 and fp8_512, which must be above 0; 0 or 1 for other formats. kv_writer: bits
    of smla.Writer, how records of kv_format are written; 0: as by vLLM. stage_budget: bytes of scratch that a
    stage may use; 0: as many as make it fast. rewind_tokens: V4 and GLM-5.3 alone: tokens before the last
    step that truncate() may take off too. entries_of: V4.1 alone: the Session of the layer
    info["entries_of"], if that is another one. It runs each step first.

    copy.deepcopy(session) is session.clone(): the layer is shared, the caches are copied. A session cannot be
    pickled, as its caches are no files: keep the tokens and feed them again.

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
        """One step. Arrays lie in host memory or on the context's device.

        hidden: [T,X], the requests' tokens one after the other.
        requests: [(request, tokens), ...], each request at most once; None: all tokens belong to request 0.
        rope_positions: [T] i32 or i64; None: the order in the request. forced_topk, candidates: as in
        Layer.forward. Returns out [T,X], of hidden's dtype.
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
        """Selection of the last step, if it had no forced_topk: [T,k] i32, a copy. None without an
        indexer.
        """
        return self._copy_of(lib.smla_session_topk)

    @property
    def candidates(self) -> Any:
        """Blocks of entries that the layer named in the last step: [T,B] i32, a copy. None in layers that
        name none.
        """
        return self._copy_of(lib.smla_session_candidates)

    def _copy_of(self, getter):
        out = _abi.Tensor()
        with self._in_use:  # another step would write the view
            check(getter(self.handle, c.byref(out)))
            view = _views.view(out, self)
            return None if view is None else view.copy()

    def length(self, request: int = 0) -> int:
        """Tokens that a request holds."""
        out = c.c_int32()
        self._call(lib.smla_session_length, request, c.byref(out))
        return out.value

    def end_request(self, request: int = 0) -> None:
        """Forgets all tokens of a request; its pages serve others."""
        self._call(lib.smla_session_end_request, request)

    def truncate(self, tokens: int, request: int = 0) -> None:
        """Forgets all but the first `tokens` tokens of a request, after rejected speculation: the next step
        has the bits of a session that never saw the others. Layers that keep no more than a window (V4 and
        GLM-5.3) take 0, or at least the length before the last step less rewind_tokens; others any length.
        """
        self._call(lib.smla_session_truncate, request, tokens)

    def copy_request(self, source: int, target: int) -> None:
        """Request `target` drops what it holds and holds what `source` holds, in pages of its own."""
        self._call(lib.smla_session_copy_request, source, target)

    def reorder(self, sources: Iterable[int]) -> None:
        """Beam search: request i holds what request sources[i] held before; requests behind the list stay.
        A request may be named often; pages are copied only then.
        """
        try:
            listed = list(sources)
        except TypeError:
            raise invalid("sources", repr(sources), "numbers of requests") from None
        listed = [integer(f"sources[{i}]", source) for i, source in enumerate(listed)]
        self._call(lib.smla_session_reorder, (c.c_int32 * len(listed))(*listed), len(listed))

    def clone(self, **maxima: Unpack[Maxima]) -> Session:
        """Another session of the same layer that holds the same requests.

        maxima: max_requests, max_tokens, max_step_tokens, rewind_tokens or stage_budget, where they are to
        differ.
        """
        handle = c.c_void_p()
        self._call(lib.smla_session_clone, c.byref(_maxima(maxima)), c.byref(handle))
        out = object.__new__(type(self))
        out._set(handle.value, self.layer, self._entries_of)
        return out

    def resize(self, **maxima: Unpack[Maxima]) -> None:
        """Other maxima for the same requests, to grow beyond max_tokens: as clone() takes them. For the time
        of the call the old caches stand beside the new.
        """
        self._call(lib.smla_session_resize, c.byref(_maxima(maxima)))
        self._options = None

    @property
    def options(self) -> dict[str, Any]:
        """What it was made with, defaults filled in: a dict."""
        if self._options is None:  # steps ask for them
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
        """Bytes of its caches."""
        return self._bytes()[0]

    @property
    def workspace_bytes(self) -> int:
        """Bytes of its scratch."""
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
    """An array of smla_named_tensor: those of one layer. What it points to goes to `keep`."""
    if not isinstance(tensors, Mapping):
        raise invalid("tensors", type(tensors).__name__, "a dict: {name: array}")
    # MTP layers have numbers of their own. What else a model's layer has need not be kept, nor be readable.
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
    """An array of smla_step_request."""
    try:
        packed = b"".join([_REQUEST.pack(*request) for request in requests])
    except (struct.error, TypeError):
        raise invalid("requests", repr(requests), "pairs of integers: (request, tokens)") from None
    return (_abi.StepRequest * (len(packed) // _REQUEST.size)).from_buffer_copy(packed)
