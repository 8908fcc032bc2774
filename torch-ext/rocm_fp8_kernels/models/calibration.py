"""A model's run on text, and what of its modules is looked at meanwhile: for static scales and for smoothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

__all__ = ["batches", "observe"]

Batch = dict[str, torch.Tensor]
_TAKEN = ("input_ids", "attention_mask", "position_ids")
_OF_TRAINING = ("labels",)  # what a DataLoader yields beside them, and no forward here needs


def batches(inputs: Iterable[torch.Tensor | Mapping[str, torch.Tensor]] | torch.Tensor) -> Iterator[Batch]:
    """Keyword arguments of the model's calls.

    Args:
        inputs: token ids, int64 [batch, length]; or dictionaries as a DataLoader yields them, with input_ids and
            perhaps attention_mask [batch, length] and position_ids; or one of these.

    Raises: ValueError that says what else was given.
    """
    if isinstance(inputs, (torch.Tensor, Mapping)):
        inputs = [inputs]
    for each in inputs:
        given = {"input_ids": each} if isinstance(each, torch.Tensor) else each
        if not isinstance(given, Mapping):
            raise ValueError(f"inputs: hold {type(each).__name__}; need token ids, or dictionaries with input_ids")
        given = {name: value for name, value in given.items() if name not in _OF_TRAINING}
        unknown = sorted(given.keys() - set(_TAKEN))
        if unknown or "input_ids" not in given:
            what = f"hold {unknown[0]!r}" if unknown else "hold no 'input_ids'"
            raise ValueError(f"inputs: {what}; dictionaries need input_ids, and may have {', '.join(_TAKEN[1:])}")
        for name, value in given.items():
            if not isinstance(value, torch.Tensor):
                raise ValueError(f"inputs: {name} is a {type(value).__name__}; needs a tensor")
        ids = given["input_ids"]
        if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"inputs: input_ids are {ids.dtype} {list(ids.shape)}; need int64 [batch, length]")
        yield given


def observe(
    model: torch.nn.Module,
    inputs,
    before: Mapping[str, Callable[[torch.Tensor], None]],
    after: Mapping[str, Callable[[torch.Tensor], None]] = {},
) -> None:
    """Runs the model on `batches(inputs)`, in eval mode, and shows what modules take and give: [positions, channels].

    Positions that an attention_mask leaves out are not shown.

    Args:
        before, after: name of a module -> what is called with its first argument, or its result.

    Raises: ValueError where there is no input.
    """
    kept: list[torch.Tensor | None] = [None]

    def positions(values: torch.Tensor) -> torch.Tensor:
        values = values.detach().reshape(-1, values.shape[-1])
        mask = kept[0]
        return values if mask is None or mask.numel() != len(values) else values[mask]

    def pre_hook(show):
        return lambda module, arguments: show(positions(arguments[0]))

    def hook(show):
        return lambda module, arguments, result: show(positions(result))

    handles = [model.get_submodule(name).register_forward_pre_hook(pre_hook(show)) for name, show in before.items()]
    handles += [model.get_submodule(name).register_forward_hook(hook(show)) for name, show in after.items()]
    device, was_training, some = next(model.parameters()).device, model.training, False
    model.eval()
    try:
        for batch in batches(inputs):
            given = {name: value.to(device) for name, value in batch.items()}
            mask = given.get("attention_mask")
            kept[0] = None if mask is None else mask.bool().flatten()
            model(**given, use_cache=False)
            some = True
    finally:
        for handle in handles:
            handle.remove()
        model.train(was_training)
    if not some:
        raise ValueError("inputs: empty; calibration needs text")
