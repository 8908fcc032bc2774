"""benchmarks/gpu_layer.py without a GPU: a layer of the CPU's operators, torch's and another build's, on a fake
clock."""

import inspect
import os
import types

import pytest
import torch

from benchmarks import gpu_layer
from benchmarks.harness import gpu_environment
from benchmarks.harness.shapes import LlamaShapes
from tests.tools.tables import tables

TINY = LlamaShapes("Tiny", hidden=64, heads=2, kv_heads=1, intermediate=96, head_dim=32)
# 128 x 64, 64 x 64, 192 x 64 and 64 x 96.
TINY_BYTES = 30720
COLUMNS = ["layer", "rows", "floor", "ours", "±", "alone", "torch", "share of memory rate", "ratio"]


@pytest.fixture
def layer(cpu, flow, monkeypatch):
    """The script for one small layer: ours takes 20 microseconds, without overlap 25, torch 30, memory a byte in
    1/3072."""
    monkeypatch.setattr(gpu_layer, "LAYERS", {TINY.name: TINY})
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    # Where torch has it for the CPU it may want other sizes.
    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    monkeypatch.setattr(gpu_layer.gpu_report, "begin", begin)
    flow.us = lambda kind, config, launch: us(cpu.kernel, kernel_of(launch))
    return lambda *options: gpu_layer.main(["--quick", *options])


def begin(gpu, args):
    return torch.Generator().manual_seed(args.seed or 1), {"memory_bytes_per_us": TINY_BYTES / 10}


def scaled_mm(a, b, scale_a, scale_b, out_dtype):
    return (a.float() @ b.float() * scale_a * scale_b).to(out_dtype)


def kernel_of(launch):
    return inspect.getclosurevars(launch).nonlocals["kernel"]


def us(ours, kernel) -> float:
    if kernel is ours:
        return 25.0 if os.environ.get("ROCM_FP8_KERNELS_PDL") == "0" else 20.0
    return 30.0


def changed(kernel, **operators) -> types.SimpleNamespace:
    return types.SimpleNamespace(**vars(kernel) | operators)


def test_a_layers_bytes_and_order(cpu):
    launched = []

    def spy(name: str):
        def call(first, second, *args, **kwargs):
            launched.append((name, tuple(second.shape) if name == "skinny_gemm" else None))
            return getattr(cpu.kernel, name)(first, second, *args, **kwargs)

        return call

    names = ("add_rms_norm_fp8", "skinny_gemm", "swiglu_fp8")
    layer = gpu_layer.Layer(cpu.kernel.reference, TINY, 3, torch.float8_e4m3fn, torch.Generator().manual_seed(1))
    result = layer.run(changed(cpu.kernel, **{name: spy(name) for name in names}), 0)
    assert result.shape == (3, TINY.hidden) and layer.bytes == TINY_BYTES
    norm, swiglu = ("add_rms_norm_fp8", None), ("swiglu_fp8", None)
    linears = [("skinny_gemm", size) for size in ((128, 64), (64, 64), (192, 64), (64, 96))]
    assert launched == [norm, *linears[:2], norm, linears[2], swiglu, linears[3]]


def test_the_table(layer, capsys):
    assert layer("--rows", "1", "--rows", "17") == 0
    header, _, *rows = tables(capsys.readouterr().out)
    assert header == COLUMNS
    assert rows == [["Tiny", m, "10.00", "20.00", "0.00", "25.00", "30.00", "0.50", "1.50"] for m in ("1", "17")]


def test_another_build_has_a_column(layer, cpu, monkeypatch, capsys):
    monkeypatch.setattr(gpu_environment, "load_build", lambda folder, backend: changed(cpu.kernel))
    assert layer("../before", "--rows", "8") == 0
    header, _, row = tables(capsys.readouterr().out)
    assert header == [*COLUMNS[:5], "before", *COLUMNS[5:]]
    assert row == ["Tiny", "8", "10.00", "20.00", "0.00", "30.00", "25.00", "30.00", "0.50", "1.50"]


@pytest.mark.parametrize("operator", ["skinny_gemm", "add_rms_norm_fp8"])
def test_a_wrong_layer_is_not_timed(layer, cpu, monkeypatch, capsys, operator):
    def wrong(first, second, *args, **kwargs):
        out = getattr(cpu.kernel, operator)(first, second, *args, **kwargs)
        if operator == "skinny_gemm":
            return out * 1.03
        second.mul_(1.03)  # the residual
        return out

    monkeypatch.setattr(gpu_environment, "load_build", lambda folder, backend: changed(cpu.kernel, **{operator: wrong}))
    assert layer("../before", "--rows", "1") == 1
    out, error = capsys.readouterr()
    assert tables(out)[2][5] == "-"
    assert "left out: before: Wrong: before, Tiny, 1 rows:" in error


def test_without_torchs_operators(layer, monkeypatch, capsys):
    def refuses(*args, **kwargs):
        raise RuntimeError("not on this GPU")

    monkeypatch.setattr(torch, "_scaled_mm", refuses)
    assert layer("--rows", "1") == 0
    out, error = capsys.readouterr()
    assert tables(out)[2][-3:] == ["-", "0.50", "-"]
    assert "left out: torch: RuntimeError: not on this GPU" in error


def test_folders_that_a_table_could_not_tell_apart(layer, monkeypatch, capsys):
    monkeypatch.setattr(gpu_environment, "load_build", lambda folder, backend: None)
    for folders in (["a/x", "b/x"], ["alone"]):
        assert layer(*folders) == 1
        assert "gpu_layer.py: folders of one name" in capsys.readouterr().err
