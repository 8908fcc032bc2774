"""Greedy decoding with a clock, and how well a model predicts text."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import DynamicCache

from .text import LoadedModel, Tokenizer


@dataclass(frozen=True)
class Continuation:
    ids: list[int]
    tokens_per_second: float  # of the decoding steps, without the prompt's


@torch.no_grad()
def continue_text(
    loaded: LoadedModel, model: torch.nn.Module, prompt: list[int], count: int, advance: Callable[[int], object]
) -> Continuation:
    """At most `count` tokens after `prompt`, each the likeliest; `advance(1)` is called for each."""
    cache = DynamicCache(config=model.config)
    logits = model(input_ids=torch.tensor([prompt], device=model.device), past_key_values=cache).logits[0, -1]
    ids: list[int] = []
    began = time.perf_counter()
    while True:
        ids.append(int(logits.argmax()))
        advance(1)
        if len(ids) == count or ids[-1] in loaded.end:
            break
        step = torch.tensor([[ids[-1]]], device=model.device)
        logits = model(input_ids=step, past_key_values=cache).logits[0, -1]
    steps = len(ids) - 1
    rate = steps / (time.perf_counter() - began) if steps else float("nan")
    return Continuation(ids, rate)


@dataclass(frozen=True)
class Quality:
    bits_per_byte: float
    next_tokens: torch.Tensor  # int64: the likeliest token at each scored position


@torch.no_grad()
def measure(
    model: torch.nn.Module, tokenizer: Tokenizer, windows: torch.Tensor, advance: Callable[[int], object]
) -> Quality:
    """Scores the second half of each window [count, length]; the first is context."""
    half = windows.shape[1] // 2
    nats, size, likeliest = 0.0, 0, []
    for window in windows:
        ids = window.to(model.device)
        logits = model(input_ids=ids[None], use_cache=False).logits[0, half - 1 : -1].float()
        nats += F.cross_entropy(logits, ids[half:], reduction="sum").item()
        size += len(tokenizer.decode(ids[half:].tolist()).encode())
        likeliest.append(logits.argmax(-1).cpu())
        advance(1)
    return Quality(nats / math.log(2) / size, torch.cat(likeliest))


def share_of_equal(a: Quality, b: Quality) -> float:
    return (a.next_tokens == b.next_tokens).float().mean().item()
