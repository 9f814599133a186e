"""Runs the sparse attention of DeepSeek-V3.2, GLM-5.x, GLM-5.3-Flash and V4 in transformers on smla.

After `import smla.transformers`, do one of the following:

smla.transformers.enable(model)          # for an existing model
smla.transformers.enable()               # for every model that is built afterwards
AutoModelForCausalLM.from_pretrained(folder, attn_implementation="smla")   # for this model
model.generate(...)
"""

from ._versions import require

require()

from typing import Any, Literal  # noqa: E402

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel  # noqa: E402

from ..cache import FORMATS  # noqa: E402
from ..errors import integer, one_of  # noqa: E402
from . import _modules  # noqa: E402
from ._cache import Cache  # noqa: E402
from ._mask import make_mask, not_enabled, refused  # noqa: E402
from ._modules import NAME, ORIGINALS, REPLACEMENTS, Defaults, OnSmla, Options  # noqa: E402

__all__ = ["Cache", "disable", "enable", "why_not"]
_QUERIES = {"f32": "f32", "bf16": "bf16"}


def enable(
    model: Any = None,
    *,
    kv_format: str | None = None,
    index_format: str | None = None,
    threads: int = 0,
    queries: Literal["f32", "bf16"] | None = None,
    kv_scale: float = 0.0,
) -> Any:
    """Runs the attention of `model` on smla, in place and with the model's weights. Returns the model.

    If model is None, every model that is built afterwards runs on smla. A second call applies the new options
    and renews the copies of weights.

    attn_implementation="smla" in from_pretrained, from_config or model.set_attn_implementation has the same
    effect, with the options of the last enable() without a model, or the default options. It requires `import
    smla.transformers` first.

    Threads may call an enabled model at the same time, each with a separate cache. Call enable() and
    disable() only while no other thread runs the model.

    Args:
        model: a model of transformers, or None.
        kv_format, index_format: record formats of caches ("fp8_656", "index_fp8_132"). Default: rows of the
            model's dtype, or f32 rows for f16.
        threads: threads on a CPU. 0: torch.get_num_threads() when a layer first runs.
        queries: dtype of the operands of matrix products and attention, "f32" or "bf16". Default: bf16 for a
            model with bf16 weights, otherwise f32. Sums and norms are f32.
        kv_scale: scale of fp8_576 and fp8_512, which require one above 0; other formats accept 0 or 1.

    Warns if the rotary frequencies of the model are rounded, for example by model.to(torch.bfloat16).
    """
    for field, value in (("kv_format", kv_format), ("index_format", index_format)):
        if value is not None:
            one_of(field, value, FORMATS)
    if queries is not None:
        one_of("queries", queries, _QUERIES)
    options = Options(kv_format, index_format, integer("threads", threads, least=0), queries, kv_scale)
    if model is None:
        Defaults.options, Defaults.every_model = options, True
        return None
    found = _attentions(model)
    if not found:
        names = ", ".join(name.removesuffix("Attention") for name in REPLACEMENTS)
        raise refused("model", type(model).__name__, f"a model of transformers with attention of {names}")
    _modules.warn_of_rounded(model)
    before = found[0].config._attn_implementation
    for module in found:
        if isinstance(module, OnSmla):
            before = module.__dict__["_options"].before
        _modules.put_on_smla(module, options, before)
    _set_implementation(model, NAME)
    return model


def disable(model: Any = None) -> Any:
    """Undoes enable() for one model and restores its previous attention implementation. If model is None,
    undoes enable() for models that are built afterwards.

    transformers cannot continue a cache that smla created; begin with an empty one.
    """
    if model is None:
        Defaults.every_model = False
        return None
    found = [module for module in _attentions(model) if isinstance(module, OnSmla)]
    for module in found:
        module.__class__ = ORIGINALS[type(module)]
    if found:
        _set_implementation(model, found[0].__dict__["_options"].before)
    for module in found:
        for name in ("_options", "_built"):
            module.__dict__.pop(name, None)
    return model


def why_not(model: Any) -> list[str]:
    """Returns the reasons why a model's attention cannot run on smla, or an empty list if it can.

    Warns of rounded rotary frequencies, as enable() does.
    """
    found = _attentions(model)
    if not found:
        return [f"{type(model).__name__} has no attention of {', '.join(REPLACEMENTS)}"]
    _modules.warn_of_rounded(model)
    return [f"layer {module.layer_idx}: {reason}" for module in found for reason in _modules.why_not(module)]


def _set_implementation(model, name):
    """Sets the attention implementation of a model; with an image encoder, only of its language model."""
    whole = "text_config" not in model.config.sub_configs
    model.set_attn_implementation(name if whole else {"text_config": name})


def _attentions(model):
    """Returns the attention modules of a model that run on smla or can run on it."""
    if not isinstance(model, PreTrainedModel):
        raise refused("model", type(model).__name__, "a model of transformers")
    kinds = (*ORIGINALS, *ORIGINALS.values())
    return [module for module in model.modules() if type(module) in kinds]


def _no_attention(module, *args, **kwargs):
    raise not_enabled()


AttentionInterface.register(NAME, _no_attention)
AttentionMaskInterface.register(NAME, make_mask)
