"""What benchmarks/gpu_moe.py times, and what beside, on a CPU: the same numbers come out."""

import sys
import types
from dataclasses import replace

import pytest
import torch

from benchmarks import gpu_moe
from benchmarks.harness import moe_peers, mx_cases
from benchmarks.harness.routings import drawn_experts
from benchmarks.harness.table import Table
from problems import grouped_gemm as problems
from problems.inputs import normal


def plain_gemm(a: tuple, b: tuple, expert: int) -> torch.Tensor:
    """float32 rows of FP8 operands with scales of 128 k, and of blocks."""
    wide_a = a[0].float() * a[1].repeat_interleave(128, 1)[:, : a[0].shape[1]]
    scale = b[1][expert].repeat_interleave(128, 0)[: b[0].shape[1]].repeat_interleave(128, 1)[:, : b[0].shape[2]]
    return wide_a @ (b[0][expert].float() * scale).t()


def stand_in(masked_name: str) -> types.SimpleNamespace:
    """A package with DeepGEMM's calls, as its documentation has them."""

    def contiguous(a, b, d, owners, *, disable_ue8m0_cast):
        assert disable_ue8m0_cast and len(a[0]) % 128 == 0
        for first in range(0, len(owners), 128):
            mine = owners[first : first + 128]
            assert len(set(mine.tolist()) - {-1}) <= 1, "two experts in a tile"
        for row, expert in enumerate(owners.tolist()):
            if expert >= 0:
                d[row] = plain_gemm((a[0][row : row + 1], a[1][row : row + 1]), b, expert)[0]

    def masked(a, b, d, counts, expected, *, disable_ue8m0_cast):
        assert disable_ue8m0_cast and expected >= 1
        for expert, count in enumerate(counts.tolist()):
            d[expert, :count] = plain_gemm((a[0][expert, :count], a[1][expert, :count]), b, expert)

    calls = {"m_grouped_fp8_gemm_nt_contiguous": contiguous, masked_name: masked}
    return types.SimpleNamespace(__name__="deep_gemm", get_m_alignment_for_contiguous_layout=lambda: 128, **calls)


@pytest.mark.parametrize(
    "most, name", [(64, "m_grouped_fp8_gemm_nt_masked"), (64, "fp8_m_grouped_gemm_nt_masked"), (0, "")]
)
def test_deep_gemm_gets_the_same_problem(kernel, device, generator, monkeypatch, most, name):
    if device.type != "cpu":
        pytest.skip("the CPU's operators")
    monkeypatch.setitem(sys.modules, "deep_gemm", stand_in(name))
    monkeypatch.setattr(moe_peers, "MOST_MASKED", most)
    experts, n, k, counts = 4, 48, 256, [3, 0, 130, 7]
    a = normal((sum(counts), k), torch.float32, generator).to(torch.float8_e4m3fn)
    b = normal((experts, n, k), torch.float32, generator).to(torch.float8_e4m3fn)
    scale_a = torch.rand(sum(counts), 2, generator=generator)
    operands = a, scale_a, b, torch.rand(experts, 1, 2, generator=generator), problems.offsets_of(counts)
    call, result = moe_peers.deep_gemm_call(*operands)
    call()
    wanted = kernel.grouped_gemm(a, b, scale_a, operands[3], operands[4], out_dtype=torch.float32)
    assert (result().float() - wanted).norm() <= 1e-2 * wanted.norm()


def test_without_deep_gemm_there_is_no_call(monkeypatch):
    monkeypatch.setitem(sys.modules, "deep_gemm", None)
    with pytest.raises(ImportError):
        moe_peers.deep_gemm_call(*[torch.empty(0)] * 5)
    with pytest.raises(ImportError, match="has none of"):
        moe_peers.first_of(types.SimpleNamespace(__name__="deep_gemm"), "a", "b")


def test_torchs_composition_is_fused_moe(kernel, device, generator):
    if device.type != "cpu":
        pytest.skip("the CPU's operators")
    problem = problems.Moe(9, 5, 2, 128, 64, "group", torch.bfloat16)
    (x, w13, w2, weights, ids), keywords = problems.draw_moe(problem, torch.float8_e4m3fn, generator)
    wide = [moe_peers.dequantised(w, keywords[f"scale_{name}"]) for name, w in (("w13", w13), ("w2", w2))]
    got = moe_peers.unfused(x, *wide, weights, ids)
    sixteen = kernel.reference.fused_moe(x, *wide, weights, ids, inputs="none")
    assert (got - sixteen).float().norm() <= 2e-2 * sixteen.float().norm()
    eight = kernel.fused_moe(x, w13, w2, weights, ids, **keywords)
    assert (got - eight).float().norm() <= 0.1 * eight.float().norm()


@pytest.mark.parametrize("draw", (mx_cases.mxfp4, mx_cases.mxfp8))
@pytest.mark.parametrize("layer", mx_cases.MIXTURES, ids=lambda layer: layer.model)
def test_mixtures_with_mx_weights_are_verified(kernel, device, generator, monkeypatch, layer, draw):
    if device.type != "cpu":
        pytest.skip("the CPU's operators")
    monkeypatch.setattr(gpu_moe, "graph_us", lambda call: call() is None or 2.0)
    small, table = replace(layer, experts=8, d=64, hidden=96), Table(["", "tokens", "", "us", "", ""], ["us"])
    weights, routed = mx_cases.experts_of(small, generator, draw), gpu_moe.Router(1.0, "cpu")
    gpu_moe.fused(table, kernel, small.name, small.chosen, weights, (1, 9), routed)
    assert [row[1] for row in table.rows] == ["1", "9"] and table.rows[0][2] == str(layer.chosen)
    wrong = types.SimpleNamespace(**vars(kernel))
    wrong.fused_moe = lambda *args, **keywords: kernel.fused_moe(*args, **keywords) * 1.1
    with pytest.raises(SystemExit, match="is wrong"):
        gpu_moe.fused(table, wrong, small.name, small.chosen, weights, (1,), routed)


@pytest.mark.parametrize("skew, least, most", [(0.0, 0.08, 0.2), (1.0, 0.25, 0.6)])
def test_a_tenth_of_the_experts_has_a_share_of_the_tokens(generator, skew, least, most):
    ids = drawn_experts(2000, 128, 8, skew, generator)
    assert ids.shape == (2000, 8) and ids.dtype == torch.int32
    assert (ids.sort(1).values.diff(dim=1) > 0).all()
    counts = torch.bincount(ids.flatten().long(), minlength=128).sort(descending=True).values
    assert least < counts[:13].sum() / counts.sum() < most
