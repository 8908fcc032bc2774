"""Valid arguments of mla_decode and mla_append, as their schemas name them."""

import torch

from tests.operators.bad_calls import RawCall, guarded_call
from tests.problems.inputs import normal, positive

TENSORS = {
    "mla_decode": ("out", "lse_out", "q", "cache", "lengths", "block_table", "cache_scale"),
    "mla_append": ("cache", "kv", "k_rope", "slots", "cos", "sin", "cache_scale"),
}
WRITTEN = {"mla_decode": ("out", "lse_out"), "mla_append": ("cache",)}
OPTIONAL = ("lse_out", "block_table", "kv", "cos", "sin")

BATCH, QUERIES, HEADS, PAGE, TOKENS = 2, 2, 3, 4, 5


def poison(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, 0xFF, dtype=torch.uint8).repeat_interleave(dtype.itemsize, -1).view(dtype)


def valid_arguments(kernel, operator: str, device, generator, batch: int = BATCH, tokens: int = TOKENS) -> dict:
    """With a cache of FP8; what is written is poison."""

    def half(*shape: int) -> torch.Tensor:
        return normal(shape, torch.bfloat16, generator)

    fp8 = kernel.fp8_dtype(device)
    shape = batch, QUERIES, HEADS
    values = {
        "mla_decode": lambda: dict(
            out=poison((*shape, 512), torch.bfloat16),
            lse_out=poison(shape, torch.float32),
            q=half(*shape, 576),
            cache=half(7, PAGE, 576).to(fp8),
            lengths=torch.full((batch,), 9, dtype=torch.int32),
            block_table=torch.arange(3 * batch).view(batch, 3).int() % 7,
            cache_scale=positive((1,), generator),
            softmax_scale=0.07,
            causal=True,
        ),
        "mla_append": lambda: dict(
            cache=poison((7, PAGE, 576), fp8),
            kv=half(tokens, 512),
            k_rope=half(tokens, 64),
            slots=torch.randperm(7 * PAGE, generator=generator)[:tokens],
            cos=half(tokens, 64),
            sin=half(tokens, 64),
            cache_scale=positive((1,), generator),
            interleaved=True,
        ),
    }[operator]()
    return {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in values.items()}


def valid_call(kernel, operator: str, device, generator) -> RawCall:
    return guarded_call(operator, valid_arguments(kernel, operator, device, generator), WRITTEN[operator], device)
