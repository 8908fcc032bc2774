"""rms_norm, rms_norm_fp8 and add_rms_norm_fp8 against the reference and transformers' LlamaRMSNorm."""

import pytest
import torch

from problems.buffers import LAYOUTS, Guarded, guarded, same_bytes, threads
from problems.comparisons import assert_rounded_alike
from problems.inputs import FP8, HALF, normal, short
from problems.pairwise import SAMPLE, pairwise
from problems.rms_norm import FORMS, OPERATORS, ROWS, WIDTHS, Inputs, Problem, assert_right, draw
from tests.operators.views import VIEWS

# rms_norm quantises nothing.
OPERATOR_FORMATS = [("rms_norm", None), *((operator, fp8) for operator in OPERATORS[1:] for fp8 in FP8)]


def short_or_name(value) -> str:
    return short(value) if isinstance(value, torch.dtype) else str(value)


PROBLEMS = [Problem(*case) for case in pairwise(FORMS, ROWS, WIDTHS, tuple(LAYOUTS), tuple(LAYOUTS), seed=SAMPLE)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)
def test_against_the_reference(kernel, device, generator, problem):
    operator, dtype, weight_dtype, fp8 = problem.form
    layout = LAYOUTS[problem.layout]
    inputs = draw((problem.rows, problem.d), dtype, generator, weight_dtype)
    wanted, wanted_residual = inputs.call(kernel.reference, operator, device, fp8)
    x = guarded(inputs.x, device, **layout)
    residual = guarded(inputs.residual, device, **LAYOUTS[problem.residual_layout])
    weight = guarded(inputs.weight, device, shift=layout.get("shift", 0))
    scale = inputs.scale.to(device)
    out = Guarded(inputs.x.shape, fp8 or dtype, device, **layout)
    arguments = {
        "rms_norm": (x.t, weight.t),
        "rms_norm_fp8": (x.t, weight.t, scale),
        "add_rms_norm_fp8": (x.t, residual.t, weight.t, scale),
    }[operator]
    assert getattr(kernel, operator)(*arguments, out=out.t) is out.t
    normalised = inputs.x if wanted_residual is None else wanted_residual.cpu()
    assert_right(out.t, wanted, normalised, inputs, problem.id)
    out.assert_guards_intact("out")
    for read in (x, weight):
        read.assert_unchanged(problem.id)
    if wanted_residual is None:
        residual.assert_unchanged("residual")
    else:
        assert same_bytes(residual.t, wanted_residual)
        residual.assert_guards_intact("residual")


@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("d", [17, 1152, 4096])
def test_the_modules_of_transformers_give_the_same(kernel, device, generator, d, dtype):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    inputs = draw((64, d), dtype, generator)
    module = llama.LlamaRMSNorm(d, eps=1e-5).to(device, dtype)
    module.weight.data.copy_(inputs.weight)
    with torch.no_grad():
        normal_wanted = module(inputs.x.to(device))
        summed = inputs.x.to(device) + inputs.residual.to(device)
        fused_wanted = module(summed)
    got, _ = inputs.call(kernel, "rms_norm", device, None, 1e-5)
    assert_rounded_alike(got, normal_wanted, "rms_norm")
    for fp8 in FP8:
        quantised = kernel.reference.encode_fp8(fused_wanted.float() / inputs.scale.to(device), fp8)
        got, residual = inputs.call(kernel, "add_rms_norm_fp8", device, fp8, 1e-5)
        assert_rounded_alike(got, quantised, short(fp8))
        assert same_bytes(residual, summed)


@pytest.mark.parametrize("shape", VIEWS)
@pytest.mark.parametrize("operator, fp8", OPERATOR_FORMATS, ids=short_or_name)
def test_leading_dimensions(kernel, device, generator, operator, fp8, shape):
    view = VIEWS[shape]
    inputs = draw((3, 5, 48), torch.bfloat16, generator)
    x, base = view(inputs.x.to(device)), inputs.residual.to(device)
    weight, scale = inputs.weight.to(device)[: x.shape[-1]], inputs.scale.to(device)
    # A residual that is expanded cannot be written; it is dense then.
    residual = view(base) if shape != "expanded" else normal(x.shape, x.dtype, generator).to(device)
    dense = Inputs(x.contiguous(), residual.contiguous(), weight, scale)
    wanted, wanted_residual = dense.call(kernel.reference, operator, device, fp8)
    if operator == "rms_norm":
        got = kernel.rms_norm(x, weight)
    elif operator == "rms_norm_fp8":
        got = kernel.rms_norm_fp8(x, weight, scale, out_dtype=fp8)
    else:
        got = kernel.add_rms_norm_fp8(x, residual, weight, scale, out_dtype=fp8)
        assert same_bytes(residual, wanted_residual)
    assert_rounded_alike(got, wanted, operator)


@pytest.mark.parametrize("operator, fp8", OPERATOR_FORMATS, ids=short_or_name)
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_nan_and_infinity_stay_in_their_row(kernel, device, generator, operator, fp8, dtype):
    inputs = draw((7, 333), dtype, generator)
    clean = inputs.call(kernel, operator, device, fp8)[0]
    inputs.x[1, 5], inputs.x[3, 332], inputs.x[5, 0] = torch.nan, torch.inf, -torch.inf
    result = inputs.call(kernel, operator, device, fp8)[0]
    got = result.float()
    wanted = inputs.call(kernel.reference, operator, device, fp8)[0].float()
    assert got[1].isnan().all()
    # An infinity makes 1 / rms zero: NaN in its place, (signed) zeros in the rest of its row.
    torch.testing.assert_close(got[[3, 5]], wanted[[3, 5]], rtol=0, atol=0, equal_nan=True)
    assert got[3].isnan().sum() == got[5].isnan().sum() == 1
    for row in (0, 2, 6):
        assert same_bytes(result[row], clean[row])


@pytest.mark.parametrize("operator, fp8", OPERATOR_FORMATS, ids=short_or_name)
@pytest.mark.parametrize(
    "dtype, size", [(torch.float16, 60000.0), (torch.bfloat16, 1e15), (torch.bfloat16, 1e30)], ids=short_or_name
)
def test_large_numbers(kernel, device, generator, operator, fp8, dtype, size):
    # Squares beyond float16's range (and, in bfloat16, beyond float32's); sums x + residual that overflow
    # float16; products with the weight that do.
    inputs = draw((16, 1152), dtype, generator)
    inputs.x = (torch.sign(inputs.x.float()) * size * torch.rand(16, 1152, generator=generator)).to(dtype)
    inputs.residual = inputs.x.flip(0).contiguous()
    inputs.weight = (inputs.weight.float() * size).to(dtype)
    inputs.scale = inputs.scale * size
    got, residual = inputs.call(kernel, operator, device, fp8)
    wanted, wanted_residual = inputs.call(kernel.reference, operator, device, fp8)
    assert_rounded_alike(got, wanted, operator)
    assert residual is None or same_bytes(residual, wanted_residual)
    if operator == "add_rms_norm_fp8" and dtype == torch.float16:
        assert residual.isinf().any() and got.float().isnan().any()


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-6, 1e-2, 3.0])
def test_epsilon_and_small_numbers(kernel, device, generator, operator, dtype, epsilon):
    # Mean squares far below and near epsilon; a row of zeros is 0 / sqrt(epsilon), NaN where that is 0.
    inputs = draw((24, 256), dtype, generator)
    rows = torch.logspace(-7, 0, 24)[:, None]
    inputs.x, inputs.residual = (inputs.x * rows).to(dtype), (inputs.residual * rows).to(dtype)
    inputs.x[0] = inputs.residual[0] = 0
    got = inputs.call(kernel, operator, device, FP8[0], epsilon)[0]
    assert_rounded_alike(got, inputs.call(kernel.reference, operator, device, FP8[0], epsilon)[0], operator)
    assert got[0].float().isnan().all() == (epsilon == 0)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("shape", [(67, 1152), (33, 4096), (5, 16384)], ids=lambda shape: "{}x{}".format(*shape))
def test_same_bytes_whatever_the_threads(kernel, device, generator, operator, shape):
    inputs = draw(shape, torch.bfloat16, generator)
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(inputs.call(kernel, operator, device, FP8[0]))
    for out, residual in results[1:]:
        assert same_bytes(out, results[0][0])
        assert residual is None or same_bytes(residual, results[0][1])


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("d", [31, 1152, 4095])
def test_a_row_does_not_depend_on_its_batch(kernel, device, generator, operator, d):
    inputs = draw((33, d), torch.float16, generator)
    whole = inputs.call(kernel, operator, device, FP8[0])[0]
    for row in range(33):
        alone = Inputs(inputs.x[row], inputs.residual[row], inputs.weight, inputs.scale)
        assert same_bytes(alone.call(kernel, operator, device, FP8[0])[0], whole[row]), row


def test_the_default_format_is_the_devices(kernel, device, generator):
    inputs = draw((2, 16), torch.bfloat16, generator)
    for module in (kernel, kernel.reference):
        for operator in OPERATORS[1:]:
            assert inputs.call(module, operator, device, None)[0].dtype == kernel.fp8_dtype(device)
