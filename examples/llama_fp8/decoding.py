"""Greedy decoding with a clock, and how well a model predicts text."""

import inspect
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import Cache, DynamicCache, StaticCache

from .text import LoadedModel, Tokenizer


@dataclass(frozen=True)
class Continuation:
    ids: list[int]
    tokens_per_second: float  # of the decoding steps, without the prompt's


def with_cache(model: torch.nn.Module, cache: Cache) -> dict[str, Cache]:
    """The cache as a keyword argument of the model: transformers calls it past_key_values up to 5.23, then cache."""
    known = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in known else "past_key_values": cache}


# Makes an empty cache: of so many tokens at most, which is allocated once, or None: one that grows.
CacheMaker = Callable[[int | None], Cache]


def default_caches(model: torch.nn.Module) -> CacheMaker:
    """transformers' own."""

    def make(most: int | None) -> Cache:
        config = model.config
        return DynamicCache(config=config) if most is None else StaticCache(config=config, max_cache_len=most)

    return make


def growing_tokens(model: torch.nn.Module, prompt: list[int], caches: CacheMaker | None = None) -> Iterator[int]:
    """The likeliest tokens after `prompt`, with a cache that grows."""
    cache = (caches or default_caches(model))(None)
    ids, given = torch.tensor([prompt], device=model.device), with_cache(model, cache)
    while True:
        token = int(model(input_ids=ids, **given).logits[0, -1].argmax())
        yield token
        ids = torch.tensor([[token]], device=model.device)


class StaticStep:
    """A decoding step that can be recorded: it reads and writes the same memory each time, and where it stands is told
    by numbers on the device.

    `token` int64 [1, 1] is the last one found. A call finds the next.
    """

    def __init__(self, model: torch.nn.Module, prompt: list[int], count: int, caches: CacheMaker | None = None):
        """Computes the prompt; there is room for `count` tokens after it."""
        self.model, self.cache = model, (caches or default_caches(model))(len(prompt) + count)
        self._given = with_cache(model, self.cache)
        ids = torch.tensor([prompt], device=model.device)
        self.token = model(input_ids=ids, **self._given).logits[:, -1:].argmax(-1)
        own = getattr(self.cache, "standing", None)  # of a latent cache
        self._standing = [self.token, *(own() if own else (layer.cumulative_length for layer in self.cache.layers))]

    def __call__(self) -> None:
        logits = self.model(input_ids=self.token, **self._given).logits
        self.token.copy_(logits[:, -1:].argmax(-1))

    def rehearse(self) -> None:
        """A call that leaves no trace: keys and values that it wrote lie where the next call writes its own."""
        before = [part.clone() for part in self._standing]
        self()
        for part, value in zip(self._standing, before):
            part.copy_(value)


def captured(step: StaticStep) -> Callable[[], None]:
    """The step as a CUDA graph; a call of the result replays it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    # What first calls load, allocate or choose must not happen while recording.
    with torch.cuda.stream(stream):
        for _ in range(3):
            step.rehearse()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def static_tokens(
    model: torch.nn.Module,
    prompt: list[int],
    count: int,
    prepare: Callable[[StaticStep], Callable[[], None]] = captured,
    caches: CacheMaker | None = None,
) -> Iterator[int]:
    """The `count` likeliest tokens after `prompt`, one by one: what `prepare` makes of one step, over and over."""
    step = StaticStep(model, prompt, count, caches)
    go_on = prepare(step)
    yield int(step.token)
    for _ in range(count - 1):
        go_on()
        yield int(step.token)


@torch.no_grad()
def continue_text(
    loaded: LoadedModel,
    model: torch.nn.Module,
    prompt: list[int],
    count: int,
    advance: Callable[[int], object],
    caches: CacheMaker | None = None,
) -> Continuation:
    """At most `count` tokens after `prompt`, each the likeliest; `advance(1)` is called for each. On a GPU a step is
    one graph: its hundreds of launches from Python would take longer than they compute."""
    on_gpu = model.device.type == "cuda"
    tokens = growing_tokens(model, prompt, caches)
    if on_gpu:
        tokens = static_tokens(model, prompt, count, caches=caches)
    ids = [next(tokens)]
    advance(1)
    began = time.perf_counter()
    while len(ids) < count and ids[-1] not in loaded.end:
        ids.append(next(tokens))
        advance(1)
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
