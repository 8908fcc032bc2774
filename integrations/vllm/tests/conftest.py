"""FP8 and INT8 checkpoints of two models, the same models in transformers by the reference (INT8: on this
package's), and vLLM engines: on the GPU that torch sees, else on the CPU."""

import gc
import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from problems import mx_checkpoints
from problems.tiny_llama import on_reference
from scripts.load import load_kernel

from . import cases
from .cases import CASES, GPT_OSS, STORED, text
from .settings import BACKEND, DEVICE, ENGINE, LATENT_BACKEND, ON_CPU, wide_products

freeze = gc.freeze  # `quick_starts` takes it from vLLM


def byte_tokenizer(directory: Path) -> None:
    """A tokenizer whose token n is byte n. `tokenizers` writes bytes as these characters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    characters = {chr(byte if byte in printable else next(others)): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=characters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)


def quick_starts() -> None:
    """What vLLM does for each engine of a process, and here once: four fifths of a start.

    It asks each architecture what it can do in a process of its own, which imports vLLM. For CPUs it looks in all
    modules for Triton's kernels; where llvmlite is loaded, as by n-gram decoding, it fails the second time. And it
    looks through all objects for garbage, six times: what is there after an engine has ended is left out from then on.
    """
    from vllm.model_executor.models import registry
    from vllm.triton_utils import dispatcher

    assert callable(registry._run_in_subprocess)
    registry._run_in_subprocess = lambda ask: ask()
    put_in = dispatcher.register_kernels

    def once(kernels: dict) -> None:
        if not kernels.keys() <= dispatcher._registry.keys():
            put_in(kernels)

    dispatcher.register_kernels = once
    # An engine's own objects, frozen, would stay.
    gc.freeze = gc.unfreeze = lambda: None


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory) -> None:
    load_kernel(BACKEND)  # or one clear error
    # Of engines in this process: more wait for one another where the cores are busy. On a GPU only references need any.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(1 if ON_CPU else max(1, min(8, (os.cpu_count() or 1) // workers)))
    if ON_CPU:
        quick_starts()
    # Nothing compiled is left from other runs.
    os.environ["VLLM_CACHE_ROOT"] = str(tmp_path_factory.mktemp("vllm-cache"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """checkpoint(name) -> the folder of a case's checkpoint."""
    written = {}

    def write(name: str) -> Path:
        if name not in written:
            written[name] = cases.write(CASES[name], tmp_path_factory.mktemp(name.replace(" ", "-")))
        return written[name]

    return write


@pytest.fixture(scope="session")
def reference(checkpoint):
    """reference(name) -> the case's model in transformers, by the reference; INT8 on this package's."""
    kernel, loaded = load_kernel(BACKEND), {}

    def load(name: str) -> torch.nn.Module:
        case = CASES[name]
        if case.format in (STORED, GPT_OSS):
            return case.model()
        if name not in loaded:
            if case.format in mx_checkpoints.FORMS:
                loaded[name] = mx_checkpoints.computing(kernel, case.format, case.model(), case.experts_alone)
            elif case.int8:
                loaded[name] = kernel.smoothquant.load_quantized(checkpoint(name)).to(DEVICE)
            else:
                loaded[name] = on_reference(kernel, kernel.quantization.load_quantized(checkpoint(name)))
                on_reference(kernel, loaded[name].model)
        return loaded[name]

    return load


@pytest.fixture(scope="module")
def engine(checkpoint):
    """engine(name, **arguments) -> a vLLM engine on a case's checkpoint. One at a time: the last one ends first, but
    where the same one is asked for again.

    Its core is in this process, several workers are processes; the server's tests have all of them.
    """
    import rocm_fp8_vllm
    from vllm import LLM
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    started = {}

    def end() -> None:
        for each in started.values():
            each.llm_engine.engine_core.shutdown()
        started.clear()
        cleanup_dist_env_and_memory()
        freeze()

    def start(name: str, **arguments) -> LLM:
        asked = repr((name, sorted(arguments.items()), os.environ.get(rocm_fp8_vllm.SUMS, "1")))
        if asked in started:
            return started[asked]
        end()
        default = dict(attention_backend=LATENT_BACKEND) if "DeepSeek" in name else {}
        default |= dict(skip_tokenizer_init=True, enable_prefix_caching=False, disable_log_stats=True)
        default |= dict(worker_extension_cls="rocm_fp8_vllm.worker.Counters", model=str(checkpoint(name)))
        llm = LLM(**ENGINE | default | arguments)
        started[asked] = llm
        return llm

    yield start
    end()


def served_by(*pairs):
    """(case's name, whether it runs eager) of each engine that a test is given as `served`."""
    return pytest.mark.parametrize(
        "served",
        pairs,
        indirect=True,
        scope="module",
        ids=lambda each: f"{each[0]}, {'eager' if each[1] else 'compiled'}",
    )


@pytest.fixture(scope="module")
def served(request, engine):
    """(case's name, engine), of `served_by`."""
    name, eager = request.param
    return name, engine(name, enforce_eager=eager)


@pytest.fixture
def one_worker(monkeypatch) -> None:
    """vLLM's parameters ask for them; an engine alone has set them up."""
    from vllm.model_executor import parameter

    monkeypatch.setattr(parameter, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(parameter, "get_tensor_model_parallel_world_size", lambda: 1)


def compiles(function, x: torch.Tensor) -> None:
    """torch.compile makes one graph of it for any number of x's rows, with its bits. x: 12 rows."""
    graphs = []
    torch._dynamo.reset()  # of other functions

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(function, fullgraph=True, backend=count)
    few = x[:5].clone()
    torch._dynamo.mark_dynamic(few, 0)
    for given in (few, x[:3], x):
        assert torch.equal(compiled(given), function(given))
    assert len(graphs) == 1


def asks_for(scale_fmt: str | None, monkeypatch) -> None:
    """What is made from here on is of a checkpoint with this setting."""
    from rocm_fp8_vllm import block_linear

    checkpoint = SimpleNamespace(quantization_config=dict(scale_fmt=scale_fmt))
    config = SimpleNamespace(model_config=SimpleNamespace(hf_config=checkpoint))
    monkeypatch.setattr(block_linear, "get_current_vllm_config_or_none", lambda: config)


def greedy(length: int, **arguments):
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False, **arguments)


def generate(llm, prompts: list[list[int]], length: int, **arguments) -> list[list[int]]:
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], greedy(length), use_tqdm=False, **arguments)
    return [list(output.outputs[0].token_ids) for output in outputs]


def teacher_forced(llm, ids: torch.Tensor, **arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """(the likeliest token after each of ids[:, :-1], the bits of each of ids[:, 1:]), by the engine."""
    prompts = [{"prompt_token_ids": row.tolist()} for row in ids]
    outputs = llm.generate(prompts, greedy(1, prompt_logprobs=1), use_tqdm=False, **arguments)
    best, nats = [], []
    for row, output in zip(ids, outputs):
        given = output.prompt_logprobs[1:]  # of the first token there is none
        best.append([next(token for token, found in each.items() if found.rank == 1) for each in given])
        nats.append([-each[token].logprob for token, each in zip(row[1:].tolist(), given)])
    return torch.tensor(best), torch.tensor(nats) / math.log(2)


@wide_products()
@torch.no_grad()
def by_reference(model: torch.nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, by transformers."""
    best, nats = [], []
    for rows in ids.split(8):
        logits = model(input_ids=rows.to(model.device), use_cache=False).logits[:, :-1].float().cpu()
        best.append(logits.argmax(-1))
        nats.append(torch.nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none"))
    return torch.cat(best), torch.cat(nats) / math.log(2)


def moved(llm, model: torch.nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, float]:
    """(how far each byte's bits are from transformers', the share of places where both find the same one likeliest)"""
    (best, bits), (expected, expected_bits) = teacher_forced(llm, ids), by_reference(model, ids)
    return bits - expected_bits, (best == expected).float().mean()


def assert_as_likely(different: torch.Tensor, spread: float) -> None:
    """Bits of bytes: how far one may be from what is expected, in the root of the mean square. Their mean: four
    deviations of that of so many, and an eighth of one, since a weight's rounding moves all bytes that it takes part in
    (a tenth was met). A fault moves a byte by a bit and more."""
    assert different.square().mean().sqrt() <= spread
    assert abs(different.mean()) <= spread * (1 / 8 + 4 / different.numel() ** 0.5)


# A byte's information moves by 0.1 nats (standard deviation) where sums are in another order, the difference of two
# tokens' by 1.4 times that: four of it.
NEAR = 0.6
# Of what a mixture decodes: where another expert is chosen, a token is further off. One in a thousand is (1,152 each of
# three models), and what comes after it in a sequence sees the same.
RIGHT_OF_EXPERTS = 0.96


def likely(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> list[bool]:
    """Whether each of the tokens that an engine chose after the prompt is as likely, by transformers after the same
    tokens, as the likeliest; or nearly, so that no rounding decides."""
    return judged(model, prompt, tokens)[0]


def many_lengths() -> list[list[int]]:
    """Prompts, of which those longer than a step's 128 tokens are computed in parts, beside the decoding of others."""
    code = text(1, 2048)[0].tolist()
    return [code[:300], code[500:501], code[600:640], code[700:733], code[900:1100], code[1300:1310]]


def decodes(llm, model: torch.nn.Module, length: int, enough: float, prompts: list[list[int]] | None = None) -> None:
    """All prompts at once: so many of the tokens are `likely`."""
    prompts, right = prompts or many_lengths(), []
    for prompt, tokens in zip(prompts, generate(llm, prompts, length)):
        assert len(tokens) == length
        right += likely(model, prompt, tokens)
    assert sum(right) / len(right) >= enough


@wide_products()
@torch.no_grad()
def judged(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> tuple[list[bool], torch.Tensor]:
    """(`likely`, each token's bits), by transformers."""
    ids = torch.tensor([prompt + tokens]).to(model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().cpu().log_softmax(1)
    chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    return (logits.amax(1) - chosen <= NEAR).tolist(), -chosen / math.log(2)
