"""Refusal of what the attention layer of a model may ask for and smla does not have. Needs nothing."""

from typing import Any

from ..errors import unsupported


def refuse(attn_type: Any, selection: Any, **features: Any) -> None:
    """Raises for an encoder, for a layer without selected positions, and for features that are not off."""
    for name, value in features.items():
        if value is not None and value is not False:
            raise unsupported(name, type(value).__name__, "none: smla.vllm does not know it")
    if getattr(attn_type, "value", attn_type) != "decoder":
        raise unsupported("attn_type", attn_type, "decoder self-attention")
    if selection is None:
        raise unsupported("indexer", None, "one, or its buffer: a model with index_topk")
