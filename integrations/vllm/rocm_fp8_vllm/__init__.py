"""A vLLM plugin: FP8, MX and INT8 checkpoints run on the kernels of rocm-fp8-kernels.

vLLM calls `register` in each of its processes. There it fetches the kernels, puts `linear.FewRowsFp8Linear`,
`block_linear.BlockScaledFp8Linear`, `int8_linear.Int8GemmLinear` and those of `mx_linear` before vLLM's own linears,
`experts.FusedMoeExperts` and `mx_experts.MxExperts` before its own experts, on GPUs `latent_gpu.MlaDecodeBackend`
before its own latent attention, and has each FP8 model fused once it is loaded (`fusion`). A model whose head no file
fills is refused (`heads`), and one whose other tensors no file fills as it should (`weights`). No code of a model is
replaced.

Environment variables:
    ROCM_FP8_KERNELS_VLLM: 0 leaves vLLM as it is. Default: 1.
    ROCM_FP8_KERNELS_VLLM_EXPERTS: 0 leaves mixtures of experts to vLLM, 1 takes all that fused_moe serves. Default: 1;
        on CUDA before Hopper, and after it, of FP8 those alone whose weights have scales of blocks, on ROCm MX formats
        where vLLM would emulate them. On CUDA 1 takes linears in MX formats, too.
    ROCM_FP8_KERNELS_VLLM_SUMS: 0 leaves the sums over tensor-parallel workers to vLLM. Default: 1.
    LOCAL_KERNELS: as for `kernels.get_kernel`: where the kernels are, if not on the Hub.
"""

import hashlib
import logging
import os
from pathlib import Path

__all__ = ["EXPERTS", "SUMS", "SWITCH", "is_on", "register"]

REPO_ID = "rocm-fp8-kernels/rocm-fp8-kernels"
KERNELS_VERSION = 1
SWITCH = "ROCM_FP8_KERNELS_VLLM"
EXPERTS = "ROCM_FP8_KERNELS_VLLM_EXPERTS"
SUMS = "ROCM_FP8_KERNELS_VLLM_SUMS"
# The releases that the tests ran on: the first, and the first that is too new. The plugin uses parts of vLLM that are
# no public interface. 0.33 was not published for CPUs: its Python ran on 0.32's library.
TESTED = ((0, 32), (0, 34))

_log = logging.getLogger("vllm.rocm_fp8_kernels")  # below "vllm": with its handlers and its level


def register() -> None:
    """Changes nothing, and logs one line that says why, where the plugin cannot serve this vLLM."""
    if not is_on(SWITCH):
        return
    for switch in (EXPERTS, SUMS):
        is_on(switch)  # or an error, before any model is loaded
    if reason := _refusal():
        _log.error("rocm-fp8-kernels is not used: %s", reason)
        return
    from vllm.platforms import current_platform

    _keep_graphs_apart()
    from . import (
        block_linear,
        block_parts,
        experts,
        fusion,
        heads,
        int8_linear,
        linear,
        mx_experts,
        mx_linear,
        weights,
    )

    if current_platform.is_cpu():
        from . import cpu

        cpu.install()
    else:
        from . import latent_gpu

        latent_gpu.install()
    linear.install()
    block_linear.install()
    block_parts.install()
    int8_linear.install()
    mx_linear.install()
    experts.install()
    mx_experts.install()
    fusion.install()
    heads.install()
    weights.install()


def _keep_graphs_apart() -> None:
    """vLLM finds a compiled graph on disk by its own settings and the files that it traced. One that was made without
    the plugin, or by another version of it, would serve silently. What tells them apart becomes vLLM's settings."""
    from vllm import envs

    sources = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
    version = hashlib.sha256(sources).hexdigest()
    envs.environment_variables[SWITCH] = lambda: version
    for switch in (EXPERTS, SUMS):
        envs.environment_variables[switch] = lambda switch=switch: os.environ.get(switch)


def is_on(switch: str) -> bool:
    value = os.environ.get(switch, "1")
    if value not in ("0", "1"):
        raise ValueError(f"{switch}={value!r}; needs 0 or 1")
    return value == "1"


def _refusal() -> str | None:
    """Why this vLLM, platform or machine is not served."""
    import vllm

    first, end = TESTED
    if not first <= vllm.__version_tuple__[:2] < end:
        return f"vLLM {vllm.__version__} was not tested; {_dotted(first)} up to, not including, {_dotted(end)} was"
    from vllm.platforms import current_platform

    if not (current_platform.is_cpu() or current_platform.is_cuda_alike()):
        return f"no kernels for the platform {current_platform.device_name!r}"
    try:
        from . import kernel  # noqa: F401

    except Exception as error:  # of the Hub, of kernels, of the library: each says what is wrong
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
