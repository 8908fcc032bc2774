"""The CPU backend's instruction sets: each in a process of its own, compared with one another.

The row operators and those of int8 promise the same bytes on every path, the FP8 GEMMs results within the same bounds.
"""

import os
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from problems.block_scaled_gemm import Inputs
from problems.buffers import same_bytes
from problems.comparisons import assert_gemm_close
from problems.mla import Mla, Operands, assert_attended
from problems.mx import Inputs as MxInputs
from problems.operators import functions

VARIABLE = "ROCM_FP8_KERNELS_CPU"
# What each path is compiled for, as /proc/cpuinfo spells it.
NEEDS = {
    "portable": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi", "avx512_bf16", "avx512_vnni"},
}
NEEDS["amx"] = NEEDS["avx512"] | {"amx_tile", "amx_bf16", "amx_int8"}
PATHS = list(NEEDS)

ONE_CALL = """
import torch
from scripts.load import load_kernel
kernel = load_kernel("cpu")
out = torch.full((2, 40), 7, dtype=torch.bfloat16)
try:
    kernel.rms_norm(torch.ones(2, 40, dtype=torch.bfloat16), torch.ones(40, dtype=torch.bfloat16), out=out)
    print("computed", out[0, 0].item(), end="")
except RuntimeError as error:
    assert (out == 7).all()
    print(error, end="")
"""
WORKER = "import sys; from tests.operators.cpu_path_worker import main; main(*sys.argv[1:])"
WRONG = ["sse9", "AVX2", "avx", "avx5122"]


# 32 MiB of weights. Writing 5 to clear_refs sets the peak of resident memory to what is resident now.
PEAK = """
import re, sys, torch
from scripts.load import load_kernel
kernel = load_kernel("cpu")
one, fp8 = torch.ones(1), torch.float8_e4m3fn
torch.set_num_threads(2)
b = torch.randn(1 << 20).to(fp8).repeat(32).view(2048, 16384)
a = torch.randn(32, 16384).to(fp8)

def status(key):
    return int(re.search(key + r":\\s*(\\d+)", open("/proc/self/status").read())[1])

for operator in (kernel.skinny_gemm, kernel.block_scaled_gemm):
    for m in (1, 32):
        operator(a[:m], b[:64], one, one)  # threads, and the buffer for a
        before = status("VmRSS")
        open("/proc/self/clear_refs", "w").write("5")
        out = operator(a[:m], b, one, one)
        print(status("VmHWM") - before)
"""


# torch's own products of bfloat16 use tiles of other shapes, on the same threads.
NEIGHBOURS = """
import sys, torch
from scripts.load import load_kernel
kernel = load_kernel("cpu")
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(int(sys.argv[1]))
draw = lambda *shape: torch.randn(*shape, generator=generator)
one, fp8, int8 = torch.ones(1), torch.float8_e4m3fn, torch.int8
x, w = draw(70, 520).bfloat16(), draw(330, 520).bfloat16()
a, b = draw(33, 520).to(fp8), draw(70, 520).to(fp8)
codes, exponents = b.view(torch.uint8)[:, :256], torch.full((70, 16), 125, dtype=torch.uint8).view(torch.float8_e8m0fnu)
ours = (
    lambda: kernel.block_scaled_gemm(x[:, :512], codes, None, exponents),
    lambda: kernel.skinny_gemm(a[:3], b, one, one),
    lambda: kernel.block_scaled_gemm(a, b, one, one),
    lambda: kernel.int8_gemm(a.view(int8), b.view(int8), one, one, out_dtype=torch.float32),
)
linear = torch.nn.functional.linear
theirs, wanted = linear(x, w), [each() for each in ours]
for _ in range(3):
    for each, result in zip(ours, wanted):
        assert torch.equal(linear(x, w), theirs)
        assert torch.equal(each(), result)
"""


@cache
def processor_flags() -> frozenset[str]:
    lines = re.findall(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return frozenset(lines[0].split()) if lines else frozenset()


def lacking(path: str) -> set[str]:
    return NEEDS[path] - processor_flags()


def need(path: str) -> None:
    if lacking(path):
        pytest.skip(f"this processor lacks {', '.join(sorted(lacking(path)))}")


@pytest.fixture(scope="module", autouse=True)
def cpu_only(device):
    if device.type != "cpu":
        pytest.skip("the loaded variant has no CPU paths")


@pytest.fixture(scope="module")
def on_path(kernel, forked):
    """on_path(path, code, *arguments): what the code prints where the variable has that value; None: it is not set."""
    return lambda path, *program: forked(*program, **({} if path is None else {VARIABLE: path}))


@pytest.fixture(scope="module")
def results(on_path, tmp_path_factory):
    """path -> results of cpu_path_worker.py, each computed once; every path gets the same seed."""
    folder = tmp_path_factory.mktemp("paths")

    @cache
    def of(path: str) -> dict:
        need(path)
        file = folder / f"{path}.pt"
        on_path(path, WORKER, str(file), os.environ["ROCM_FP8_TEST_SEED"])
        return torch.load(file)

    return of


def test_a_touched_page_is_seen(on_path):
    with pytest.raises(AssertionError, match="exit -11"):
        on_path(None, "import ctypes; ctypes.string_at(0)")


@pytest.mark.parametrize("path", PATHS)
def test_runs_without_touching_a_forbidden_page(results, path):
    assert len(results(path)) > 1000


MX = {"grouped_gemm_mx", "grouped_gemm_gate_mx"}  # block_scaled_gemm's kernel, too


def test_no_operator_is_left_out(kernel, results):
    # These run the kernels of the other wrappers, with parts of their epilogues.
    wrappers = {"linear_abde_i8", "linear_ab_i8_de_f32", "bmm_abe_i8", "grouped_gemm_gate"}
    # Gathers copy, norms of sums are the norms.
    sums = {"all_reduce", "reduce_scatter"}
    assert {run["operator"] for run in results("portable").values()} == (functions(kernel) - wrappers) | sums | MX


@pytest.mark.parametrize("path", PATHS[1:])
def test_row_operators_give_the_same_bytes(results, path):
    portable, other = results("portable"), results(path)
    assert portable.keys() == other.keys()
    bounded = ("skinny_gemm", "block_scaled_gemm", "grouped_gemm", "grouped_gemm_swiglu_fp8", "mla_decode", *MX)
    rows = [name for name in portable if portable[name]["operator"] not in bounded]
    different = [
        name for name in rows for a, b in zip(portable[name]["results"], other[name]["results"]) if not same_bytes(a, b)
    ]
    assert not different, f"{len(different)} of {len(rows)}: {different[:10]}"


def assert_grouped(given: dict, results: list[torch.Tensor], name: str) -> None:
    """Each expert's rows by themselves."""
    codes, offsets = given["a"].view(torch.uint8), given["offsets"].tolist()
    for e, (begin, end) in enumerate(pairwise(offsets)):
        source = given["rows"][begin:end].long() // given["slots"]
        a, scale_a = codes[source].view(given["a"].dtype), given["scale_a"][source]
        inputs = Inputs(a, given["b"][e], scale_a, given["scale_b"][e].t(), given["bias"][e])
        if end > begin:
            inputs.assert_right(results[0][begin:end], name)


def assert_mx(given: dict, results: list[torch.Tensor], name: str) -> None:
    scales = {n: t for n in ("scale_a", "scale_b") if (t := given[n]) is not None and t.dtype == torch.uint8}
    given = given | {n: t.view(torch.float8_e8m0fnu) for n, t in scales.items()}
    names = ("a", "b", "scale_a", "scale_b", "offsets", "rows", "slots", "bias")
    MxInputs(*(given[n] for n in names)).assert_right(results[0], name)


# Operator -> what holds arguments and results of a call to its bound.
BOUNDS = {
    "skinny_gemm": lambda given, results, name: assert_gemm_close(results[0], *given, name),
    "block_scaled_gemm": lambda given, results, name: Inputs(*given).assert_right(results[0], name),
    "grouped_gemm": assert_grouped,
    "grouped_gemm_mx": assert_mx,
    "mla_decode": lambda given, results, name: assert_attended(Mla(**given[0]), Operands(**given[1]), *results, name),
}


@pytest.mark.parametrize("operator", BOUNDS)
@pytest.mark.parametrize("path", PATHS)
def test_results_stay_within_the_bound(results, path, operator):
    runs = {name: run for name, run in results(path).items() if run["operator"] == operator}
    for name, run in runs.items():
        BOUNDS[operator](run["arguments"], run["results"], name)
    assert runs


@pytest.fixture(scope="module")
def answers(on_path) -> dict[str | None, str]:
    """What a call says, by the value of the variable; None: it is not set."""
    return {path: on_path(path, ONE_CALL) for path in (None, "", *PATHS, *WRONG)}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_can_be_asked_for(answers, path):
    said = answers[path]
    if lacking(path):
        assert VARIABLE in said and "lacks" in said
    else:
        assert said == "computed 1.0"


@pytest.mark.parametrize("path", [None, ""])
def test_without_a_wish_the_best_path_is_taken(answers, path):
    assert answers[path] == "computed 1.0"


@pytest.mark.parametrize("path", WRONG)
def test_a_path_that_does_not_exist_is_an_error(answers, path):
    said = answers[path]
    assert VARIABLE in said and "\n" not in said
    assert all(name in said for name in PATHS)


@pytest.mark.parametrize("path", PATHS)
def test_torchs_products_and_ours_take_turns(on_path, path):
    need(path)
    on_path(path, NEIGHBOURS, os.environ["ROCM_FP8_TEST_SEED"])


@pytest.mark.parametrize("path", PATHS)
def test_the_gemms_make_no_copy_of_the_weights(on_path, path):
    need(path)
    grown = [int(line) for line in on_path(path, PEAK).split()]  # KiB
    assert len(grown) == 4 and max(grown) < 8 * 1024, grown
