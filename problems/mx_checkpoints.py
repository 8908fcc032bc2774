"""Checkpoints of MXFP4 and MXFP8 as others publish them: compressed-tensors' and Quark's settings, their files, what a
model of such files computes."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch

from problems import checkpoints, mx
from problems.mx import BLOCK
from problems.tiny_moe import apart, expert_modules

ROUTERS = "re:.*mlp.gate$"


def compressed(bits: int, inputs: dict | None, ignored: tuple[str, ...]) -> dict:
    """As llm-compressor writes it. inputs: what differs from the weights' settings."""
    name = {4: "mxfp4-pack-quantized", 8: "mxfp8-quantized"}[bits]
    mx_group = dict(num_bits=bits, type="float", strategy="group", group_size=BLOCK, symmetric=True)
    mx_group |= dict(scale_dtype="torch.uint8")
    group = dict(targets=["Linear"], weights=mx_group | dict(dynamic=False), format=name)
    group |= dict(input_activations=inputs and mx_group | inputs)
    settings = dict(quant_method="compressed-tensors", format=name, config_groups=dict(group_0=group))
    return settings | dict(ignore=["lm_head", ROUTERS, *ignored])


def quark(weight: str, inputs: str | None, ignored: tuple[str, ...]) -> dict:
    """As amd-quark exports it. weight, inputs: types of codes."""

    def tensor(dtype: str | None, dynamic: bool) -> dict | None:
        if dtype is None:
            return None
        scale = dict(scale_type="float", scale_format="e8m0", scale_calculation_mode="even")
        scale |= dict(observer_cls="PerBlockMXObserver", round_method="half_even", symmetric=None)
        return dict(dtype=dtype, qscheme="per_group", group_size=BLOCK, ch_axis=-1, is_dynamic=dynamic, **scale)

    general = dict(weight=tensor(weight, False), input_tensors=tensor(inputs, True), output_tensors=None, bias=None)
    rest = dict(algo_config=None, kv_cache_quant_config={}, layer_quant_config={}, layer_type_quant_config={})
    export = dict(kv_cache_group=[], weight_format="real_quantized", pack_method="reorder", min_kv_scale=0.0)
    exclude = ["lm_head", ROUTERS, *ignored]
    return rest | dict(quant_method="quark", exclude=exclude, export=export, global_quant_config=general)


@dataclass(frozen=True)
class Form:
    """settings: of what is ignored beside heads and routers. inputs: in fused_moe's words. name: of a linear's
    codes."""

    settings: Callable[[tuple[str, ...]], dict]
    bits: int
    inputs: str
    name: str = "weight"


DYNAMIC = dict(dynamic=True)
OF_ROWS = dict(num_bits=8, strategy="token", group_size=None, scale_dtype=None, dynamic=True)
FORMS = {
    "compressed-tensors, MXFP4A16": Form(lambda i: compressed(4, None, i), 4, "16bit", "weight_packed"),
    "compressed-tensors, MXFP4": Form(lambda i: compressed(4, DYNAMIC, i), 4, "mxfp4", "weight_packed"),
    "compressed-tensors, W4A8": Form(
        lambda i: compressed(4, DYNAMIC | dict(num_bits=8), i), 4, "mxfp8", "weight_packed"
    ),
    "compressed-tensors, W4A8, rows": Form(lambda i: compressed(4, OF_ROWS, i), 4, "fp8", "weight_packed"),
    "compressed-tensors, MXFP8A16": Form(lambda i: compressed(8, None, i), 8, "16bit"),
    "compressed-tensors, MXFP8": Form(lambda i: compressed(8, DYNAMIC, i), 8, "mxfp8"),
    "quark, MXFP4": Form(lambda i: quark("fp4", "fp4", i), 4, "mxfp4"),
    "quark, W4A16": Form(lambda i: quark("fp4", None, i), 4, "16bit"),
    "quark, W4A8": Form(lambda i: quark("fp4", "fp8_e4m3", i), 4, "mxfp8"),
    "quark, MXFP8": Form(lambda i: quark("fp8_e4m3", "fp8_e4m3", i), 8, "mxfp8"),
    "quark, MXFP8A16": Form(lambda i: quark("fp8_e4m3", None, i), 8, "16bit"),
}
# Of linears outside of mixtures, where experts alone are quantised.
NO_EXPERTS = ("re:.*self_attn.*",)


def mxfp4(kernel, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return kernel.reference.quantize_mxfp4(x, rounding="even")


def mxfp8(kernel, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    options = dict(scaling="group", group_size=BLOCK, scale_dtype=torch.float8_e8m0fnu)
    return kernel.reference.quantize_fp8(x, **options, out_dtype=torch.float8_e4m3fn)


def fp8_rows(kernel, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return kernel.reference.quantize_fp8(x, scaling="row", out_dtype=torch.float8_e4m3fn)


CODES = {"mxfp4": mxfp4, "mxfp8": mxfp8, "fp8": fp8_rows}


def entering(kernel, inputs: str, x: torch.Tensor) -> torch.Tensor:
    """float64 of x [T, K]: the numbers that enter a product."""
    return x.double() if inputs == "16bit" else mx.values(*CODES[inputs](kernel, x))


@torch.no_grad()
def quantised(
    kernel, form: str, model: torch.nn.Module, experts_alone: bool = False
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """(the model of the codes' numbers, the tensors of its files): every linear but routers and the head, and every
    matrix of an expert. The model's own dtype holds these numbers."""
    codes_of, name = CODES[f"mxfp{FORMS[form].bits}"], FORMS[form].name
    defined, tensors = copy.deepcopy(model), {}

    def stored(linear: str, weight: torch.Tensor) -> torch.Tensor:
        codes, scale = codes_of(kernel, weight)
        tensors[f"{linear}.{name}"], tensors[f"{linear}.weight_scale"] = codes, scale.view(torch.uint8)
        return mx.values(codes, scale)

    done = set()
    for each, module in linears(defined).items():
        if not experts_alone:
            module.weight.copy_(stored(each, module.weight))
            done.add(f"{each}.weight")
    for each, module in expert_modules(defined).items():
        for e in range(len(module.down_proj)):
            gate, up = module.gate_up_proj[e].chunk(2)
            for part, values in (("gate_proj", gate), ("up_proj", up), ("down_proj", module.down_proj[e])):
                values.copy_(stored(f"{each}.{e}.{part}", values))
    rest = {
        key: value.contiguous()
        for key, value in model.state_dict().items()
        if key not in done and ".experts." not in key and key != "model.rotary_emb.inv_freq"
    }
    if model.config.tie_word_embeddings:
        del rest["lm_head.weight"]
    return defined, tensors | rest


def linears(model: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    every = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return {name: module for name, module in every.items() if name != "lm_head"}


def write(kernel, form: str, model: torch.nn.Module, directory: Path, experts_alone: bool = False) -> torch.nn.Module:
    """Returns: the model of these numbers."""
    defined, tensors = quantised(kernel, form, model, experts_alone)
    directory.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(directory)
    settings = FORMS[form].settings(NO_EXPERTS if experts_alone else ())
    checkpoints.configure(directory, settings, architectures=[type(model).__name__])
    return defined


@torch.no_grad()
def computing(kernel, form: str, model: torch.nn.Module, experts_alone: bool = False) -> torch.nn.Module:
    """What the checkpoint of `model` computes, with inputs rounded as it says."""
    defined, inputs = quantised(kernel, form, model, experts_alone)[0], FORMS[form].inputs
    if inputs == "16bit":
        return defined
    left = set(linears(defined)) if experts_alone else set()

    def enter(module: torch.nn.Module, given: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        (x,) = given
        return (entering(kernel, inputs, x.flatten(0, -2)).view(x.shape).to(x.dtype),)

    defined = apart(defined)
    for name, module in linears(defined).items():
        if name not in left:
            module.register_forward_pre_hook(enter)
    return defined
