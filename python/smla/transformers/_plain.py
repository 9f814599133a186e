"""Finds behavior of an attention module that smla would ignore because smla only reads weights."""

from torch import nn

# Submodules whose weights fully describe them: PyTorch, transformers and quantized modules.
_KNOWN = (
    "torch.nn.modules.",
    "transformers.models.",
    "transformers.integrations.finegrained_fp8",
    "transformers.integrations.compressed_tensors",
)
_HOOKS = {"_forward_hooks": "a forward hook", "_forward_pre_hooks": "a forward pre-hook"}
WANTED = (
    "a module without bias, hooks or adapters, because smla only reads its weight; call "
    "merge_and_unload() of peft and remove hooks"
)


def left_out(attention):
    """Yields (name, description) for each submodule of an attention whose behavior smla would ignore."""
    for name, module in attention.named_modules():
        if module is attention:
            continue
        kind = type(module)
        if not kind.__module__.startswith(_KNOWN):
            yield name, f"a {kind.__module__}.{kind.__qualname__}"
        for what in _additions(module):
            yield name, what


def _additions(module):
    if isinstance(module, nn.Linear):
        if module.bias is not None:
            yield "a bias"
        if "forward" in vars(module):
            yield "a custom forward"
    for hooks, what in _HOOKS.items():
        if getattr(module, hooks):
            yield what


class Marks:
    """The weights and modules that a layer was built from."""

    def __init__(self, attention):
        self._weights, self._modules = [], []
        for module in attention.modules():
            for values in (module._parameters, module._buffers):
                self._weights += [(values, name, value, *_place(value)) for name, value in values.items()]
            for name, child in module._modules.items():
                self._modules.append((module._modules, name, child, type(child)))

    def hold(self):
        """Returns whether all weights and modules are unchanged: not replaced, moved, written or extended."""
        return all(
            values.get(name) is value and _place(value) == (address, version)
            for values, name, value, address, version in self._weights
        ) and all(
            children.get(name) is child
            and type(child) is kind
            and (child is None or not any(_additions(child)))
            for children, name, child, kind in self._modules
        )


def _place(value):
    """Returns the address of a weight and its version, which each write increments."""
    if value is None:
        return 0, 0
    return value.data_ptr(), 0 if value.is_inference() else value._version
