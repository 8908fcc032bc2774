"""MX weights of the benchmarks, and the mixtures of models that have them."""

from dataclasses import dataclass, field

import torch

TOKENS = (1, 8, 32, 128, 1024, 8192)
BLOCK = 32
# Powers of two that keep sums over thousands of products near 1.
LEAST_EXPONENT, MOST_EXPONENT = 118, 122


@dataclass(frozen=True)
class Mixture:
    model: str
    experts: int
    chosen: int
    d: int
    hidden: int
    gate: dict = field(default_factory=dict)  # of fused_moe
    biased: bool = False

    @property
    def name(self) -> str:
        return f"{self.model} E{self.experts} top{self.chosen} D{self.d} I{self.hidden}"


GPT_OSS = Mixture("gpt-oss-120b", 128, 4, 2880, 2880, dict(gate="oai", limit=7.0, interleaved=True), biased=True)
MIXTURES = (GPT_OSS, Mixture("DeepSeek-V4-Flash", 256, 6, 4096, 2048))


def mxfp4(shape: tuple[int, ...], generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and exponents of [..., K] numbers."""
    *rows, k = shape
    drawn = dict(dtype=torch.uint8, device=generator.device, generator=generator)
    codes = torch.randint(256, (*rows, k // 2), **drawn)
    exponents = torch.randint(LEAST_EXPONENT, MOST_EXPONENT, (*rows, k // BLOCK), **drawn)
    return codes, exponents.view(torch.float8_e8m0fnu)


def mxfp8(shape: tuple[int, ...], generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (float8_e4m3fn) and exponents of [..., K] numbers, as large as mxfp4's."""
    *rows, k = shape
    drawn = dict(dtype=torch.uint8, device=generator.device, generator=generator)
    signs = torch.randint(2, shape, **drawn) << 7
    exponents = torch.randint(LEAST_EXPONENT - 6, MOST_EXPONENT - 6, (*rows, k // BLOCK), **drawn)
    codes = torch.randint(1, 120, shape, **drawn) | signs
    return codes.view(torch.float8_e4m3fn), exponents.view(torch.float8_e8m0fnu)


def experts_of(layer: Mixture, generator: torch.Generator, draw=mxfp4) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """fused_moe's w13 and w2, and its keywords. draw: mxfp4 or mxfp8."""
    (w13, scale_w13), (w2, scale_w2) = (
        draw((layer.experts, n, k), generator) for n, k in ((2 * layer.hidden, layer.d), (layer.d, layer.hidden))
    )
    keywords = dict(scale_w13=scale_w13, scale_w2=scale_w2) | layer.gate
    if layer.biased:
        for name, n in (("bias13", 2 * layer.hidden), ("bias2", layer.d)):
            bias = torch.randn(layer.experts, n, generator=generator, device=generator.device)
            keywords[name] = bias.bfloat16()
    return w13, w2, keywords
