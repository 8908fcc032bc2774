"""Modules whose forward `kernels.kernelize` puts in place of a model's own.

    kernel = kernels.get_kernel("rocm-fp8-kernels/rocm-fp8-kernels", version=1)
    with kernels.use_kernel_mapping(kernel.layers.mapping()):
        model = kernels.kernelize(model, mode=kernels.Mode.INFERENCE)

    RMSNorm  for transformers' layers of that name, float16 and bfloat16, that round as LlamaRMSNorm does

A model that `quantization` or `smoothquant` has made runs on the operators by itself; kernelize puts them into the
norms that it has not fused, such as the last one.

`register_experts` puts fused_moe in the place of transformers' experts, in float16, bfloat16 or FP8, with no kernelize.

`LatentAttention` is what lies between the projections of multi-head latent attention in a decode step.

They are for inference: the operators have no backward.
"""

import torch

from ..operators import operators as _operators
from ..ops import backend as _backend
from .mla import LatentAttention, mla_softmax_scale, rotate
from .norms import rounds_as_rms_norm as _rounds_as_rms_norm
from .watching import ours as _ours

__all__ = ["LatentAttention", "LoadedLayer", "RMSNorm", "mapping", "mla_softmax_scale", "register_experts", "rotate"]


class RMSNorm(torch.nn.Module):
    """`rms_norm` with the module's `weight` and `variance_epsilon`. What the operator does not compute, the module's
    own forward does: other dtypes, classes that round elsewhere (norms.py), gradients."""

    can_torch_compile = True
    has_backward = False
    weight: torch.Tensor
    variance_epsilon: float

    @_ours
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        same = hidden_states.dtype in (torch.float16, torch.bfloat16) and weight.dtype == hidden_states.dtype
        lost = torch.is_grad_enabled() and (hidden_states.requires_grad or weight.requires_grad)
        if same and not lost and _rounds_as_rms_norm(type(self)):
            return _operators().rms_norm(hidden_states, weight, self.variance_epsilon)
        return type(self).forward(self, hidden_states)


def register_experts(name: str = "rocm-fp8-kernels") -> str:
    """Makes `name` an experts_implementation of transformers, for float16, bfloat16 and block-scaled FP8 experts.

        kernel.layers.register_experts()
        model = AutoModelForCausalLM.from_pretrained(path, experts_implementation="rocm-fp8-kernels")

    Returns: name.
    Raises: ImportError where transformers has no interface for experts.
    """
    from .experts import register

    return register(name)


class LoadedLayer:
    """A repository for `kernels.use_kernel_mapping` that hands out a layer of this, already loaded, kernel.

    `kernels.LayerRepository` does as well where the Hub is at hand and the machine's GPU decides the variant. It
    passes no backend on, so it cannot ask for the CPU variant under a CUDA or ROCm build of torch.
    """

    def __init__(self, layer: type[torch.nn.Module]):
        self.layer_name = layer.__name__
        self._layer = layer

    def load(self) -> type[torch.nn.Module]:
        return self._layer

    def __eq__(self, other) -> bool:
        return isinstance(other, LoadedLayer) and self._layer is other._layer

    def __hash__(self) -> int:
        return hash(self._layer)

    # use_kernel_mapping copies mappings deeply; a class is not to be copied.
    def __deepcopy__(self, memo) -> "LoadedLayer":
        return self

    def __str__(self) -> str:
        return f"layer `{self.layer_name}` of {self._layer.__module__}"


_LAYERS = (RMSNorm,)


def mapping(device: str | None = None) -> dict[str, dict[str, LoadedLayer]]:
    """The layers under the names that models ask for, for `kernels.use_kernel_mapping`.

    Args:
        device: "cpu", "cuda" or "rocm", as `kernels` names them; that of this build if None.
    """
    if device is None:
        device = _backend()
    return {layer.__name__: {device: LoadedLayer(layer)} for layer in _LAYERS}
