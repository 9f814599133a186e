"""Detection of rotary frequencies that a conversion of the model has rounded."""

import warnings

import torch

from ._modules import ORIGINALS


def warn_of_rounded(model):
    """Warns of the first rotary module whose frequencies differ from its config."""
    files = {base.__module__ for base in ORIGINALS.values()}
    for name, module in model.named_modules():
        if type(module).__module__ not in files:
            continue
        for buffer, held in module.named_buffers(recurse=False):
            if buffer.endswith("inv_freq") and not held.is_meta and not _is_exact(module, buffer, held):
                dtype = str(held.dtype).removeprefix("torch.")
                warnings.warn(
                    f"smla.transformers: {name}.{buffer} ({dtype}) is rounded, as by model.to(dtype), so "
                    "transformers rotates by other angles than smla, which computes them from the config. "
                    "Load the model with from_pretrained(..., dtype=...) instead of converting it.",
                    stacklevel=3,
                )
                return


def _is_exact(module, buffer, held):
    if held.dtype is not torch.float32:
        return False
    fresh = getattr(type(module)(module.config), buffer)
    return torch.allclose(held.cpu(), fresh.cpu(), rtol=1e-5, atol=0)
