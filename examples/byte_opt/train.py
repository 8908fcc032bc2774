#!/usr/bin/env python3
"""Train the byte-level OPT of the SmoothQuant example on the running interpreter's standard library.

    python -m examples.byte_opt.train              # one CPU thread, ten minutes

Text, schedule and measurement are those of the byte-level Llama (examples/byte_llama). The model is small enough for a
CPU, and it sees each byte of the text less than once: there is no dropout.
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import OPTConfig, OPTForCausalLM

from examples.byte_llama import corpus
from examples.byte_llama.train import Settings, Streams, finish, fit_and_save, out_folder, positive

CHECKPOINT = Path(__file__).resolve().parent / "checkpoint"
LENGTH = 256


def model_config(**changes) -> OPTConfig:
    """0.7 million parameters, 1.3 MB in bfloat16; `changes` are fields of OPTConfig."""
    fields = dict(
        hidden_size=128,
        word_embed_proj_dim=128,
        ffn_dim=512,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        dropout=0.0,
        attention_dropout=0.0,
        pad_token_id=None,
    )
    return OPTConfig(**(corpus.CONFIG | fields | changes))


def train(settings: Settings, config: OPTConfig, streams: Streams) -> dict:
    """A whole run, checkpoint included; returns what training.json holds."""
    settings.out.parent.mkdir(parents=True, exist_ok=True)  # a folder that cannot be made should not cost a run
    torch.manual_seed(settings.seed)
    model = OPTForCausalLM(config).to(settings.device)
    return fit_and_save(model, streams, settings, threads=torch.get_num_threads())


def parse_arguments(arguments: list[str] | None) -> Settings:
    parser = argparse.ArgumentParser(description="Train a 0.7 M parameter byte-level OPT on this Python's library.")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=positive(float), help="time budget (default: 10)")
    budget.add_argument("--steps", type=positive(int), help="train for so many steps instead")
    parser.add_argument("--out", type=Path, default=CHECKPOINT, help="checkpoint folder")
    parser.add_argument("--batch", type=positive(int), default=8, help="sequences a step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default: %(default)s)")
    parser.add_argument("--rate", type=positive(float), default=3e-3, help="peak learning rate (default: %(default)s)")
    given = parser.parse_args(arguments)
    out = out_folder(parser, given.out)
    return Settings(
        out=out,
        device=torch.device("cpu"),
        batch=given.batch,
        steps=given.steps,
        minutes=None if given.steps else given.minutes or 10.0,
        length=LENGTH,
        peak_rate=given.rate,
        weight_decay=0.1,
        seed=given.seed,
        eval_every=400,
        eval_windows=64,
        final_windows=512,
    )


def main(arguments: list[str] | None = None) -> int:
    settings = parse_arguments(arguments)
    torch.set_num_threads(1)
    return finish(lambda: train(settings, model_config(), Streams.load(settings.device)), settings.out)


if __name__ == "__main__":
    sys.exit(main())
