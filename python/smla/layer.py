"""Attention layers of a checkpoint: hidden states in, hidden states out."""

import ctypes as c
import os
import struct
import weakref

from . import _abi, _views
from ._abi import Group, LayerKind
from ._dtypes import parse
from ._fill import Struct
from ._library import check, lib
from .cache import FORMATS
from .context import default_context
from .errors import invalid, one_of
from .plan import GROUPS
from .stages._outputs import new, rank
from .tensor import device_of, dtype_of, plain, shape_of, stream_of

_LAYER = Struct(_abi.LayerArgs)
_SESSION = Struct(_abi.SessionArgs)
_STEP = Struct(_abi.LayerStep, ["out", "topk", *[f"{group}.cache" for group in GROUPS]])
_SESSION_STEP = Struct(_abi.SessionStep, ["out"])
_REQUEST = struct.Struct("=ii")
assert _REQUEST.size == c.sizeof(_abi.StepRequest)


class Layer:
    """One attention layer. Layer.from_pretrained reads it; `forward` runs it over caches that you own,
    `session` gives it caches of its own.
    """

    def __init__(self, handle, context):
        self.handle, self.context = handle, context
        weakref.finalize(self, _release, lib.smla_layer_close, handle, context).atexit = False
        self._groups = frozenset(self.info["plan_groups"])

    @classmethod
    def from_pretrained(cls, folder, layer, *, config=None, activations="f32", queries=None, context=None):
        """Layer `layer` of a checkpoint in Hugging Face layout.

        folder: with config.json and model.safetensors (or shards); or a .safetensors file, with `config`.
        activations: "f32", or "f64" with the reference engine. queries: what attention multiplies with, "f32"
        or "bf16"; None: as activations. context: None: the default one of the CPU. One error lists every
        missing or misshapen tensor (DataError).
        """
        context = default_context() if context is None else context
        args = _LAYER.fill(
            {
                "layer": layer,
                "activations": parse(activations, "activations"),
                "queries": parse(queries or activations, "queries"),
            },
            [],
        )
        args.checkpoint = os.fsencode(folder)
        args.config = None if config is None else os.fsencode(config)
        handle = c.c_void_p()
        check(lib.smla_layer_open(context.handle, c.byref(args), c.byref(handle)))
        return cls(handle.value, context)

    @property
    def info(self):
        """kind, hidden_size, heads, kv_width, index_width, topk, window, ratio, plan_groups: a dict."""
        out = _abi.LayerInfo(struct_size=c.sizeof(_abi.LayerInfo))
        check(lib.smla_layer_get_info(self.handle, c.byref(out)))
        info = {name: getattr(out, name) for name, _ in out._fields_ if name != "struct_size"}
        info["kind"] = LayerKind(out.kind).name.lower()
        info["plan_groups"] = [group.name.lower() for group in Group if out.plan_groups & group]
        return info

    def forward(
        self,
        hidden,
        plan,
        *,
        caches,
        out=None,
        forced_topk=None,
        topk=None,
        max_columns=0,
        stage_budget=0,
        workspace=None,
        stream=None,
    ):
        """One step over the caller's caches.

        hidden: [T,X] f32, bf16, f16. plan: smla.Plan, built for this step with the layer's groups. caches:
        {"primary": (smla.Cache, block_table [R,MB] i32), "index": ...}, one for each of info["plan_groups"].
        forced_topk: [T,k] i32 ascending, -1 last: positions (entries) to attend to; shared layers need it,
        layers that select nothing refuse it.
        topk: [T,topk] i32, optional output: the selection. max_columns: a bound of the longest seq_len of the
        step. workspace: smla.Workspace. Returns out [T,X], of hidden's dtype.
        """
        if out is None:
            out = new(hidden, shape_of(hidden), dtype_of(hidden, "hidden"))
        values = {
            "max_columns": max_columns,
            "plan": plan.handle,
            "hidden": hidden,
            "out": out,
            "forced_topk": forced_topk,
            "topk": topk,
        }
        for name, groups in (("plan", plan.groups), ("caches", caches)):
            if not self._groups.issubset(groups):
                raise invalid(name, sorted(groups), "those of " + ", ".join(sorted(self._groups)))
        for group, pair in caches.items():
            one_of("caches", group, GROUPS)
            if not isinstance(pair, tuple) or len(pair) != 2 or pair[1] is None:
                raise invalid(f"caches[{group!r}]", repr(pair), "a tuple: (smla.Cache, block_table)")
            values[f"{group}.cache"], values[f"{group}.block_table"] = pair
        if stream is None and device_of(hidden, "hidden")[0]:
            stream = stream_of(hidden) or 0
        keep = []
        step = _STEP.fill(values, keep, stream)
        size = c.c_size_t()
        check(lib.smla_layer_workspace_size(self.handle, c.byref(step), stage_budget, c.byref(size)))
        if workspace is None:
            workspace = self.context.own_workspace(hidden, stream, size.value)
        workspace.reserve(size.value, stream)
        check(lib.smla_layer_forward(self.handle, c.byref(step), stage_budget, workspace.abi, stream))
        return plain(out)

    def session(self, **options):
        """A Session of this layer: its arguments."""
        return Session(self, **options)


class Session:
    """A layer with caches for a number of requests. Serves one call at a time.

    kv_format, index_format: record formats; None: row_f32 (row_f64 with f64 activations), and index_fp8_132
    beside quantised ones. page_tokens: per page. max_requests, max_tokens (per request), max_step_tokens (of
    all requests in a step): sized once. kv_scale: of per-tensor formats. stage_budget: bytes of scratch that
    a stage may use, 0: as much as pays.
    """

    def __init__(
        self,
        layer,
        *,
        kv_format=None,
        index_format=None,
        page_tokens=64,
        max_requests=1,
        max_tokens=4096,
        max_step_tokens=512,
        kv_scale=1.0,
        stage_budget=0,
    ):
        def format_of(name, field):
            return 0 if name is None else one_of(field, name, FORMATS)

        args = _SESSION.fill(
            {
                "kv_format": format_of(kv_format, "kv_format"),
                "index_format": format_of(index_format, "index_format"),
                "page_tokens": page_tokens,
                "max_requests": max_requests,
                "max_tokens": max_tokens,
                "max_step_tokens": max_step_tokens,
                "kv_scale": kv_scale,
                "stage_budget": stage_budget,
            },
            [],
        )
        handle = c.c_void_p()
        check(lib.smla_session_create(layer.handle, c.byref(args), c.byref(handle)))
        self.handle, self.layer = handle.value, layer
        weakref.finalize(self, _release, lib.smla_session_destroy, self.handle, layer).atexit = False

    def forward(self, hidden, requests=None, *, out=None, rope_positions=None, forced_topk=None):
        """One step. Arrays lie in host memory or on the context's device.

        hidden: [T,X], the requests' tokens one after the other.
        requests: [(request, tokens), ...], each request at most once; None: all tokens belong to request 0.
        rope_positions: [T] i32 or i64; None: the order in the request. forced_topk: as in Layer.forward.
        Returns out [T,X], of hidden's dtype.
        """
        if out is None:
            out = new(hidden, shape_of(hidden), dtype_of(hidden, "hidden"))
        requests = [(0, rank(hidden, "hidden", 2)[0])] if requests is None else requests
        listed = _step_requests(requests)
        keep = []
        step = _SESSION_STEP.fill(
            {
                "request_count": len(listed),
                "requests": c.addressof(listed),
                "hidden": hidden,
                "out": out,
                "rope_positions": rope_positions,
                "forced_topk": forced_topk,
            },
            keep,
        )
        check(lib.smla_session_forward(self.handle, c.byref(step)))
        return plain(out)

    @property
    def topk(self):
        """Selection of the last step, [T,k] i32: a copy. None without an indexer."""
        out = _abi.Tensor()
        check(lib.smla_session_topk(self.handle, c.byref(out)))
        view = _views.view(out, self)
        return None if view is None else view.copy()

    def length(self, request=0):
        """Tokens that a request holds."""
        out = c.c_int32()
        check(lib.smla_session_length(self.handle, request, c.byref(out)))
        return out.value

    def end_request(self, request=0):
        """Gives the request's pages back."""
        check(lib.smla_session_end_request(self.handle, request))

    @property
    def cache_bytes(self):
        """Bytes of its caches."""
        return self._bytes()[0]

    @property
    def workspace_bytes(self):
        """Bytes of its scratch."""
        return self._bytes()[1]

    def _bytes(self):
        caches, workspace = c.c_size_t(), c.c_size_t()
        check(lib.smla_session_bytes(self.handle, c.byref(caches), c.byref(workspace)))
        return caches.value, workspace.value


def _step_requests(requests):
    """An array of smla_step_request."""
    try:
        packed = b"".join([_REQUEST.pack(*request) for request in requests])
    except (struct.error, TypeError):
        raise invalid("requests", repr(requests), "pairs of integers: (request, tokens)") from None
    return (_abi.StepRequest * (len(packed) // _REQUEST.size)).from_buffer_copy(packed)


def _release(close, handle, _holds):
    """What the object stands on is held by the argument list: it must not go first."""
    close(handle)
