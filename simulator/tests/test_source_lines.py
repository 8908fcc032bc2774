"""Faults name the source line where there is a line table, and the instruction alone where there is none."""

import numpy as np
import pytest

from simulator import DeadlockFault, HazardFault, MemoryFault, Simulator
from simulator.binary import source_lines
from simulator.tests.harness import ARCHS, compile_hip, needs_clang

pytestmark = [needs_clang, pytest.mark.parametrize("arch", ARCHS)]

SOURCE = r"""
#include <hip/hip_runtime.h>
extern "C" __global__ void beyond(const int* x, int* out) {
    const int v = x[threadIdx.x];
    out[threadIdx.x + 1] = v * 3;  // beyond
}
extern "C" __global__ void spins(const int* x, int* out) {
    while (!__hip_atomic_load(x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)) __builtin_amdgcn_s_sleep(1);  // spins
    out[threadIdx.x] = 1;
}
extern "C" __global__ void too_early(const float* x, float* out) {
    float v = x[threadIdx.x], y;
    asm volatile("v_exp_f32 %0, %1\n"
                 "v_mul_f32 %0, 2.0, %0"  // too early
                 : "=v"(y) : "v"(v));
    out[threadIdx.x] = y;
}
"""


def line_of(comment: str) -> int:
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if line.endswith(f"// {comment}"))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return {flag: compile_hip(SOURCE, tmp_path_factory.mktemp("lines"), flag) for flag in ("-gline-tables-only", "-g0")}


def fault(library, arch: str, kernel: str, kind) -> str:
    with pytest.raises(kind) as caught:
        Simulator(library, arch).launch(kernel, 1, 64, [np.zeros(64, np.int32), np.zeros(64, np.int32)])
    return str(caught.value)


def test_a_fault_names_its_line(arch, libraries):
    assert f"source.hip:{line_of('beyond')})" in fault(libraries["-gline-tables-only"], arch, "beyond", MemoryFault)
    deadlock = fault(libraries["-gline-tables-only"], arch, "spins", DeadlockFault)
    assert "wave 0: at 0x" in deadlock and f"source.hip:{line_of('spins')})" in deadlock
    # Inline assembly has the line where it begins.
    assert f"source.hip:{line_of('too early') - 1})" in fault(
        libraries["-gline-tables-only"], arch, "too_early", HazardFault
    )


def test_without_a_line_table(arch, libraries, monkeypatch):
    monkeypatch.setattr(source_lines, "_lines", None)  # not even asked
    text = fault(libraries["-g0"], arch, "beyond", MemoryFault)
    assert "source.hip" not in text and "kernel beyond" in text
