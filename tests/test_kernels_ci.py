"""What kernel-builder runs of a finished build (`nix run .#ci-test`): the operators, loaded through `kernels`.

The tree that it runs in holds build.toml's sources, torch-ext/ and tests/*.py. LOCAL_KERNELS names the build.
"""

import pytest
import torch
from kernels import get_kernel

pytestmark = pytest.mark.kernels_ci

REPO_ID = "rocm-fp8-kernels/rocm-fp8-kernels"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = (torch.float16, torch.bfloat16)
ROWS = (1, 17)


@pytest.fixture(scope="module")
def kernel():
    """The build under test: of the GPU that torch sees, else the CPU's."""
    return get_kernel(REPO_ID, version=1, backend=None if DEVICE.type == "cuda" else "cpu")


def drawn(*shape: int, dtype: torch.dtype = torch.float32, spread: float = 1.0) -> torch.Tensor:
    """Normal numbers: the same in each run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return (spread * torch.randn(shape, generator=generator)).to(dtype).to(DEVICE)


def assert_nearly_all_equal(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """The order of a row's sum may differ: it moves few of the results, by one representable number."""
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    difference = (got.float() - wanted.float()).abs()
    assert (difference > 0).float().mean() < 0.01
    assert (difference <= 0.13 * wanted.float().abs() + 2.0**-8).all()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("d", [128, 1001, 4096])
def test_add_rms_norm_fp8(kernel, rows, d, dtype):
    x, residual, weight = drawn(rows, d, dtype=dtype), drawn(rows + 1, d, dtype=dtype)[:rows], drawn(d, dtype=dtype)
    scale = torch.tensor(0.02, device=DEVICE)
    expected = residual.clone()
    wanted = kernel.reference.add_rms_norm_fp8(x, expected, weight, scale)
    assert_nearly_all_equal(kernel.add_rms_norm_fp8(x, residual, weight, scale), wanted)
    assert torch.equal(residual, expected)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("d", [128, 1001])
def test_rms_norm(kernel, d, dtype):
    x, weight = drawn(5, d, dtype=dtype), drawn(d, dtype=dtype)
    assert_nearly_all_equal(kernel.rms_norm(x, weight), kernel.reference.rms_norm(x, weight))
    scale = torch.tensor(0.02, device=DEVICE)
    assert_nearly_all_equal(kernel.rms_norm_fp8(x, weight, scale), kernel.reference.rms_norm_fp8(x, weight, scale))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("d", [128, 1001, 4096])
def test_swiglu_fp8(kernel, rows, d, dtype):
    x, scale = drawn(rows, 2 * d, dtype=dtype, spread=3.0), torch.tensor(0.05, device=DEVICE)
    assert_nearly_all_equal(kernel.swiglu_fp8(x, scale), kernel.reference.swiglu_fp8(x, scale))


@pytest.mark.parametrize("scaling", ["tensor", "row", "group"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("d", [128, 1001, 4096])
def test_quantize_fp8(kernel, rows, d, scaling):
    x = drawn(rows, d, dtype=torch.bfloat16, spread=3.0)
    for power_of_two in (False, True):
        options = dict(scaling=scaling, power_of_two=power_of_two)
        got, wanted = (module.quantize_fp8(x, **options) for module in (kernel, kernel.reference))
        assert torch.equal(got[0].view(torch.uint8), wanted[0].view(torch.uint8))
        assert torch.equal(got[1], wanted[1])


@pytest.mark.parametrize("rows", [1, 9, 32])
@pytest.mark.parametrize("n, k", [(64, 1024), (130, 4096), (37, 77)])
def test_skinny_gemm(kernel, rows, n, k):
    format = kernel.fp8_dtype(DEVICE)
    a, b = drawn(rows, k, spread=20).to(format), drawn(n, k, spread=20).to(format)
    scale_a, scale_b = drawn(rows, 1).abs() + 0.01, drawn(1, n).abs() + 0.01
    bias = drawn(n, dtype=torch.bfloat16)
    got = kernel.skinny_gemm(a, b, scale_a, scale_b, bias, out_dtype=torch.float32).double()
    a, b, scales = a.double(), b.double(), scale_a.double() * scale_b.double()
    wanted = a @ b.t() * scales + bias.double()
    bound = (k + 4) * 2.0**-24 * ((a.abs() @ b.abs().t()) * scales + bias.double().abs())
    assert ((got - wanted).abs() <= bound).all()


@pytest.mark.parametrize("rows", [1, 33, 130])
@pytest.mark.parametrize("n, k", [(64, 1024), (150, 300)])
def test_block_scaled_gemm(kernel, rows, n, k):
    format, blocks = kernel.fp8_dtype(DEVICE), -(-k // 128)
    a, b = drawn(rows, k, spread=20).to(format), drawn(n, k, spread=20).to(format)
    scale_a, scale_b = drawn(rows, blocks), drawn(-(-n // 128), blocks)  # of both signs
    got = kernel.block_scaled_gemm(a, b, scale_a, scale_b, out_dtype=torch.float32).double()
    a = a.double() * scale_a.double().repeat_interleave(128, 1)[:, :k]
    b = b.double() * scale_b.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    assert ((got - a @ b.t()).abs() <= (k + blocks + 3) * 2.0**-24 * (a.abs() @ b.abs().t())).all()


def test_a_compiled_function_is_one_graph(kernel):
    @torch.compile(fullgraph=True, backend="eager")
    def step(x, weight, scale):
        return kernel.rms_norm_fp8(x, weight, scale)

    x, weight, scale = drawn(3, 128, dtype=torch.bfloat16), drawn(128, dtype=torch.bfloat16), torch.tensor(0.02)
    scale = scale.to(DEVICE)
    assert torch.equal(step(x, weight, scale).float(), kernel.rms_norm_fp8(x, weight, scale).float())
