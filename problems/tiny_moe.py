"""Mixtures of experts that run in milliseconds, and the same models with a linear for each matrix of an expert: what
published checkpoints hold, and what they compute by definition."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING

from problems import checkpoints
from problems.tiny_llama import NEAR, distance, drawn, near
from problems.tiny_models import config

SIZES = dict(
    vocab_size=128,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=None,
    tie_word_embeddings=False,
)
MODELS = {
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": dict(
        moe_intermediate_size=128, num_experts=8, num_experts_per_tok=2, head_dim=32, norm_topk_prob=True
    ),
    "deepseek_v3": dict(
        moe_intermediate_size=128,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
        n_shared_experts=1,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=16,  # kv_b and o have whole blocks, or one
        first_k_dense_replace=1,
        num_key_value_heads=4,  # its attention has no groups
    ),
}
# What other tests ask for by name, which are not quantised with the kernels' layers.
OTHERS = {
    "deepseek_v2": MODELS["deepseek_v3"] | dict(n_group=None, topk_group=None)  # its configuration's default
}
PARTS = ("gate_proj", "up_proj", "down_proj")
OLDER = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}  # Mixtral's names
BIAS = "e_score_correction_bias"


def moe(name: str, generator: torch.Generator, dtype: torch.dtype = torch.bfloat16, device="cpu", **changes):
    model = drawn(CONFIG_MAPPING[name](**(SIZES | (MODELS | OTHERS)[name] | changes)), generator, dtype, device)
    for module in model.modules():
        if hasattr(module, BIAS):  # from_pretrained keeps it in float32
            values = 0.1 * torch.randn(getattr(module, BIAS).shape, generator=generator)
            setattr(module, BIAS, torch.nn.Buffer(values.to(device)))
    return model


def any_model(name: str, generator: torch.Generator, device="cpu") -> torch.nn.Module:
    """Of tiny_models' architectures, or a mixture."""
    return moe(name, generator, device=device) if name in MODELS else drawn(config(name), generator, device=device)


def expert_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    return {name: module for name, module in model.named_modules() if name.endswith(".experts")}


class OneByOne(torch.nn.ModuleList):
    """Experts in plain torch, with linears that may be replaced. Rounded to the input's dtype are the results of
    linears, of SiLU and of its product, and the sum (docs/numerics.md)."""

    def __init__(self, stacked: torch.nn.Module):
        super().__init__()
        for gate_up, down in zip(stacked.gate_up_proj.detach(), stacked.down_proj.detach()):
            expert = torch.nn.Module()
            for part, weight in zip(PARTS, (*gate_up.chunk(2), down)):
                linear = torch.nn.Linear(*reversed(weight.shape), bias=False, dtype=weight.dtype, device=weight.device)
                linear.weight.copy_(weight)
                expert.add_module(part, linear)
            self.append(expert)

    def forward(self, hidden_states, top_k_index, top_k_weights):
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        total = torch.zeros_like(x, dtype=torch.float32)
        for slot in range(top_k_index.shape[1]):
            for e, expert in enumerate(self):
                of = top_k_index[:, slot] == e
                if bool(of.any()):
                    gate, up = expert.gate_proj(x[of]).float(), expert.up_proj(x[of])
                    hidden = (gate / (1 + torch.exp(-gate))).to(x.dtype) * up
                    total[of] += top_k_weights[of, slot, None].float() * expert.down_proj(hidden).float()
        return total.to(x.dtype).view(hidden_states.shape)


def apart(model: torch.nn.Module) -> torch.nn.Module:
    """A copy, whose experts are computed one by one."""
    model = copy.deepcopy(model)
    for name, module in expert_modules(model).items():
        model.set_submodule(name, OneByOne(module))
    return model


def of_one_input(name: str) -> list[str]:
    """By whose largest scale a linear's input is quantised: all experts of a module are given the same codes."""
    module, _, rest = name.rpartition(".experts.")
    if not module:
        group = next(
            (group for group in checkpoints.JOINED if name.endswith(tuple(f".{each}" for each in group))), None
        )
        layer = ".".join(name.split(".")[:3])
        return [name] if group is None else [f"{layer}.{each}" for each in group]
    part = rest.partition(".")[2]
    return [
        f"{module}.experts.{e}.{each}" for e in range(8) for each in PARTS if (each == PARTS[2]) == (part == PARTS[2])
    ]


def by_definition(model: torch.nn.Module, directory: Path, form: checkpoints.Format) -> torch.nn.Module:
    """What the checkpoint of `model` computes; its files have a tensor for each matrix of an expert, of Mixtral by the
    names that are published."""
    if any("block_sparse_moe" in name for name in checkpoints.stored(directory)):
        directory = Path(shutil.copytree(directory, directory.with_name(f"{directory.name}-newer")))
        with_newer_names(directory)
    return checkpoints.by_definition(apart(model), directory, form, of_one_input)


# --- layouts ---


def edit(directory: Path, change: Callable[[dict[str, torch.Tensor]], None], settings: Callable[[str], str] = str):
    def of_config(config: dict) -> None:
        config["quantization_config"] = json.loads(settings(json.dumps(config["quantization_config"])))

    checkpoints.edit(directory, change, of_config)


def with_names_of_today(directory: Path) -> None:
    """Of what transformers has saved of Mixtral: it goes half the way back to older names."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "block_sparse_moe" in name]:
            tensors[name.replace("block_sparse_moe", "mlp")] = tensors.pop(name)

    edit(directory, change)


def with_older_names(directory: Path) -> None:
    """As Mixtral's checkpoints have them."""

    def older(text: str) -> str:
        for newer, name in OLDER.items():
            text = text.replace(newer, name)
        return text.replace("mlp", "block_sparse_moe")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".mlp." in name]:
            tensors[older(name)] = tensors.pop(name)

    edit(directory, change, older)


def with_newer_names(directory: Path) -> None:
    """Of Mixtral's published names those that transformers' modules have, and other architectures' experts."""

    def newer(name: str) -> str:
        for part, older in OLDER.items():
            name = name.replace(f".{older}.", f".{part}.")
        return name.replace("block_sparse_moe", "mlp")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "block_sparse_moe" in name]:
            tensors[newer(name)] = tensors.pop(name)

    edit(directory, change)


def with_stacks(directory: Path) -> None:
    """As transformers has them."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        modules = sorted({name.partition(".experts.")[0] for name in tensors if ".experts." in name})
        for module in modules:
            count = len(
                {name.split(".experts.")[1].split(".")[0] for name in tensors if name.startswith(f"{module}.e")}
            )
            for last, suffix in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
                of = [[tensors.pop(f"{module}.experts.{e}.{part}.{last}") for part in PARTS] for e in range(count)]
                tensors[f"{module}.experts.gate_up_proj{suffix}"] = torch.stack([torch.cat(each[:2]) for each in of])
                tensors[f"{module}.experts.down_proj{suffix}"] = torch.stack([each[2] for each in of])

    edit(directory, change)


# --- how near ---

# Of two modules of experts, given the same. Few codes of the hidden values differ, by the order of sums: at most 2^-8
# of the norm, as tiny_llama.NEAR has it. With another scale all are rounded elsewhere: 2^-5 of the norm.
NEAR_MODULES = 2.0**-7


def near_modules(device: torch.device) -> float:
    """NEAR_MODULES on any device: a GPU's matrix instructions keep 13 bits of a sum of FP8, so that more values round
    elsewhere."""
    return NEAR_MODULES * near(device) / NEAR


def routed(generator: torch.Generator, device, experts: int, rows: int = 5, d: int = SIZES["hidden_size"]):
    """What a module of experts is given: its tensors."""
    x = torch.randn(rows, d, generator=generator).bfloat16().to(device)
    index = torch.stack([torch.randperm(experts, generator=generator)[:2] for _ in range(rows)]).to(device)
    return x, index, torch.rand(rows, 2, generator=generator).to(device)


def furthest(got: torch.nn.Module, wanted: torch.nn.Module, generator: torch.Generator) -> float:
    """The largest distance of what the two models' experts make of the same rows."""
    found = expert_modules(got)
    arguments = routed(generator, next(got.parameters()).device, 4, 64)
    return max(distance(found[name](*arguments), module(*arguments)) for name, module in expert_modules(wanted).items())


def logits_with_one_routing(models: list[torch.nn.Module], ids: torch.Tensor) -> list[torch.Tensor]:
    """The models' logits, with the routing of the first: two sums of one product may choose other experts."""
    chosen: dict[str, tuple] = {}

    def of_first(name: str):
        def hook(module, inputs, output):
            return chosen.setdefault(name, output)

        return hook

    results = []
    for model in models:
        mixtures = {name: model.get_submodule(name.removesuffix(".experts")) for name in expert_modules(model)}
        routers = {name: getattr(each, "gate", None) or each.router for name, each in mixtures.items()}
        handles = [router.register_forward_hook(of_first(name)) for name, router in routers.items()]
        results.append(model(input_ids=ids, use_cache=False).logits)
        for handle in handles:
            handle.remove()
    return results
