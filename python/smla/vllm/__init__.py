"""A plug-in of vLLM: its entry point group vllm.general_plugins finds `register` when both are installed.

    vllm serve MODEL --attention-backend CUSTOM

takes smla's attention for sparse MLA models (DeepSeek-V3.2, GLM-5.x). Written against the interface recorded
in tests/python/vllm_interface.json, and tested with classes made from it: not run against vLLM here.
Importing this package needs neither vLLM nor PyTorch. What is supported, and DeepSeek-V4:
docs/python/vllm.md.
"""

import logging

BACKEND = "smla.vllm.backend.SmlaSparseBackend"
_logger = logging.getLogger("smla.vllm")


def register() -> bool:
    """Registers smla as vLLM's attention backend CUSTOM; True if it is that now. May be called any number of
    times.

    A vLLM without that registry, or a CUSTOM backend of another plug-in, is left as it is, with a warning.
    """
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        _logger.warning("smla is no attention backend of this vLLM: %s", error)
        return False
    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != BACKEND:
        _logger.warning("smla is not registered: CUSTOM is %s (VLLM_PLUGINS chooses)", custom.get_path())
        return False
    register_backend(custom, BACKEND)
    return True
