"""Where each pair's kernel and time come from: what stands below is all that this repository has of them.

Recordings (data/) are numbers: counts, cycles and the order of a wave's steps. Sources were read and compiled once,
outside this repository, for gfx942 with clang 22 and -O3; Composable Kernel alone is built by modules here (record.py).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """`timing`: how its authors took the time, for which cost.Chip has a constant: "profiler" (the launch's own
    time on the device), "graph" (many launches in a graph, time divided by their number), "events" (around one
    launch, with nothing else in the queue)."""

    timing: str
    where: str  # the times, and the code that they are of
    licence: str  # of that code
    notes: str
    chip: str = "MI300X"
    counted: bool = True  # a time to come up to, and not only to be put in order


ARTICLE = '"Creating custom kernels for the AMD MI300" (Hugging Face and AMD, 2025)'
HF_ROCM = "https://github.com/huggingface/hf-rocm-kernels"
SWIGLU = f"{ARTICLE}, its table; {HF_ROCM}, csrc/op_src/swiglu at ab5538e, threads of 30c1ee1"
# Of do_bench_cudagraph: a graph of one call many times, on the same tensors.
SAME_TENSORS = "A graph repeats one call on the same tensors, which stay in the memory-side cache."
AITER = "https://github.com/ROCm/aiter, tuned tables under aiter/configs"
PROFILED = (
    "Times of torch's profiler, the mean of about 100 launches without outliers, inputs rotated through more memory "
    "than caches hold; where all copies fit in the memory-side cache, it is taken as warm."
)
CK = "MIT (AITER's tables, Composable Kernel 7.2.4 as Debian packages it)"

SOURCES = {
    "AITER, FP8 block-scaled, MI300X": Source(
        "profiler", f"{AITER}, of 2025-09-08 (2f2fbb2567) and 2026-04-30 (1a4121e559)", CK, PROFILED
    ),
    "AITER, FP8 block-scaled, MI325X": Source(
        "profiler", f"{AITER}, of 2026-07-23 (84493f0e5b)", CK, f"{PROFILED} Split-K's memset is in the time.", "MI325X"
    ),
    "AITER, batched CK GEMM": Source(
        "profiler", f"{AITER}, of 2025-08-11", CK,
        "A profile of 101 calls on copies in turn. AITER compiles with flushed denormals besides.",
    ),
    "hf-rocm-kernels, RMSNorm": Source(
        "graph", f"{ARTICLE}, its table; {HF_ROCM}, csrc/op_src/residual_rms, stored id 67202736348", "Apache-2.0",
        f"float16 rows of 16384; 1024, 768 or 384 threads as its wrapper chooses. {SAME_TENSORS} Times in the file's "
        "own comment are within 4 % of the article's.",
    ),
    "hf-rocm-kernels, SwiGLU to 8 rows": Source(
        "graph", SWIGLU, "Apache-2.0",
        f"{SAME_TENSORS} The width is not certain; up to 8 rows the estimate is the same within 1 % with 6656, 8192 "
        "and 16384 columns of the result, for a launch is most of it.",
    ),
    "hf-rocm-kernels, SwiGLU from 16 rows": Source(
        "graph", SWIGLU, "Apache-2.0",
        f"{SAME_TENSORS} The article says 16384 for the input, every stored script has 13312 (6656 for the result), "
        "which is taken. Estimates are nearer with it, too: 1.0 of the times, 1.0 to 1.3 with 8192, 1.1 to 2.4 with "
        "16384. The largest FP8 number is not stored; 240 is taken.",
        counted=False,
    ),
    "hf-rocm-kernels, skinny GEMM": Source(
        "graph", f"{ARTICLE}, its table; {HF_ROCM}, csrc/op_src/skinny_gemm at 1f934005, its dense consumer and "
        "producer as in fused_gemm_ar at 0cc317eb, parameters of bb4b0973", "Apache-2.0",
        "A graph over 12 weights in turn, so that no cache holds them; 500 launches to warm up, 2000 timed. Results "
        "are added to what the output holds; nothing clears it in the time.",
    ),
    "vLLM, RMSNorm": Source(
        "graph", f"{ARTICLE}, its table; ROCm's fork of vLLM, csrc/layernorm_kernels.cu, stored ids 1584593061 and "
        "2416572354", "Apache-2.0",
        f"float16 rows of 16384; 1024 threads below 256 rows, 256 from there on. {SAME_TENSORS} That it is the file "
        "of the vLLM that was timed (0.6.6) cannot be shown.",
    ),
    "Snektron, AMD challenge": Source(
        "events", "https://github.com/Snektron/gpumode-amd-fp8-mm, results.txt and solution.hip of 2025-06-04", "none "
        "is stated",
        "results.txt is older than solution.hip: that the kernels are the same cannot be shown. Tiles of 128 of k "
        "alone, whose main loop is the same in both. Of 288 configurations timed twice half differ by less than 1 %, "
        "a few by 6 to 16 %.", counted=False,
    ),
    "HipKittens, MI325X": Source(
        "events", "https://github.com/HazyResearch/HipKittens, analysis/bf16_gemm/mi325x of 2025-10-28, headers of "
        "the branch cdna3", "MIT",
        "The mean of 100 launches after 500 on the same matrices, which are as warm as they get. Buffers are plain "
        "here, swizzled there. The kernels multiply a tile whose loads from LDS nothing waits for.", "MI325X",
        counted=False,
    ),
}  # fmt: skip
