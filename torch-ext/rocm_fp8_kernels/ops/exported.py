"""fused_moe in an exported program: one operator, which does at each call what depends on the number of tokens and,
in the reference, on where they go."""

import torch

from .._ops import add_op_namespace_prefix
from .._ops import ops as _raw
from .arguments import refuse

__all__ = ["exported_moe"]

_library = torch.library.Library(_raw.name, "FRAGMENT")
_library.define(
    "fused_moe(Tensor x, Tensor w13, Tensor w2, Tensor weights, Tensor experts, Tensor? scale_w13, Tensor? scale_w2,"
    " str? inputs, Tensor? input_scale, Tensor? hidden_scale, Tensor? bias13, Tensor? bias2, str gate, float? limit,"
    " float alpha, float? beta, float? linear_beta, bool interleaved, Tensor? shared, Tensor? expert_map,"
    " bool power_of_two, ScalarType dtype) -> Tensor"
)
_NAMES = (
    "scale_w13 scale_w2 inputs input_scale hidden_scale bias13 bias2 gate limit alpha beta linear_beta interleaved"
    " shared expert_map power_of_two dtype"
).split()


def _compute(x, w13, w2, weights, experts, *options) -> torch.Tensor:
    from ..operators import operators

    return operators().fused_moe(x, w13, w2, weights, experts, **dict(zip(_NAMES, options)))


_library.impl("fused_moe", _compute, "CompositeExplicitAutograd")
torch.library.register_fake(
    add_op_namespace_prefix("fused_moe"),
    lambda x, w13, w2, weights, experts, *options: x.new_empty(x.shape, dtype=options[-1]),
    lib=_library,
)


def exported_moe(x, w13, w2, weights, experts, *given) -> torch.Tensor:
    """given: fused_moe's keywords in their order. Returns: out."""
    *options, out, dtype, power_of_two = given
    if torch.is_grad_enabled():
        tensors = dict(zip(("x", "w13", "w2", "weights", "experts", *_NAMES), (x, w13, w2, weights, experts, *options)))
        for name, t in tensors.items():
            if isinstance(t, torch.Tensor) and t.requires_grad:
                refuse("fused_moe", name, "requires grad, and the operator has no backward; needs torch.no_grad()")
    fp8 = x.dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
    dtype = dtype or (torch.bfloat16 if fp8 else x.dtype)
    result = _raw.fused_moe(x, w13, w2, weights, experts, *options, power_of_two, dtype)
    return result if out is None else out.copy_(result)
