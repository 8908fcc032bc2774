"""vLLM's latent attention (MLA) on GPUs: a backend of its own, on mla_append and mla_decode.

vLLM asks its platform which backend serves a layer. On ROCm ours answers first where no backend was named and it can
serve. On CUDA `--attention-backend CUSTOM` takes it: on an H200 a layer of 16 heads took 4 to 23 us longer than with
FLASH_ATTN_MLA, after 2,000 tokens. (A name of its own would not reach vLLM's processes, which read their configuration
before they load plugins.)

Prompts stay vLLM's. A decode step needs nothing beside vLLM's own metadata: launches depend on shapes alone, and
lengths are read by the kernel, so one captured graph serves all steps of its shape.
"""

import functools
import logging
from typing import ClassVar

import torch
from vllm import envs
from vllm.config import VllmConfig, get_current_vllm_config_or_none
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, MultipleOf, max_decode_query_len
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.selector import AttentionSelectorConfig

from .latent import LATENT, MOST_HEADS, MOST_QUERIES, ROTATED, LatentOperators

__all__ = ["MlaDecodeBackend", "MlaDecodeBuilder", "MlaDecodeImpl", "install", "why_not"]

_log = logging.getLogger("vllm.rocm_fp8_kernels")

_CUDA_BUILDS = ((8, 9), (9, 0), (10, 0), (10, 3))  # build.toml's capabilities, and what runs their code
_ROCM_BUILDS = ((9, 4), (9, 5))  # gfx942, gfx950
_PAGE = 64  # tokens: what mla_decode was measured with, and a tile of its kernels
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class MlaDecodeBackend(MLACommonBackend):
    """DeepSeek's sizes; a cache in the model's dtype, or in FP8 with one scale a layer."""

    supported_dtypes: ClassVar[list[torch.dtype]] = list(_DTYPES.values())
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", *_DTYPES, "fp8", "fp8_e4m3"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # vLLM looks backends up by it

    @staticmethod
    def get_impl_cls() -> type["MlaDecodeImpl"]:
        return MlaDecodeImpl

    @staticmethod
    def get_builder_cls() -> type["MlaDecodeBuilder"]:
        return MlaDecodeBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [LATENT + ROTATED]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None) -> list[int | MultipleOf]:
        """A larger page, or another one, is cut by vLLM into equal parts of such a size."""
        return [1, 2, 4, 8, 16, 32, 64, 128, 256]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        return max(_PAGE, default_block_size)

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability) -> bool:
        builds = _ROCM_BUILDS if current_platform.is_rocm() else _CUDA_BUILDS
        return (capability.major, capability.minor) in builds

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: DeviceCapability,
    ) -> str | None:
        if _DTYPES.get(kv_cache_dtype, dtype) != dtype:
            return f"mla_decode reads a cache in the model's dtype ({dtype}) or in FP8, not in {kv_cache_dtype}"
        return None


class MlaDecodeBuilder(MLACommonMetadataBuilder[MLACommonMetadata]):
    """Sequences that decode have the same number of new tokens: one, or those of a speculation."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[QueryLenSupport] = QueryLenSupport.UNIFORM
    supports_non_causal_multi_token_decode: ClassVar[bool] = True

    def __init__(self, kv_cache_spec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # More tokens than mla_decode takes are computed as prompts are.
        self.reorder_batch_threshold = min(self.reorder_batch_threshold, MOST_QUERIES)
        # vLLM's runner moves lengths on between a draft model's steps, but not those of a rank's share.
        self.supports_draft_decode_metadata_update = self.dcp_world_size == 1

    @classmethod
    def get_cudagraph_support(cls, vllm_config: VllmConfig, kv_cache_spec) -> AttentionCGSupport:
        if max_decode_query_len(vllm_config) > MOST_QUERIES:
            return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return cls._cudagraph_support

    def update_draft_decode_metadata(self, metadata: MLACommonMetadata) -> None:
        """Nothing: metadata are the runner's own tensors."""


class MlaDecodeImpl(LatentOperators, MLACommonImpl[MLACommonMetadata]):
    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True
    supports_pcp: bool = False  # not tried

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla_args,
    ):
        """As MLACommonImpl's. Raises: NotImplementedError that names what mla_decode lacks."""
        asked = dict(alibi_slopes=alibi_slopes, sliding_window=sliding_window, logits_soft_cap=logits_soft_cap)
        lacks = [name for name, value in asked.items() if value]
        lacks += [f"{attn_type} attention"] if attn_type != AttentionType.DECODER else []
        sizes = tuple(mla_args[name] for name in ("kv_lora_rank", "qk_rope_head_dim"))
        lacks += [f"latent and rotated sizes of {sizes}"] if sizes != (LATENT, ROTATED) else []
        lacks += [f"{num_heads} heads"] if num_heads > MOST_HEADS else []
        if lacks:
            raise NotImplementedError(
                f"latent attention on mla_decode: no {', no '.join(lacks)}; name another backend (--attention-backend)"
            )
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            alibi_slopes,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
            **mla_args,
        )
        self.supports_quant_query_input = False  # queries stay 16 bits beside a cache in FP8


# --- the choice ---


def why_not(
    wanted: AttentionSelectorConfig,
    heads: int | None,
    capability: DeviceCapability,
    config: VllmConfig | None,
) -> list[str]:
    """Why our backend is not taken where the user named none. Empty: it is."""
    reasons = MlaDecodeBackend.validate_configuration(device_capability=capability, **wanted._asdict())
    if MlaDecodeBackend.__name__ in envs.VLLM_DISABLED_KERNELS:
        reasons.append("VLLM_DISABLED_KERNELS names it")
    if not current_platform.is_rocm():
        reasons.append("on CUDA vLLM's is faster; --attention-backend CUSTOM takes it")
    queries = 1 if config is None else max_decode_query_len(config)
    ranks = 1 if config is None else config.parallel_config.decode_context_parallel_size
    if queries > MOST_QUERIES:
        reasons.append(f"mla_decode takes {MOST_QUERIES} new tokens a sequence, not {queries}")
    if (heads or 0) * ranks > MOST_HEADS:  # ranks of a cache have the queries of all
        reasons.append(f"mla_decode takes {MOST_HEADS} heads, not {heads * ranks}")
    return reasons


def _ours_first(theirs):
    """A platform's get_attn_backend_cls, which asks for our backend first."""

    @functools.wraps(theirs)
    def get_attn_backend_cls(
        cls,
        selected_backend: AttentionBackendEnum | None,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        if selected_backend is None and attn_selector_config.use_mla:
            reasons = why_not(
                attn_selector_config, num_heads, cls.get_device_capability(), get_current_vllm_config_or_none()
            )
            if not reasons:
                _log.info("rocm-fp8-kernels: latent attention on mla_append and mla_decode")
                return _PATH
            _log.debug("rocm-fp8-kernels: latent attention stays vLLM's: %s", "; ".join(reasons))
        return theirs(selected_backend, attn_selector_config, num_heads)

    get_attn_backend_cls.rocm_fp8_first = True
    return get_attn_backend_cls


_PATH = f"{MlaDecodeBackend.__module__}.{MlaDecodeBackend.__qualname__}"


def install() -> None:
    """Before the backends of vLLM's platform, which is a GPU's. CUSTOM stays another plugin's where it is taken."""
    if not AttentionBackendEnum.CUSTOM.is_overridden():
        register_backend(AttentionBackendEnum.CUSTOM, _PATH)
    platform = type(current_platform)
    if not hasattr(platform.get_attn_backend_cls, "rocm_fp8_first"):
        platform.get_attn_backend_cls = classmethod(_ours_first(platform.get_attn_backend_cls))
