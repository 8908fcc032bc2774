"""The shipped ROCm library, unmodified: every kernel in it is understood, every operator runs."""

import pytest
import torch
from simulator.code_object import load_all
from simulator.program import program
from simulator_harness import ARCHS, needs_clang
from simulator_launchers import NATIVE_FP8, Launchers, shipped_library

pytestmark = needs_clang


@pytest.fixture(scope="module")
def launchers():
    return Launchers()


@pytest.mark.parametrize("arch", ARCHS)
def test_every_kernel_is_understood(arch):
    kernels = 0
    for code in load_all(shipped_library(), arch):
        for kernel in code.kernels.values():
            instructions, _ = program(code, kernel)
            assert any(each.mnemonic == "s_endpgm" for each in instructions)
            kernels += 1
    assert kernels


def quantised(values: torch.Tensor, arch: str) -> torch.Tensor:
    dtype = NATIVE_FP8[arch]
    limit = torch.finfo(dtype).max
    return values.clamp(-limit, limit).to(dtype)


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.uint8)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", [(1, 64, 1024), (8, 48, 512), (5, 33, 77), (32, 128, 512)])
@pytest.mark.parametrize("arch", ARCHS)
def test_skinny_gemm(launchers, generator, arch, shape, seed):
    launchers.runtime.seed = seed
    m, n, k = shape
    a = launchers.tensor(quantised(torch.randn(m, k, generator=generator), arch))
    b = launchers.tensor(quantised(torch.randn(n, k, generator=generator), arch))
    scale_a = launchers.tensor(torch.tensor([0.5]))
    scale_b = launchers.tensor(torch.rand(n, generator=generator) + 0.5)
    out = launchers.tensor(torch.full((m, n), float("nan")))
    launchers.skinny_gemm(arch, a, b, scale_a, scale_b, out)
    exact = a.double() @ b.double().T
    magnitudes = a.double().abs() @ b.double().abs().T
    # K roundings of float32 sums, and one for each scale.
    bound = (k + 2) * 2.0**-24 * magnitudes * 0.5 * scale_b.double()
    assert ((out.double() - exact * 0.5 * scale_b.double()).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("arch", ARCHS)
def test_rms_norm_fp8(launchers, generator, arch, dtype):
    for rows, d in ((3, 1024), (2, 100)):
        x, residual, weight = (
            launchers.tensor(torch.randn(*shape, generator=generator).to(dtype))
            for shape in ((rows, d), (rows, d), (d,))
        )
        scale = launchers.tensor(torch.tensor([0.02]))
        out = launchers.tensor(torch.zeros(rows, d, dtype=NATIVE_FP8[arch]))
        h = x + residual
        launchers.rms_norm_fp8(arch, x, weight, scale, out, residual)
        assert torch.equal(residual, h)
        r = torch.rsqrt(h.double().square().mean(-1, keepdim=True) + 1e-6).float()
        expected = quantised(((h.float() * r).to(dtype) * weight).float() / scale, arch)
        assert (as_bytes(out) == as_bytes(expected)).float().mean() >= 0.999 - 2 / out.numel()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("arch", ARCHS)
def test_swiglu_fp8(launchers, generator, arch, dtype):
    for rows, d in ((3, 1024), (2, 100)):
        x = launchers.tensor((torch.randn(rows, 2 * d, generator=generator) * 4).to(dtype))
        scale = launchers.tensor(torch.tensor([0.05]))
        out = launchers.tensor(torch.zeros(rows, d, dtype=NATIVE_FP8[arch]))
        launchers.swiglu_fp8(arch, x, scale, out)
        gate = torch.nn.functional.silu(x[:, :d].double()).float().to(dtype)
        expected = quantised((gate * x[:, d:]).float() / scale, arch)
        assert (as_bytes(out) == as_bytes(expected)).float().mean() >= 0.999 - 2 / out.numel()
