"""FP8 checkpoints of a tiny Llama in each format, and what a model of such files computes, by the schemes' definitions.

compressed-tensors makes its own. The others are written here in the layout of the published ones: AutoFP8 and fbgemm
quantise on GPUs alone, and amd-quark asks for 35 packages more (ONNX, pyarrow, datasets) and compiles for 20 seconds
when it is first imported. Its layout here is what amd-quark 0.13 exported of such a Llama.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import torch
from transformers import FineGrainedFP8Config

from problems.buffers import same_bytes

FP8_MAX, BLOCK = 448.0, 128
# The linears that share an input, as parts of a decoder layer's names.
JOINED = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
    ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
)


@dataclass(frozen=True)
class Format:
    """settings: of the names of ignored modules, its quantization_config. None: the library writes it."""

    settings: Callable[[list[str]], dict] | None
    channel: bool = False
    dynamic: bool = False
    shape: Callable[[torch.Tensor], torch.Tensor] = lambda scale: scale  # of the scales [n, 1] or [1] that it stores
    scale_ub: float | None = None
    of_the_cache: tuple[str, ...] = ()  # names of scales that nothing reads
    block: bool = False  # a weight scale for 128x128, scales of an input's groups of 128
    power_of_two: bool = False  # the latter are
    scale_name: str = "weight_scale"
    head: bool = field(default=False)  # whether the head can be quantised


def quark(ignored: list[str], channel: bool = False) -> dict:
    def tensor(scheme: str, dynamic: bool, axis: int | None) -> dict:
        names = dict(dtype="fp8_e4m3", observer_cls="PerTensorMinMaxObserver", round_method="half_even")
        return names | dict(qscheme=scheme, is_dynamic=dynamic, ch_axis=axis, group_size=None, symmetric=None)

    static = tensor("per_tensor", False, None)
    general = dict(weight=static, input_tensors=static, output_tensors=None, bias=None)
    if channel:
        rows = dict(weight=tensor("per_channel", False, 0), input_tensors=tensor("per_channel", True, 1))
        general |= rows
    cached = {} if channel else {f"*{name}": general | dict(output_tensors=static) for name in ("k_proj", "v_proj")}
    export = dict(kv_cache_group=["*k_proj", "*v_proj"], weight_format="real_quantized", pack_method="reorder")
    return dict(
        quant_method="quark",
        quant_mode="eager_mode",
        algo_config=None,
        exclude=[*ignored, "lm_head"],
        export=export | dict(min_kv_scale=0.0, weight_merge_groups=None),
        global_quant_config=general,
        layer_quant_config=cached,
        layer_type_quant_config={},
    )


def autofp8(activations: str) -> Callable[[list[str]], dict]:
    return lambda ignored: dict(
        quant_method="fp8",
        activation_scheme=activations,
        ignored_layers=[*ignored, "lm_head"],
        kv_cache_scheme="static",
    )


def fbgemm(ignored: list[str]) -> dict:
    return dict(quant_method="fbgemm_fp8", activation_scale_ub=0.75, modules_to_not_convert=["lm_head", *ignored])


def deepseek(**more) -> Callable[[list[str]], dict]:
    """As DeepSeek-V3 and Qwen3-FP8 have it."""
    settings = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[BLOCK, BLOCK])
    return lambda ignored: settings | more | dict(modules_to_not_convert=[*ignored, "lm_head"])


def compressed_blocks(ignored: list[str]) -> dict:
    fp8 = dict(num_bits=8, type="float", symmetric=True)
    group = dict(
        targets=["Linear"],
        weights=fp8 | dict(strategy="block", block_structure=[BLOCK, BLOCK]),
        input_activations=fp8 | dict(strategy="group", group_size=BLOCK, dynamic=True),
    )
    settings = dict(quant_method="compressed-tensors", format="float-quantized", config_groups={"group_0": group})
    return settings | dict(ignore=[*ignored, "lm_head"])


def scalar(scale: torch.Tensor) -> torch.Tensor:
    return scale.reshape(())


def bfloat16_scalar(scale: torch.Tensor) -> torch.Tensor:
    return scale.reshape(()).bfloat16()


FORMATS = {
    "compressed-tensors, tensor, static": Format(None, head=True),
    "compressed-tensors, channel, static": Format(None, channel=True, head=True),
    "compressed-tensors, tensor, dynamic": Format(None, dynamic=True, head=True),
    "compressed-tensors, channel, dynamic": Format(None, channel=True, dynamic=True, head=True),
    "fp8, static": Format(autofp8("static"), shape=scalar, of_the_cache=("k_scale", "v_scale")),
    "fp8, dynamic": Format(autofp8("dynamic"), dynamic=True, shape=scalar),
    "quark": Format(quark, shape=bfloat16_scalar, of_the_cache=("k_proj.output_scale", "v_proj.output_scale")),
    "quark, channel": Format(lambda names: quark(names, True), True, True, shape=lambda scale: scale.reshape(-1)),
    # The bound is so low that most rows meet it.
    "fbgemm_fp8": Format(fbgemm, channel=True, dynamic=True, scale_ub=0.75),
    "compressed-tensors, blocks": Format(compressed_blocks, dynamic=True, block=True),
    "fp8, blocks": Format(deepseek(), dynamic=True, block=True, scale_name="weight_scale_inv"),
    "fp8, blocks, ue8m0": Format(
        deepseek(scale_fmt="ue8m0"), dynamic=True, block=True, power_of_two=True, scale_name="weight_scale_inv"
    ),
}


def linears(model: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}


def input_maxima(model: torch.nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    largest = {}
    handles = [
        module.register_forward_pre_hook(
            lambda _, inputs, name=name: largest.update({name: inputs[0].abs().max().float()})
        )
        for name, module in linears(model).items()
    ]
    model(input_ids=ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return largest


def input_scales(model: torch.nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """float32 [1] each. Parts of a joined linear differ on purpose: the largest alone saturates nothing."""
    scales = {name: by_largest(most).reshape(1) for name, most in input_maxima(model, ids).items()}
    return {name: s * (0.5 if name.endswith(("q_proj", "gate_proj")) else 1) for name, s in scales.items()}


def by_largest(amax: torch.Tensor) -> torch.Tensor:
    """The scale of a largest magnitude. On a GPU torch would multiply by a number's reciprocal."""
    return amax / torch.full_like(amax, FP8_MAX)


def weight_scale(weight: torch.Tensor, form: Format) -> torch.Tensor:
    if form.block:
        rows = [[part.float().abs().amax() for part in row.split(BLOCK, 1)] for row in weight.split(BLOCK, 0)]
        return by_largest(torch.tensor(rows))
    largest = weight.float().abs().amax(1, keepdim=True) if form.channel else weight.float().abs().amax().reshape(1)
    return by_largest(largest.clamp(min=1e-10))  # of a row of zeros, too


def of_each(scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A stored scale as one that broadcasts over the weight."""
    if scale.dim() == 2 and scale.shape == tuple(-(-size // BLOCK) for size in weight.shape):
        spread = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return spread[: weight.shape[0], : weight.shape[1]]
    return scale.reshape(-1, 1) if scale.numel() > 1 else scale


def group_scales(x: torch.Tensor, power_of_two: bool) -> torch.Tensor:
    """One for each element of x, the same for each 128 of a row."""
    parts = []
    for part in x.split(BLOCK, -1):
        scale = by_largest(part.abs().amax(-1, keepdim=True).clamp(min=1e-10))
        parts.append((torch.exp2(torch.ceil(torch.log2(scale))) if power_of_two else scale).expand_as(part))
    return torch.cat(parts, -1)


def to_fp8(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def write(
    name: str, model: torch.nn.Module, ids: torch.Tensor, directory: Path, ignored: tuple[str, ...] = ("lm_head",)
):
    """Writes `model`, which is left as it is. ignored: names of linears; the head is one of them or is quantised."""
    form, scales = FORMATS[name], input_scales(model, ids)
    model = copy.deepcopy(model)
    if form.settings is None:
        return _compressed_by_the_library(form, model, scales, directory, ignored)
    model.save_pretrained(directory)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    for linear, module in linears(model).items():
        if linear in ignored:
            continue
        scale = weight_scale(module.weight, form)
        state[f"{linear}.weight"] = to_fp8(module.weight.float() / of_each(scale, module.weight))
        state[f"{linear}.{form.scale_name}"] = form.shape(scale)
        if not form.dynamic:
            state[f"{linear}.input_scale"] = form.shape(scales[linear])
    for layer in range(len(model.model.layers)):
        for scale in form.of_the_cache:
            state[f"model.layers.{layer}.self_attn.{scale}"] = torch.tensor(0.1)
    safetensors.torch.save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    configure(directory, form.settings([name for name in ignored if name != "lm_head"]))


def _compressed_by_the_library(form: Format, model, scales, directory: Path, ignored: tuple[str, ...]) -> None:
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, apply_quantization_config

    fp8 = dict(num_bits=8, type="float", symmetric=True)
    group = dict(
        targets=["Linear"],
        weights=fp8 | dict(strategy="channel" if form.channel else "tensor"),
        input_activations=fp8 | dict(strategy="token" if form.dynamic else "tensor", dynamic=form.dynamic),
    )
    settings = dict(config_groups={"group_0": group}, ignore=list(ignored), quantization_status="frozen")
    apply_quantization_config(model, QuantizationConfig.model_validate(settings))
    for name, module in linears(model).items():
        if hasattr(module, "quantization_scheme"):
            module.quantization_status = QuantizationStatus.FROZEN
            module.weight_scale.copy_(weight_scale(module.weight, form))
            if not form.dynamic:
                module.input_scale.copy_(scales[name])
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(directory)
    compressor.update_config(str(directory))


def configure(directory: Path, quantization: dict | None, **changes) -> None:
    """Changes config.json: its quantization_config (None: as it is) and other entries."""
    file = directory / "config.json"
    config = json.loads(file.read_text()) | changes
    if quantization is not None:
        config["quantization_config"] = quantization
    file.write_text(json.dumps(config))


def edit(
    directory: Path,
    tensors: Callable[[dict[str, torch.Tensor]], object] | None = None,
    config: Callable[[dict], object] | None = None,
) -> None:
    """Changes a checkpoint of one file: what `tensors` does to its tensors, `config` to its config.json."""
    if tensors is not None:
        held = stored(directory)
        tensors(held)
        held = {name: value.contiguous().clone() for name, value in held.items()}
        safetensors.torch.save_file(held, directory / "model.safetensors", metadata={"format": "pt"})
    if config is not None:
        file = directory / "config.json"
        settings = json.loads(file.read_text())
        config(settings)
        file.write_text(json.dumps(settings))


def copied_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same_state(model: torch.nn.Module, wanted: torch.nn.Module | dict[str, torch.Tensor]) -> None:
    """Names, types and bytes. wanted: a model, or its state."""
    state, wanted = model.state_dict(), wanted if isinstance(wanted, dict) else wanted.state_dict()
    assert state.keys() == wanted.keys()
    for name, value in state.items():
        assert same_bytes(value, wanted[name]), name


def saved_and_loaded(of, model: torch.nn.Module, directory: Path, device="cpu") -> torch.nn.Module:
    """What comes back is the same model. of: kernel.quantization or kernel.smoothquant."""
    of.save_quantized(model, directory)
    loaded = of.load_quantized(directory, device)
    assert_same_state(loaded, model)
    return loaded


def in_16_bits(directory: Path) -> dict:
    """What from_pretrained is told, so that it reads "fp8" on a machine with a GPU as on one without: there it would
    take FP8 kernels from the Hub."""
    settings = json.loads((directory / "config.json").read_text())["quantization_config"]
    of_gpus = settings["quant_method"] == "fp8" and torch.cuda.is_available()
    return dict(quantization_config=FineGrainedFP8Config(dequantize=True)) if of_gpus else {}


def stored(directory: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in directory.glob("*.safetensors") for k, v in safetensors.torch.load_file(file).items()}


def by_definition(
    model: torch.nn.Module, directory: Path, form: Format, of_one_input: Callable[[str], list[str]] | None = None
) -> torch.nn.Module:
    """A copy of `model` whose linears dequantise the stored weights, quantise their inputs and add in float32.

    of_one_input: of a linear's name, those by whose largest input_scale its input is quantised; as in a Llama if None.
    """
    model, device = copy.deepcopy(model), next(model.parameters()).device
    tensors = {name: tensor.to(device) for name, tensor in stored(directory).items()}

    def forward(module: torch.nn.Linear, weight: torch.Tensor, scale: torch.Tensor | None):
        def call(x: torch.Tensor) -> torch.Tensor:
            wide, by = x.float(), scale
            if form.block:
                by = group_scales(wide, form.power_of_two)
                out = (to_fp8(wide / by).float() * by) @ weight.t()
                return (out if module.bias is None else out + module.bias.float()).to(x.dtype)
            if by is None:
                largest = wide.abs().amax(-1, keepdim=True)
                by = by_largest(largest if form.scale_ub is None else largest.clamp(max=form.scale_ub))
            out = (to_fp8(wide / by).float() @ weight.t()) * by
            return (out if module.bias is None else out + module.bias.float()).to(x.dtype)

        return call

    group_of = {name: group for group in JOINED for name in group}
    for name, module in linears(model).items():
        codes = tensors.get(f"{name}.weight")
        if codes is None or codes.dtype != torch.float8_e4m3fn:
            continue
        # Blocks are written as "fp8", with another name of the scales, unless they are cut off at an edge.
        scale = next(
            tensors[each] for last in (form.scale_name, "weight_scale_inv") if (each := f"{name}.{last}") in tensors
        )
        scale = scale.float()
        layer, part = ".".join(name.split(".")[:3]), ".".join(name.split(".")[3:])
        shared = [f"{layer}.{other}.input_scale" for other in group_of.get(part, ())] or [f"{name}.input_scale"]
        if of_one_input is not None:
            shared = [f"{other}.input_scale" for other in of_one_input(name)]
        given = [tensors[other].float().reshape(1) for other in shared if other in tensors]
        # The largest of those that are joined, where the half of the layer is quantised as a whole.
        whole = of_one_input is not None or fused(tensors, name)
        own = tensors.get(f"{name}.input_scale")
        static = None if own is None else (torch.cat(given).max() if whole else own.float().reshape(1))
        module.forward = forward(module, codes.float() * of_each(scale, codes), static)
    return model


def fused(tensors: dict[str, torch.Tensor], name: str) -> bool:
    """Whether all linears of the half of a layer that holds this one are quantised."""
    half, _, _ = name.rpartition(".")
    weights = [value for key, value in tensors.items() if key.startswith(f"{half}.") and key.endswith("_proj.weight")]
    return "layers" in half and all(value.dtype == torch.float8_e4m3fn for value in weights)
