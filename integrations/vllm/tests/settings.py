"""Where engines run, on the GPU that torch sees or else on the CPU, and what they are given there. Imported before
vLLM."""

import contextlib
import os
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

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
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    # After n-gram decoding torch has as many threads as numba: on busy cores they wait for one another.
    os.environ["NUMBA_NUM_THREADS"] = "1"
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
# Keys and values of all 8 sequences are 2**24 bytes and less: zeros, which a CPU writes for each engine.
ENGINE |= dict(kv_cache_memory_bytes=2**26 if ON_CPU else 2**29)
if not ON_CPU:  # parts of the GPU that other test processes' engines leave
    ENGINE |= dict(gpu_memory_utilization=0.1)
# With AMX vLLM's own comes first on a CPU, but where ours is asked for. CUSTOM is the name of ours on a GPU.
LATENT_BACKEND = "CPU_MLA" if ON_CPU else "CUSTOM"


class _WideProducts(TorchDispatchMode):
    OF_TWO = {getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "addmm", "baddbmm", "_grouped_mm")}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        narrow = function in self.OF_TWO and args[0].dtype == torch.bfloat16
        if narrow:
            args = [each.float() if getattr(each, "dtype", None) == torch.bfloat16 else each for each in args]
        result = function(*args, **(kwargs or {}))
        return result.bfloat16() if narrow else result


@contextlib.contextmanager
def wide_products():
    """Products in bfloat16, of models in transformers, are float32's, rounded once: without AVX-512's bfloat16 a CPU
    takes several times as long for them."""
    with _WideProducts():
        yield
