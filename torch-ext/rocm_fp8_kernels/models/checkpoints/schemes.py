"""Which linears a checkpoint quantises, and how: from the quantization_config of its config.json.

Every format becomes a QuantizationConfig of the library compressed-tensors, whose rules of targets and ignore then
name the linears.
"""

import fnmatch
import math
import re
from collections.abc import Callable
from typing import NamedTuple

import torch

from ...ops.mx import MX_BLOCK
from ..fp8.linear import BLOCK
from ..fp8.mx_linear import MX
from .names import no_sparsity
from .settings import check_settings

__all__ = ["EXPONENTS", "METHODS", "Scheme", "schemes_of"]

# Fp8Linear's words -> compressed-tensors'.
_WEIGHTS = {
    "tensor": {"strategy": "tensor"},
    "channel": {"strategy": "channel"},
    "block": {"strategy": "block", "block_structure": [BLOCK, BLOCK]},
    **{name: {"strategy": "group", "group_size": MX_BLOCK} for name in MX},
}
_INPUTS = {
    "tensor": {"strategy": "tensor", "dynamic": False},
    "row": {"strategy": "token", "dynamic": True},
    "group": {"strategy": "group", "group_size": BLOCK, "dynamic": True},
    **{name: {"strategy": "group", "group_size": MX_BLOCK, "dynamic": True} for name in MX},
}
_FP8 = ("float-quantized", "naive-quantized")
# Of weights.
FORMATS = {"mxfp4": "mxfp4-pack-quantized", "mxfp8": "mxfp8-quantized"}
_MIXED = "mixed-precision"
_KNOWN = (*_FP8, *FORMATS.values(), _MIXED)
EXPONENTS = (torch.uint8, torch.float8_e8m0fnu, torch.float32)  # what stored scales of MX weights are
# DeepSeek-V4's experts, by the names that they have here.
_EXPERTS = r"re:.*\.experts\.\d+\.(?:gate|up|down)_proj$"


class Scheme(NamedTuple):
    weights: str  # what has a weight scale, as Fp8Linear has it: "tensor", "channel" or "block"; or "mxfp4", "mxfp8"
    inputs: str  # "tensor": a stored scale; "row" or "group" (of 128): computed ones; beside MX weights MxLinear's
    scale_ub: float | None = None  # upper bound of a row's largest magnitude
    power_of_two: bool = False  # computed scales are rounded up to powers of two
    scale_name: str = "weight_scale"  # of the tensors, after the linear's name
    input_name: str = "input_scale"
    weight_name: str = "weight"

    @property
    def dynamic(self) -> bool:
        return self.inputs != "tensor"

    @property
    def mx(self) -> bool:
        return self.weights in MX

    def of_weight(self, *shape: int) -> tuple[list[tuple[int, ...]], tuple[torch.dtype, ...]]:
        """Shape and dtype of a stored weight of this shape, as Tensors.check takes them."""
        if self.weights == "mxfp4":
            return [(*shape[:-1], shape[-1] // 2)], (torch.uint8, torch.int8)  # DeepSeek's are int8
        return [shape], (torch.float8_e4m3fn,)


def schemes_of(
    model: torch.nn.Module, settings: dict, called: Callable[[str], list[str]] = lambda name: [name]
) -> dict[str, Scheme]:
    """Qualified names of the model's quantised linears -> how.

    Args:
        model: not quantised; on any device.
        settings: the quantization_config.
        called: of a module's name, what the settings may call it: its name, and older ones.

    Raises: ValueError that names what is unknown; ImportError where compressed-tensors is not installed.
    """
    try:
        from compressed_tensors.utils import is_match, match_targets
    except ImportError as error:  # its own dependencies, too: release 0.17 imports psutil and does not ask for it
        raise ImportError(f"FP8 checkpoints need the Python package compressed-tensors: {error}") from None

    method = settings.get("quant_method")
    if method not in METHODS:
        raise ValueError(f"quant_method {method!r}; known: {', '.join(METHODS)}")
    check_settings(settings, {"fp8": ("expert_dtype",)})
    config, more = _parsed(METHODS[method](settings)), {}
    if method == "fbgemm_fp8":
        more["scale_ub"] = _upper_bound(settings)
    if method == "fp8" and settings.get("weight_block_size") is not None:
        # DeepSeek-V3.1 and later: the scales of activations are those of the format UE8M0.
        more |= dict(scale_name="weight_scale_inv", power_of_two=settings.get("scale_fmt") == "ue8m0")
    by_target = {}
    for group, scheme in config.config_groups.items():
        of_group = _of_group(group, scheme)
        by_target |= dict.fromkeys(scheme.targets, of_group if of_group.mx else of_group._replace(**more))
    # Of Quark's patterns the first counts, of compressed-tensors' that which its library puts first.
    ranks = {target: rank if method == "quark" else 0 for rank, target in enumerate(by_target)}
    found = {}
    for name, module in model.named_modules():
        if not isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):  # a pattern may match what holds them, too
            continue
        aliases = called(name)
        if any(is_match(alias, module, config.ignore) for alias in aliases):
            continue
        targets = [target for alias in aliases for target in match_targets(alias, module, by_target)]
        if targets and isinstance(module, torch.nn.Embedding):
            raise ValueError(f"{name} is quantised, an Embedding; known: linears")
        if targets:
            found[name] = by_target[min(targets, key=lambda target: (_reach(target, aliases), ranks[target]))]
    if not found:
        raise ValueError("no linear of the model is quantised")
    return found


def _reach(target: str, aliases: list[str]) -> int:
    """Names go before patterns, and those before classes."""
    return 0 if target in aliases else 1 if target.startswith("re:") else 2


def _parsed(settings: dict):
    from compressed_tensors.quantization import QuantizationConfig
    from pydantic import ValidationError

    try:
        config = QuantizationConfig.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (NotImplementedError, KeyError) as error:
        raise ValueError(error.args[0]) from None
    if config.format not in _KNOWN:
        raise ValueError(f"format {config.format!r}; known: {', '.join(_KNOWN)}")
    return config


def _of_group(group: str, scheme) -> Scheme:
    def refuse(field: str, what: str):
        raise ValueError(f"config_groups.{group}.{field}: {what}")

    weights, inputs = scheme.weights, scheme.input_activations
    if scheme.output_activations is not None:
        refuse("output_activations", "quantised outputs; known: none")
    if scheme.format is not None and scheme.format not in _KNOWN:
        refuse("format", f"{scheme.format!r}; known: {', '.join(_KNOWN)}")
    if weights is not None and (found := _mx(weights)) is not None:
        if weights.dynamic:
            refuse("weights", "dynamic; known: static")
        if weights.actorder in ("group", "dynamic"):  # one is the other's older name
            refuse("weights.actorder", "'group', scales of columns that are not neighbours; known: none, static")
        kind = "16bit" if inputs is None else _mx(inputs) or ("fp8" if _is_fp8_row(inputs) else None)
        if kind is None or (inputs is not None and inputs.dynamic is not True) or (kind, found) == ("mxfp4", "mxfp8"):
            refuse("input_activations", f"{inputs.num_bits}-bit {inputs.strategy!r} beside {found} weights")
        return Scheme(found, kind)
    for field, given in (("weights", weights), ("input_activations", inputs)):
        if given is None:
            refuse(field, "not quantised; known: 8-bit float weights and activations")
        if (given.type, given.num_bits, given.symmetric) != ("float", 8, True):
            kind = "symmetric" if given.symmetric else "asymmetric"
            refuse(field, f"{given.num_bits}-bit {kind} {given.type}; known: 8-bit symmetric float")
    if weights.strategy not in _WEIGHTS or weights.dynamic:
        refuse("weights.strategy", f"{weights.strategy!r}; known: {', '.join(_WEIGHTS)}")
    if weights.block_structure not in (None, [BLOCK, BLOCK]):
        refuse("weights.block_structure", f"{weights.block_structure}; known: {[BLOCK, BLOCK]}")
    given = {"strategy": inputs.strategy, "dynamic": inputs.dynamic is True}
    if inputs.group_size is not None:
        given["group_size"] = inputs.group_size
    kinds = [kind for kind, wanted in _INPUTS.items() if wanted == given]
    if not kinds:
        kind = "dynamic" if given["dynamic"] else "static"
        of = f" of {inputs.group_size}" if inputs.group_size is not None else ""
        known = f"static tensor, dynamic token, dynamic group of {BLOCK}"
        refuse("input_activations.strategy", f"{inputs.strategy!r}{of}, {kind}; known: {known}")
    if (weights.strategy == "block") != (kinds[0] == "group"):
        refuse("weights.strategy", f"{weights.strategy!r} with inputs by {inputs.strategy!r}; known: block with group")
    return Scheme(weights.strategy, kinds[0])


def _mx(given) -> str | None:
    """The MX format that settings of weights or inputs say: groups of 32 with exponents for scales."""
    # Older releases leave it out where 4 bits in groups of 32 say it.
    exponents = given.scale_dtype == torch.uint8 or (given.num_bits == 4 and given.scale_dtype is None)
    if (given.type, given.strategy, given.group_size, given.symmetric) != ("float", "group", MX_BLOCK, True):
        return None
    return f"mxfp{given.num_bits}" if exponents and f"mxfp{given.num_bits}" in MX else None


def _is_fp8_row(given) -> bool:
    return (given.type, given.num_bits, given.symmetric, given.strategy) == ("float", 8, True, "token")


# --- the formats, as compressed-tensors' settings ---


def settings_of_groups(groups: dict[str, tuple[list[str], str, str]], ignore: list[str]) -> dict:
    """groups: name -> (targets, weights, inputs), the latter as in Scheme."""

    def bits(kind: str) -> dict:
        numbers = {"num_bits": 4 if kind == "mxfp4" else 8, "type": "float", "symmetric": True}
        return numbers | ({"scale_dtype": "torch.uint8"} if kind in MX else {})

    def group(targets: list[str], weights: str, inputs: str) -> dict:
        found = {"targets": targets, "weights": bits(weights) | _WEIGHTS[weights]}
        if inputs != "16bit":
            of_inputs = "row" if inputs == "fp8" else inputs
            found["input_activations"] = bits(of_inputs) | _INPUTS[of_inputs]
        return found

    formats = {name: FORMATS.get(weights, _FP8[0]) for name, (_, weights, _) in groups.items()}
    one = len(set(formats.values())) == 1
    return {
        "config_groups": {
            name: group(*of_group) | ({} if one else {"format": formats[name]}) for name, of_group in groups.items()
        },
        "format": next(iter(formats.values())) if one else _MIXED,
        "quantization_status": "compressed",
        "ignore": ignore,
    }


def _modules(names: list[str] | None) -> list[str]:
    """Ignore rules for a list of module names: each stands for the modules that it names, or whose names end in it,
    and for all inside them. transformers takes a name for a pattern, too, which begins where the module's name does.
    The head is never quantised in these formats."""
    rules = []
    for name in (*(names or ()), "lm_head"):
        if name.startswith("re:"):
            rules.append(name)
            continue
        literal = re.escape(name)
        rules += [r"re:(?:.*\.)?{literal}(?:\..*)?$", rf"re:.*{literal}$"]
        try:
            re.compile(name)
        except re.error:
            continue  # no pattern
        rules.append(rf"re:(?:{name})(?:(?<=\.)|(?=\.|$))")
    return rules


def _compressed_tensors(settings: dict) -> dict:
    no_sparsity(settings)
    return settings


def _fp8(settings: dict) -> dict:
    block = settings.get("weight_block_size")
    if block not in (None, [BLOCK, BLOCK]):
        raise ValueError(f"weight_block_size {block}; known: {[BLOCK, BLOCK]}")
    scheme = settings.get("activation_scheme")
    if scheme not in ("static", "dynamic"):
        raise ValueError(f"activation_scheme {scheme!r}; known: static, dynamic")
    if block is not None and scheme != "dynamic":
        raise ValueError(f"activation_scheme {scheme!r} with weight_block_size; known: dynamic")
    ignored = [*(settings.get("ignored_layers") or ()), *(settings.get("modules_to_not_convert") or ())]
    kinds = ("block", "group") if block is not None else ("tensor", "row" if scheme == "dynamic" else "tensor")
    groups, experts = {"fp8": (["Linear"], *kinds)}, settings.get("expert_dtype") or "fp8"
    if experts not in ("fp8", "fp4") or (experts == "fp4" and scheme != "dynamic"):
        raise ValueError(f"expert_dtype {experts!r} with activation_scheme {scheme!r}; known: fp8, fp4 with dynamic")
    if experts == "fp4":
        # Inputs in groups of 128 with powers of two; groups of 32 are finer, and what kernels take.
        groups["experts"] = [_EXPERTS], "mxfp4", "mxfp8"
    return settings_of_groups(groups, _modules(ignored))


def _fbgemm(settings: dict) -> dict:
    ignored = _modules(settings.get("modules_to_not_convert"))
    return settings_of_groups({"fbgemm": (["Linear"], "channel", "row")}, ignored)


def _upper_bound(settings: dict) -> float | None:
    bound = settings.get("activation_scale_ub")
    if bound is not None and not (isinstance(bound, (int, float)) and 0 < bound < math.inf):
        raise ValueError(f"activation_scale_ub {bound!r}; needs a positive number")
    return bound


def _quark(settings: dict) -> dict:
    """Patterns are fnmatch's. Quantised outputs are those of the KV cache, which stays in the model's dtype."""

    def rules(patterns) -> list[str]:
        return [name if name.startswith("re:") else f"re:{fnmatch.translate(name)}" for name in patterns]

    groups, ignore = {}, rules(settings.get("exclude") or ())
    cached = (settings.get("export") or {}).get("kv_cache_group") or ("*k_proj", "*v_proj")
    for pattern, inner in (settings.get("layer_quant_config") or {}).items():
        # Beside a quantised cache vLLM passes over those of queries, too.
        of_cache = pattern == "*q_proj" or any(fnmatch.fnmatchcase(pattern, each) for each in cached)
        _refuse_others(f"layer_quant_config.{pattern}", inner or {}, ("bias",) if of_cache else _OTHERS)
        if inner is None or (inner.get("weight") is None and inner.get("input_tensors") is None):
            ignore += rules([pattern])
        else:
            groups[pattern] = (rules([pattern]), *_quark_tensors(f"layer_quant_config.{pattern}", inner))
    general = settings.get("global_quant_config") or {}
    _refuse_others("global_quant_config", general, _OTHERS)
    if general.get("weight") is not None or not groups:
        groups["global"] = (["Linear"], *_quark_tensors("global_quant_config", general))
    return settings_of_groups(groups, ignore)


_OTHERS = ("output_tensors", "bias")


def _refuse_others(where: str, settings: dict, names: tuple[str, ...]) -> None:
    for name in names:
        if settings.get(name) is not None:
            raise ValueError(f"{where}.{name}: quantised; known: weight, input_tensors, outputs of the KV cache")


def _quark_tensors(where: str, settings: dict) -> tuple[str, str]:
    """(weights, inputs), as in Scheme."""

    def read(name: str) -> tuple[str, bool]:
        tensor = settings.get(name)
        if not isinstance(tensor, dict):
            raise ValueError(f"{where}.{name}: {tensor!r}; known: fp8_e4m3, fp4")
        dtype, exponents = tensor.get("dtype"), tensor.get("scale_format") == "e8m0"
        if dtype not in ("fp8_e4m3", "fp4"):
            raise ValueError(f"{where}.{name}.dtype {dtype!r}; known: fp8_e4m3, fp4")
        if tensor.get("qscheme") == "per_group" and exponents and tensor.get("group_size") == MX_BLOCK:
            return "mxfp4" if dtype == "fp4" else "mxfp8", bool(tensor.get("is_dynamic"))
        if dtype == "fp4":
            known = f"per_group, of {MX_BLOCK}, scale_format e8m0"
            raise ValueError(f"{where}.{name}.qscheme {tensor.get('qscheme')!r}; known of fp4: {known}")
        return tensor.get("qscheme"), bool(tensor.get("is_dynamic"))

    weight = read("weight")
    if weight[0] in MX and weight[1]:
        raise ValueError(f"{where}.weight.is_dynamic True; known: static")
    if weight[0] in MX and settings.get("input_tensors") is None:
        return weight[0], "16bit"
    inputs = read("input_tensors")
    if weight[0] in MX:
        if inputs in ((name, True) for name in MX) and (weight[0], inputs[0]) != ("mxfp8", "mxfp4"):
            return weight[0], inputs[0]
        kind = "dynamic" if inputs[1] else "static"
        raise ValueError(f"{where}.input_tensors.qscheme {inputs[0]!r}, {kind}, beside {weight[0]} weights")
    if weight not in (("per_tensor", False), ("per_channel", False)):
        raise ValueError(f"{where}.weight.qscheme {weight[0]!r}; known: per_tensor, per_channel, static")
    if inputs not in (("per_tensor", False), ("per_channel", True), ("per_token", True)):
        kind = "dynamic" if inputs[1] else "static"
        raise ValueError(
            f"{where}.input_tensors.qscheme {inputs[0]!r}, {kind}; known: per_tensor static, per_channel dynamic"
        )
    return weight[0].removeprefix("per_"), "row" if inputs[1] else "tensor"


def _mxfp4(settings: dict) -> dict:
    """gpt-oss': its experts alone."""
    ignored = _modules(settings.get("modules_to_not_convert"))
    experts = [r"re:.*\.experts\.\d+\.(?:gate|up|down)_proj$"]
    return settings_of_groups({"mxfp4": (experts, "mxfp4", "16bit")}, ignored)


METHODS = {
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "quark": _quark,
    "fbgemm_fp8": _fbgemm,
    "mxfp4": _mxfp4,
}
