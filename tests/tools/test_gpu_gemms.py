"""benchmarks/gpu_gemms.py without a GPU: what it prints and checks, on the CPU's operators and a fake clock."""

import pytest

from benchmarks import gpu_gemms
from tests.tools.tables import tables

US = {"ours": 10.0, "deepgemm": 12.0, "scaled_mm": 11.0, "float16": 20.0, "int_mm": 30.0, "bfloat16": 15.0}


@pytest.fixture
def script(flow, cpu, monkeypatch):
    """At small sizes; the peers are not there, but for torch.mm."""
    bound = gpu_gemms.Bound(1.5, 1.2)
    series = {
        "block_scaled_gemm": [("a size", gpu_gemms.BlockScaled, ((8, 64, 256),), bound)],
        "mx": [("a size", gpu_gemms.Mxfp4, ((5, 48, 96),), bound)],
        "int8_gemm": [("sizes", gpu_gemms.Int8, ((4, 32, 64), (20, 48, 32)), bound)],
    }
    monkeypatch.setattr(gpu_gemms, "SERIES", series)
    monkeypatch.setattr(gpu_gemms.Int8, "int_mm", lambda case, i: case.ours(i))

    def absent(case, i):
        raise RuntimeError("not here")

    for name in gpu_gemms.BlockScaled.peers:
        monkeypatch.setattr(gpu_gemms.BlockScaled, name, absent)
    flow.us = lambda kind, config, launch: US.get(kind, 25.0)
    return cpu.kernel


def test_the_tables_and_the_bounds(script, capsys):
    assert gpu_gemms.main(["--quick", "--seed", "3"]) == 0
    captured = capsys.readouterr()
    found = [line for line in captured.out.splitlines() if line.startswith("|")]
    assert found[2].startswith("| 8, 64 x 256 | 10.00 | 0.00 | - | - |")
    assert found[5].startswith("| 5, 48 x 96 | 10.00 | 0.00 | 15.00 |") and found[5].endswith(" 1.50 |")
    row = tables("\n".join(found[6:]))[2]
    assert row[0] == "4, 32 x 64" and row[1:5] == ["10.00", "0.00", "20.00", "25.00"] and row[-1] == "2.00"
    assert captured.out.count("Geometric mean of the ratios") == 3
    # A peer that is not there shows nothing: the bound is missed.
    assert captured.err.count("bound missed") == 1 and "block_scaled_gemm, a size: mean nan" in captured.err
    assert gpu_gemms.main(["--quick", "--check"]) == 1
    assert gpu_gemms.main(["--quick", "--check", "--only", "int8_gemm"]) == 0


@pytest.mark.parametrize(
    "only, operator", [("block_scaled_gemm",) * 2, ("mx", "block_scaled_gemm"), ("int8_gemm",) * 2]
)
def test_nothing_wrong_of_ours_is_timed(script, capsys, monkeypatch, only, operator):
    original = getattr(script, operator)

    def wrong(*args, out, **more):
        original(*args, out=out, **more)
        out[-1, -1] = 300
        return out

    setattr(script, operator, wrong)
    assert gpu_gemms.main(["--quick", "--only", only]) == 1
    captured = capsys.readouterr()
    assert "10.00" not in captured.out and captured.err.startswith(f"gpu_gemms.py: {operator}, ours: ")


def test_every_size_is_there():
    assert len(gpu_gemms.CHALLENGE) == 18 and len(gpu_gemms.DECODE) == 20 and len(gpu_gemms.OPT) == 27
    assert len(gpu_gemms.MX) == 18
