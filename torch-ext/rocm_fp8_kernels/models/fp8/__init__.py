"""From a float16 or bfloat16 model, or an FP8 checkpoint, to one whose linears are FP8.

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    kernel.quantization.quantize(model, [input_ids, ...])  # or (model, activations="dynamic"): without text
    kernel.quantization.save_quantized(model, "model-fp8")  # for transformers and vLLM, too
    ...
    model = kernel.quantization.load_quantized("model-fp8", device="cuda")  # or another's checkpoint: ../checkpoints/
    model = kernel.quantization.convert(AutoModelForCausalLM.from_pretrained("model-fp8"))  # compressed-tensors alone
    ...
    with kernel.comm.Communicator() as ranks:  # tensor parallelism on one host, under torchrun
        kernel.quantization.parallelize(model, ranks)

The decoder layers of Llama, Mistral, Qwen2, Qwen3, Mixtral, Qwen3-MoE and DeepSeek-V3 (architectures.py) are fused: Q,
K and V become one linear, Gate and Up another, and norms and SwiGLU hand FP8 on. Of any other model, and of a layer
that cannot be fused, the linears are quantised one by one, and a warning says so. Embeddings, norms, rotary embeddings,
attention itself, routers and the head stay as they are.
"""

from collections.abc import Iterable, Mapping

import torch

from ...comm import Communicator
from ...ops import fp8_dtype as _device_fp8_dtype
from ...ops.arguments import FP8
from ...ops.linear import gemm_for
from ..calibration import observe
from ..checkpoints import check_settings, convert, load_quantized, save_quantized
from ..codes import refuse_adapters, refuse_save_pretrained
from .linear import GRANULARITIES, Fp8Linear

__all__ = [
    "Fp8Linear",
    "calibrate",
    "check_settings",
    "convert",
    "gemm_for",
    "latent_cache",
    "load_quantized",
    "parallelize",
    "quantize",
    "save_quantized",
    "weights_changed",
]

_ACTIVATIONS = ("static", "dynamic")
_MOST_HEADROOM = 64


@torch.no_grad()
def calibrate(model: torch.nn.Module, inputs: Iterable[torch.Tensor | Mapping]) -> dict[str, float]:
    """The largest magnitude that the input of each linear to be quantised takes on `inputs`.

    Args:
        model: not quantised.
        inputs: token ids, int64 [batch, length], or dictionaries with input_ids and perhaps attention_mask and
            position_ids, or one of these; on any device. Text like that which the model will see. Positions that a mask
            leaves out do not count.

    Returns: qualified name of the linear ("model.layers.0.mlp.down_proj") -> largest magnitude. Of linears that are
        joined, the first.
    Raises: ValueError where the model has no linear to quantise, inputs are empty or something else, none of them
        reaches a linear, or an activation is NaN or infinite.
    """
    from . import planning

    planned = planning.plan(model, dict.fromkeys(planning.quantisable(model)))
    largest: dict[str, torch.Tensor] = {}

    def note(name: str):
        def show(values: torch.Tensor) -> None:
            if values.numel():
                most = values.abs().amax().float()
                largest[name] = torch.maximum(largest[name], most) if name in largest else most

        return show

    firsts = [names[0] for names in planned.inputs()]
    observe(model, inputs, {name: note(name) for name in firsts})
    unseen = [name for name in firsts if name not in largest]
    if unseen:
        raise ValueError(f"inputs: none of them reaches {unseen[0]}; activations='dynamic' needs none")
    result = {name: largest[name].item() for name in firsts}
    for name, value in result.items():
        if not value < float("inf"):
            raise ValueError(f"the input of {name} becomes {value}")
    return result


@torch.inference_mode(False)
@torch.no_grad()
def quantize(
    model: torch.nn.Module,
    inputs: Iterable[torch.Tensor | Mapping] | None = None,
    *,
    granularity: str | None = "channel",
    fp8_dtype: torch.dtype | None = None,
    activations: str = "static",
    headroom: float = 1.0,
    experts: str | None = None,
) -> torch.nn.Module:
    """Quantises a model's linears, in place: those of its decoder layers, of an unknown model all but the head; and its
    mixtures of experts. Whatever chooses experts stays in its type. So do experts with a gate that fused_moe has not,
    and linears whose weight other code reads (T5's wo, Mamba's dt_proj): the warning names them.

    Args:
        model: a transformers model in float16 or bfloat16. What is not fused is named by one warning.
        inputs: as in `calibrate`, for static scales; None for dynamic ones.
        granularity: "channel": a weight scale for each output channel; "tensor": one a (joined) linear; "block": one
            for each 128x128 of a linear, and scales of an input's groups of 128, as DeepSeek-V3 has them (with
            activations="dynamic"). None, with experts="mxfp4": linears stay as they are, and nothing is calibrated.
        fp8_dtype: torch.float8_e4m3fn or torch.float8_e4m3fnuz; that of the model's device if None.
        activations: "static": each linear's input has one scale, which puts the largest magnitude in `inputs` on the
            format's largest number; what exceeds it later saturates. "dynamic": each row of an input, or each group
            of a row, has a scale of its own, computed by the operator that quantises it. Experts' inputs are always
            so: few tokens of a calibration reach each of them.
        headroom: of static scales, 1 to 64: the format's largest number stands for so many times the largest magnitude
            in `inputs`. Text that is unlike them then saturates later; the smallest numbers are rounded more coarsely,
            those above 2^-14 of the largest, times headroom, as before.
        experts: "mxfp4": mixtures get weights of MXFP4, by quantize_mxfp4(rounding="even"), and inputs in 16 bits, as
            gpt-oss has them. What MXFP4 codes stand for stays what it is. None: they are quantised by `granularity`.

    Returns: model. It runs on the package's operators, which have no backward: under torch.no_grad().
    Raises: ValueError that says what is wrong, before the model is changed.
    """
    from . import experts as stacks
    from . import planning

    refuse_adapters(model)
    if experts not in (None, "mxfp4"):
        raise ValueError(f"experts: {experts!r}; needs 'mxfp4' or None")
    if granularity not in GRANULARITIES and (granularity is not None or experts is None):
        raise ValueError(f"granularity: {granularity!r}; needs one of {', '.join(GRANULARITIES)}")
    if activations not in _ACTIVATIONS:
        raise ValueError(f"activations: {activations!r}; needs 'static' or 'dynamic'")
    if granularity is None and fp8_dtype is not None:
        raise ValueError(f"fp8_dtype: {fp8_dtype}; granularity None needs none")
    names, unquantised = [], {}
    if granularity is not None:
        names, unquantised = planning.quantisable(model), planning.unquantised(model)
    if experts is not None:
        stacks.check_mxfp4(model)
    dynamic = activations == "dynamic" or granularity is None
    if granularity == "block" and not dynamic:
        raise ValueError(f"activations: {activations!r}; granularity 'block' needs 'dynamic'")
    if dynamic != (inputs is None):
        raise ValueError("inputs: dynamic scales take none" if dynamic else "inputs: None; calibration needs text")
    if not isinstance(headroom, (int, float)) or not 1 <= headroom <= _MOST_HEADROOM:
        raise ValueError(f"headroom: {headroom!r}; needs a number from 1 to {_MOST_HEADROOM}")
    if dynamic and headroom != 1:
        raise ValueError(f"headroom: {headroom}; dynamic scales need none")
    if names:
        fp8_dtype = fp8_dtype or _device_fp8_dtype(model.get_submodule(names[0]).weight.device)
    if names and fp8_dtype not in FP8:
        raise ValueError(f"fp8_dtype: {fp8_dtype}; allowed: {', '.join(map(str, FP8))}")
    planning.check_linears(model, names)
    stacks.check_experts(model)
    largest = {} if dynamic else calibrate(model, inputs)

    def join(parts: list[str]) -> Fp8Linear:
        linears = [model.get_submodule(part) for part in parts]
        if dynamic:
            return Fp8Linear.quantized(linears, None, granularity, fp8_dtype)
        scale = headroom * largest[parts[0]] / torch.finfo(fp8_dtype).max or 1.0
        return Fp8Linear.quantized(linears, torch.tensor([scale]), granularity, fp8_dtype)

    planned = planning.plan(model, dict.fromkeys(names))
    planning.replace_linears(model, planned, join)
    planned.stay |= unquantised | stacks.replace_experts(model, experts or granularity, fp8_dtype)
    planning.finish(model)
    refuse_save_pretrained(model, "quantization.save_quantized")
    planned.warn(model)
    return model.requires_grad_(False)


@torch.inference_mode(False)
@torch.no_grad()
def weights_changed(model: torch.nn.Module) -> torch.nn.Module:
    """After a write to weights that torch does not count (through `.data`, or by a collective): computes anew, in
    place, what is computed from them. That is DeepSeek-V3's absorbed projections, and int8's sums for zero points.

    Without it the absorbed projections follow with the next prompt into an empty cache. Writes that torch counts
    (copy_, load_state_dict) need no call; in a compiled or captured step they count with the next prompt, too.

    Returns: model.
    """
    from ..int8.modules import Int8Linear
    from .latent import FusedLatentAttention

    for module in model.modules():
        if isinstance(module, FusedLatentAttention):
            module.absorb()
        elif isinstance(module, Int8Linear):
            module.sum_weights()
    return model


def latent_cache(config, max_length: int | None = None, *, fp8: bool = False):
    """A cache of DeepSeek-V3's latent vectors: with it a model that is quantised decodes by mla_decode.

        model.generate(**inputs, past_key_values=kernel.quantization.latent_cache(model.config))

    It holds 576 numbers a token and layer, in the model's dtype or, with `fp8`, most of them in FP8. Prompts of unlike
    lengths may be padded on either side. A prompt goes through transformers' attention; tokens behind it through
    mla_decode, any number at once.

    Args:
        config: the model's, with kv_lora_rank 512 and qk_rope_head_dim 64.
        max_length: how many tokens a sequence has at most, padding included: then memory is allocated once, nothing
            is read on the host, and decode steps can be compiled or recorded in a graph. A token beyond is an
            IndexError, on a GPU and in compiled steps an assertion on the device. None: it grows.
        fp8: 656 bytes a token and layer for 1152: 512 e4m3fn codes with four scales, as DeepSeek lays them out. Steps
            read it faster, and are less exact (docs/numerics.md).

    Returns: a transformers Cache. Its attention_mask is two-dimensional, or what transformers makes of it: causal, and
        of tokens that the cache holds what it was. It is copied, and pickled, with what it holds.
    Raises: ValueError that names the argument.
    """
    from .cache import LatentCache

    return LatentCache(config, max_length, fp8)


def parallelize(model: torch.nn.Module, communicator: Communicator) -> torch.nn.Module:
    """Tensor parallelism: keeps this rank's share of a model that `quantize`, `load_quantized` or `convert` has made.

    All ranks call it with the same model. Then they call the model with the same inputs, and
    get the same logits, bit for bit. They differ from one rank's: partial products are rounded before they are added.

    Args:
        model: all of whose decoder layers are fused. Of a mixture each rank keeps a part of every expert, of DeepSeek's
            attention heads; its latent cache is whole on each. It is changed in place.
        communicator: of the ranks. It must outlive the model's calls.

    Returns: model.
    Raises: ValueError that names what cannot be split, before the model is changed.
    """
    from . import parallel

    return parallel.parallelize(model, communicator)
