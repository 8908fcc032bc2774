"""benchmarks/cuda_pieces.py without a GPU: what it tries, prints and says, on the CPU's operators and a fake clock."""

import os
import types

import pytest

from benchmarks import cuda_pieces
from benchmarks.harness import gpu_cases
from benchmarks.tune_skinny_gemm import Config
from tests.tools.tables import tables

MULTIPROCESSORS = 4


def test_the_table_of_shapes_is_read():
    assert cuda_pieces.shapes_for(8) == {1: 32, 3: 48, 5: 64, 6: 80, 7: 96, 8: 112}
    assert cuda_pieces.shapes_for(16) == {0: 24, 1: 32, 2: 40, 3: 48, 4: 56, 5: 64, 6: 80, 8: 112}
    assert cuda_pieces.shapes_for(17) == {0: 24, 1: 32, 2: 40, 3: 48, 4: 56, 5: 64, 6: 80, 7: 96, 8: 112, 12: 80}
    assert cuda_pieces.shapes_for(17, splits=2) == {0: 24, 1: 32, 2: 40, 3: 48, 12: 80}
    assert cuda_pieces.shapes_for(17, large=True) == {9: 96, 10: 112, 11: 128}
    assert cuda_pieces.shapes_for(16, large=True) == cuda_pieces.shapes_for(32, splits=2, large=True) == {}
    assert cuda_pieces.shapes_for(16, splits=2) == cuda_pieces.shapes_for(16)


@pytest.mark.parametrize("rows", [1, 16, 32])
@pytest.mark.parametrize("n, k", [(1, 1024), (100, 1024), (4096, 4096), (13312, 16384)])
def test_ways_are_what_the_launcher_takes(rows, n, k):
    found = cuda_pieces.ways(rows, n, k, 132)
    assert len(set(found)) == len(found) > 1
    for shape, splits, pieces in found:
        large = shape in cuda_pieces.shapes_for(rows, large=True)
        assert not large or (pieces, splits) == (132, 1)
        able = cuda_pieces.shapes_for(rows, splits, large)
        assert 1 <= splits <= 8 and -(-n // able[shape]) <= pieces <= n
        assert all(columns >= able[shape] for columns in able.values() if columns * pieces >= n), (
            "a narrower one would do"
        )
    # Full tiles; two blocks a multiprocessor; two with split K.
    assert {pieces for _, splits, pieces in found if splits == 1} >= {-(-n // 32), -(-n // 64)}
    wanted = {4096: [9], 13312: [10]}.get(n, []) if rows > 16 else []
    assert [shape for shape, _, _ in found if shape in cuda_pieces.shapes_for(rows, large=True)] == wanted
    shapes = cuda_pieces.shapes_for(rows)
    assert [shapes[shape] for shape, splits, pieces in found if (splits, pieces) == (1, 264)] == (
        {4096: [32 if rows == 1 else 24], 13312: [64 if rows == 1 else 56]}.get(n, [])
    )
    assert any(way[1:] == (2, 132) for way in found) == (n == 4096 or (n == 13312 and rows <= 16))


@pytest.fixture
def compare(cpu, flow, monkeypatch):
    monkeypatch.setattr(cpu.kernel, "ops", types.SimpleNamespace(backend=lambda: "cuda"))
    properties = types.SimpleNamespace(multi_processor_count=MULTIPROCESSORS)
    monkeypatch.setattr(cuda_pieces.torch.cuda, "get_device_properties", lambda device: properties)
    return lambda *options: cuda_pieces.main(["--quick", "--size", "100x1024", *options])


def way(config: str | None) -> Config:
    return tuple(map(int, config.split(","))) if config else cuda_pieces.OWN


def test_the_fastest_way_stands_beside_the_own_choice(compare, flow, capsys):
    flow.us = lambda kind, config, launch: {cuda_pieces.OWN: 6.0, (0, 1, 8): 5.0, (1, 1, 8): 5.0}.get(way(config), 10.0)
    assert compare("--rows", "8", "--rows", "32") == 0
    _, _, *rows = tables(capsys.readouterr().out)
    assert rows == [
        [m, "100 x 1024", "6.00", "0.00", way, "5.00", "20.0%"] for m, way in (("8", "1,1,8"), ("32", "0,1,8"))
    ]


def test_nothing_faster(compare, flow, capsys):
    flow.us = lambda kind, config, launch: 10.0 if config else 4.0
    assert compare("--rows", "1") == 0
    _, _, row = tables(capsys.readouterr().out)
    assert row[-3:] == ["own", "4.00", "0.0%"]


def test_a_wrong_way_is_named(compare, cpu, capsys):
    original = cpu.kernel.skinny_gemm

    def wrong_somewhere(*args, **kwargs):
        out = original(*args, **kwargs)
        return out.mul_(1.02) if os.environ.get(gpu_cases.GEMM_VARIABLE) == "1,2,4" else out

    cpu.kernel.skinny_gemm = wrong_somewhere
    assert compare("--rows", "1") == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "1,2,4" in error and "M=1 100x1024" in error


def test_another_backend_is_refused(compare, cpu, capsys):
    cpu.kernel.ops.backend = lambda: "rocm"
    assert compare() == 1
    assert capsys.readouterr().err == "cuda_pieces.py: no CUDA variant: this is rocm on gfx942\n"
