"""python -m benchmarks simulate operator as a developer calls it, at tiny sizes."""

import re
import subprocess
import sys

import pytest

from benchmarks import simulate as command
from benchmarks.harness import simulated_rocm
from tests.settings import ROOT, needs_rocm_toolchain

pytestmark = needs_rocm_toolchain


@pytest.fixture
def simulate(simulated_rocm, monkeypatch, capsys):
    """The command in this process, which has torch and the double: (what it printed, its one line of an error)."""

    def call(arguments: str) -> tuple[str, str | None]:
        monkeypatch.setattr(sys, "argv", ["simulate.py", *arguments.split()])
        try:
            command.main()
        except SystemExit as error:
            return capsys.readouterr().out, error.code
        return capsys.readouterr().out, None

    return call


@pytest.fixture
def output(simulate):
    def of(arguments: str) -> str:
        text, error = simulate(arguments)
        assert error is None
        return text

    return of


def by_itself(arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", "simulate", "operator", *arguments.split()]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_gemm(rocm_variant):
    text = by_itself("skinny_gemm --m 3 --n 20 --k 1024 --config s8x16 --seed 5 --arch gfx950")
    assert text.startswith("skinny_gemm_stream<0> on gfx950: 2 x 1 x 1 workgroups of 256 x 1 x 1 threads\nverified")
    # 3 rows of A and 20 of B, 1024 bytes each, at most: rows that are not there touch no memory.
    assert int(re.search(r"(\d+) bytes in lines of 64", text)[1]) in range(23 * 1024, 23 * 1024 + 20 * 64)
    assert re.search(r"^estimate +\d+\.\d\d us, bound by \w+; no measurement$", text, re.M)


def test_rows(output):
    text = output("add_rms_norm_fp8 --rows 2 --d 128 --dtype bfloat16")
    assert "bf16" in text.split("\n")[0] and "\nverified against the reference\n" in text


def test_annotated(output):
    text = output("swiglu_fp8 --rows 1 --d 512 --annotate")
    listing = re.findall(r"^ +(\d+) +0x[0-9a-f]+  (\S+)(.*)$", text, re.M)
    # 64 vectors of 8 elements: one wave, which executes each instruction at most once.
    assert {int(count) for count, _, _ in listing} <= {0, 1} and ("1", "s_endpgm", "") in listing
    loads = [rest for _, name, rest in listing if name == "global_load_dwordx4"]
    assert len(loads) == 2 and all(rest.endswith("8.0 lines an access, 100 % of them asked for") for rest in loads)


def test_traced(output):
    text = output("rms_norm --rows 1 --d 64 --trace 0:1 --limit 4")
    lines = text.split("\n")
    assert all(re.match(r" +0x[0-9a-f]+  \w+", line) for line in lines[:4]) and lines[4].startswith("rms_norm_fast<")


def test_a_sample(rocm_variant):
    # Workgroups that do not run leave the counters of split K as they are: not for a process that goes on.
    text = by_itself("skinny_gemm --m 1 --n 1024 --k 2048 --sample 1 --config fallback,split=2")
    assert "a sample: not verified" in text and "1 of 128, of" in text


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("rms_norm --rows 1 --d 64 --trace 1:0", "no wave 1:0 ran"),
        ("skinny_gemm --m 1 --n 16 --k 1024 --config s9x9", "names a form that is unknown"),
    ],
)
def test_errors_are_one_line(simulate, arguments, message):
    _, error = simulate(arguments)
    assert message in error and error.startswith("simulate.py: ") and "\n" not in error


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("nothing", "invalid choice: 'nothing'"),
        ("swiglu_fp8 --rows 1", "required: --d"),
        ("swiglu_fp8 --rows 0 --d 1", "invalid positive value: '0'"),
        ("swiglu_fp8 --rows 1 --d 1 --trace x", "invalid place value: 'x'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(SystemExit, match=message) as error:
        command.parse(arguments.split())
    assert str(error.value).startswith("simulate.py: ") and "\n" not in str(error.value)


def test_without_a_variant(monkeypatch, tmp_path):
    monkeypatch.setattr(simulated_rocm, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"^no ROCm variant is built; run: python scripts/build.py"):
        command.Device()
