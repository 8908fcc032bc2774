"""The types that the operators take, and random inputs: made on the CPU, so that every device gets the same."""

import torch

FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
HALF = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def short(dtype: torch.dtype) -> str:
    return {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}.get(dtype, str(dtype).split("_")[-1])


def normal(shape, dtype: torch.dtype, generator: torch.Generator, spread: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, generator=generator) * spread).to(dtype)


def weights(shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Around 1, both signs, as norm weights are."""
    return (1 + 0.5 * torch.randn(shape, generator=generator)).to(dtype)


def positive(shape, generator: torch.Generator, low: float = 0.01, high: float = 0.1) -> torch.Tensor:
    """float32 scales with full mantissas."""
    return low + (high - low) * torch.rand(shape, generator=generator)


def random_fp8(shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers with a spread that reaches the format's largest and its subnormals."""
    return normal(shape, torch.float32, generator, 20.0).clamp(-240, 240).to(dtype)


def random_codes(shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Any codes but NaN, all equally likely."""
    codes = torch.randint(0, 256, tuple(shape), generator=generator).to(torch.uint8)
    codes[codes.view(dtype).float().isnan()] = 0x01
    return codes.view(dtype)


def mx_codes(shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Bytes of two e2m1 codes (uint8), or FP8 numbers."""
    if dtype != torch.uint8:
        return random_fp8(shape, dtype, generator)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def mx_exponents(shape, generator: torch.Generator, low: int = 120, high: int = 132) -> torch.Tensor:
    """float8_e8m0fnu: 2^(low - 127) and more, below 2^(high - 127)."""
    bytes_ = torch.randint(low, high, shape, dtype=torch.uint8, generator=generator)
    return bytes_.view(torch.float8_e8m0fnu)


def every_number(dtype: torch.dtype) -> torch.Tensor:
    """Every bit pattern of a 16-bit type, NaN and infinities included."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
