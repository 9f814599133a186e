"""The attention backend that vLLM loads by name, with its features and classes. Requires vLLM."""

import importlib
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, MultipleOf

from . import registered_name
from .caches import RECORD

__all__ = ["SmlaSparseBackend"]
_PARENTS = "vllm.model_executor.layers.attention.sparse_mla_attention"


def _parts():
    """Returns the module with the implementation and metadata for the installed vLLM."""
    try:
        parents = importlib.import_module(_PARENTS)
    except ModuleNotFoundError as error:
        if error.name is None or not _PARENTS.startswith(error.name):
            raise
        parents = None
    return importlib.import_module(
        f"{__package__}.{'impl' if hasattr(parents, 'SparseMLACommonMetadata') else 'legacy.impl'}"
    )


_impl = _parts()


class SmlaSparseBackend(AttentionBackend):
    """Sparse MLA of V3.2, GLM-5.x and GLM-5.3-Flash, with any page size, number of heads and list width."""

    accept_output_buffer: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla"]

    @staticmethod
    def get_name() -> str:
        """Returns the name in vLLM's registry: SMLA, or CUSTOM in older versions."""
        return registered_name()

    @staticmethod
    def get_impl_cls() -> type:
        return _impl.SmlaSparseImpl

    @staticmethod
    def get_builder_cls() -> type:
        return _impl.SmlaSparseMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None) -> list:
        """Returns the supported page sizes: any. vLLM uses the page size of the indexer's cache."""
        return [MultipleOf(1)]

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Makes page strides multiples of the record size, because vLLM numbers records through all pages."""
        utils: Any = importlib.import_module("vllm.v1.attention.backends.mla.sparse_utils")
        align = getattr(utils, "align_blocks_to_rows", None)
        return spec if align is None else align(spec)

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return _impl.HEAD_SIZES

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability) -> bool:
        """Returns whether the GPU is sm_80 or later. In a build without kernels for the GPU, creating
        a context raises an error."""
        return capability.major >= 8

    @classmethod
    def supports_combination(cls, *_args, **_named) -> str | None:
        """Returns why smla does not support the current configuration, or None if it does.

        The arguments (head size, dtypes, flags, capability), which differ between versions of vLLM, are
        ignored, because other methods check them.
        """
        from vllm.config import get_current_vllm_config

        config = get_current_vllm_config()
        if config.model_config is not None and not hasattr(config.model_config.hf_text_config, "index_topk"):
            return "smla requires a model with index_topk in its config"
        attention = getattr(config, "attention_config", None)
        if getattr(attention, "hisparse_config", None) is not None and not _impl.FINDS_ROWS:
            return "hisparse_config: smla requires vLLM 0.33 for HiSparse"
        return None

    # vLLM 0.25 calls this method; 0.32 and later compute the shape in the layer.
    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """Returns [pages, tokens per page, record size]; the size is in bytes for fp8_ds_mla, else values."""
        return num_blocks, block_size, RECORD if cache_dtype_str == "fp8_ds_mla" else head_size


def _let_fp8_mean_ds_mla() -> None:
    """Makes `--kv-cache-dtype fp8` select the record of 656 bytes, as with vLLM's FLASHMLA_SPARSE.

    A private function of vLLM's attention layer translates "fp8" by the name of the backend, and the plug-in
    wraps this function. If vLLM has no such function, "fp8" means one scale per layer and is not supported.
    """
    layer: Any = importlib.import_module("vllm.model_executor.layers.attention.mla_attention")
    theirs = getattr(layer, "_canonicalize_sparse_mla_kv_cache_dtype", None)
    if theirs is None:
        SmlaSparseBackend.supported_kv_cache_dtypes.remove("fp8")
        return
    if getattr(theirs, "by_smla", False):
        return

    def translate(attn_backend, kv_cache_dtype):
        if attn_backend is SmlaSparseBackend and kv_cache_dtype == "fp8":
            return "fp8_ds_mla"
        return theirs(attn_backend, kv_cache_dtype)

    setattr(translate, "by_smla", True)  # noqa: B010, mypy rejects an assignment
    layer._canonicalize_sparse_mla_kv_cache_dtype = translate


_let_fp8_mean_ds_mla()
