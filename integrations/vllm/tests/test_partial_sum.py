"""A worker's part of a sum: what computes with it, and the norm behind it. The communicator has one worker."""

from types import SimpleNamespace

import pytest
import torch
from rocm_fp8_vllm import fusion, tensor_parallel
from rocm_fp8_vllm.kernel import kernel
from rocm_fp8_vllm.tensor_parallel import PartialSum, operators
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import RMSNorm

from .settings import DEVICE

FP8 = torch.float8_e4m3fn
SCALINGS = {"static": None, "row": dict(scaling="row"), "group": dict(scaling="group", group_size=128)}
SCALINGS["columns"] = SCALINGS["group"] | dict(column_major_scales=True)


def ones() -> torch.Tensor:
    return torch.ones(3, 200, dtype=torch.bfloat16, device=DEVICE)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    with kernel.comm.Communicator(device=DEVICE) as communicator:
        monkeypatch.setattr(tensor_parallel, "_communicator", communicator)
        yield


@pytest.fixture
def x(generator) -> torch.Tensor:
    return torch.randn(3, 200, generator=generator).bfloat16().to(DEVICE)


def sums() -> int:
    return kernel.call_counts()["all_reduce"]


USES = {
    "x + 1": lambda x: x + 1,
    "1 - x": lambda x: 1 - x,
    "x + x": lambda x: x + x,
    "-x / 3": lambda x: -x / 3,
    "x @ x.t()": lambda x: x @ x.t(),
    "x[1:]": lambda x: x[1:],
    "a tensor + x": lambda x: ones() + x,
    "torch.cat": lambda x: torch.cat([ones()[:1], x]),
    "torch.add": lambda x: torch.add(input=x, other=x),
    "float": lambda x: x.float(),
    "an operator": lambda x: torch.ops.aten.relu.default(x),
    "in place": lambda x: x.mul_(2),
    "len, rows": lambda x: torch.stack(list(x))[: len(x) - 1],
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_whatever_computes_with_it_computes_with_the_sum(use, x):
    part, before = PartialSum(x.clone()), sums()
    assert torch.equal(use(part), use(x.clone()))
    assert sums() == before + 1 and part.is_formed


def test_its_dtype_needs_no_sum(x):
    part, before = PartialSum(x), sums()
    assert part.dtype == torch.bfloat16 and sums() == before and not part.is_formed


def test_what_takes_tensors_alone_refuses_it(x):
    before = sums()
    with pytest.raises(RuntimeError, match="PartialSum; needs a tensor"):
        kernel.quantize_fp8(PartialSum(x), scaling="row")
    with pytest.raises(AttributeError):
        PartialSum(x).__array_interface__  # noqa: B018
    assert sums() == before


@pytest.fixture(params=SCALINGS, ids=str)
def norm(request):
    """A norm before an FP8 linear; norm.rocm_fp8_feeds.takes says whether that takes FP8."""
    keywords = SCALINGS[request.param]
    scale = torch.tensor(0.02, device=DEVICE) if keywords is None else None
    activation = lambda q, scale, dtype: (q, scale)
    feeds = SimpleNamespace(takes=True)
    feeds.takes_fp8 = lambda: feeds.takes
    feeds.scales = lambda: (SimpleNamespace(fp8_dtype=FP8, activation=activation), scale, keywords)
    with set_current_vllm_config(VllmConfig()):
        norm = RMSNorm(200, dtype=torch.bfloat16).to(DEVICE)
    norm.__class__, norm.rocm_fp8_feeds = fusion.QuantizingRMSNorm, feeds
    return norm.requires_grad_(False)


def same(got, expected) -> None:
    for one, other in zip(got, expected):
        assert torch.equal(one.float(), other.float()) and one.stride() == other.stride()


@pytest.mark.parametrize("between", [None, "read", "changed"])
def test_a_norm_takes_the_part_or_what_became_of_the_sum(between, x, norm):
    residual = ones()
    part, before = PartialSum(x.clone()), dict(kernel.call_counts())
    if between == "read":
        part.float()
    if between == "changed":
        part.mul_(2)
    given, updated = norm(part, residual.clone())
    launched = {name for name, count in kernel.call_counts().items() if count > before[name]}
    (name,) = (each for each in launched if "norm" in each)
    assert name.startswith("all_reduce_add_rms_norm" if between is None else "add_rms_norm")
    expected, expected_residual = norm(x * 2 if between == "changed" else x, residual.clone())
    same((*given, updated), (*expected, expected_residual))


def test_a_norm_that_does_not_quantise_takes_the_sum(x, norm):
    norm.rocm_fp8_feeds.takes = False
    residual = ones()
    same(norm(PartialSum(x.clone()), residual.clone()), norm(x.clone(), residual.clone()))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_operators_are_what_compilers_are_told(scaling, x):
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operators.all_reduce.default, (x,), test_utils=checks)
    tensors, keywords = (x, torch.zeros_like(x), ones()[0]), SCALINGS[scaling]
    if keywords is None:
        operator, arguments, keywords = (
            operators.all_reduce_add_rms_norm_fp8,
            (*tensors, torch.tensor(0.02, device=DEVICE), 1e-6),
            {},
        )
    else:
        operator, arguments = operators.all_reduce_add_rms_norm_dynamic_fp8, (*tensors, 1e-6)
    torch.library.opcheck(operator.default, arguments, keywords | dict(out_dtype=FP8), test_utils=checks)
