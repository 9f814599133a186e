"""Runs vLLM's sparse indexer on smla if DeepGEMM, e4m3 in Triton or CuteDSL is missing. Requires vLLM.

    SMLA_VLLM_INDEXER    unset: if the GPU requires it; 1: always; 0: never

vLLM 0.25 to 0.33 compute scores with DeepGEMM (sm_90, sm_100, sm_120 families) and write e4m3 with Triton
(sm_89 and later). The plug-in calls install() when vLLM loads it, before a model exists, and install_model()
for each layer. Both functions replace names in vLLM's modules and may be called repeatedly.
"""

import importlib
import logging
import os
import sys
import warnings
from typing import Any

import torch

from ..errors import invalid, unsupported
from . import fused, indexer_calls, pooled

__all__ = ["asked", "install", "install_model", "kernels_needed", "needed"]
VARIABLE = "SMLA_VLLM_INDEXER"
INDEXER = "vllm.model_executor.layers.sparse_attn_indexer"
METADATA = "vllm.v1.attention.backends.mla.indexer"
# Modules that import the fused kernels by name: the first two in vLLM 0.25 and 0.26, the others later.
KERNELS = (
    "vllm.models.deepseek_v32.nvidia.kernels",
    "vllm.models.deepseek_v32.nvidia.attention",
    "vllm.models.deepseek_v32.common.kernels",
    "vllm.models.deepseek_v32.attention",
)
# The indexer of pooled keys (GLM-5.3-Flash), which imports functions by name from 0.33 on.
POOLED = "vllm.models.glm5next.nvidia.sparse_indexer"
POOLED_KERNELS = ("vllm.models.glm5next.nvidia.ops.kpool_compress", "vllm.models.glm5next.common.attention")
POOLED_NAMES = (
    "fwht128_quant_fp8",
    "kpool_compress_and_write_cache",
    "kpool_decode_update_and_maybe_write_cache_batched",
)
PACKING, PACK_KERNEL = "vllm.v1.attention.ops.common", "_PACK_SEQ_TRITON_KERNEL"
GENERIC_MODEL = "vllm.model_executor.models.deepseek_v2"
# Operators for the selection in vLLM 0.25 to 0.29; later versions call get_indexer_topk.
TOPK_OPERATORS = ("persistent_topk", "cooperative_topk")
_logger = logging.getLogger("smla.vllm")
_libraries: dict[str, torch.library.Library] = {}  # a registration ends when its Library is destroyed


def asked() -> bool | None:
    """Returns the value of SMLA_VLLM_INDEXER: True, False, or None if it is unset."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise invalid(VARIABLE, repr(value), "0, 1, or unset")
    return None if value == "" else value == "1"


def needed(platform: Any) -> bool:
    """Returns whether smla replaces scores, selection and index cache; by default if DeepGEMM cannot run."""

    def is_missing():
        utils = importlib.import_module("vllm.utils.import_utils")
        return not (platform.support_deep_gemm() and utils.has_deep_gemm())

    return _decided(platform, is_missing)


def kernels_needed(platform: Any) -> bool:
    """Returns whether smla replaces the fused kernels; by default below sm_89, where Triton has no e4m3."""
    return _decided(platform, lambda: not platform.has_device_capability(89))


def _decided(platform, here):
    wanted = asked()
    return platform.is_cuda() and (here() if wanted is None else wanted)


def install() -> list[str]:
    """Replaces functions that vLLM's indexer calls, if the GPU requires it. Returns the replaced names."""
    from vllm.platforms import current_platform

    if not current_platform.is_cuda() or asked() is False:
        return []
    module = importlib.import_module(INDEXER)
    replaced = []
    if needed(current_platform) or not getattr(module, "has_cutedsl", _yes)():
        replaced += _replace(
            module, _merge_dcp_topk_global=indexer_calls.merge_dcp_topk(module.get_dcp_group)
        )
    if needed(current_platform):
        # On the sm_100 family, the index cache of vLLM 0.33 has other scales, for DeepGEMM's kernels.
        if getattr(module, "mqa_logits_use_mx_scales", _no)():
            got = "1 on an sm_100 GPU, whose index cache has scales for DeepGEMM"
            raise unsupported(VARIABLE, got, "0 or unset")
        replaced += _replace_scores(module)
        # Without DeepGEMM, vLLM creates no schedules for its kernels and ignores their row limit per call.
        replaced += _replace(importlib.import_module(METADATA), has_deep_gemm=_no)
        if not hasattr(module, "get_indexer_topk"):
            replaced += _replace_operators(current_platform.dispatch_key)
    if kernels_needed(current_platform):
        replaced += _replace(module, fused_indexer_q_rope_quant=fused.fused_indexer_q_rope_quant)
        replaced += _replace_loaded((GENERIC_MODEL,), ("fused_indexer_q_rope_quant",))
        replaced += _replace_pack_kernel(importlib.import_module(PACKING))
    if replaced:
        _logger.info("vLLM's indexer runs on smla: %s", ", ".join(replaced))
    return replaced


def install_model() -> list[str]:
    """Replaces fused kernels, and functions that the indexer of pooled keys calls, in the modules of the
    model, which vLLM has imported. Returns the replaced names.
    """
    from vllm.platforms import current_platform

    replaced = []
    module: Any = sys.modules.get(POOLED)
    if hasattr(module, "fp8_fp4_mqa_logits") and needed(current_platform):
        merge = indexer_calls.merge_dcp_topk(module.get_dcp_group)
        replaced += _replace(module, _merge_dcp_topk_global=merge) + _replace_scores(module)
    if kernels_needed(current_platform):
        replaced += _replace_loaded(KERNELS, ("fused_norm_rope", "fused_q"))
        replaced += _replace_loaded((GENERIC_MODEL,), ("fused_indexer_q_rope_quant",))
        replaced += _replace_loaded(POOLED_KERNELS, POOLED_NAMES, pooled)
    return replaced


def _replace_scores(module):
    """Replaces the functions of scores, selection and index cache in a module that calls them."""
    names = ("fp8_fp4_mqa_logits", "fp8_fp4_paged_mqa_logits", "get_indexer_topk")
    own = {"has_deep_gemm": _yes, **{name: getattr(indexer_calls, name) for name in names}}
    if not isinstance(module.ops, indexer_calls.Operations):
        own["ops"] = indexer_calls.Operations(module.ops)
        own["pack_seq_triton"] = indexer_calls.pack_seq(module.pack_seq_triton)
    return _replace(module, **own)


def _replace_pack_kernel(module):
    """Replaces the packing kernel, which vLLM warms up for e4m3 even if it later only packs bytes."""
    theirs = getattr(module, PACK_KERNEL, None)
    if theirs is None or isinstance(theirs, indexer_calls.PackKernel):
        return []
    return _replace(module, **{PACK_KERNEL: indexer_calls.PackKernel(theirs)})


def _yes() -> bool:
    return True


def _no() -> bool:
    return False


def _replace(module, **own):
    names = [name for name in own if hasattr(module, name)]  # vLLM before 0.30 has no get_indexer_topk
    for name in names:
        setattr(module, name, own[name])
    return names


def _replace_loaded(modules, names, by=fused):
    """Replaces names in each of the modules that vLLM has imported; each version has some of them."""
    found = [sys.modules[name] for name in modules if name in sys.modules]
    return [x for module in found for x in _replace(module, **{name: getattr(by, name) for name in names})]


def _replace_operators(dispatch_key):
    if dispatch_key not in _libraries:
        library = _libraries[dispatch_key] = torch.library.Library("_C", "IMPL")  # noqa: TOR901, kept
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*previously registered kernel", UserWarning)
            for name in TOPK_OPERATORS:
                library.impl(name, indexer_calls.persistent_topk, dispatch_key)
    return list(TOPK_OPERATORS)
