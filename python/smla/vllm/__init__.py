"""A plug-in of vLLM: its entry point group vllm.general_plugins finds `register` when both are installed.

    vllm serve MODEL --attention-backend CUSTOM

uses smla's attention for sparse MLA models (DeepSeek-V3.2, GLM-5.x). It is written against the interface that
tests/python/vllm_interface.json records, and its tests use classes made from that file, not vLLM itself.
Importing this package needs neither vLLM nor PyTorch. What is supported, and DeepSeek-V4:
docs/python/vllm.md.
"""

import logging

BACKEND = "smla.vllm.backend.SmlaSparseBackend"
_logger = logging.getLogger("smla.vllm")


def register() -> bool:
    """Registers smla as vLLM's attention backend CUSTOM, and returns whether it is. May be called repeatedly.

    If vLLM has no such registry, or another plug-in holds CUSTOM, it warns and changes nothing.
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
