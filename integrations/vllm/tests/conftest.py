"""FP8 and INT8 checkpoints of two models, the same models in transformers by the reference (INT8: on this
package's), and vLLM engines: on the GPU that torch sees, else on the CPU."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from problems import checkpoints
from problems.tiny_llama import on_reference
from problems.tiny_moe import edit
from scripts.load import load_kernel
from tests.settings import SEED

from . import mixtures, mx_mixtures
from .settings import BACKEND, DEVICE, ENGINE, LATENT_BACKEND, ON_CPU, ROOT

BYTE_LLAMA, BYTE_DEEPSEEK = (ROOT / "examples" / name / "checkpoint" for name in ("byte_llama", "byte_deepseek"))
# What kernel.smoothquant makes: scales of channels and rows, compressed-tensors. An adapter fits a model that is not
# smoothed: smoothing changes the linears' inputs.
INT8, INT8_NOT_SMOOTHED, INT8_ZEROS = "int8, dynamic", "int8, dynamic, not smoothed", "int8, dynamic, zero points"
INT8_ARGUMENTS = {
    INT8: lambda: dict(inputs=[text(8, 256)]),
    INT8_NOT_SMOOTHED: lambda: dict(alpha=None),
    INT8_ZEROS: lambda: dict(alpha=None, symmetric=False),
}
BFLOAT16 = "bfloat16"
STORED = "as it is stored"  # a checkpoint of this repository
# What kernel.quantization makes and writes.
SAVED = {
    f"saved, {granularity}": dict(granularity=granularity, activations="dynamic")
    for granularity in ("tensor", "channel", "block")
}
SAVED |= {"saved, static": dict(granularity="channel")}


@dataclass(frozen=True)
class Case:
    """A model's checkpoint. format: of problems/checkpoints.py, mx_mixtures.py, INT8_ARGUMENTS or SAVED; BFLOAT16 or
    STORED."""

    model: Callable[[], torch.nn.Module]
    format: str
    ignored: tuple[str, ...] = ("lm_head",)  # linears that are not quantised
    experts: bool = False  # whether it is a mixture
    e8m0: bool = False  # whether scales of weights are stored in that type

    @property
    def int8(self) -> bool:
        return self.format in INT8_ARGUMENTS


def byte_llama() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(BYTE_LLAMA, dtype=torch.bfloat16)


def byte_deepseek() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(BYTE_DEEPSEEK, dtype=torch.bfloat16)
    return model if ON_CPU else mixtures.wide_heads(model)


@torch.no_grad()
def byte_qwen3() -> torch.nn.Module:
    """The byte-level Llama's weights as a Qwen3, whose norms of queries and keys give them about the size that they
    had: it still knows the text. Of random weights no token is much likelier than others, and rounding decides."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    llama = byte_llama()
    kept = llama.config.to_dict()
    of_llama = ("model_type", "architectures", "mlp_bias", "pretraining_tp", "transformers_version")
    model = Qwen3ForCausalLM(Qwen3Config(**{k: v for k, v in kept.items() if k not in of_llama})).to(torch.bfloat16)
    model.load_state_dict(llama.state_dict(), strict=False)
    return mixtures.follow_sizes(model, llama, text(4, 256))


@torch.no_grad()
def cut_llama() -> torch.nn.Module:
    """A part of the byte-level Llama, where blocks of 128 do not end with the joined linears' parts: one head of 64
    keys and values, 320 of the MLP's numbers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    llama = byte_llama()
    fewer = dict(num_key_value_heads=1, intermediate_size=320)
    model = LlamaForCausalLM(LlamaConfig(**llama.config.to_dict() | fewer)).to(torch.bfloat16)
    whole = llama.state_dict()
    for name, weight in model.state_dict().items():
        weight.copy_(whole[name][tuple(slice(size) for size in weight.shape)])
    return model.eval()


@torch.no_grad()
def four_heads() -> torch.nn.Module:
    """The byte-level Llama with each head of keys and values twice: it computes the same. Each of two workers has 128
    rows of keys and of values, which is a block."""
    from transformers import LlamaConfig, LlamaForCausalLM

    llama = byte_llama()
    model = LlamaForCausalLM(LlamaConfig(**llama.config.to_dict() | dict(num_key_value_heads=4))).to(torch.bfloat16)
    whole = llama.state_dict()
    for name, weight in model.state_dict().items():
        twice = name.endswith(("k_proj.weight", "v_proj.weight"))
        weight.copy_(whole[name].unflatten(0, (2, 64)).repeat_interleave(2, 0).flatten(0, 1) if twice else whole[name])
    return model.eval()


def tied(model: torch.nn.Module) -> torch.nn.Module:
    """Its head is its embedding, of which files have one tensor."""
    model.config.tie_word_embeddings = True
    model.tie_weights()
    return model


def qwen3_moe() -> torch.nn.Module:
    return mixtures.upcycled(byte_qwen3(), "qwen3_moe", num_experts=4, moe_intermediate_size=768, norm_topk_prob=True)


def mixtral() -> torch.nn.Module:
    return mixtures.upcycled(byte_llama(), "mixtral", num_local_experts=4)


def mx(model: torch.nn.Module) -> torch.nn.Module:
    """With weights of experts that MXFP4 has."""
    return mx_mixtures.round_experts(load_kernel(BACKEND), model)


def minimax() -> torch.nn.Module:
    return mixtures.minimax(byte_llama(), text(4, 256))


def one_layer() -> torch.nn.Module:
    """The byte-level Llama without its other layers: it compiles fast."""
    model = byte_llama()
    model.model.layers, model.config.num_hidden_layers = model.model.layers[:1], 1
    return model


@torch.no_grad()
def changed(model: torch.nn.Module) -> torch.nn.Module:
    """With other numbers in all decoder layers, as after some steps of training. Sinks stay: vLLM 0.32 does not reload
    them, without the plugin either."""
    generator = torch.Generator().manual_seed(SEED)
    for name, weight in model.model.layers.named_parameters():
        if name.endswith("sinks"):
            continue
        weight.mul_(1 + 0.2 * torch.rand(weight.shape, generator=generator))
    return model


CASES = {
    "static": Case(byte_llama, "fp8, static"),
    "dynamic": Case(byte_llama, "compressed-tensors, channel, dynamic"),
    "blocks": Case(byte_llama, "fp8, blocks"),
    "blocks, 4 heads": Case(four_heads, "fp8, blocks"),
    "blocks, ue8m0": Case(byte_llama, "fp8, blocks, ue8m0"),
    "blocks, ue8m0, 4 heads": Case(four_heads, "fp8, blocks, ue8m0"),
    "an MLP not quantised": Case(
        byte_llama, "fp8, static", ("lm_head", *(f"model.layers.3.mlp.{n}_proj" for n in ("gate", "up", "down")))
    ),
    "int8": Case(byte_llama, INT8),
    "int8, not smoothed": Case(byte_llama, INT8_NOT_SMOOTHED),
    "cut blocks": Case(cut_llama, "fp8, blocks"),
    "cut blocks, compressed-tensors": Case(cut_llama, "compressed-tensors, blocks"),
    "one layer": Case(one_layer, "compressed-tensors, channel, dynamic"),
    "bfloat16": Case(byte_llama, BFLOAT16),
    "int8, zero points": Case(byte_llama, INT8_ZEROS),
    "int8, zero points, changed": Case(lambda: changed(byte_llama()), INT8_ZEROS),
    "static, changed": Case(lambda: changed(byte_llama()), "fp8, static"),
    "cut blocks, changed": Case(lambda: changed(cut_llama()), "fp8, blocks"),
    "bfloat16, changed": Case(lambda: changed(byte_llama()), BFLOAT16),
    "Qwen3 static": Case(byte_qwen3, "compressed-tensors, tensor, static"),
    "Qwen3 dynamic": Case(byte_qwen3, "compressed-tensors, channel, dynamic"),
    "Qwen3 blocks": Case(byte_qwen3, "compressed-tensors, blocks"),
    "Qwen3 blocks, e8m0": Case(byte_qwen3, "fp8, blocks, ue8m0", e8m0=True),
    "Qwen3-MoE blocks": Case(qwen3_moe, "fp8, blocks", experts=True),
    "Qwen3-MoE channels": Case(qwen3_moe, "compressed-tensors, channel, dynamic", experts=True),
    "Qwen3-MoE static": Case(qwen3_moe, "compressed-tensors, tensor, static", experts=True),
    "Qwen3-MoE compressed blocks": Case(qwen3_moe, "compressed-tensors, blocks", experts=True),
    "MiniMax-M2 channels": Case(minimax, "compressed-tensors, channel, dynamic", experts=True),
    "Mixtral static": Case(mixtral, "fp8, static", experts=True),
    "Mixtral dynamic, changed": Case(lambda: changed(mixtral()), "fp8, dynamic", experts=True),
    "Mixtral bfloat16": Case(mixtral, BFLOAT16),
    "Mixtral dynamic": Case(mixtral, "fp8, dynamic", experts=True),
    "Mixtral quark": Case(mixtral, "quark", experts=True),
    "DeepSeek-V2 blocks": Case(lambda: mixtures.deepseek("deepseek_v2"), "fp8, blocks", experts=True),
    "DeepSeek-V3 blocks": Case(mixtures.deepseek, "fp8, blocks", experts=True),
    "DeepSeek-V3 ue8m0": Case(mixtures.deepseek, "fp8, blocks, ue8m0", experts=True),
    "byte DeepSeek": Case(byte_deepseek, STORED, experts=True),
    "byte DeepSeek channels": Case(byte_deepseek, "compressed-tensors, channel, dynamic", experts=True),
    "byte DeepSeek, tied": Case(lambda: tied(byte_deepseek()), BFLOAT16, experts=True),
    "byte DeepSeek, tied, saved": Case(lambda: tied(byte_deepseek()), "saved, channel", experts=True),
    "byte DeepSeek saved, channel": Case(byte_deepseek, "saved, channel", experts=True),
    "byte DeepSeek saved, static": Case(byte_deepseek, "saved, static", experts=True),
    "Mixtral saved, tensor": Case(mixtral, "saved, tensor", experts=True),
    "Mixtral saved, channel": Case(mixtral, "saved, channel", experts=True),
    "Mixtral saved, block": Case(mixtral, "saved, block", experts=True),
    "Mixtral saved, static": Case(mixtral, "saved, static", experts=True),
    "Qwen3-MoE saved, tensor": Case(qwen3_moe, "saved, tensor", experts=True),
    "Qwen3-MoE saved, channel": Case(qwen3_moe, "saved, channel", experts=True),
    "Qwen3-MoE saved, block": Case(qwen3_moe, "saved, block", experts=True),
    "Qwen3-MoE saved, static": Case(qwen3_moe, "saved, static", experts=True),
    "DeepSeek-V3 saved, block": Case(mixtures.deepseek, "saved, block", experts=True),
    "Qwen3-MoE e8m0": Case(qwen3_moe, "fp8, blocks, ue8m0", experts=True, e8m0=True),
    "Qwen3-MoE mxfp4": Case(lambda: mx(qwen3_moe()), "mxfp4, compressed-tensors"),
    "Qwen3-MoE mxfp4, changed": Case(lambda: mx(changed(qwen3_moe())), "mxfp4, compressed-tensors"),
    "Qwen3-MoE mxfp4 W4A4": Case(lambda: mx(qwen3_moe()), "mxfp4, compressed-tensors, W4A4"),
    "Qwen3-MoE mxfp4 W4A8": Case(lambda: mx(qwen3_moe()), "mxfp4, compressed-tensors, W4A8"),
    "Qwen3-MoE mxfp4 quark": Case(lambda: mx(qwen3_moe()), "mxfp4, quark"),
    "Qwen3-MoE mxfp4 quark, changed": Case(lambda: mx(changed(qwen3_moe())), "mxfp4, quark"),
    "Qwen3-MoE mxfp4 quark W4A4": Case(lambda: mx(qwen3_moe()), "mxfp4, quark, W4A4"),
    "gpt-oss": Case(lambda: mx(mx_mixtures.gpt_oss()), mx_mixtures.GPT_OSS),
    "gpt-oss, changed": Case(lambda: mx(changed(mx_mixtures.gpt_oss())), mx_mixtures.GPT_OSS),
}


def in_e8m0(tensors: dict[str, torch.Tensor]) -> None:
    """Scales of weights as the least powers of two that are not smaller, in their own type; the weights follow."""
    for name in [each for each in tensors if each.endswith(".weight_scale_inv")]:
        scale, weight = tensors[name], tensors[name.removesuffix("_scale_inv")]
        rounded = torch.exp2(torch.ceil(torch.log2(scale)))
        wide = weight.float() * checkpoints.of_each(scale / rounded, weight)
        tensors[name] = rounded.to(torch.float8_e8m0fnu)
        tensors[name.removesuffix("_scale_inv")] = checkpoints.to_fp8(wide)


def text(count: int, length: int) -> torch.Tensor:
    """int64 [count, length]: bytes of Python that the byte-level Llama was not trained on."""
    files = sorted((ROOT / "torch-ext" / "rocm_fp8_kernels").rglob("*.py"))
    code = b"".join(file.read_bytes() for file in files)
    return torch.tensor(list(code[: count * length])).view(count, length)


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


def engines_after_n_grams() -> None:
    """A second engine of a process has vLLM 0.32 for CPUs look at `vars` of whatever modules hold. n-gram decoding has
    loaded llvmlite, whose library takes `__dict__` for a function of its own: vLLM fails."""
    from llvmlite.binding import ffi

    kind = type(ffi.lib)
    theirs = kind.__getattr__

    def find(self, name: str):
        if name == "__dict__":
            raise AttributeError(name)
        return theirs(self, name)

    kind.__getattr__ = find


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory) -> None:
    load_kernel(BACKEND)  # or one clear error
    # Of engines in this process: more wait for one another where the cores are busy. On a GPU only references need any.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(1 if ON_CPU else max(1, min(8, (os.cpu_count() or 1) // workers)))
    if ON_CPU:
        engines_after_n_grams()
    # Nothing compiled is left from other runs.
    os.environ["VLLM_CACHE_ROOT"] = str(tmp_path_factory.mktemp("vllm-cache"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """checkpoint(name) -> the folder of a case's checkpoint."""
    written = {}

    def write(name: str) -> Path:
        if name not in written:
            case, folder = CASES[name], tmp_path_factory.mktemp(name.replace(" ", "-"))
            if case.int8:
                smoothquant, folder = load_kernel(BACKEND).smoothquant, folder / "int8"  # is made whole
                how = INT8_ARGUMENTS[case.format]()
                smoothquant.save_quantized(smoothquant.quantize(case.model(), **how, activations="dynamic"), folder)
            elif case.format in SAVED:
                quantization, folder = load_kernel(BACKEND).quantization, folder / "fp8"  # is made whole
                inputs = [text(8, 256)] if case.format == "saved, static" else None
                quantization.save_quantized(quantization.quantize(case.model(), inputs, **SAVED[case.format]), folder)
            elif case.format == STORED and ON_CPU:
                folder = Path(case.model().config.name_or_path)
            elif case.format in (BFLOAT16, STORED):
                case.model().save_pretrained(folder)
            elif case.format in mx_mixtures.FORMATS:
                mx_mixtures.write(load_kernel(BACKEND), case.format, case.model(), folder)
            elif case.experts:
                with torch.no_grad():
                    mixtures.write(case.format, case.model(), text(8, 256), folder, case.ignored)
            else:
                with torch.no_grad():
                    checkpoints.write(case.format, case.model(), text(8, 256), folder, case.ignored)
            if case.e8m0:
                edit(folder, in_e8m0)
            written[name] = folder
        return written[name]

    return write


@pytest.fixture(scope="session")
def reference(checkpoint):
    """reference(name) -> the case's model in transformers, by the reference; INT8 on this package's."""
    kernel, loaded = load_kernel(BACKEND), {}

    def load(name: str) -> torch.nn.Module:
        if CASES[name].format in (STORED, *mx_mixtures.FORMATS):
            return CASES[name].model()
        if name not in loaded:
            if CASES[name].int8:
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

    def start(name: str, **arguments) -> LLM:
        asked = repr((name, sorted(arguments.items()), os.environ.get(rocm_fp8_vllm.SUMS, "1")))
        if asked in started:
            return started[asked]
        end()
        default = dict(attention_backend=LATENT_BACKEND) if "DeepSeek" in name else {}
        default |= dict(skip_tokenizer_init=True, enable_prefix_caching=False, disable_log_stats=True)
        default["worker_extension_cls"] = "rocm_fp8_vllm.worker.Counters"
        llm = LLM(model=str(checkpoint(name)), **ENGINE | default | arguments)
        started[asked] = llm
        return llm

    yield start
    end()


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


@torch.no_grad()
def by_reference(model: torch.nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, by transformers."""
    best, nats = [], []
    for rows in ids.split(8):
        logits = model(input_ids=rows.to(model.device), use_cache=False).logits[:, :-1].float().cpu()
        best.append(logits.argmax(-1))
        nats.append(torch.nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none"))
    return torch.cat(best), torch.cat(nats) / math.log(2)


# A byte's information moves by 0.1 nats (standard deviation) where sums are in another order, the difference of two
# tokens' by 1.4 times that: four of it.
NEAR = 0.6


def likely(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> list[bool]:
    """Whether each of the tokens that an engine chose after the prompt is as likely, by transformers after the same
    tokens, as the likeliest; or nearly, so that no rounding decides."""
    return judged(model, prompt, tokens)[0]


@torch.no_grad()
def judged(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> tuple[list[bool], torch.Tensor]:
    """(`likely`, each token's bits), by transformers."""
    ids = torch.tensor([prompt + tokens]).to(model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().cpu().log_softmax(1)
    chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    return (logits.amax(1) - chosen <= NEAR).tolist(), -chosen / math.log(2)
