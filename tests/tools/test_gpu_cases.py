"""The operands and the verification of the GPU benchmarks, on the CPU's variant at small sizes."""

import os

import pytest
import torch

from benchmarks.harness import gpu_cases, gpu_timing

ROW_OPERATORS = ("add_rms_norm_fp8", "swiglu_fp8")


def test_row_cases(cpu, generator):
    for operator, bytes_moved in (("add_rms_norm_fp8", 3 * 96 * (2 + 2 + 2 + 1)), ("swiglu_fp8", 3 * 48 * (4 + 1))):
        case = gpu_cases.RowCase(cpu.kernel, operator, 3, generator)
        assert case.bytes == bytes_moved and case.count == gpu_timing.copies(bytes_moved) > 2
        case.verify_ours()
        case.verify(case.reference, "the reference", share=0)
        before = [part.clone() if isinstance(part, torch.Tensor) else part for part in case.arguments(1)]
        for i in (1, case.count - 1):
            case.ours(i)
        gpu_cases.check_fp8(case.out[1], case.reference(*before), 1e-3, operator)
        assert not case.adds or torch.equal(before[1], case.residual[1])
        assert (case.out[2].view(torch.uint8) == 0x80).all(), "launch 1 and the last wrote elsewhere"
        assert case.eager(0).shape == case.out[0].shape


def another(values: torch.Tensor) -> torch.Tensor:
    """A neighbour of each FP8 number; of the largest, the one below, since NaN has the code above."""
    codes = values.view(torch.uint8)
    largest = (codes & 0x7F) == 0x7E
    return torch.where(largest, codes - 1, codes ^ 1).view(values.dtype)


def some(values: torch.Tensor) -> torch.Tensor:
    """One number in fifty replaced by its neighbour."""
    codes = values.clone().view(torch.uint8)
    codes.view(-1)[::50] ^= 1
    return codes.view(values.dtype)


def nan(values: torch.Tensor) -> torch.Tensor:
    return torch.full_like(values.float(), torch.nan).to(values.dtype)


@pytest.mark.parametrize("operator", ROW_OPERATORS)
@pytest.mark.parametrize("spoil, share", [(another, 1e-3), (some, 1e-3), (nan, 1), (lambda v: v.clone().fill_(1), 1)])
def test_wrong_rows_are_found(cpu, generator, operator, spoil, share):
    case = gpu_cases.RowCase(cpu.kernel, operator, 5, generator)
    with pytest.raises(gpu_cases.Wrong, match=operator):
        case.verify(lambda *arguments: spoil(case.reference(*arguments)), "spoiled", share)
    # Neighbours everywhere pass where only the order of roundings is in question.
    case.verify(lambda *arguments: another(case.reference(*arguments)), "compiled", share=1)


def test_nan_is_no_neighbour_of_the_largest_number():
    largest = torch.full((4,), 448.0).to(torch.float8_e4m3fn)
    gpu_cases.check_fp8(largest, largest, 1, "the same")
    gpu_cases.check_fp8(another(largest), largest, 1, "neighbours")
    with pytest.raises(gpu_cases.Wrong, match="NaN"):
        gpu_cases.check_fp8(nan(largest), largest, 1, "spoiled")


def test_a_residual_that_is_not_updated_is_found(cpu, generator):
    case = gpu_cases.RowCase(cpu.kernel, "add_rms_norm_fp8", 2, generator)
    with pytest.raises(gpu_cases.Wrong, match="residual"):
        case.verify(lambda x, residual, *rest: case.reference(x, residual.clone(), *rest), "spoiled")


def test_fp8_numbers_in_order():
    for dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz):
        codes = torch.arange(256, dtype=torch.uint8).view(dtype)
        values = codes.float()
        finite = ~values.isnan()
        by_value = values[finite].sort(stable=True)
        order = gpu_cases.order(codes)[finite][by_value.indices]
        steps, rises = order.diff(), by_value.values.diff() > 0
        assert (steps[rises] == 1).all() and (steps[~rises] == 0).all() and len(order) >= 254


def test_gemm_cases(cpu, generator):
    case = gpu_cases.GemmCase(cpu.kernel, 3, 48, 160, generator)
    assert case.bytes == 48 * 160 + 3 * 160 + 3 * 48 * 2
    assert len(case.b) == case.count == gpu_timing.copies(48 * 160) > 2
    case.verify_ours()
    one = torch.ones(1)
    assert torch.equal(case.ours(1), cpu.kernel.skinny_gemm(case.a, case.b[1], one, one)) and case.out[1].any()
    assert not torch.equal(case.ours(0), case.out[1])

    def without_the_last_k(a, b):
        return cpu.kernel.reference.skinny_gemm(a[:, :-1], b[:, :-1], one, one)

    with pytest.raises(gpu_cases.Wrong, match="M=3 48x160"):
        case.verify(without_the_last_k, "spoiled")
    cpu.kernel.skinny_gemm = lambda *args, out, constant_b: out
    with pytest.raises(gpu_cases.Wrong, match="100.00%"):
        case.verify_ours()


@pytest.mark.parametrize("takes", [3, 16, None])
def test_the_librarys_rows_are_padded_where_it_wants_that(cpu, generator, monkeypatch, takes):
    case = gpu_cases.GemmCase(cpu.kernel, 3, 48, 160, generator)
    seen = []

    def scaled_mm(a, b, scale_a, scale_b, out_dtype):
        if a.shape[0] != takes:
            raise RuntimeError("rows")
        seen.append(a)
        return cpu.kernel.reference.skinny_gemm(a, b.t(), scale_a, scale_b, out_dtype=out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    launch = case.library()
    if takes is None:
        assert launch is None
    else:
        want = cpu.kernel.reference.skinny_gemm(case.a, case.b[2], case.one, case.one)
        assert torch.equal(launch(2)[:3], want) and seen[-1].shape == (takes, 160)
        assert not seen[-1][3:].view(torch.uint8).any()


def test_the_environment_variable_is_put_back(monkeypatch):
    name = gpu_cases.CONFIG_VARIABLE
    for before in (None, "skinny_gemm:fallback"):
        monkeypatch.delenv(name, raising=False)
        if before:
            monkeypatch.setenv(name, before)
        seen = []
        with pytest.raises(KeyError), gpu_cases.forced("int8_gemm", "t64x64,split=2"):
            seen.append(os.environ.get(name))
            with gpu_cases.forced("int8_gemm", None):
                seen.append(os.environ.get(name))
            raise KeyError
        assert seen == ["int8_gemm:t64x64,split=2", None]
        assert os.environ.get(name) == before
