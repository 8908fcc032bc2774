"""The residual of a model's decoder layers, handed from one to the next, so that the next one's norm adds it.

A decoder layer ends with an addition, and the next one begins with a norm of the sum: together they are one operator,
add_rms_norm_fp8. It rounds the sum as the addition does, so the results are the same bytes.

`hand_on_residual` is a forward pre-hook of the base model (LlamaModel and its like). It adds a ResidualStream to the
keyword arguments of one call, and transformers' base models pass those on to each decoder layer. So no module holds
state between calls. A subclass of the base model would lose the outputs that transformers records: it keeps them by the
name of the class.

There is no stream where something observes the hidden state between layers, or where a layer's forward is not ours.
Then each layer adds its residual itself.
"""

import torch

from ...layers.watching import is_watched

__all__ = ["ResidualStream", "TakesResidual", "hand_on_residual"]


class TakesResidual:
    """Decoder layers whose forward takes residual_stream."""


class ResidualStream:
    """What a decoder layer has not added yet; of one call of a model."""

    def __init__(self, layers: int):
        """layers: how many will be called. A number, since torch.compile does not guard the identity of modules."""
        self._to_come = layers
        self._part: torch.Tensor | None = None
        self._residual: torch.Tensor | None = None
        self._of_ranks = False

    def take(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(hidden, residual): their sum is the hidden state. None: there is nothing to add. Each layer calls it once.

        The layer before this one has returned `hidden`, unless something between them has changed or moved it. Then
        they are added here.
        """
        self._to_come -= 1
        part, residual = self._part, self._residual
        self._part = self._residual = None
        if residual is None or hidden is part:
            return hidden, residual
        if self._of_ranks:
            raise RuntimeError("between two decoder layers a hidden state was changed; it is one rank's partial sum")
        return hidden + residual.to(hidden.device), None

    def leave(self, part: torch.Tensor, residual: torch.Tensor, of_ranks: bool = False) -> bool:
        """Whether the next layer will add the residual, which it may write, to `part`, which this layer returns.
        of_ranks: a sum over ranks comes first."""
        if self._to_come == 0:
            return False
        self._part, self._residual, self._of_ranks = part, residual, of_ranks
        return True


def hand_on_residual(base: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Forward pre-hook, with keyword arguments, of a base model with `layers` and `config`."""
    layers = base.layers[: base.config.num_hidden_layers]
    if len(layers) > 1 and not _observed(base, layers, kwargs):
        kwargs = {**kwargs, "residual_stream": ResidualStream(len(layers))}
    return args, kwargs


def _observed(base: torch.nn.Module, layers, kwargs: dict) -> bool:
    """Whether something but the next layer sees what a layer returns."""
    if kwargs.get("output_hidden_states", getattr(base.config, "output_hidden_states", False)):
        return True
    for layer in layers:
        if not isinstance(layer, TakesResidual) or (base.training and layer.gradient_checkpointing):
            return True
        if is_watched(layer):
            return True
    return False
