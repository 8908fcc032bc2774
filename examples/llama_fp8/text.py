"""Models and the text they read: the byte-level models of this repository, or any checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from examples.byte_llama import corpus

_EXAMPLES = Path(corpus.__file__).resolve().parent.parent


@dataclass(frozen=True)
class ByteModel:
    """One of this repository: its folder in examples/, and its name."""

    folder: str
    name: str

    @property
    def checkpoint(self) -> Path:
        return _EXAMPLES / self.folder / "checkpoint"


LLAMA = ByteModel("byte_llama", "byte-level Llama, 5.6 M parameters")
DEEPSEEK = ByteModel("byte_deepseek", "byte-level DeepSeek V3, 5.6 M parameters, 3.8 M of them a token's")
GPT_OSS = ByteModel("byte_gpt_oss", "byte-level gpt-oss, 4.0 M parameters, 1.7 M of them a token's")


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...


class ByteTokenizer:
    """A token is a byte; a document begins with BOS."""

    def encode(self, text: str) -> list[int]:
        return [corpus.BOS, *corpus.encode(text)]

    def decode(self, ids: list[int]) -> str:
        return corpus.decode(i for i in ids if i != corpus.BOS)


class LibraryTokenizer:
    """transformers' tokenizer of a checkpoint."""

    def __init__(self, path_or_id: str):
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(path_or_id)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer(text)["input_ids"]

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


@dataclass(frozen=True)
class LoadedModel:
    name: str
    model: torch.nn.Module
    tokenizer: Tokenizer

    @property
    def context(self) -> int:
        return self.model.config.max_position_embeddings

    @property
    def end(self) -> set[int]:
        """Tokens that end a text."""
        ids = self.model.generation_config.eos_token_id
        return set() if ids is None else {ids} if isinstance(ids, int) else set(ids)


def load(source: str | ByteModel | None, device: str) -> LoadedModel:
    """A model in bfloat16. source: one of this repository, or a path or a Hub id; None: the byte-level Llama."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    source = source or LLAMA
    ours = isinstance(source, ByteModel)
    if ours and not (source.checkpoint / "model.safetensors").is_file():
        raise FileNotFoundError(f"{source.checkpoint}: no checkpoint; examples/{source.folder}/train.py makes one")
    path = str(source.checkpoint) if ours else source
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).to(device).eval()
    tokenizer = ByteTokenizer() if ours else LibraryTokenizer(path)
    return LoadedModel(source.name if ours else path, model, tokenizer)


def default_prompt() -> str:
    """The beginning of a held-out module, cut in the middle of a function."""
    text = dict(corpus.held_out_files())["textwrap.py"].decode()
    start = text.index("    def _wrap_chunks(")
    return text[start - 700 : start].lstrip() + text[start : start + 36]


def windows(text: bytes, tokenizer: Tokenizer, length: int, count: int) -> torch.Tensor:
    """`count` windows of `length` tokens, evenly spaced over the text: int64 [count, length]."""
    # A token of a real tokenizer covers several bytes: 8 are enough for any text like this.
    step = max(1, (len(text) - 8 * length) // max(1, count - 1))
    rows = []
    for start in range(0, len(text), step):
        ids = tokenizer.encode(text[start : start + 8 * length].decode("utf-8", errors="ignore"))[:length]
        if len(ids) == length:
            rows.append(ids)
        if len(rows) == count:
            break
    if not rows:
        raise ValueError(f"the text is too short for one window of {length} tokens")
    return torch.tensor(rows)


def calibration_windows(tokenizer: Tokenizer, length: int, count: int) -> torch.Tensor:
    """Text that the byte-level Llama was trained on: never what quality is measured on."""
    return windows(corpus.training_bytes(), tokenizer, length, count)


def held_out_windows(tokenizer: Tokenizer, length: int, count: int) -> torch.Tensor:
    return windows(b"\n".join(text for _, text in corpus.held_out_files()), tokenizer, length, count)
