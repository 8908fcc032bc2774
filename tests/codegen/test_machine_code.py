"""The machine-code gates: on the shipped library, on code that misses them, and on a small kernel that is known."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import machine_code
from scripts.machine_code_gates import missed_gates, mla_direct_forms, skinny_shapes
from tests.settings import ROCM_HEADERS, needs_rocm_toolchain

pytestmark = needs_rocm_toolchain
ARCHS = ["gfx942", "gfx950"]


@pytest.fixture(scope="module")
def kernels(rocm_kernels) -> dict[str, dict[str, machine_code.Kernel]]:
    return rocm_kernels


@pytest.fixture(scope="module")
def figures(kernels) -> dict[str, dict[str, dict]]:
    return machine_code.all_figures(kernels)


def missed(kernels) -> list[str]:
    return missed_gates(kernels, machine_code.all_figures(kernels))


def test_the_library_passes_every_gate(kernels, figures):
    assert missed_gates(kernels, figures) == []


def test_both_architectures_have_every_kernel(kernels):
    assert list(kernels) == ARCHS
    # gfx950 alone has loads of 16 bytes to LDS.
    direct = {f"mla_decode_direct<{i}, {dtype}>" for i in range(len(mla_direct_forms())) for dtype in ("f16", "bf16")}
    assert kernels["gfx950"].keys() - kernels["gfx942"].keys() == {"block_scaled_gemm_direct<0>"} | direct
    assert kernels["gfx942"].keys() < kernels["gfx950"].keys()
    families = {name.partition("<")[0] for name in kernels["gfx942"]}
    assert families == {
        *("rms_norm_fast", "rms_norm_fallback", "swiglu_fast", "swiglu_fallback"),
        *("skinny_gemm_stream", "skinny_gemm_fallback", "skinny_gemm_send", "skinny_gemm_send_any"),
        *("quantize_flat", "quantize_rows", "quantize_fallback", "quantize_largest"),
        *("swiglu_groups", "swiglu_rows", "swiglu_fallback_computed", "swiglu_largest"),
        *("block_scaled_gemm_tiles", "block_scaled_gemm_stream"),
        *(
            f"{operator}_int8_{form}"
            for operator in ("quantize", "layer_norm", "softmax")
            for form in ("rows", "fallback")
        ),
        "int8_gemm_tiles",
        *("grouped_gemm_tiles", "grouped_gemm_gated", "grouped_gemm_stream", "grouped_gemm_short"),
        *("grouped_swiglu_flat", "grouped_swiglu_rows", "grouped_swiglu_fallback"),
        *("mx_gemm_plain", "mx_gemm_stream", "mx_gemm_tiles"),
        *("quantize_mxfp4_blocks(Args, Cells)", "moe_gate_values(Args, Cells)"),
        *("mla_decode", "mla_merge", "mla_append", "mla_append_rope"),
        *("rows_of_ranks", "norm_of_sum"),
        *("moe_route", "moe_combine", "moe_sort_tile", "moe_sort_count", "moe_sort_prefix", "moe_sort_place"),
    }
    for family in ("skinny_gemm_stream<", "skinny_gemm_send<"):
        assert sum(name.startswith(family) for name in kernels["gfx942"]) == len(skinny_shapes())


# A kernel's name, behind the architecture that alone has the instruction, if one does; what an instruction's name
# begins with, and what it is replaced by; the gate that must notice.
SABOTAGE = [
    ("rms_norm_fast<f16, f16, fp8, true, workgroup, 4>", "global_load_dwordx4", "global_load_dwordx2", "128 bits"),
    (
        "rms_norm_fast<f16, f16, fp8, true, workgroup, 4>",
        "global_store_dwordx4",
        "global_store_dwordx2",
        "narrow stores",
    ),
    ("rms_norm_fast<f16, f16, fp8, true, workgroup, 2>", "v_pk_add_f16", "v_add_f16", "added in float32"),
    ("rms_norm_fast<bf16, bf16, fp8, false, wave, 1>", "v_cvt_pk_fp8_f32", "v_nop", "one by one"),
    ("rms_norm_fallback<f16>", "global_load_ushort", "flat_load_ushort", "flat"),
    ("rms_norm_fallback<bf16>", "s_nop", "scratch_load_dword", "scratch accesses"),
    ("swiglu_fast<f16, 2>", "v_exp_f32_e32", "v_log_f32_e32", "exponential"),
    ("swiglu_fast<bf16, 1>", "v_rcp_f32_e32", "v_sqrt_f32_e32", "reciprocal"),
    ("rms_norm_fast<bf16, f32, computed, true, wave, 4>", "global_load_dwordx4", "global_load_dwordx2", "128 bits"),
    ("rms_norm_fast<f16, f16, computed, false, workgroup, 2>", "v_cvt_pk_fp8_f32", "v_nop", "one by one"),
    ("quantize_flat<bf16, 128, 1>", "global_load_dwordx4", "global_load_dwordx2", "128 bits"),
    ("quantize_flat<f16, 32, 1>", "global_store_dwordx2", "global_store_short", "narrow stores"),
    ("quantize_flat<f32, 1, 1>", "global_store_dwordx2", "global_store_short", "narrow stores"),
    ("quantize_rows<f16, workgroup, 4>", "v_cvt_pk_fp8_f32", "v_nop", "one by one"),
    ("quantize_rows<f32, wave, 2>", "v_pk_fma_f32", "v_fma_f32", "packed"),
    ("quantize_rows<bf16, wave, 1>", "v_mov_b32_e32", "v_rcp_f32_e32", "division"),
    ("swiglu_groups<f16, 64, 1>", "v_exp_f32_e32", "v_log_f32_e32", "exponential"),
    ("swiglu_rows<bf16, workgroup, 2>", "global_store_dwordx2", "global_store_short", "narrow stores"),
    ("skinny_gemm_stream<0>", "v_smfmac_f32_16x16x64_fp8_fp8", "v_mfma_f32_16x16x32_fp8_fp8", "matrix instruction"),
    ("skinny_gemm_stream<4>", "buffer_load_dwordx4", "buffer_load_dwordx2", "less than 128 bits"),
    (
        "block_scaled_gemm_tiles<0, false, false, false, false>",
        "buffer_load_dwordx4",
        "buffer_load_dwordx2",
        "less than 128 bits",
    ),
    ("block_scaled_gemm_tiles<1, false, false, false, false>", "ds_read_b128", "ds_read_b64", "fragments read"),
    ("block_scaled_gemm_tiles<3, false, false, false, false>", "ds_write_b128", "ds_write_b64", "stages stored"),
    (
        "block_scaled_gemm_tiles<4, true, true, false, false>",
        "v_mfma_f32_32x32x",
        "v_nop",
        "matrix instructions",
    ),
    ("block_scaled_gemm_tiles<1, false, false, true, true>", "v_perm_b32", "v_nop", "not transposed"),
    ("block_scaled_gemm_stream<1, false, false>", "buffer_load_dwordx4", "buffer_load_dwordx2", "less than 128 bits"),
    ("block_scaled_gemm_stream<0, false, false>", "v_mfma_f32_16x16x", "v_nop", "matrix instruction"),
    ("grouped_gemm_short<1, plain>", "s_waitcnt", "s_nop", "drained between turns"),
    ("grouped_gemm_short<2, plain>", "buffer_store_dwordx4", "buffer_store_dwordx2", "stored by less than 128"),
    ("mx_gemm_stream<0, bf16, false, e2m1, false>", "s_waitcnt", "s_nop", "drained in the loop"),
    ("mx_gemm_stream<1, f16, false, e2m1, true>", "buffer_load_dwordx4", "buffer_load_dwordx2", "less than 128 bits"),
    ("mx_gemm_stream<0, e4m3fnuz, false, e4m3fnuz, false>", "buffer_load_dwordx4", "s_nop", "loads of the loop"),
    ("mx_gemm_tiles<1, bf16, false, e2m1, true>", "s_waitcnt", "s_nop", "drained in the loop"),
    ("mx_gemm_tiles<0, bf16, false, e2m1, false>", "ds_read_b128", "ds_read_b64", "rows not read"),
    ("gfx950/mx_gemm_tiles<1, e2m1, true, e2m1, false>", "v_mfma_scale_f32_16x16x128", "v_nop", "matrix instructions"),
    ("gfx942/mx_gemm_tiles<1, e4m3fnuz, true, e2m1, true>", "ds_read_b64", "ds_read_b32", "rows not read"),
    ("block_scaled_gemm_direct<0>", "global_load_lds_dwordx4", "global_load_dwordx4", "do not go to LDS"),
    ("block_scaled_gemm_direct<0>", "ds_read_b128", "ds_read_b64", "fragments read"),
    ("block_scaled_gemm_direct<0>", "v_mfma_f32_32x32x64_f8f6f4", "v_nop", "matrix instructions"),
    ("skinny_gemm_fallback<1>", "v_mfma_f32_16x16x", "v_nop", "matrix instruction"),
    ("skinny_gemm_send<2>", "global_store_dword", "global_store_short", "less than whole words"),
    ("moe_route<bf16, 4>", "global_load_ushort", "s_waitcnt", "at once"),
    ("moe_combine<f16, bf16, true>", "global_load_dwordx4", "global_load_dwordx2", "less than 128 bits"),
    ("moe_combine<f32, f32, true>", "global_store_dwordx4", "global_store_dwordx2", "stores of less"),
    ("moe_sort_place<true>", "ds_write_b16", "ds_add_u32", "atomics"),
    ("mla_decode<0, bf16, wide>", "v_mfma_f32_16x16x", "v_nop", "matrix instructions"),
    ("mla_decode<3, bf16, wide>", "global_load_dwordx4", "global_load_dwordx2", "a tile ahead"),
    ("mla_decode<3, bf16, wide>", "v_mfma_f32_32x32x", "v_nop", "matrix instructions"),
    ("mla_decode<3, f16, fp8>", "v_cvt_pk_f32_fp8", "v_nop", "codes one by one"),
    ("mla_decode<2, bf16, mixed>", "v_perm_b32", "v_nop", "not transposed"),
    ("mla_merge<bf16, 512>", "global_load_dwordx4", "global_load_dwordx2", "less than 128 bits"),
    ("rows_of_ranks<bf16, true, 8, all_reduce>", "buffer_load_dwordx4", "s_waitcnt", "wait for each other"),
    ("norm_of_sum<f16, fp8, workgroup, 2, 2>", "buffer_load_dwordx4", "s_waitcnt", "wait for each other"),
    ("norm_of_sum<bf16, computed, wave, 1, 8>", "global_store_dwordx4", "global_store_dwordx2", "values sent"),
]


@pytest.mark.parametrize("name, instruction, instead, gate", SABOTAGE, ids=lambda v: v.split("<")[0])
def test_each_gate_can_be_missed(kernels, name, instruction, instead, gate):
    *only, name = name.split("/")
    archs = [arch for arch in only or ARCHS if name in kernels[arch]]
    changed = {arch: {name: copy.deepcopy(kernels[arch][name])} for arch in archs}
    assert archs
    for arch in archs:
        matching = [i for i in changed[arch][name].code if i.name.startswith(instruction)]
        assert matching, f"{name} has no {instruction}"
        for one in matching:
            one.name = instead
    lines = missed(changed)
    assert all(any(line.startswith(arch) and gate in line for line in lines) for arch in archs), lines


def waits_of(kernel) -> list:
    """Of the loop that multiplies."""
    loops = [body for body in kernel.loops if any(i.name.startswith("v_mfma") for i in body)]
    return [i for body in loops for i in body if i.count("vmcnt")]


METADATA = {
    "vgpr_spill_count": 1,
    "private_segment_fixed_size": 16,
    "vgpr_count": 512,
    "group_segment_fixed_size": 40000,
}


# The last is of a family without gates of its own.
@pytest.mark.parametrize(
    "name, key", [*(("skinny_gemm_stream<1>", key) for key in METADATA), ("swiglu_largest<bf16, true>", "vgpr_count")]
)
def test_what_the_metadata_says_is_looked_at(kernels, name, key):
    changed = {"gfx942": {name: copy.deepcopy(kernels["gfx942"][name])}}
    changed["gfx942"][name].metadata[key] = METADATA[key]
    assert missed(changed)


def test_a_drain_in_the_loop_is_noticed(kernels):
    name = "skinny_gemm_stream<3>"
    changed = {"gfx942": {name: copy.deepcopy(kernels["gfx942"][name])}}
    waits = waits_of(changed["gfx942"][name])
    assert waits
    waits[-1].operands = "vmcnt(0)"
    assert any("drained" in line for line in missed(changed))


SMALL = """
#include <hip/hip_runtime.h>
typedef float f4 __attribute__((ext_vector_type(4)));
__global__ void straight(const f4* x, f4* out) { out[threadIdx.x] = x[threadIdx.x] + x[threadIdx.x + 64]; }
__global__ void looping(const f4* x, f4* out, int n) {
    f4 sum = 0;
    #pragma unroll 1
    for (int i = 0; i < n; ++i) sum += __builtin_nontemporal_load(x + 64 * i + threadIdx.x);
    out[threadIdx.x] = sum;
}
__global__ void rare(const f4* x, f4* out, int n) {
    f4 v = x[threadIdx.x];
    if (__builtin_expect(n > 5, 0)) for (int i = 0; i < 40; ++i) v = v * v + 1.0f / v;
    out[threadIdx.x] = v;
}
__global__ void flat(float* const* p) { *p[0] = 1; }
__global__ void spilling(float* out, int n) {
    float v[64];
    for (int i = 0; i < 64; ++i) v[i] = out[i];
    out[0] = v[n];
}
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> dict[str, machine_code.Kernel]:
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.hip").write_text(SMALL)
    bitcode = next(ROCM_HEADERS.parent.glob("**/amdgcn/bitcode/ockl.bc")).parent
    command = [
        *("clang++-22", "-x", "hip", "--offload-arch=gfx942", f"--rocm-path={ROCM_HEADERS.parent}", "-O3", "-c"),
        *(f"--rocm-device-lib-path={bitcode}", f"-isystem{ROCM_HEADERS}", "--offload-device-only"),
        *("--no-gpu-bundle-output", str(folder / "small.hip"), "-o", str(folder / "small.co")),
    ]
    subprocess.run(command, check=True)
    found = machine_code.kernels_of(Path(folder / "small.co").read_bytes())
    return {kernel.name.split("(")[0]: kernel for kernel in found}


def test_figures_of_a_known_kernel(small):
    f = machine_code.figures(small["straight"])
    assert (f["loads"], f["stores"], f["loads_before_wait"]) == (2, 1, 2)
    assert f["hot"] == f["instructions"] and f["hot_per_KiB"] == round(f["hot"] / 3, 1)


def test_a_loop_is_found_and_counted(small):
    (loop,) = machine_code.figures(small["looping"])["loops"]
    assert (loop["loads"], loop["nt"], loop["least_vmcnt"]) == (1, 1, 0)
    assert loop["per_KiB"] == loop["instructions"] < 30


def test_rare_code_is_not_of_the_hot_path(small):
    f = machine_code.figures(small["rare"])
    assert f["loads"] == f["stores"] == 1 and f["hot"] < f["instructions"] / 4


def test_flat_and_scratch_accesses_are_seen(small):
    found = {"gfx942": {name: small[name] for name in ("flat", "spilling", "straight")}}
    lines = missed(found)
    assert any(line.startswith("gfx942 flat: flat") for line in lines)
    assert any("spilling: scratch" in line for line in lines)
    assert not any("straight" in line for line in lines)


def test_the_command(kernels, figures, rocm_library, monkeypatch, capsys):
    # Read once, and counted once.
    monkeypatch.setattr(machine_code, "all_kernels", lambda library: kernels)
    monkeypatch.setattr(machine_code, "all_figures", lambda kernels: figures)
    for option in ([], ["--check"]):
        monkeypatch.setattr(sys, "argv", ["machine_code.py", *option, "--library", str(rocm_library)])
        code, said = machine_code.main(), capsys.readouterr()
        assert code == 0 and "0 gates missed" in said.err, said.err
        assert said.out.count("\n") == (0 if option else sum(map(len, kernels.values())))
