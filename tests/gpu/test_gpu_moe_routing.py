"""What only a GPU shows of moe_route, moe_sort and moe_combine: graphs that serve every routing, launches behind one
another. Runs on any GPU that the variant at hand serves."""

import pytest
import torch

from problems.buffers import same_bytes
from problems.inputs import normal
from problems.moe_routing import Operands, combined


@pytest.fixture(autouse=True)
def gpu(device):
    if device.type == "cpu":
        pytest.skip("needs a GPU; the kernels' logic is tested in the simulator (test_rocm_moe_routing.py)")
    return device


EXPERTS, CHOSEN, D = 256, 8, 1032
OPTIONS = dict(scoring="sigmoid", groups=8, top_groups=4, renormalize=True, factor=2.5)


def step(kernel, logits, bias, x, of_map):
    """A layer without its GEMMs: the rows that combine adds are the tokens', scaled by what follows their experts."""
    weights, experts = kernel.moe_route(logits, CHOSEN, bias=bias, **OPTIONS)
    rows, offsets, positions = kernel.moe_sort(experts, EXPERTS // 2, expert_map=of_map)
    y = x[rows.clamp(min=0).long() // CHOSEN]
    return weights, experts, rows, offsets, positions, y, kernel.moe_combine(y, weights, positions, shared=x)


def inputs(tokens: int, device, generator) -> tuple[torch.Tensor, ...]:
    logits, x = normal((tokens, EXPERTS), torch.bfloat16, generator), normal((tokens, D), torch.bfloat16, generator)
    return logits.to(device), x.to(device)


def rank(device, generator) -> tuple[torch.Tensor, torch.Tensor]:
    """(bias, expert_map of one of two ranks)"""
    of_map = torch.full((EXPERTS,), -1).index_copy(0, torch.arange(0, EXPERTS, 2), torch.arange(EXPERTS // 2))
    return normal((EXPERTS,), torch.float32, generator, 0.1).to(device), of_map.int().to(device)


def assert_right(kernel, logits, bias, x, of_map, results) -> None:
    weights, experts, rows, offsets, positions, y, out = (t.cpu() for t in results)
    wanted = kernel.reference.moe_sort(experts, EXPERTS // 2, expert_map=of_map.cpu())
    assert all(same_bytes(a, b) for a, b in zip((rows, offsets, positions), wanted))
    # A NaN's payload is nobody's contract.
    assert torch.equal(out.nan_to_num(), combined(Operands(y, weights, positions, x.cpu()), out.dtype).nan_to_num())


@pytest.mark.parametrize("tokens", [1, 64, 700])
def test_graphs_replay_with_new_routings(kernel, device, generator, tokens):
    """In one launch and in several: what a graph has captured takes any routing, also one of a single expert."""
    bias, of_map = rank(device, generator)
    static = list(inputs(tokens, device, generator))
    step(kernel, static[0], bias, static[1], of_map)  # what a first launch loads may not happen during a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(kernel, static[0], bias, static[1], of_map)
    for turn in range(4):
        fresh = inputs(tokens, device, generator)
        if turn == 2:
            fresh[0].fill_(torch.nan)
        for target, value in zip(static, fresh):
            target.copy_(value)
        graph.replay()
        wanted = step(kernel, fresh[0], bias, fresh[1], of_map)
        assert all(same_bytes(a, b) for a, b in zip(results, wanted)), turn
        assert_right(kernel, fresh[0], bias, fresh[1], of_map, results)


@pytest.mark.parametrize("tokens", [3, 64, 1000, 9000])
def test_launches_behind_one_another(kernel, device, generator, tokens):
    """Each starts before the one ahead has ended, and reads what that writes; scratch memory is used again."""
    problems = [inputs(tokens, device, generator) for _ in range(3)]
    bias, of_map = rank(device, generator)
    alone = []
    for logits, x in problems:
        torch.cuda.synchronize()
        alone.append(step(kernel, logits, bias, x, of_map))
    torch.cuda.synchronize()
    together = [step(kernel, logits, bias, x, of_map) for _ in range(5) for logits, x in problems]
    for turn, results in enumerate(together):
        assert all(same_bytes(a, b) for a, b in zip(results, alone[turn % 3])), turn
    assert_right(kernel, problems[0][0], bias, problems[0][1], of_map, alone[0])
