"""The attention backend that vLLM loads by name: what it supports, and its parts. Needs vLLM."""

from typing import ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, MultipleOf

from .impl import SmlaSparseImpl
from .metadata import SmlaSparseMetadata, SmlaSparseMetadataBuilder

_RECORD_BYTES = 656  # fp8_ds_mla: 512 e4m3, 4 f32 scales, 64 bf16


class SmlaSparseBackend(AttentionBackend):
    """Sparse MLA of V3.2 and GLM-5.x on stages of smla: any page size, head count and list width."""

    accept_output_buffer: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla"]

    @staticmethod
    def get_name() -> str:
        """CUSTOM: vLLM looks the name up among those of its registry, and register() takes that one."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[SmlaSparseImpl]:
        return SmlaSparseImpl

    @staticmethod
    def get_builder_cls() -> type[SmlaSparseMetadataBuilder]:
        return SmlaSparseMetadataBuilder

    @staticmethod
    def get_metadata_cls() -> type[SmlaSparseMetadata]:
        return SmlaSparseMetadata

    @staticmethod
    def get_supported_kernel_block_sizes() -> list:
        """Any size: the indexer's cache, which has the same one, decides."""
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [576]

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability) -> bool:
        """sm_80 and later. If this build has no kernels for the device, creating its context is refused."""
        return capability.major >= 8

    @classmethod
    def supports_combination(cls, *_args, **_named) -> str | None:
        """Accepts what the versions of vLLM pass: head size, dtypes, block size, flags, capability.

        Only whether the model is sparse matters.
        """
        from vllm.config import get_current_vllm_config

        model = get_current_vllm_config().model_config
        if model is not None and not hasattr(model.hf_text_config, "index_topk"):
            return "smla needs a model with index_topk in its config"
        return None

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """[pages, tokens per page, record]: bytes for fp8_ds_mla, else values."""
        return num_blocks, block_size, _RECORD_BYTES if cache_dtype_str == "fp8_ds_mla" else head_size
