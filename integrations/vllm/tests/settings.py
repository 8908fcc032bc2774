"""Where engines run, on the GPU that torch sees or else on the CPU, and what they are given there. Imported before
vLLM."""

import os
from pathlib import Path

import pytest
import torch

from scripts.load import default_backend, use_local_build

ROOT = Path(__file__).resolve().parents[3]
# Where engines run. References are plain torch and stay on the CPU, whatever variant of the package they come from; but
# INT8's run on the package's operators, and so on its device.
BACKEND = default_backend()
ON_CPU = BACKEND == "cpu"
DEVICE = torch.device("cpu" if ON_CPU else "cuda")
# Whether INT8 linears run on the package's operators (integrations/vllm/README.md).
OUR_INT8 = BACKEND != "cuda"
of_cpus_alone = pytest.mark.skipif(not ON_CPU, reason="of parts that the plugin has on a CPU alone")
two_devices = pytest.mark.skipif(
    not ON_CPU and torch.cuda.device_count() < 2, reason="each of two workers needs a GPU of its own"
)
# Before vLLM is imported, which reads some of them then. Its processes inherit them.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    # All prompts of a call are there before an engine's first step. A core of its own takes those that have come by
    # then, and a token's bits depend on its batch: outside of this package's operators.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
if ON_CPU:
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
else:
    os.environ |= {
        "ROCM_FP8_KERNELS_VLLM_EXPERTS": "1",  # of all formats
        # Both would compile kernels as engines start, and FlashInfer may be absent.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_USE_DEEP_GEMM": "0",
        # Workers are made where this process has used the GPU already, as references of INT8 do.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
# The rounding of a GEMM's sums, of the products' magnitudes: float32, and what tensor cores keep of FP8 products.
SUM = 2.0**-23 if ON_CPU else 2.0**-12
use_local_build()
# What an engine of these tests is given, on the command line, too.
ENGINE = dict(dtype="bfloat16", max_model_len=512, max_num_batched_tokens=128, max_num_seqs=8)
if not ON_CPU:  # parts of the GPU that other test processes' engines leave
    ENGINE |= dict(gpu_memory_utilization=0.1, kv_cache_memory_bytes=2**29)
# With AMX vLLM's own comes first on a CPU, but where ours is asked for. CUSTOM is the name of ours on a GPU.
LATENT_BACKEND = "CPU_MLA" if ON_CPU else "CUSTOM"
