"""The CPU backend's instruction sets: each in a process of its own, compared with one another.

The row operators promise the same bytes on every path, skinny_gemm a result within the same bound.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.problems.buffers import same_bytes
from tests.problems.comparisons import assert_gemm_close
from tests.settings import ROOT

VARIABLE = "ROCM_FP8_KERNELS_CPU"
# What each path is compiled for, as /proc/cpuinfo spells it.
NEEDS = {
    "portable": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi", "avx512_bf16"},
}
PATHS = list(NEEDS)

# A process that has torch, and forks for each value of the variable: the kernel is loaded in the child.
ONE_CALL_EACH = """
import json, os, sys, torch
import kernels, torch._dynamo  # what loading the package imports
from scripts.load import load_kernel

def one_call():
    kernel = load_kernel("cpu")
    out = torch.full((2, 40), 7, dtype=torch.bfloat16)
    try:
        kernel.rms_norm(torch.ones(2, 40, dtype=torch.bfloat16), torch.ones(40, dtype=torch.bfloat16), out=out)
        return f"computed {out[0, 0].item()}"
    except RuntimeError as error:
        assert (out == 7).all()
        return str(error)

for path in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if path is not None:
            os.environ[VARIABLE] = path
        os.write(writer, one_call().encode())
        os._exit(0)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0, path
    print(json.dumps([path, open(reader).read()]))
""".replace("VARIABLE", repr(VARIABLE))
WRONG = ["sse9", "AVX2", "avx", "avx5122"]


# 64 MiB of weights. Writing 5 to clear_refs sets the peak of resident memory to what is resident now.
PEAK = """
import re, sys, torch
from scripts.load import load_kernel
kernel = load_kernel("cpu")
one, fp8 = torch.ones(1), torch.float8_e4m3fn
torch.set_num_threads(2)
b = torch.randn(1 << 20).to(fp8).repeat(64).view(4096, 16384)
a = torch.randn(32, 16384).to(fp8)

def status(key):
    return int(re.search(key + r":\\s*(\\d+)", open("/proc/self/status").read())[1])

for m in (1, 32):
    kernel.skinny_gemm(a[:m], b[:64], one, one)  # threads, and the buffer for a
    before = status("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")
    out = kernel.skinny_gemm(a[:m], b, one, one)
    print(status("VmHWM") - before)
"""


@cache
def processor_flags() -> frozenset[str]:
    lines = re.findall(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return frozenset(lines[0].split()) if lines else frozenset()


def lacking(path: str) -> set[str]:
    return NEEDS[path] - processor_flags()


def environment(path: str | None) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if key != VARIABLE}
    return env if path is None else env | {VARIABLE: path}


@pytest.fixture(scope="module", autouse=True)
def cpu_only(device):
    if device.type != "cpu":
        pytest.skip("the loaded variant has no CPU paths")


@pytest.fixture(scope="module")
def results(kernel, tmp_path_factory):
    """path -> results of cpu_path_worker.py, each computed once; every path gets the same seed."""
    folder = tmp_path_factory.mktemp("paths")

    @cache
    def of(path: str) -> dict:
        if lacking(path):
            pytest.skip(f"this processor lacks {', '.join(sorted(lacking(path)))}")
        file = folder / f"{path}.pt"
        command = [sys.executable, "-m", "tests.operators.cpu_path_worker", str(file), os.environ["ROCM_FP8_TEST_SEED"]]
        run = subprocess.run(command, cwd=ROOT, env=environment(path), capture_output=True, text=True, timeout=600)
        # -11: an access outside a tensor.
        assert run.returncode == 0, f"{path}: exit {run.returncode}\n{run.stderr[-2000:]}"
        return torch.load(file)

    return of


@pytest.mark.parametrize("path", PATHS)
def test_runs_without_touching_a_forbidden_page(results, path):
    assert len(results(path)) > 300


@pytest.mark.parametrize("path", PATHS[1:])
def test_row_operators_give_the_same_bytes(results, path):
    portable, other = results("portable"), results(path)
    assert portable.keys() == other.keys()
    rows = [name for name in portable if portable[name]["operator"] != "skinny_gemm"]
    different = [
        name for name in rows for a, b in zip(portable[name]["results"], other[name]["results"]) if not same_bytes(a, b)
    ]
    assert not different, f"{len(different)} of {len(rows)}: {different[:10]}"


@pytest.mark.parametrize("path", PATHS)
def test_skinny_gemm_stays_within_the_bound(results, path):
    for name, run in results(path).items():
        if run["operator"] == "skinny_gemm":
            assert_gemm_close(run["results"][0], *run["arguments"], name)


@pytest.fixture(scope="module")
def answers(kernel) -> dict[str | None, str]:
    """What a call says, by the value of the variable; None: it is not set."""
    wishes = json.dumps([None, "", *PATHS, *WRONG])
    command = [sys.executable, "-c", ONE_CALL_EACH, wishes]
    run = subprocess.run(command, cwd=ROOT, env=environment(None), capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return dict(map(json.loads, run.stdout.splitlines()))


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
def test_skinny_gemm_makes_no_copy_of_the_weights(kernel, path):
    if lacking(path):
        pytest.skip(f"the processor lacks {', '.join(sorted(lacking(path)))}")
    run = subprocess.run(
        [sys.executable, "-c", PEAK], cwd=ROOT, env=environment(path), capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    grown = [int(line) for line in run.stdout.split()]  # KiB
    assert len(grown) == 2 and max(grown) < 8 * 1024, grown
