"""Two workers compute what one does, but for the scales of half rows."""

import math

import pytest
import torch

from .conftest import CASES, by_reference, byte_llama, teacher_forced, text

# The linears whose input is in halves, one a worker.
HALVED = ("self_attn.o_proj", "mlp.down_proj")


def in_halves(model: torch.nn.Module, linear: str, layers: range) -> None:
    """Gives a linear of some layers two workers' arithmetic: each half of a row is quantised by a scale of its own,
    where scales are dynamic, and the halves' products are rounded before they are added."""
    for layer in layers:
        module = model.model.layers[layer].get_submodule(linear)
        whole = module.forward

        def forward(x: torch.Tensor, whole=whole) -> torch.Tensor:
            middle = x.shape[-1] // 2
            # Zeros change no scale and add nothing.
            first, second = x.clone(), x.clone()
            first[..., middle:], second[..., :middle] = 0, 0
            return whole(first) + whole(second)

        module.forward = forward


def rms(different: torch.Tensor) -> float:
    return different.square().mean().sqrt().item()


@pytest.mark.parametrize("name", ["static", "dynamic"])
def test_two_workers_give_a_text_the_likelihood_that_one_gives_it(name, engine, checkpoint):
    """Teacher-forced, so that near ties between tokens decide nothing.

    A byte's bits differ between two workers and one by

        two - one = (two - half rows by definition) + (half rows - whole rows, both by definition) + (whole rows - one)

    The last term is the sums' order alone, and is measured here; so is the one in the middle, which is what scales of
    half rows do. The first has the last one's causes. By Minkowski's inequality the root of the mean square is at most
    the three terms' sum. The mean is 0 but for its deviation, the root over that of the number of bytes: four of it.
    """
    from tests.problems import checkpoints

    ids = text(8, 400)
    form = checkpoints.FORMATS[CASES[name].format]
    model = checkpoints.by_definition(byte_llama(), checkpoint(name), form)
    _, whole_rows = by_reference(model, ids)
    for linear in HALVED:
        in_halves(model, linear, range(len(model.model.layers)))
    _, half_rows = by_reference(model, ids)
    _, one = teacher_forced(engine(name, enforce_eager=True), ids)
    _, two = teacher_forced(engine(name, enforce_eager=True, tensor_parallel_size=2), ids)
    assert rms(two - one) <= rms(half_rows - whole_rows) + 2 * rms(one - whole_rows)
    assert abs((two - one).mean()) <= 4 * rms(two - one) / math.sqrt(two.numel())
    # Two workers are as near to their definition as one is to its own, but for four deviations of such a root, which
    # the fourth powers tell, of both.
    order = one - whole_rows
    deviation = math.sqrt((order.pow(4).mean() / order.square().mean() ** 2 - 1) / order.numel()) / 2
    assert rms(two - half_rows) <= rms(order) * (1 + 4 * math.sqrt(2) * deviation)
