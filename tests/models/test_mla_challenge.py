"""The AMD challenge's MLA problem (examples/mla_challenge.py): steps by its tolerance, one graph for all of them."""

import pytest
import torch

from examples.mla_challenge import LATENT, MOST, ROPE, Step, Weights, plain_step

pytestmark = pytest.mark.usefixtures("fast_products")


def near(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """The challenge's own: rtol 2e-2, atol 8e-3."""
    got, wanted = got.float().cpu(), wanted.float().cpu()
    return bool(((got - wanted).abs() <= 8e-3 + 2e-2 * wanted.abs()).all())


@pytest.mark.parametrize("anew", [True, False])
@pytest.mark.parametrize("batch, prefill", [(2, 128), (1, 512), pytest.param(1, 2048, marks=pytest.mark.full)])
def test_steps(kernel, device, generator, anew, batch, prefill):
    """Three steps, each written into the cache that is handed out; on a GPU the last two are replays of a graph."""
    w = Weights.drawn(generator, device, dim=512, dq=256)
    cache = torch.zeros(batch, MOST, LATENT + ROPE, dtype=torch.bfloat16)
    cache[:, :prefill] = torch.randn(batch, prefill, LATENT + ROPE, generator=generator).bfloat16()
    mine, plain = cache.to(device), cache.to(device)
    step = Step(kernel, w, batch, device, anew=anew)
    with torch.no_grad():
        step.fill(mine, prefill)
    x = torch.empty(batch, 1, 512, dtype=torch.bfloat16, device=device)
    run = None
    for i in range(3):
        x.copy_(torch.randn(x.shape, generator=generator))
        with torch.no_grad():
            if i == 1 and device.type == "cuda":
                run, before = torch.cuda.CUDAGraph(), step.lengths.clone()
                with torch.cuda.graph(run):
                    got = step(x, mine)
                step.lengths.copy_(before)
            if run is None:
                got = step(x, mine)
            else:
                run.replay()
            wanted = plain_step(w, x, plain, prefill + i)
        assert near(got, wanted), i
        assert near(mine, plain) and torch.equal(mine[:, prefill + i + 1 :], plain[:, prefill + i + 1 :])
