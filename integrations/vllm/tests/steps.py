"""Which operators an engine launches."""

from .cases import text
from .conftest import generate
from .settings import ON_CPU


def counts(llm) -> dict[str, int]:
    """Operator -> calls so far of a worker. All workers call the same."""
    first, *others = llm.collective_rpc("rocm_fp8_call_counts")
    assert all(each == first for each in others)
    return {name: count for name, count in first.items() if count}


def a_step(llm, requests: int = 1, **arguments) -> dict[str, float]:
    """Operator -> its calls in a decode step of so many requests, by each worker."""
    prompt, launched = text(1, 8)[0].tolist(), []
    for tokens in (5, 15):
        before = counts(llm)
        generate(llm, [prompt] * requests, tokens, **arguments)
        launched.append({each: count - before.get(each, 0) for each, count in counts(llm).items()})
    few, many = launched
    return {each: (many[each] - few[each]) / 10 for each in many if many[each] > few[each]}


def step_is(llm, expected: dict[str, int], of: tuple[str, ...] = ("",), requests: int = 1, **arguments) -> None:
    """What a decode step launches, of operators with one of these parts in their names. A graph's replays do not count:
    where a GPU replays steps, the operators were called as they were captured."""
    if not ON_CPU and not llm.llm_engine.vllm_config.model_config.enforce_eager:
        assert expected.keys() <= counts(llm).keys()
        return
    step = a_step(llm, requests, **arguments)
    assert {name: count for name, count in step.items() if any(part in name for part in of)} == expected


def of_mixtures(count: int) -> dict[str, int]:
    """What so many fused_moe and their routers launch, without the quantisation of their inputs."""
    parts = ("moe_route",) if ON_CPU else ()
    parts += ("moe_sort", "grouped_gemm_swiglu_fp8", "grouped_gemm", "moe_combine")
    return dict.fromkeys(parts, count)


QUANTISING = {"16bit": {}, "mxfp4": {"quantize_mxfp4": 1}, "mxfp8": {"quantize_fp8": 1}, "fp8": {"quantize_fp8": 1}}


def of_mx(linears: int, mixtures: int, inputs: str) -> dict[str, int]:
    """What so many linears, and fused_moe with their routers, launch of MX weights."""
    parts = dict.fromkeys(("moe_sort", "grouped_gemm_gate", "grouped_gemm", "moe_combine"), mixtures)
    parts |= {"moe_route": mixtures} if ON_CPU else {}
    parts |= {"block_scaled_gemm": linears}
    parts |= {name: count * (linears + 2 * mixtures) for name, count in QUANTISING[inputs].items()}
    return {name: count for name, count in parts.items() if count}


def of_latent(count: int) -> dict[str, int]:
    """What a decode step of so many layers with latent attention launches for their caches."""
    return dict.fromkeys(("mla_append", "mla_decode"), count)
