"""A tiny DeepSeek-V4, its files as they are published (FP8 in blocks, experts in MXFP4, names without a prefix), and
what a model of such files computes."""

import copy
import re
from pathlib import Path

import safetensors.torch
import torch
from transformers import CONFIG_MAPPING

from problems import checkpoints, mx, mx_checkpoints
from problems.tiny_llama import drawn
from problems.tiny_moe import expert_modules

SLIDING, SPARSE, COMPRESSED = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
CONFIG = dict(
    vocab_size=64,
    hidden_size=256,
    moe_intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    head_dim=128,
    partial_rotary_factor=0.5,
    q_lora_rank=128,
    num_experts_per_tok=2,
    n_routed_experts=4,
    layer_types=[SLIDING, SPARSE, COMPRESSED],
    compress_rates={SPARSE: 4, COMPRESSED: 8},
    mlp_layer_types=["hash_moe", "moe", "moe"],
    o_groups=2,
    o_lora_rank=128,
    index_n_heads=4,
    index_head_dim=64,
    index_topk=4,
    sliding_window=16,
    hc_mult=2,
    swiglu_limit=1.0,
    max_position_embeddings=256,
)
# transformers' names -> those of the files, one after the other.
PUBLISHED = (
    (r"^model\.", ""),
    (r"^embed_tokens\.", "embed."),
    (r"^lm_head\.", "head."),
    (r"hc_head\.hc_", "hc_head_"),
    (r"(attn|ffn)_hc\.(\w+)$", r"hc_\1_\2"),
    (r"input_layernorm", "attn_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"compressor\.indexer\.scorer\.weights_proj", "indexer.weights_proj"),
    (r"compressor\.indexer\.q_b_proj", "indexer.wq_b"),
    (r"compressor\.indexer\.", "indexer.compressor."),
    (r"compressor\.kv_norm", "compressor.norm"),
    (r"compressor\.gate_proj", "compressor.wgate"),
    (r"position_bias$", "ape"),
    (r"\.kv_proj\.", ".wkv."),
    (r"\.(q|o)_(a|b)_proj\.", r".w\1_\2."),
    (r"q_a_norm", "q_norm"),
    (r"\.sinks$", ".attn_sink"),
    (r"e_score_correction_bias$", "bias"),
    (r"gate_proj", "w1"),
    (r"down_proj", "w2"),
    (r"up_proj", "w3"),
    (r"\.self_attn\.", ".attn."),
    (r"\.mlp\.", ".ffn."),
)
# What is stored in 16 bits without a rule that says so, and what in 32, as transformers keeps it.
PLAIN = re.compile(r"compressor\.(indexer\.)?(kv_proj|gate_proj)|weights_proj|lm_head")
WIDE = re.compile(r"(attn|ffn)_hc|hc_head|sinks|position_bias|norm|e_score_correction_bias")
BLOCKS = checkpoints.Format(None, dynamic=True, block=True, power_of_two=True)
SETTINGS = checkpoints.deepseek(scale_fmt="ue8m0")([]) | dict(modules_to_not_convert=None)


def published(name: str) -> str:
    for pattern, other in PUBLISHED:
        name = re.sub(pattern, other, name)
    return name


def model(generator: torch.Generator) -> torch.nn.Module:
    """In bfloat16, with what from_pretrained keeps in float32."""
    made = drawn(CONFIG_MAPPING["deepseek_v4"](**CONFIG), generator)
    for name, module in made.named_modules():
        for each, value in module._parameters.items():
            if value is not None and WIDE.search(f"{name}.{each}"):
                module._parameters[each] = torch.nn.Parameter(value.float() * 1.001)  # no number of bfloat16
        if hasattr(module, "e_score_correction_bias"):
            module.e_score_correction_bias = 0.1 * torch.randn(CONFIG["n_routed_experts"], generator=generator)
        if hasattr(module, "tid2eid"):
            drawn_ids = [torch.randperm(CONFIG["n_routed_experts"], generator=generator)[:2] for _ in range(64)]
            module.tid2eid = torch.stack(drawn_ids)
    return made


@torch.no_grad()
def write(kernel, made: torch.nn.Module, directory: Path, exponents: torch.dtype, experts: str = "fp4") -> None:
    """exponents: of all scales: float8_e8m0fnu, or float32."""
    tensors = {}
    for name, value in made.state_dict().items():
        linear = name.removesuffix(".weight")
        module = made.get_submodule(linear) if linear != name else None
        if name.rpartition(".")[0] in expert_modules(made):
            of_experts(kernel, name, value, exponents, tensors)
        elif isinstance(module, torch.nn.Linear) and not PLAIN.search(name):
            scale = torch.exp2(torch.ceil(torch.log2(checkpoints.weight_scale(value, BLOCKS))))
            tensors[name] = checkpoints.to_fp8(value.float() / checkpoints.of_each(scale, value))
            tensors[f"{linear}.scale"] = scale.to(exponents)
        else:
            tensors[name] = value.int() if name.endswith("tid2eid") else value.clone()
    directory.mkdir(parents=True)
    files = {published(name): value.contiguous() for name, value in tensors.items()}
    files["mtp.0.norm.weight"] = torch.ones(256)  # predicts more tokens
    safetensors.torch.save_file(files, directory / "model.safetensors", metadata={"format": "pt"})
    made.config.save_pretrained(directory)
    checkpoints.configure(directory, SETTINGS, architectures=[type(made).__name__], expert_dtype=experts)


def of_experts(kernel, name: str, value: torch.Tensor, exponents: torch.dtype, tensors: dict) -> None:
    stack, _, last = name.rpartition(".")
    for e, of_expert in enumerate(value):
        parts = ("gate_proj", "up_proj") if last == "gate_up_proj" else ("down_proj",)
        for part, weight in zip(parts, of_expert.chunk(len(parts))):
            codes, scale = mx_checkpoints.mxfp4(kernel, weight)
            tensors[f"{stack}.{e}.{part}.weight"] = codes.view(torch.int8)
            tensors[f"{stack}.{e}.{part}.scale"] = scale.view(torch.float8_e8m0fnu).to(exponents)


@torch.no_grad()
def computing(kernel, made: torch.nn.Module, directory: Path) -> torch.nn.Module:
    """What the checkpoint of `made` computes: linears by the files' numbers, with rounded inputs; experts likewise."""
    defined, files = copy.deepcopy(made), checkpoints.stored(directory)

    def rounding(how):
        return lambda module, given: (how(given[0]).to(given[0].dtype),)

    def in_groups(x: torch.Tensor) -> torch.Tensor:
        scale = checkpoints.group_scales(x.float(), power_of_two=True)
        return checkpoints.to_fp8(x.float() / scale).float() * scale

    def in_blocks(x: torch.Tensor) -> torch.Tensor:
        return mx_checkpoints.entering(kernel, "mxfp8", x.flatten(0, -2)).view(x.shape)

    for name, module in defined.named_modules():
        scale = files.get(f"{published(f'{name}.weight').removesuffix('.weight')}.scale")
        if isinstance(module, torch.nn.Linear) and scale is not None:
            codes = files[published(f"{name}.weight")]
            module.weight.copy_(codes.float() * checkpoints.of_each(scale.float(), codes))
            if type(module) is torch.nn.Linear:  # a grouped one stays in 16 bits, and so do its inputs
                module.register_forward_pre_hook(rounding(in_groups))
    for name, module in expert_modules(defined).items():
        for e in range(CONFIG["n_routed_experts"]):
            gate, up = module.gate_up_proj[e].chunk(2)
            for part, values in (("gate_proj", gate), ("up_proj", up), ("down_proj", module.down_proj[e])):
                linear = published(f"{name}.{e}.{part}")
                codes, scale = files[f"{linear}.weight"].view(torch.uint8), files[f"{linear}.scale"]
                values.copy_(mx.values(codes, scale.to(torch.float8_e8m0fnu)))
        gate_of = module._apply_gate
        module._apply_gate = lambda x, gate_of=gate_of: in_blocks(gate_of(x)).to(x.dtype)
        module.register_forward_pre_hook(lambda module, given: (in_blocks(given[0]).to(given[0].dtype), *given[1:]))
    return defined
