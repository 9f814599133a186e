"""Attention modules of transformers whose forward runs a smla.Layer with the module's weights."""

import dataclasses
import functools
import importlib
import threading
import warnings
import weakref

import torch
import transformers
from torch import nn

from ..context import Context
from ..errors import Error
from ..layer import Layer
from . import _step
from ._cache import CacheLayer, check_layers, layer_of_cache
from ._mask import NoPadding, not_enabled, refused
from ._plain import WANTED, Marks, left_out

NAME = "smla"  # name of the attention implementation


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of enable()."""

    kv_format: str | None = None
    index_format: str | None = None
    threads: int = 0
    queries: str | None = None
    kv_scale: float = 0.0
    before: str = "eager"  # attention implementation that disable() restores


class Defaults:
    """Options for models with attn_implementation="smla", and whether every new model runs on smla."""

    options = Options()
    every_model = False


_building = threading.Lock()  # held while a layer and its context are created
_contexts: dict[tuple[torch.device, int], Context] = {}


def _context(device, threads):
    """Returns the shared context of a device and a number of threads. threads 0: PyTorch's number."""
    threads = threads or torch.get_num_threads()
    index = (
        torch.cuda.current_device() if device.type == "cuda" and device.index is None else device.index or 0
    )
    if device.type not in ("cpu", "cuda"):
        raise refused("device", device.type, "cpu or cuda")
    key = torch.device(device.type, index), threads
    if key not in _contexts:
        cuda = {"device": index} if device.type == "cuda" else {"threads": threads}
        _contexts[key] = Context(device.type, **cuda)
    return _contexts[key]


class OnSmla(nn.Module):
    """A mixin that precedes transformers' attention class in the list of bases. Weights, their names and
    the arguments of calls are unchanged. The cache layer and the forward are replaced while the model's
    attention implementation is NAME.
    """

    shares = False  # GLM: forward also returns the selection, for layers without an indexer
    pools = False  # GLM-5.3-Flash: the indexer selects pools of tokens; other layers are linear attention
    latent_norm = "q_a_layernorm"  # V3.2 and GLM: the class, not the config, determines its epsilon

    def __getstate__(self):
        state = dict(self.__dict__)
        state.pop("_built", None)
        return state

    def smla_options(self):
        """Returns formats and scale of a new cache, and whether the model selects pools."""
        options = self.__dict__["_options"]
        rows = "row_bf16" if next(self.parameters()).dtype is torch.bfloat16 else "row_f32"
        return {
            "kv_format": options.kv_format or rows,
            "index_format": options.index_format or rows,
            "kv_scale": options.kv_scale,
            "pools": self.pools,
        }

    def selection_is_shared(self):
        """Returns whether forward returns a selection that this layer computes."""
        return self.shares and self.indexer is not None and getattr(self, "next_skip_topk", True)

    def smla_layer(self):
        """Returns the smla.Layer with this module's weights, and rebuilds it if the weights have changed."""
        if (layer := self._valid_layer()) is None:
            with _building:  # a thread that has waited finds the layer of another thread
                if (layer := self._valid_layer()) is None:
                    layer = self._build()
                    self.__dict__["_built"] = layer, Marks(self)
        return layer

    def _valid_layer(self):
        built = self.__dict__.get("_built")
        return built[0] if built and built[1].hold() else None

    def _build(self):
        for name, got in left_out(self):
            raise refused(f"{self._label()}.{name}", got, WANTED)
        options = self.__dict__["_options"]
        device = next(self.parameters()).device
        config = self.config.to_dict()
        if norm := getattr(self, self.latent_norm, None):
            config["latent_norm_eps"] = norm.variance_epsilon
        prefix = f"model.layers.{self.layer_idx}.self_attn."
        tensors = {prefix + name: value for name, value in self.state_dict().items()}
        bf16 = next(self.parameters()).dtype is torch.bfloat16
        queries = options.queries or ("bf16" if bf16 else "f32")
        return Layer.from_tensors(
            _plain_values(config),
            tensors,
            self.layer_idx,
            activations=queries if bf16 else "f32",
            queries=queries,
            context=_context(device, options.threads),
        )

    def forward(self, hidden_states, *args, **kwargs):
        if self.config._attn_implementation != NAME:
            return super().forward(hidden_states, *args, **kwargs)
        if args:
            raise TypeError(f"{self._label()}: arguments after hidden_states must be passed by name")
        named = ("attention_mask", "past_key_values", "position_ids", "prev_topk_indices", "cache")
        mask, past, positions, forced, cache = [kwargs.pop(name, None) for name in named]
        past = past if cache is None else cache  # renamed in transformers 5.24
        if isinstance(mask, NoPadding):
            mask = None
        for name, value in kwargs.items():
            if isinstance(value, transformers.Cache):  # named as in a later release
                raise refused(name, "a cache", "cache or past_key_values")
        if torch.is_grad_enabled() and any(x.requires_grad for x in (hidden_states, *self.parameters())):
            wanted = "torch.no_grad(), because smla has no backward pass"
            raise refused(self._label(), "a forward that records gradients", wanted)
        if self.training and self.attention_dropout:
            raise refused(self._label(), "dropout in training mode", "model.eval()")
        if kwargs.get("output_attentions"):
            raise refused("output_attentions", "True", "False, because attention weights are not computed")
        if torch.compiler.is_compiling():
            out, chosen = self._compiled(hidden_states, mask, past, positions, forced)
        else:
            held, keep = self._cache(past), past is not None
            check_layers(past, self.layer_idx, hidden_states.shape[1])
            out, chosen = _step.run(self, held, hidden_states, mask, positions, forced, keep=keep)
        if chosen is None:
            chosen = forced
        return (out, None, chosen) if self.shares else (out, None)

    def _compiled(self, hidden, mask, past, positions, forced):
        """Runs the forward as one operator of the graph. The cache is created outside of the graph."""
        layers = [] if past is None else past.layers
        ready = self.layer_idx < len(layers) and isinstance(layers[self.layer_idx], CacheLayer)
        cache = layers[self.layer_idx] if ready else None
        if cache is None or cache.session is None:
            cache = self._first_cache(past)
        width = self.config.index_topk // (self.config.index_kpool if self.pools else 1)
        columns = width if self.selection_is_shared() else 0
        out, chosen = _step.compiled_step(cache.number, cache.clock, hidden, mask, positions, forced, columns)
        cache.clock.add_(hidden.shape[1])
        if not cache.is_compileable:
            cache.tokens = cache.tokens + hidden.shape[1]
        return out, chosen if columns else None

    def _cache(self, past):
        cache = layer_of_cache(past, self.layer_idx)
        if cache.module is None:
            cache.module = weakref.ref(self)
        return cache

    _first_cache = torch.compiler.disable(_cache)

    def _label(self):
        return f"layer {self.layer_idx} ({type(self).__bases__[-1].__name__})"


def put_on_smla(module, options, before):
    """Changes the class of an attention module of transformers and keeps its weights. before: see Options."""
    module.__class__ = REPLACEMENTS.get(type(module).__name__, type(module))
    module.__dict__["_options"] = dataclasses.replace(options, before="eager" if before == NAME else before)
    module.__dict__.pop("_built", None)


def _watch(base):
    """Wraps a module class of transformers, so that its modules change their class if the model selects smla
    by attn_implementation or by enable().

    Functions of AttentionInterface receive only queries, keys and values, but smla also requires
    hidden states and the indexer. The patch registry of transformers before 5.23 fails without torchvision.
    """
    init, forward = base.__init__, base.forward

    @functools.wraps(init)
    def built(self, config, *args, **kwargs):
        init(self, config, *args, **kwargs)
        if Defaults.every_model:
            put_on_smla(self, Defaults.options, config._attn_implementation or "eager")
            config._attn_implementation = NAME

    @functools.wraps(forward)
    def called(self, *args, **kwargs):
        if self.config._attn_implementation != NAME or isinstance(self, OnSmla):
            return forward(self, *args, **kwargs)
        if torch.compiler.is_compiling():
            raise not_enabled()
        put_on_smla(self, Defaults.options, "eager")
        return self.forward(*args, **kwargs)

    base.__init__, base.forward = built, called


def _plain_values(config):
    """Converts a config to JSON types. Other values (dtypes, classes) become str; attention ignores them."""
    if isinstance(config, dict):
        return {str(key): _plain_values(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [_plain_values(value) for value in config]
    return config if isinstance(config, (str, int, float, bool, type(None))) else str(config)


def _on_smla(family, name, **values):
    """Returns transformers' attention class of a family and its subclass on smla, or (None, None)."""
    try:
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    except ImportError:
        module = None
    if (base := getattr(module, name, None)) is None:
        return None, None
    return base, type(f"Smla{name}", (OnSmla, base), {"__module__": __name__, **values})


# Attention classes by name.
_FAMILIES = {
    "DeepseekV32Attention": _on_smla("deepseek_v32", "DeepseekV32Attention"),
    "GlmMoeDsaAttention": _on_smla("glm_moe_dsa", "GlmMoeDsaAttention", shares=True),
    "DeepseekV4Attention": _on_smla("deepseek_v4", "DeepseekV4Attention"),
    "Glm5NextTextAttention": _on_smla("glm5_next", "Glm5NextTextAttention", shares=True, pools=True),
}
REPLACEMENTS = {name: ours for name, (_, ours) in _FAMILIES.items() if ours is not None}
ORIGINALS = {ours: base for base, ours in _FAMILIES.values() if ours is not None}
globals().update({ours.__name__: ours for ours in ORIGINALS})  # pickled models refer to these classes by name
for _base in ORIGINALS.values():
    _watch(_base)


def why_not(module):
    """Returns the reasons why this attention module cannot run on smla."""
    reasons = []
    devices = {value.device.type for value in module.state_dict().values()}
    if len(devices) != 1 or not devices <= {"cpu", "cuda"}:
        reasons.append(f"weights: got some on {', '.join(sorted(devices))}, wanted one device, cpu or cuda")
        return reasons
    if hasattr(module, "_hf_hook"):
        reasons.append("weights: got offloading by accelerate (device_map), wanted weights on one device")
    if found := [f"{name}: got {got}, wanted {WANTED}" for name, got in left_out(module)]:
        return reasons + found
    if not isinstance(module, OnSmla):  # a copy on smla over the same weights
        held, kind = module.__dict__, REPLACEMENTS[type(module).__name__]
        module = kind.__new__(kind)
        module.__dict__.update(held, _options=Defaults.options)
    try:
        module.smla_layer()
    except Error as error:
        reasons.append(str(error))
    return reasons


def warn_of_rounded(model):
    """Warns of the first rotary module whose frequencies a conversion of the model has rounded."""
    files = {base.__module__ for ours, base in ORIGINALS.items() if not ours.pools}  # no rotation with pools
    for name, module in model.named_modules():
        if type(module).__module__ not in files:
            continue
        for buffer, held in module.named_buffers(recurse=False):
            if not buffer.endswith("inv_freq") or held.is_meta:
                continue
            if held.dtype is torch.float32:
                fresh = getattr(type(module)(module.config), buffer)
                if torch.allclose(held.cpu(), fresh.cpu(), rtol=1e-5, atol=0):
                    continue
            dtype = str(held.dtype).removeprefix("torch.")
            warnings.warn(
                f"smla.transformers: {name}.{buffer} ({dtype}) is rounded, as by model.to(dtype), so "
                "transformers rotates by other angles than smla, which computes angles from the config. "
                "Load the model with from_pretrained(..., dtype=...) instead of converting it.",
                stacklevel=3,
            )
            return
