"""What our norms, activations and linears hand to a linear in a tensor's place."""

from dataclasses import dataclass

import torch
from vllm.model_executor.layers.fusion.quant_activation import QuantizedActivation

__all__ = ["Activation"]


@dataclass
class Activation(QuantizedActivation):
    """vLLM's, with a tensor's shape: latent attention asks its input for the number of rows."""

    @property
    def shape(self) -> torch.Size:
        return self.orig_shape
