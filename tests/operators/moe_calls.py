"""Valid arguments of the operators of mixtures of experts, as their schemas name them."""

import torch

from tests.operators.bad_calls import RawCall, guarded_call
from tests.problems.inputs import normal, positive, random_fp8

TOKENS, SLOTS, EXPERTS, D, K = 4, 2, 3, 24, 40
ROWS = TOKENS * SLOTS

# With "_static": by a scale that is given.
TENSORS = {
    "moe_route": ("weights", "experts", "logits", "bias"),
    "moe_sort": ("rows", "offsets", "positions", "experts", "expert_map"),
    "moe_combine": ("out", "y", "weights", "positions", "shared"),
    "grouped_gemm": ("out", "a", "b", "scale_a", "scale_b", "offsets", "rows", "bias"),
    "grouped_gemm_swiglu_fp8": ("out", "scale_out", "a", "b", "scale_a", "scale_b", "offsets", "rows", "scale_ub"),
    "grouped_gemm_swiglu_fp8_static": ("out", "a", "b", "scale_a", "scale_b", "offsets", "rows", "scale"),
}
WRITTEN = {
    "moe_route": ("weights", "experts"),
    "moe_sort": ("rows", "offsets", "positions"),
    "moe_combine": ("out",),
    "grouped_gemm": ("out",),
    "grouped_gemm_swiglu_fp8": ("out", "scale_out"),
    "grouped_gemm_swiglu_fp8_static": ("out",),
}


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def valid_arguments(kernel, operator: str, device, generator, tokens: int = TOKENS, d: int = D, k: int = K) -> dict:
    """What is written is poison."""
    fp8, rows = kernel.fp8_dtype(device), tokens * SLOTS
    columns = d if operator == "grouped_gemm" else 2 * d

    def half(*shape: int) -> torch.Tensor:
        return normal(shape, torch.bfloat16, generator)

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full(shape, 0xFF, dtype=torch.uint8).repeat_interleave(dtype.itemsize, -1).view(dtype)

    def grouped() -> dict:
        return dict(
            a=random_fp8((tokens, k), fp8, generator),
            b=random_fp8((EXPERTS, columns, k), fp8, generator),
            scale_a=positive((tokens, 1), generator),
            scale_b=positive((EXPERTS, columns, 1), generator),
            offsets=integers(0, min(rows, 3), min(rows, 3), rows),
            rows=torch.randperm(rows, generator=generator).int(),
            slots=SLOTS,
        )

    def gated(**scales) -> dict:
        given = dict(out=empty(rows, d, dtype=fp8), scale_out=scales.pop("scale_out", None), **grouped())
        rest = dict(group=0, fp8_max=torch.finfo(fp8).max, power_of_two=False, expected_rows=0)
        return given | dict(half=False, limit=None, scale=None, scale_ub=None) | scales | rest

    values = {
        "moe_route": lambda: dict(
            weights=empty(tokens, SLOTS, dtype=torch.float32),
            experts=empty(tokens, SLOTS),
            logits=half(tokens, 8),
            bias=normal((8,), torch.float32, generator),
            **dict(top_k=SLOTS, sigmoid=True, groups=4, top_groups=2, group_max=False, renormalize=True, factor=1.5),
        ),
        "moe_sort": lambda: dict(
            rows=empty(rows),
            offsets=empty(EXPERTS + 1),
            positions=empty(tokens, SLOTS),
            experts=torch.randint(-1, 6, (tokens, SLOTS), generator=generator).int(),
            expert_map=integers(2, -1, 0, 1, 1),
            num_experts=EXPERTS,
        ),
        "moe_combine": lambda: dict(
            out=empty(tokens, d, dtype=torch.bfloat16),
            y=half(rows, d),
            weights=torch.rand(tokens, SLOTS, generator=generator),
            positions=torch.randperm(rows, generator=generator).int().view(tokens, SLOTS),
            shared=half(tokens, d),
        ),
        "grouped_gemm": lambda: dict(
            out=empty(rows, d, dtype=torch.bfloat16), **grouped(), bias=half(EXPERTS, d), expected_rows=0
        ),
        "grouped_gemm_swiglu_fp8": lambda: gated(
            scale_out=empty(rows, 1, dtype=torch.float32), scale_ub=torch.full((1,), 1e6)
        ),
        "grouped_gemm_swiglu_fp8_static": lambda: gated(scale=torch.full((1,), 0.7)),
    }[operator]()
    return {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in values.items()}


def valid_call(kernel, operator: str, device, generator) -> RawCall:
    return guarded_call(operator, valid_arguments(kernel, operator, device, generator), WRITTEN[operator], device)
