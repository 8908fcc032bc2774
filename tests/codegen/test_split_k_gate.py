"""The gate of split-K: every kernel that hands parts of a sum to another workgroup, and code that does it wrong."""

import copy

import pytest

from scripts import machine_code
from scripts.machine_code_gates import missed_gates
from tests.settings import needs_rocm_toolchain

pytestmark = needs_rocm_toolchain
FAMILIES = (
    "skinny_gemm_stream",
    "skinny_gemm_fallback",
    "skinny_gemm_send",
    "skinny_gemm_send_any",
    "block_scaled_gemm_stream",
    "block_scaled_gemm_tiles",
    "block_scaled_gemm_direct",
    "int8_gemm_tiles",
)


@pytest.fixture(scope="module")
def kernels(rocm_kernels) -> dict[str, dict[str, machine_code.Kernel]]:
    """Those of the families, as the library has them."""
    return {
        arch: {name: kernel for name, kernel in of_arch.items() if name.partition("<")[0] in FAMILIES}
        for arch, of_arch in rocm_kernels.items()
    }


@pytest.fixture(scope="module")
def figures(kernels) -> dict:
    return machine_code.all_figures(kernels)


def missed(arch: str, kernel: machine_code.Kernel, figures: dict) -> list[str]:
    """`figures`: of the kernel before it was changed, as what is changed here moves none that a gate reads."""
    return missed_gates({arch: {kernel.name: kernel}}, {arch: {kernel.name: figures[arch][kernel.name]}})


def each(kernels):
    return [(arch, kernel) for arch, found in kernels.items() for kernel in found.values()]


def changed(kernel: machine_code.Kernel, at: int, **fields) -> machine_code.Kernel:
    """The kernel with other fields of one instruction."""
    code = list(kernel.code)
    code[at] = copy.copy(code[at])
    for name, value in fields.items():
        setattr(code[at], name, value)
    return machine_code.Kernel(kernel.name, kernel.metadata, code)


def places(kernel: machine_code.Kernel, matches) -> list[int]:
    return [at for at, instruction in enumerate(kernel.code) if matches(instruction)]


def atomic_of(kernel: machine_code.Kernel) -> int:
    (at,) = places(kernel, lambda i: i.name.startswith("global_atomic_add"))
    return at


def test_the_families_are_all_that_count_workgroups(rocm_kernels, kernels):
    for arch, found in rocm_kernels.items():
        counting = {n for n, k in found.items() if places(k, lambda i: i.name.startswith("global_atomic"))}
        # Those between ranks count workgroups that have read the epoch; their gate is scripts/exchange_gate.py.
        between_ranks = {n for n in found if n.startswith(("rows_of_ranks<", "norm_of_sum<"))}
        assert counting - between_ranks == kernels[arch].keys()


def test_the_library_hands_over_every_part(kernels, figures):
    for arch, kernel in each(kernels):
        assert missed(arch, kernel, figures) == []


def test_an_access_without_sc1_is_noticed(kernels, figures):
    """Each store and each load of a part, and the counter's reset, in every kernel."""
    for arch, kernel in each(kernels):
        accesses = places(kernel, lambda i: (i.is_store or i.is_load) and i.operands.endswith("sc1"))
        assert len(accesses) >= 4, f"{arch} {kernel.name}"
        for at in accesses:
            doctored = changed(kernel, at, operands=kernel.code[at].operands.removesuffix(" sc1"))
            assert any("sc1" in line for line in missed(arch, doctored, figures)), f"{arch} {kernel.name} {at}"


def test_a_part_that_is_not_waited_for_is_noticed(kernels, figures):
    for arch, kernel in each(kernels):
        barrier = max(places(kernel, lambda i: i.name == "s_barrier"), key=lambda at: (at < atomic_of(kernel), at))
        wait = max(at for at in places(kernel, lambda i: i.count("vmcnt") == 0) if at < barrier)
        doctored = changed(kernel, wait, operands="vmcnt(1)")
        assert any("waited for" in line or "behind the wait" in line for line in missed(arch, doctored, figures))


def test_a_part_that_is_stored_after_the_wait_is_noticed(kernels, figures):
    for arch, kernel in each(kernels):
        atomic = atomic_of(kernel)
        part = max(at for at in places(kernel, lambda i: i.is_store) if at < atomic)
        code = list(kernel.code)
        code.insert(atomic - 1, code.pop(part))
        doctored = machine_code.Kernel(kernel.name, kernel.metadata, code)
        assert any("behind the wait" in line for line in missed(arch, doctored, figures)), f"{arch} {kernel.name}"


@pytest.mark.parametrize("name, what", [("buffer_wbl2", "release"), ("buffer_inv", "acquire")])
def test_an_atomic_that_orders_nothing_is_noticed(kernels, figures, name, what):
    for arch, kernel in each(kernels):
        (at,) = places(kernel, lambda i: i.name == name)
        doctored = changed(kernel, at, name="s_nop", operands="0")
        assert any(f"does not {what}" in line for line in missed(arch, doctored, figures)), f"{arch} {kernel.name}"


def test_a_kernel_without_a_counter_is_noticed(kernels, figures):
    for arch, kernel in each(kernels):
        doctored = changed(kernel, atomic_of(kernel), name="s_nop", operands="0")
        assert any("counter" in line for line in missed(arch, doctored, figures))
