"""Attention masks of models on smla: [B,1,1,T] instead of the [B,1,S,T] of transformers."""

import torch
from transformers.masking_utils import and_masks, causal_mask_function, sliding_window_overlay

from ..errors import Unsupported

# transformers creates new closures for each mask, but their code objects are always the same.
_AND, _WINDOW = and_masks().__code__, sliding_window_overlay(1).__code__


class NoPadding:
    """A mask that masks nothing. Attention on smla treats it as None. transformers' attention would raise a
    TypeError on None; using this mask raises not_enabled()."""

    def __getitem__(self, _):
        raise not_enabled()

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        raise not_enabled()


def not_enabled():
    """Returns the error for attention that does not run on smla although attn_implementation is "smla"."""
    return Unsupported(
        'smla.transformers: attn_implementation="smla" does not replace the attention of this model: either '
        "smla does not support it (see smla.transformers.why_not(model)), or its first call is compiled, "
        "which requires a call of smla.transformers.enable(model) first.",
        "attn_implementation",
        '"smla"',
        "smla.transformers.enable(model)",
    )


def make_mask(mask_function=causal_mask_function, attention_mask=None, **_):
    """Returns a mask [B,1,1,T], bool on the host: true where a column holds a token. If all columns hold
    tokens, returns NoPadding(), or None while a compiler traces.

    The mask has four dimensions because transformers, including generate(), passes on such masks unchanged.
    """
    if not _is_plain(mask_function):
        raise refused("attention_mask", "packed sequences or a mask function", "a causal mask with padding")
    nothing = None if torch.compiler.is_compiling() else NoPadding()
    if attention_mask is None:
        return nothing
    if attention_mask.ndim != 2:
        raise refused(
            "attention_mask", f"{attention_mask.ndim} dimensions", "[B,T]: 1 for tokens, 0 for padding"
        )
    columns = attention_mask.to(device="cpu", dtype=torch.bool)
    if not torch.compiler.is_compiling():
        if bool(columns.all()):
            return nothing
        if columns.is_inference():
            with torch.inference_mode(False):
                columns = columns.clone()  # gives it a version, by which layers recognize the mask of a step
    return columns[:, None, None, :]


@torch.compiler.assume_constant_result  # compilers cannot trace closures; a model's function is constant
def _is_plain(function):
    """Returns whether a function is transformers' causal mask, with or without a sliding window."""
    code = getattr(function, "__code__", None)
    if code is _AND:
        (parts,) = (cell.cell_contents for cell in function.__closure__)
        return all(_is_plain(part) for part in parts)
    return code is causal_mask_function.__code__ or code is _WINDOW


def columns_of(mask):
    """Returns the columns [B,T] of a mask from make_mask; rejects any other mask."""
    given = f"{mask.dtype} {list(mask.shape)}".removeprefix("torch.")
    if mask.dtype is not torch.bool or mask.ndim != 4 or mask.shape[1:3] != (1, 1):
        raise refused("attention_mask", given, "[B,T]: 1 for tokens, 0 for padding")
    return mask[:, 0, 0].to("cpu")


def refused(field, got, wanted):
    """Returns an Unsupported error in the format of the library, with the name of this package."""
    return Unsupported(f"smla.transformers: {field}: got {got}, wanted {wanted}", field, str(got), wanted)
