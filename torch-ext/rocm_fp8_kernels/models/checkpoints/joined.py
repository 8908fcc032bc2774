"""Stored linears as Fp8Linear or MxLinear: a checkpoint's, or those of a model that transformers has loaded."""

from collections.abc import Callable

import torch

from ...ops import fp8_dtype as _device_fp8_dtype
from ..codes import join
from ..fp8.linear import Fp8Linear, QuantizedLinear, join_block_scales
from ..fp8.mx_linear import MxLinear
from .schemes import Scheme

__all__ = ["check_codes", "exponents_of", "input_kinds", "joined", "scale_of", "to_format_of"]


def input_kinds(schemes: dict[str, Scheme]) -> dict[str, tuple]:
    """How each linear's input is quantised, and the format of MX weights: linears of one input are joined where these
    are equal."""
    return {
        name: (scheme.inputs, scheme.scale_ub, scheme.power_of_two, scheme.weights if scheme.mx else None)
        for name, scheme in schemes.items()
    }


def joined(
    names: list[str],
    schemes: dict[str, Scheme],
    read: Callable[[str], torch.Tensor],
    dtype: torch.dtype,
    *,
    bias: bool,
) -> QuantizedLinear:
    """The linears of these names, which have one input, as one.

    Args:
        read: of a tensor's qualified name, the tensor, in memory that the result may keep.
        dtype: of the result.
        bias: whether the linears have one.

    Raises: ValueError that names a scale that is no positive number, or a weight that holds NaN.
    """
    scheme = schemes[names[0]]
    called = [f"{name}.{schemes[name].weight_name}" for name in names]
    weights = [read(name) for name in called]
    if scheme.weights == "mxfp4":
        weights = [weight.view(torch.uint8) for weight in weights]
    for name, weight in zip(called, weights) if scheme.weights != "mxfp4" else ():
        check_codes(name, weight)
    added = torch.cat([read(f"{name}.bias").to(dtype) for name in names]) if bias else None
    if scheme.mx:
        scale = join([exponents_of(read, f"{name}.{schemes[name].scale_name}") for name in names])
        return MxLinear(torch.cat(weights), scale, added, inputs=scheme.inputs, dtype=dtype)
    scales = [scale_of(read, f"{name}.{schemes[name].scale_name}") for name in names]
    by_block = scheme.weights == "block"
    one = not scheme.dynamic and all(scale.numel() == 1 and bool(scale == scales[0]) for scale in scales)
    result = Fp8Linear(
        *(weights[0].shape[1], sum(len(weight) for weight in weights)),
        bias=bias,
        channel_scales=not one,
        dtype=dtype,
        fp8_dtype=torch.float8_e4m3fn,
        device="meta",
        dynamic=scheme.dynamic,
        block_scales=by_block,
        power_of_two=scheme.power_of_two,
    )
    result.weight = torch.cat(weights)
    if by_block:
        result.weight_scale = join_block_scales(scales, [len(weight) for weight in weights])
    elif one:
        result.weight_scale = scales[0].reshape(1).clone()
    else:
        channels = [scale.reshape(-1).expand(len(weight)) for scale, weight in zip(scales, weights)]
        result.weight_scale = torch.cat(channels).reshape(1, -1)
    if not scheme.dynamic:
        given = [scale_of(read, f"{name}.{schemes[name].input_name}").reshape(-1) for name in names]
        result.input_scale = torch.cat(given).amax().reshape(1)
    if scheme.scale_ub is not None:
        result.scale_ub = torch.tensor([scheme.scale_ub], device=result.weight.device)
    result.bias = added
    return result


def check_codes(name: str, codes: torch.Tensor) -> None:
    """codes: float8_e4m3fn. Raises: ValueError where one is NaN; infinities there are none."""
    if bool((codes.view(torch.uint8) & 0x7F).eq(0x7F).any()):
        raise ValueError(f"{name}: holds NaN")


def scale_of(read: Callable[[str], torch.Tensor], name: str) -> torch.Tensor:
    """float32. Raises: ValueError where one is no positive number."""
    scale = read(name).float()
    wrong = scale[~((scale > 0) & (scale < float("inf")))]
    if wrong.numel():
        raise ValueError(f"{name}: holds {wrong[0].item()}; scales are positive numbers")
    return scale


def exponents_of(read: Callable[[str], torch.Tensor], name: str) -> torch.Tensor:
    """float8_e8m0fnu, of that, its bytes, or powers of two. Raises: ValueError where one is NaN, or no power."""
    given = read(name)
    exponents = (given.to(torch.float8_e8m0fnu) if given.is_floating_point() else given).view(torch.uint8)
    if given.dtype == torch.float32 and not torch.equal(exponents.view(torch.float8_e8m0fnu).float(), given):
        raise ValueError(f"{name}: holds other numbers than powers of two")
    if bool(exponents.eq(255).any()):
        raise ValueError(f"{name}: holds NaN")
    return exponents.view(torch.float8_e8m0fnu)


def to_format_of(model: torch.nn.Module) -> None:
    """On gfx942: float8_e4m3fnuz, in place."""
    from ..fp8.experts import Fp8Experts

    for module in model.modules():
        ours = isinstance(module, (QuantizedLinear, Fp8Experts))
        if ours and _device_fp8_dtype(module.weight.device) == torch.float8_e4m3fnuz:
            module.to_fnuz_()
