"""What a model makes of its 2D attention mask where smla runs: no [B,1,S,T] mask is ever formed."""

import torch
from transformers.masking_utils import and_masks, causal_mask_function, sliding_window_overlay

from ..errors import Unsupported

# These functions are made anew for each mask; their code is always the same.
_AND, _WINDOW = and_masks().__code__, sliding_window_overlay(1).__code__


class NoPadding:
    """A mask that masks nothing. Attention on smla treats it as None. Attention of transformers would raise a
    TypeError on None; computing with this mask raises not_enabled()."""

    def __getitem__(self, _):
        raise not_enabled()

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        raise not_enabled()


def not_enabled():
    """Returns the error for attention that does not run on smla although attn_implementation is "smla"."""
    return Unsupported(
        'smla.transformers: attn_implementation="smla" does not replace the attention of this model: either '
        "smla has none of its kind (smla.transformers.why_not(model) tells), or its first call is compiled, "
        "which needs smla.transformers.enable(model) before.",
        "attn_implementation",
        '"smla"',
        "smla.transformers.enable(model)",
    )


def make_mask(mask_function=causal_mask_function, attention_mask=None, **_):
    """Returns a mask [B,1,1,T], bool on the host: true where a column holds a token. If all columns hold one,
    returns NoPadding(), or None while a compiler traces.

    The mask has four dimensions because transformers passes such masks on unchanged, also from generate().
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
                columns = columns.clone()  # has a version, by which layers know the mask of a step again
    return columns[:, None, None, :]


@torch.compiler.assume_constant_result  # a compiler does not look into closures; a model's function stays
def _is_plain(function):
    """Whether it is transformers' causal mask, with or without a sliding window, which V4's layers know."""
    code = getattr(function, "__code__", None)
    if code is _AND:
        (parts,) = (cell.cell_contents for cell in function.__closure__)
        return all(_is_plain(part) for part in parts)
    return code is causal_mask_function.__code__ or code is _WINDOW


def columns_of(mask):
    """[B,T] of what make_mask gave or the caller passed instead."""
    given = f"{mask.dtype} {list(mask.shape)}".removeprefix("torch.")
    if mask.dtype is not torch.bool or mask.ndim != 4 or mask.shape[1:3] != (1, 1):
        raise refused("attention_mask", given, "[B,T]: 1 for tokens, 0 for padding")
    return mask[:, 0, 0].to("cpu")


def refused(field, got, wanted):
    """Unsupported, in the library's own words and under this package's name."""
    return Unsupported(f"smla.transformers: {field}: got {got}, wanted {wanted}", field, str(got), wanted)
