"""Caches of models on smla: layers of a transformers Cache, each of which has a smla.Session."""

import contextlib
import itertools
import weakref
from typing import Any

import torch
import transformers
from transformers.cache_utils import CacheLayerMixin

from ..errors import Error, integer
from ._columns import Columns
from ._mask import refused

STEP_TOKENS = 512  # maximum tokens of a session's step; longer prompts are divided
FEW_TOKENS = 16  # tokens per sequence for which a session keeps scratch between prompts
_PAGE = 64
_numbers = itertools.count(1)
_by_number: weakref.WeakValueDictionary[int, "CacheLayer"] = weakref.WeakValueDictionary()
AFTER_FAILURE = "an empty cache, or this one after reset()"


def cache_layer_of(number):
    """Returns the cache layer with this number, by which compiled graphs identify it."""
    return _by_number[number]


class CacheLayer(CacheLayerMixin):
    """Cache of one attention layer for a batch. The first step creates its session, for the layer that runs
    the step. Columns are the tokens of transformers, including padding; the session stores only tokens.
    """

    is_sliding = False
    supports_early_init = False

    def __init__(self, *, kv_format=None, index_format=None, kv_scale=0.0, max_tokens=0, static=False):
        super().__init__()
        self.kv_format, self.index_format, self.kv_scale = kv_format, index_format, kv_scale
        self.max_tokens, self.is_compileable = max_tokens, static
        self.session, self.module, self.rewinds = None, None, True
        self.tokens = 0  # columns; a compiled step also advances this number
        self.columns: Columns | None = None  # which columns hold tokens; None before the first step
        self.shift = None  # [B] V4: position of a sequence's first token
        self.failed = False  # the session holds tokens of a step that failed
        self.states_beside = False  # GLM-5.3-Flash: linear layers of the model have separate states
        self._count()

    def _count(self):
        # The clock is the number of columns, which a compiled graph reads and advances. The graph's operator
        # finds this object by its number.
        number = next(_numbers)
        self.clock, self.number = torch.tensor(self.tokens), torch.tensor(number)
        _by_number[number] = self

    # Interface of transformers.

    @property
    def is_croppable(self):
        return self.rewinds

    @property
    def batch_size(self):
        return -1 if self.columns is None else len(self.columns.tokens)

    @property
    def bytes(self):
        """Size of the caches in bytes."""
        return self.session.cache_bytes if self.session else 0

    def get_seq_length(self):
        if self.is_compileable and self.session is not None:
            return self.clock.clone()  # the step that reads the result advances the clock
        return self.tokens

    def get_max_length(self):
        return self.max_tokens if self.is_compileable else -1

    def get_mask_sizes(self, query_length):
        length = self.max_tokens if self.is_compileable else self.tokens + query_length
        return length, 0

    def crop(self, tokens_to_remove):
        """Removes the last -tokens_to_remove columns."""
        if tokens_to_remove > 0:
            raise refused("crop", tokens_to_remove, "minus the number of tokens to remove, or 0")
        if tokens_to_remove == 0 or self.session is None:
            return
        columns = self.columns.first(max(self.columns.count + tokens_to_remove, 0))
        for request, held in enumerate(columns.tokens):
            self.session.truncate(held, request)
        self.hold(columns)

    def reset(self):
        if self.session is not None:
            for request in range(len(self.columns.tokens)):
                self.session.end_request(request)
            self.shift, self.failed = None, False
            self.hold(Columns.none(len(self.columns.tokens)))

    def reorder_cache(self, beam_idx):
        """Replaces sequence i by sequence beam_idx[i]; the batch gets the length of beam_idx."""
        if self.session is None:
            return
        chosen = torch.as_tensor(beam_idx).to("cpu", torch.int64)
        if len(chosen) > self.session.options["max_requests"]:
            self.session.resize(max_requests=len(chosen))
        self.session.reorder(chosen.tolist())
        for request in range(len(chosen), len(self.columns.tokens)):
            self.session.end_request(request)
        self.shift = None if self.shift is None else self.shift[chosen]
        self.hold(self.columns.chosen(chosen.tolist()))

    def batch_select_indices(self, indices):
        chosen = torch.as_tensor(indices).to("cpu")
        if chosen.dtype is torch.bool:
            chosen = chosen.nonzero().flatten()
        self.reorder_cache(chosen)

    def batch_repeat_interleave(self, repeats):
        if self.session is not None:
            self.reorder_cache(torch.arange(len(self.columns.tokens)).repeat_interleave(repeats))

    def hold(self, columns, in_graph=False):
        """Sets the columns of the cache. in_graph: a compiled graph advances the clock."""
        self.columns, self.tokens = columns, columns.count
        if not in_graph:
            self.clock.fill_(self.tokens)

    def __deepcopy__(self, memo):
        out = object.__new__(type(self))
        memo[id(self)] = out
        out.__dict__.update(self.__dict__)
        out.session = None if self.session is None else self.session.clone()
        out._count()
        return out

    def __reduce__(self):
        raise TypeError("a cache of smla.transformers cannot be pickled; run the model on its tokens instead")

    def lazy_initialization(self, key_states, value_states):
        raise refused("past_key_values", "keys and values", "the hidden states of an attention layer on smla")

    def update(self, key_states, value_states, *args, **kwargs):
        raise refused("past_key_values", "a cache of smla", f"a cache of transformers: {_THEIRS}")

    def update_indexer(self, indexer_key_states):
        self.update(None, None)

    def offload(self):
        raise refused("past_key_values", "an offloaded cache", "a cache on the device of its layer")

    prefetch = offload

    # Interface of _step.run.

    def open(self, layer, options, batch, columns, step, *, keep):
        """Allocates memory for `columns` columns and for steps of `step` tokens. keep: later steps use it."""
        if self.failed:
            raise refused("past_key_values", "a cache whose last step failed midway", AFTER_FAILURE)
        if self.session is not None and self.session.layer is not layer:
            raise refused("past_key_values", "a cache of other weights", "an empty one after weights change")
        room = columns if not keep else max(self.max_tokens, columns + columns // 4)
        room = -(-room // _PAGE) * _PAGE
        if self.is_compileable:
            room = self.max_tokens
            if columns > room:
                raise refused("past_key_values", f"{columns} tokens", f"at most {room}, the cache's size")
        if self.session is None:
            formats = {name: getattr(self, name) or options[name] for name in ("kv_format", "index_format")}
            self.session = layer.session(
                **formats,
                kv_scale=self.kv_scale if self.kv_format else options["kv_scale"],
                max_requests=batch,
                max_tokens=room,
                max_step_tokens=step,
            )
            self.states_beside = options["pools"]
            self.rewinds = layer.info["kind"].startswith("dsa") and not self.states_beside
            self.columns = Columns.none(batch)
            self.is_initialized = True
            return
        held, more = self.session.options, {}
        if columns > held["max_tokens"]:
            more["max_tokens"] = room
        if step > held["max_step_tokens"]:
            more["max_step_tokens"] = step
        if more:
            self.session.resize(**more)

    def close(self, batch):
        """Frees the scratch of a long prompt, because each layer of a model has separate scratch."""
        if self.session.options["max_step_tokens"] > batch * FEW_TOKENS:
            self.session.resize(max_step_tokens=batch * FEW_TOKENS)

    @contextlib.contextmanager
    def step(self):
        """Restores the cache if the step fails or is interrupted by Ctrl-C.

        V4 cannot always be restored, and linear layers of GLM-5.3-Flash never are. In these cases, later
        steps with the cache raise an error.
        """
        shift, self.failed = self.shift, True
        self.shift = None if shift is None else shift.clone()
        try:
            yield
        except BaseException:
            self.shift = shift
            self.failed = not self._take_back() or self.states_beside
            raise
        self.failed = False

    def _take_back(self):
        """Removes tokens of a failed step from the session, and returns whether this succeeded."""
        try:
            for request, held in enumerate(self.columns.tokens):
                if self.session.length(request) != held:
                    self.session.truncate(held, request)
        except Error:
            return False
        return True


_THEIRS = "DynamicCache(config=model.config)"


class Cache(transformers.Cache):
    """A cache for a model on smla, for the argument past_key_values, with its own size and record formats.

    Args:
        config: configuration of the model.
        max_tokens: tokens per sequence for which memory is allocated. A static cache does not grow.
        kv_format, index_format: record formats ("fp8_656", "index_fp8_132"). Default: as in enable().
        kv_scale: scale of kv_format, for fp8_576 and fp8_512.
        static: whether the size is fixed. The length is then a tensor, so that a compiled step supports every
            length.
    """

    def __init__(
        self,
        config: Any,
        *,
        max_tokens: int = 0,
        kv_format: str | None = None,
        index_format: str | None = None,
        static: bool = False,
        kv_scale: float = 0.0,
    ) -> None:
        if integer("max_tokens", max_tokens, least=0) == 0 and static:
            raise refused("max_tokens", max_tokens, "1 or more for a static cache")
        if kv_scale and kv_format is None:
            raise refused("kv_scale", kv_scale, "0, or a kv_format")
        config = config.get_text_config(decoder=True)
        options = {"kv_format": kv_format, "index_format": index_format, "kv_scale": kv_scale}
        layers: list[Any] = [
            CacheLayer(**options, max_tokens=max_tokens, static=static)
            if isinstance(theirs, CacheLayerMixin)
            else theirs  # layer of linear attention, which runs on transformers
            for theirs in transformers.DynamicCache(config=config).layers
        ]
        super().__init__(layers=layers)

    @property
    def bytes(self) -> int:
        """Size of all layers' caches in bytes, without the states of linear attention."""
        layers: list[Any] = self.layers
        return sum(layer.bytes for layer in layers if isinstance(layer, CacheLayer))


def layer_of_cache(past, index):
    """Returns layer `index` of a cache. An empty layer of transformers is replaced by a layer on smla."""
    if past is None:
        return CacheLayer()
    if getattr(past, "offloading", False):
        raise refused("past_key_values", "an offloaded cache", "a cache on the device of its layer")
    layers = getattr(past, "layers", None)
    if layers is None:
        raise refused(
            "past_key_values", type(past).__name__, "a Cache of transformers or of smla.transformers"
        )
    while len(layers) <= index:
        layers.append(CacheLayer())
    held = layers[index]
    if not isinstance(held, CacheLayer):
        if held.is_initialized:
            raise refused("past_key_values", f"a {type(held).__name__} that is in use", "an empty cache")
        static = bool(held.is_compileable)
        layers[index] = held = CacheLayer(static=static, max_tokens=held.get_max_length() if static else 0)
    return held


def check_layers(past, index, steps):
    """Raises an error if a failed step left the layers of a cache with different lengths."""
    if past is None or index == 0:
        return
    held, place = past.layers[index], index - 1
    while place > 0 and not isinstance(past.layers[place], CacheLayer):  # linear attention
        place -= 1
    before = past.layers[place]
    if isinstance(before, CacheLayer) and before.session and before.tokens != held.tokens + steps:
        raise refused(
            "past_key_values",
            f"{held.tokens} tokens in layer {index}, {before.tokens - steps} in layer {place}, "
            "which is left by a failed step",
            AFTER_FAILURE,
        )
