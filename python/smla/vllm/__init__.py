"""A plug-in of vLLM: its entry point group vllm.general_plugins finds `register` when both are installed.

    vllm serve MODEL --attention-backend SMLA      # CUSTOM where vLLM's registry takes no new names

uses smla's attention for sparse MLA models (DeepSeek-V3.2, GLM-5.x). Importing this package needs neither
vLLM nor PyTorch. For versions, supported features and DeepSeek-V4, see docs/python/vllm.md.
"""

import logging

__all__ = ["BACKEND", "NAME", "register", "registered_name"]
BACKEND = "smla.vllm.backend.SmlaSparseBackend"
NAME = "SMLA"
_logger = logging.getLogger("smla.vllm")


def register() -> bool:
    """Registers smla among vLLM's attention backends, and returns whether it is there.

    Its name is SMLA, or CUSTOM where the registry takes no new names. It may be called repeatedly. If vLLM
    has no such registry, or another plug-in holds the name, it warns and changes nothing. Where the GPU needs
    it, vLLM's indexer is put on smla too (smla.vllm.indexer).
    """
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        _logger.warning("smla is no attention backend of this vLLM: %s", error)
        return False
    if not _registered(AttentionBackendEnum, register_backend):
        return False
    from . import indexer

    try:
        indexer.install()
    except ImportError as error:  # models without an indexer run all the same
        _logger.warning("vLLM's indexer stays as it is: %s", error)
    return True


def _registered(members, register_backend):
    if hasattr(members, "register") and NAME not in members.__members__:
        register_backend(NAME, BACKEND)
        return True
    member = members[registered_name()]
    if (member.is_overridden() or member.name == NAME) and member.get_path() != BACKEND:
        _logger.warning("smla is not registered: %s is %s", member.name, member.get_path())
        return False
    register_backend(member, BACKEND)
    return True


def registered_name() -> str:
    """The member of vLLM's registry that stands for smla."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return NAME if NAME in AttentionBackendEnum.__members__ else "CUSTOM"
