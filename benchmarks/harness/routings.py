"""Which experts tokens choose in a benchmark: all alike, or some more often than others, as in a model that serves."""

import argparse

import torch


def add_skew(parser: argparse.ArgumentParser) -> None:
    text = (
        "an expert's share is exp(S x a normal number): with 1, a tenth of 128 experts has over a third of the tokens"
    )
    parser.add_argument("--skew", type=float, default=0.0, metavar="S", help=text + " (default: 0, all alike)")


def drawn_experts(tokens: int, experts: int, chosen: int, skew: float, generator: torch.Generator) -> torch.Tensor:
    """int32 [tokens, chosen], a token's experts distinct."""
    drawn = dict(generator=generator, device=generator.device)
    times = -torch.rand(tokens, experts, **drawn).neg().log1p()  # each expert waits; those that end first are chosen
    shares = (skew * torch.randn(experts, **drawn)).exp() if skew else torch.ones(experts, device=generator.device)
    return (times / shares).argsort(1)[:, :chosen].int()
