"""Ranks as streams of one GPU: graphs that are replayed from cold, in any order, beside eager calls; many calls."""

import pytest
import torch

from problems.buffers import same_bytes
from problems.inputs import normal, positive, weights
from problems.ranks import sum_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SIZES = ((1, 4096), (4, 512), (3, 1000), (8, 1024))


every_count = pytest.mark.parametrize("together", (2, 4), ids=lambda n: f"{n}-ranks", indirect=True)


class Layers:
    """What every rank computes in a graph: for each size an all-reduce, then one with a norm behind it."""

    def __init__(self, kernel, together, generator, device):
        self.kernel, self.together = kernel, together
        ranks = range(len(together.all))
        self.parts = [[normal(s, torch.bfloat16, generator).to(device) for _ in ranks] for s in SIZES]
        self.residuals = [[torch.zeros_like(p) for p in each] for each in self.parts]
        self.weights = [weights((d,), torch.bfloat16, generator).to(device) for _, d in SIZES]
        self.scale = positive((1,), generator).to(device)
        self.graphs = {}
        self.results = {}

    def call(self, rank: int, which) -> list[torch.Tensor]:
        c, found = self.together.all[rank], []
        for i in which:
            found.append(c.all_reduce(self.parts[i][rank]))
            self.residuals[i][rank].zero_()
            operands = self.parts[i][rank], self.residuals[i][rank], self.weights[i], self.scale
            found.append(c.all_reduce_add_rms_norm_fp8(*operands))
        return found

    def capture(self, name: str, which) -> None:
        for rank, stream in enumerate(self.together.streams):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                self.results[name, rank] = self.call(rank, which)
            self.graphs[name, rank] = graph

    def replay(self, name: str) -> None:
        for rank, stream in enumerate(self.together.streams):
            with torch.cuda.stream(stream):
                self.graphs[name, rank].replay()

    def check(self, found: list[torch.Tensor], which) -> None:
        for i, (plain, quantised) in zip(which, zip(found[::2], found[1::2])):
            wanted = sum_of(self.parts[i])
            assert same_bytes(plain, wanted), SIZES[i]
            residual = torch.zeros_like(wanted)
            assert same_bytes(quantised, self.kernel.add_rms_norm_fp8(wanted, residual, self.weights[i], self.scale)), (
                SIZES[i]
            )

    def draw(self, generator) -> None:
        for each in self.parts:
            for part in each:
                part.copy_(normal(part.shape, torch.bfloat16, generator))
        torch.cuda.synchronize()


@every_count
def test_graphs_from_cold_in_any_order_beside_eager_calls(kernel, together, device, generator):
    layers = Layers(kernel, together, generator, device)
    graphs = {"all": (0, 1, 2, 3), "odd": (1,), "two": (2, 0)}
    for name, which in graphs.items():
        layers.capture(name, which)
    torch.cuda.synchronize()
    # The first launches of these communicators are replays.
    order = ["odd", "all", "two", "eager", "odd", "odd", "two", "eager", "all", "all", "odd"]
    for step in order:
        layers.draw(generator)
        if step == "eager":
            for found in together.results(lambda rank, c: layers.call(rank, (3, 1))):
                layers.check(found, (3, 1))
            continue
        layers.replay(step)
        torch.cuda.synchronize()
        for rank in range(len(together.all)):
            layers.check(layers.results[step, rank], graphs[step])
            together.all[rank].check()


@pytest.mark.full
@every_count
def test_many_calls(kernel, together, device, generator):
    """Ten thousand launches of changing sizes a rank, by graphs; the last results of each are right."""
    layers = Layers(kernel, together, generator, device)
    layers.capture("all", (0, 1, 2, 3))
    layers.capture("some", (3, 1, 1))
    for turn in range(700):
        layers.replay("all" if turn % 3 else "some")
    torch.cuda.synchronize()
    for name, which in (("all", (0, 1, 2, 3)), ("some", (3, 1, 1))):
        for rank in range(len(together.all)):
            layers.check(layers.results[name, rank], which)


@every_count
def test_a_rank_that_is_late(kernel, together, device, generator):
    layers = Layers(kernel, together, generator, device)
    torch.cuda.synchronize()
    with torch.cuda.stream(together.streams[0]):
        torch.cuda._sleep(200_000_000)  # clocks: a tenth of a second
    for found in together.results(lambda rank, c: layers.call(rank, (0, 3))):
        layers.check(found, (0, 3))
