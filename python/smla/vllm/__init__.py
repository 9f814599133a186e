"""Plug-in for vLLM, which finds `register` through the entry point group vllm.general_plugins.

    vllm serve MODEL --attention-backend SMLA      # CUSTOM if vLLM's registry accepts no new names

This command uses smla for the attention of sparse MLA models (DeepSeek-V3.2, GLM-5.x). Importing this
package requires neither vLLM nor PyTorch. docs/python/vllm.md lists versions and supported features, and
describes DeepSeek-V4.
"""

import logging

__all__ = ["BACKEND", "NAME", "register", "registered_name"]
BACKEND = "smla.vllm.backend.SmlaSparseBackend"
NAME = "SMLA"
_logger = logging.getLogger("smla.vllm")


def register() -> bool:
    """Registers smla among vLLM's attention backends, and returns whether smla is registered.

    The name is SMLA, or CUSTOM if the registry accepts no new names. register() may be called repeatedly. If
    vLLM has no such registry, or another plug-in uses the name, register() warns and changes nothing. If the
    GPU requires it, vLLM's indexer also runs on smla (smla.vllm.indexer).
    """
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        _logger.warning("smla cannot be registered in this vLLM: %s", error)
        return False
    if not _registered(AttentionBackendEnum, register_backend):
        return False
    from . import indexer

    try:
        indexer.install()
    except ImportError as error:  # models without an indexer still run
        _logger.warning("vLLM's indexer is not replaced: %s", error)
    return True


def _registered(members, register_backend):
    if hasattr(members, "register") and NAME not in members.__members__:
        register_backend(NAME, BACKEND)
        return True
    member = members[registered_name()]
    if (member.is_overridden() or member.name == NAME) and member.get_path() != BACKEND:
        _logger.warning("smla is not registered, because %s is %s", member.name, member.get_path())
        return False
    register_backend(member, BACKEND)
    return True


def registered_name() -> str:
    """Returns the name of smla in vLLM's registry."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return NAME if NAME in AttentionBackendEnum.__members__ else "CUSTOM"
