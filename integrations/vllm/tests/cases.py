"""Which models engines are tried with, and the checkpoints of them."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from problems import checkpoints, mx_checkpoints
from problems.tiny_moe import edit
from scripts.load import load_kernel
from tests.settings import SEED

from . import mixtures, mx_mixtures
from .settings import BACKEND, ON_CPU, ROOT, wide_products

BYTE_LLAMA, BYTE_DEEPSEEK, BYTE_GPT_OSS = (
    ROOT / "examples" / name / "checkpoint" for name in ("byte_llama", "byte_deepseek", "byte_gpt_oss")
)
# What kernel.smoothquant makes: scales of channels and rows, compressed-tensors. An adapter fits a model that is not
# smoothed: smoothing changes the linears' inputs.
INT8, INT8_NOT_SMOOTHED, INT8_ZEROS = "int8, dynamic", "int8, dynamic, not smoothed", "int8, dynamic, zero points"
INT8_ARGUMENTS = {
    INT8: lambda: dict(inputs=[text(8, 256)]),
    INT8_NOT_SMOOTHED: lambda: dict(alpha=None),
    INT8_ZEROS: lambda: dict(alpha=None, symmetric=False),
}
BFLOAT16, GPT_OSS = "bfloat16", "mxfp4, gpt-oss"
STORED = "as it is stored"  # a checkpoint of this repository
# What kernel.quantization makes and writes.
SAVED = {
    f"saved, {granularity}": dict(granularity=granularity, activations="dynamic")
    for granularity in ("tensor", "channel", "block")
}
SAVED |= {"saved, static": dict(granularity="channel")}


@dataclass(frozen=True)
class Case:
    """A model's checkpoint. format: of problems/checkpoints.py, problems/mx_checkpoints.py, INT8_ARGUMENTS or SAVED;
    GPT_OSS, BFLOAT16 or STORED."""

    model: Callable[[], torch.nn.Module]
    format: str
    ignored: tuple[str, ...] = ("lm_head",)  # linears that are not quantised
    experts: bool = False  # whether it is a mixture
    e8m0: bool = False  # whether scales of weights are stored in that type
    experts_alone: bool = False  # of MX formats: whether linears stay as they are

    @property
    def int8(self) -> bool:
        return self.format in INT8_ARGUMENTS


def once(make: Callable[[], torch.nn.Module]) -> Callable[[], torch.nn.Module]:
    """Makes the model once; who asks for it is given a copy."""
    made = functools.cache(wide_products()(make))
    return lambda: copy.deepcopy(made())


def byte_llama() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(BYTE_LLAMA, dtype=torch.bfloat16)


def byte_deepseek() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(BYTE_DEEPSEEK, dtype=torch.bfloat16)
    return model if ON_CPU else mixtures.wide_heads(model)


@once
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


@once
def qwen3_moe() -> torch.nn.Module:
    return mixtures.upcycled(byte_qwen3(), "qwen3_moe", num_experts=4, moe_intermediate_size=768, norm_topk_prob=True)


@once
def mixtral() -> torch.nn.Module:
    return mixtures.upcycled(byte_llama(), "mixtral", num_local_experts=4)


def gpt_oss() -> torch.nn.Module:
    return mx_mixtures.gpt_oss(load_kernel(BACKEND))


def byte_gpt_oss() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(BYTE_GPT_OSS, dtype=torch.bfloat16)
    return mx_mixtures.with_rounded_experts(load_kernel(BACKEND), model)


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
    "dynamic, with its head": Case(byte_llama, "compressed-tensors, channel, dynamic", ignored=()),
    "one layer": Case(one_layer, "compressed-tensors, channel, dynamic"),
    "bfloat16": Case(byte_llama, BFLOAT16),
    "int8, zero points": Case(byte_llama, INT8_ZEROS),
    "int8, zero points, changed": Case(lambda: changed(byte_llama()), INT8_ZEROS),
    "one layer, static": Case(one_layer, "fp8, static"),
    "one layer, static, changed": Case(lambda: changed(one_layer()), "fp8, static"),
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
    "Qwen3-MoE mxfp4": Case(qwen3_moe, "compressed-tensors, MXFP4A16", experts_alone=True),
    "Qwen3-MoE mxfp4, changed": Case(lambda: changed(qwen3_moe()), "compressed-tensors, MXFP4A16", experts_alone=True),
    "Qwen3-MoE mxfp4 W4A4": Case(qwen3_moe, "compressed-tensors, MXFP4", experts_alone=True),
    "Qwen3-MoE mxfp4 W4A8": Case(qwen3_moe, "compressed-tensors, W4A8, rows", experts_alone=True),
    "Qwen3-MoE mxfp4 quark": Case(qwen3_moe, "quark, W4A16", experts_alone=True),
    "Qwen3-MoE mxfp4 quark, changed": Case(lambda: changed(qwen3_moe()), "quark, W4A16", experts_alone=True),
    "Qwen3-MoE mxfp4 quark W4A4": Case(qwen3_moe, "quark, MXFP4", experts_alone=True),
    "gpt-oss": Case(gpt_oss, GPT_OSS),
    "byte gpt-oss": Case(byte_gpt_oss, GPT_OSS),
    "gpt-oss, changed": Case(lambda: mx_mixtures.gpt_oss(load_kernel(BACKEND), changed), GPT_OSS),
}
# Every linear, but the head and routers.
CASES |= {f"Qwen3 {form}": Case(byte_qwen3, form) for form in mx_checkpoints.FORMS}
CASES |= {f"Qwen3-MoE {form}": Case(qwen3_moe, form) for form in mx_checkpoints.FORMS}
CASES |= {
    f"{model} {form}, changed": Case(made, form)
    for model, form, made in (
        ("Qwen3", "compressed-tensors, MXFP4", lambda: changed(byte_qwen3())),
        ("Qwen3", "quark, MXFP8", lambda: changed(byte_qwen3())),
        ("Qwen3-MoE", "compressed-tensors, MXFP8", lambda: changed(qwen3_moe())),
    )
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


@wide_products()
@torch.no_grad()
def write(case: Case, folder: Path) -> Path:
    """Returns: where the checkpoint is, in the folder or elsewhere."""
    kernel = load_kernel(BACKEND)
    if case.int8:
        folder = folder / "int8"  # is made whole
        how = INT8_ARGUMENTS[case.format]()
        made = kernel.smoothquant.quantize(case.model(), **how, activations="dynamic")
        kernel.smoothquant.save_quantized(made, folder)
    elif case.format in SAVED:
        folder = folder / "fp8"  # is made whole
        inputs = [text(8, 256)] if case.format == "saved, static" else None
        made = kernel.quantization.quantize(case.model(), inputs, **SAVED[case.format])
        kernel.quantization.save_quantized(made, folder)
    elif case.format == STORED and ON_CPU:
        folder = Path(case.model().config.name_or_path)
    elif case.format in (BFLOAT16, STORED):
        case.model().save_pretrained(folder)
    elif case.format in mx_checkpoints.FORMS:
        mx_checkpoints.write(kernel, case.format, case.model(), folder, case.experts_alone)
    elif case.format == GPT_OSS:
        mx_mixtures.write_gpt_oss(kernel, case.model(), folder)
    elif case.experts:
        mixtures.write(case.format, case.model(), text(8, 256), folder, case.ignored)
    else:
        checkpoints.write(case.format, case.model(), text(8, 256), folder, case.ignored)
    if case.e8m0:
        edit(folder, in_e8m0)
    return folder
