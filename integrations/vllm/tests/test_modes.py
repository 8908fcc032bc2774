"""Ways to run an engine that change which rows meet in a step, and where keys and values lie. Mixtures of experts,
latent attention and a dense model, held to the definition.

On a CPU vLLM 0.32 switches chunked prompts and the prefix cache off for latent attention (CPU_MLA), and these modes are
left out for DeepSeek. With n-gram decoding it then has a prompt wait for ever that is longer than a step, with the
plugin and without: a step takes any prompt there.
"""

import math
import re
from dataclasses import dataclass, field

import pytest
import torch

from . import mixtures
from .cases import BYTE_DEEPSEEK, text
from .conftest import NEAR, RIGHT_OF_EXPERTS, assert_as_likely, by_reference, byte_tokenizer, greedy, judged
from .settings import ENGINE, ON_CPU, two_devices
from .steps import counts, of_latent, of_mixtures

# As in test_experts.py: a byte moves by 0.15 to 0.25 bits, as sums are in another order and other experts are chosen.
SPREAD = 0.4
DENSE, QWEN, DEEPSEEK = "dynamic", "Qwen3-MoE blocks", "byte DeepSeek saved, channel"
# Two workers have a head of 64 of Qwen's keys each, which is half a block.
QWEN_CHANNELS = "Qwen3-MoE channels"
LENGTH = 48


@dataclass(frozen=True)
class Mode:
    arguments: dict = field(default_factory=dict)
    counters: tuple[str, ...] = ()  # vLLM's, of what makes the mode: each must grow
    eager: bool = True


HITS, PREEMPTED, ACCEPTED = (
    f"vllm:{name}" for name in ("prefix_cache_hits", "num_preemptions", "spec_decode_num_accepted_tokens")
)
NGRAM = dict(
    speculative_config=dict(method="ngram", num_speculative_tokens=4, prompt_lookup_max=3, prompt_lookup_min=2)
)
# Keys and values of 768 tokens, for prompts of 900 and what follows them.
SMALL = dict(num_gpu_blocks_override=768)  # on the block's size
CACHE = dict(enable_prefix_caching=True)
WORKERS = dict(tensor_parallel_size=2, enable_expert_parallel=True)
MODES = {
    "chunks": Mode(dict(max_num_batched_tokens=32)),
    "prefix cache": Mode(CACHE, (HITS,)),
    "preemption": Mode(SMALL, (PREEMPTED,)),
    "n-gram": Mode(NGRAM, (ACCEPTED,)),
    "preemption and n-gram, compiled": Mode(SMALL | NGRAM, (PREEMPTED, ACCEPTED), eager=False),
    "all, compiled": Mode(SMALL | NGRAM | CACHE | dict(max_num_batched_tokens=32), (PREEMPTED, ACCEPTED, HITS), False),
    "expert parallel": Mode(WORKERS | SMALL | NGRAM, (PREEMPTED, ACCEPTED)),
}
OF_LATENT = ("preemption", "n-gram", "preemption and n-gram, compiled", "expert parallel") if ON_CPU else tuple(MODES)


def counters(llm) -> dict[str, int]:
    """Of what makes modes, and of the package's operators."""
    found = {each.name: each.value for each in llm.get_metrics() if each.name in (HITS, PREEMPTED, ACCEPTED)}
    return found | counts(llm)


def holds(llm, model: torch.nn.Module, prompts: list[list[int]]) -> None:
    """What the engine decodes is likely, and it says how likely it is."""
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], greedy(LENGTH, logprobs=0), use_tqdm=False)
    right, got, wanted = [], [], []
    for prompt, output in zip(prompts, outputs):
        tokens = list(output.outputs[0].token_ids)
        assert len(tokens) == LENGTH
        likely, bits = judged(model, prompt, tokens)
        got += [-each[token].logprob / math.log(2) for token, each in zip(tokens, output.outputs[0].logprobs)]
        right += likely
        wanted.append(bits)
    assert sum(right) / len(right) >= RIGHT_OF_EXPERTS
    assert_as_likely(torch.tensor(got) - torch.cat(wanted), SPREAD)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(pytest.param(DEEPSEEK, mode, marks=two_devices if "expert" in mode else ()) for mode in OF_LATENT),
        *((QWEN, mode) for mode in MODES if mode != "expert parallel"),
        pytest.param(QWEN_CHANNELS, "expert parallel", marks=two_devices),
        *((DENSE, mode) for mode in MODES if mode != "expert parallel"),
    ],
)
def test_a_mode_decodes_what_the_definition_does(name, mode, engine, reference):
    mode = MODES[mode]
    block = 16 if name == DEEPSEEK else 32  # the least that vLLM's attention for CPUs takes
    arguments = dict(max_num_batched_tokens=ENGINE["max_model_len"]) if name == DEEPSEEK else {}
    arguments |= dict(enforce_eager=mode.eager, disable_log_stats=False, block_size=block) | mode.arguments
    if "num_gpu_blocks_override" in arguments:
        arguments["num_gpu_blocks_override"] //= block
    llm = engine(name, **arguments)
    code, before = text(1, 2048)[0].tolist(), counters(llm)
    # Of 8 prompts two begin alike, and one is longer than a step where steps are short.
    prompts = [code[:200], code[:150] + code[900:910], *(code[start : start + 90] for start in range(300, 840, 90))]
    scheduler = llm.llm_engine.vllm_config.scheduler_config
    if "max_num_batched_tokens" in mode.arguments:
        assert scheduler.enable_chunked_prefill and scheduler.max_num_batched_tokens < len(prompts[0])
    for _ in range(2 if HITS in mode.counters else 1):
        holds(llm, reference(name), prompts)
    grown = {each: count - before.get(each, 0) for each, count in counters(llm).items()}
    operators = {} if name == DENSE else of_mixtures(1) | (of_latent(1) if name == DEEPSEEK else {})
    replayed = not ON_CPU and not mode.eager  # which counts no operators
    for each in (*mode.counters, *({} if replayed else operators)):
        assert grown[each] > 0, each


@pytest.mark.parametrize("name", [QWEN, DEEPSEEK])
def test_structured_outputs_are_the_likeliest_that_are_allowed(name, engine, checkpoint, reference):
    from vllm.sampling_params import StructuredOutputsParams

    byte_tokenizer(checkpoint(name))
    whole = dict(max_num_batched_tokens=ENGINE["max_model_len"])
    llm = engine(name, enforce_eager=True, skip_tokenizer_init=False, **whole, **NGRAM)
    code, allowed = text(1, 1024)[0].tolist(), "abcdefghijklmnop_"
    prompts = [code[:100], code[200:260], code[300:310]]
    parameters = greedy(24, structured_outputs=StructuredOutputsParams(regex=f"[{allowed}]{{40}}"))
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], parameters, use_tqdm=False)
    right = []
    for prompt, output in zip(prompts, outputs):
        tokens = list(output.outputs[0].token_ids)
        assert re.fullmatch(f"[{allowed}]{{24}}", bytes(tokens).decode())
        with torch.no_grad():
            logits = reference(name)(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0]
        logits = logits[len(prompt) - 1 : -1, torch.tensor(list(allowed.encode()))].float()
        chosen = logits.gather(1, torch.tensor([allowed.encode().index(token) for token in tokens]).unsqueeze(1))
        right += (logits.amax(1, keepdim=True) - chosen <= NEAR).tolist()
    assert len(right) == 72 and sum(each for (each,) in right) / 72 >= RIGHT_OF_EXPERTS


def test_wide_heads_compute_the_same():
    """The model that stands for the byte-level DeepSeek on a GPU: bits of each byte, but for one more rounding of
    queries' weights."""
    from transformers import AutoModelForCausalLM

    stored = AutoModelForCausalLM.from_pretrained(BYTE_DEEPSEEK, dtype=torch.float32)
    ids = text(8, 256)
    (_, narrow), (_, wide) = (by_reference(each, ids) for each in (stored, mixtures.wide_heads(stored)))
    assert wide.mean() < 4 and (wide - narrow).abs().max() < 1e-3
