#!/usr/bin/env python3
"""A decode step of DeepSeek's attention as the AMD developer challenge of 2025 asks for it.

    python -m examples.mla_challenge --batch 2 --prefill 128       # the challenge's: --batch 128 --prefill 6144

The whole layer in bfloat16: down-projections, the cache, queries and attention of 128 heads, the output projection.
The cache that is handed in and out, [batch, 8192, 576], holds the last 64 numbers of a token unrotated; angles are
computed in bfloat16. `Step` keeps a rotated cache of its own beside it. A token's angle depends on its position alone,
so rotating it once would do; `anew` rotates all tokens in each step, as the problem is stated: it rewrites their last
64 numbers, and leaves the 512 before them. Either way a step is one graph on a GPU.
"""

import argparse
import time
from dataclasses import dataclass

import torch

from scripts.load import default_backend, load_kernel

HEADS, NOPE, ROPE, VALUE, LATENT, MOST = 128, 128, 64, 128, 512, 8192


@dataclass
class Weights:
    """bfloat16, as torch.nn.Linear has them."""

    q_down: torch.Tensor  # [dq, dim]
    kv_down: torch.Tensor  # [576, dim]
    q_up: torch.Tensor  # [128 * 192, dq]
    kv_up: torch.Tensor  # [128 * 256, 512]
    out: torch.Tensor  # [dim, 128 * 128]

    @staticmethod
    def drawn(generator: torch.Generator, device, dim: int = 7168, dq: int = 1536) -> "Weights":
        shapes = (dq, dim), (LATENT + ROPE, dim), (HEADS * (NOPE + ROPE), dq), (HEADS * (NOPE + VALUE), LATENT)
        return Weights(
            *(
                (torch.randn(shape, generator=generator) * shape[1] ** -0.5).bfloat16().to(device)
                for shape in (*shapes, (dim, HEADS * VALUE))
            )
        )


def angles(count: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [count, 64] of positions from 0 on, all of it in bfloat16."""
    theta = 10000 ** (-torch.arange(0, ROPE // 2, dtype=torch.bfloat16) / (ROPE // 2))
    turn = torch.arange(count).bfloat16()[:, None] * theta
    turn = torch.cat([turn, turn], dim=-1)
    return turn.cos().to(device), turn.sin().to(device)


def plain_step(w: Weights, x: torch.Tensor, cache: torch.Tensor, length: int) -> torch.Tensor:
    """The definition: keys and values of every head, of all tokens. x [batch, 1, dim]; `length` tokens are in the
    cache, whose next place gets the new one."""
    batch, linear = len(x), torch.nn.functional.linear
    cache[:, length] = linear(x[:, 0], w.kv_down)
    tokens = cache[:, : length + 1]
    cos, sin = angles(length + 1, x.device)

    def rotated(t: torch.Tensor, at: slice) -> torch.Tensor:
        first, second = t.chunk(2, dim=-1)
        return t * cos[at] + torch.cat([-second, first], dim=-1) * sin[at]

    q = linear(linear(x, w.q_down), w.q_up).view(batch, 1, HEADS, NOPE + ROPE).transpose(1, 2)
    q = torch.cat([q[..., :NOPE], rotated(q[..., NOPE:], slice(length, length + 1))], dim=-1)
    kv = linear(tokens[..., :LATENT], w.kv_up).view(batch, length + 1, HEADS, NOPE + VALUE).transpose(1, 2)
    turned = rotated(tokens[..., LATENT:], slice(0, length + 1))[:, None].expand(-1, HEADS, -1, -1)
    keys = torch.cat([kv[..., :NOPE], turned], dim=-1)
    p = (q @ keys.transpose(-1, -2) / (NOPE + ROPE) ** 0.5).softmax(-1).bfloat16()
    return linear((p @ kv[..., NOPE:]).transpose(1, 2).reshape(batch, 1, -1), w.out)


class Step:
    """The same on the kernel. Lengths and slots are on the device: one graph serves all steps."""

    def __init__(self, kernel, w: Weights, batch: int, device, *, anew: bool = True):
        self.kernel, self.w, self.anew = kernel, w, anew
        scale = kernel.layers.mla_softmax_scale(NOPE + ROPE)
        self.attention = kernel.layers.LatentAttention(w.kv_up, HEADS, value=VALUE, softmax_scale=scale)
        self.rotated = torch.zeros(batch, MOST, LATENT + ROPE, dtype=torch.bfloat16, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        self.places = torch.arange(batch * MOST, device=device).view(batch, MOST)
        self.cos, self.sin = angles(MOST, device)

    def fill(self, cache: torch.Tensor, count: int) -> None:
        """Takes the tokens that are there before the first step, `count` of each sequence."""
        self.lengths.fill_(count)
        self.append(cache[:, :count].flatten(0, 1), self.places[:, :count].flatten())

    def append(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """rows [T, 576], unrotated."""
        latent, rope = rows.split((LATENT, ROPE), dim=-1)
        at = slots % MOST
        self.kernel.mla_append(latent, rope, self.rotated, slots, cos=self.cos[at], sin=self.sin[at])

    def __call__(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """x [batch, 1, dim], cache [batch, 8192, 576]: written at the lengths' places, which move on by one."""
        linear, w, kernel = torch.nn.functional.linear, self.w, self.kernel
        batch, at = len(x), self.lengths.long()
        new = self.places.gather(1, at[:, None])[:, 0]
        of_new = linear(x[:, 0], w.kv_down)
        rows = cache.view(-1, LATENT + ROPE)
        rows.index_copy_(0, new, of_new)
        self.lengths += 1
        self.append(of_new, new)
        if self.anew:
            live = torch.arange(MOST, device=x.device) < self.lengths[:, None]
            slots = torch.where(live, self.places, -1).view(-1)
            kernel.mla_append(None, rows[:, LATENT:], self.rotated, slots, cos=self.cos, sin=self.sin)
        q = linear(linear(x, w.q_down), w.q_up).view(batch, 1, HEADS, NOPE + ROPE)
        attention = self.attention
        absorbed = attention.absorb(q, self.cos[at][:, None], self.sin[at][:, None])
        out = kernel.mla_decode(absorbed, self.rotated, self.lengths, attention.softmax_scale)
        return linear(attention.values(out), w.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--prefill", type=int, default=128)
    args = parser.parse_args()
    backend = default_backend()
    device, kernel = ("cpu" if backend == "cpu" else "cuda"), load_kernel(backend)
    drawn = torch.Generator().manual_seed(0)
    w, x = Weights.drawn(drawn, device), torch.randn(args.batch, 1, 7168, generator=drawn).bfloat16().to(device)
    cache = torch.zeros(args.batch, MOST, LATENT + ROPE, dtype=torch.bfloat16)
    cache[:, : args.prefill] = torch.randn(args.batch, args.prefill, LATENT + ROPE, generator=drawn).bfloat16()
    step = Step(kernel, w, args.batch, device)
    mine, plain = cache.to(device), cache.to(device)
    with torch.no_grad():
        step.fill(mine, args.prefill)
        begun = time.perf_counter()
        got = step(x, mine).float().cpu()
        took = time.perf_counter() - begun
        few = slice(0, 2)
        wanted = plain_step(w, x[few], plain[few], args.prefill).float().cpu()
    off = (got[few] - wanted).abs()
    largest = wanted.abs().max()
    print(f"{backend}: first call {took * 1e3:.0f} ms; off by {off.max():.4f} at most, results up to {largest:.2f}")
    assert (off <= 8e-3 + 2e-2 * wanted.abs()).all() and torch.equal(mine[few, args.prefill], plain[few, args.prefill])


if __name__ == "__main__":
    main()
