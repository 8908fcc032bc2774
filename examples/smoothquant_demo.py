#!/usr/bin/env python3
"""Int8 with and without SmoothQuant, on an OPT whose activations have outliers.

    python -m examples.smoothquant_demo                            # the byte-level OPT of this repository
    python -m examples.smoothquant_demo --plot quality.png
    python -m examples.smoothquant_demo --model PATH_OR_ID         # any OPT checkpoint with norms before its linears

prints for the float model, for int8 without smoothing and for int8 with it: how often the last token of a held-out
sample is predicted, bits per byte, memory and the time of a sample. Both int8 models are static: one scale a tensor.

A model as small as the byte-level OPT has no outliers of its own, so they are planted: a few channels of each norm are
multiplied by a power of two, and the columns of the weights that follow are divided by it. The model computes the same
numbers, bit for bit; large models have grown such channels in training. A model given by --model is taken as it is.
"""

import argparse
import copy
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    name: str
    accuracy: float  # of the last token
    bits_per_byte: float
    megabytes: float  # of parameters and buffers
    milliseconds: float  # a sample


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="an OPT checkpoint: a folder or a Hub id (default: the byte-level OPT)")
    parser.add_argument("--samples", type=int, default=1000, help="held-out samples (default: %(default)s)")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample (default: %(default)s)")
    parser.add_argument("--alpha", type=float, default=0.5, help="SmoothQuant's strength (default: %(default)s)")
    parser.add_argument("--outliers", type=int, default=64, help="factor of planted outliers, a power of 2; 1: none")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the float model")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="also draw the figures")
    args = parser.parse_args()
    if args.samples < 1 or args.length < 2:
        parser.error("--samples must be at least 1, --length at least 2")
    if args.outliers < 1 or args.outliers & (args.outliers - 1):
        parser.error("--outliers must be a power of 2")
    return args


def plant_outliers(model, factor: int, channels: int = 4) -> None:
    """Multiplies `channels` channels of what each norm gives, and divides them out again. In place; exact, since the
    factor is a power of 2."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in model.model.decoder.layers:
            attention = layer.self_attn
            for norm, linears in (
                (layer.self_attn_layer_norm, (attention.q_proj, attention.k_proj, attention.v_proj)),
                (layer.final_layer_norm, (layer.fc1,)),
            ):
                chosen = torch.randperm(norm.weight.numel(), generator=generator)[:channels]
                norm.weight[chosen] *= factor
                norm.bias[chosen] *= factor
                for linear in linears:
                    linear.weight[:, chosen] /= factor


def megabytes(model) -> float:
    # Tied tensors count once.
    return (
        sum({t.data_ptr(): t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())}.values())
        / 1e6
    )


def measure(name: str, model, tokenizer, samples) -> Row:
    """samples: token ids [count, length]."""
    import torch

    hits, nats, seconds, sizes = 0, 0.0, [], 0
    with torch.no_grad():
        for ids in samples:
            began = time.perf_counter()
            logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
            seconds.append(time.perf_counter() - began)
            hits += int(logits[-1].argmax() == ids[-1])
            nats += torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum").item()
            sizes += len(tokenizer.decode(ids[1:].tolist()).encode())
    count = len(samples)
    return Row(name, hits / count, nats / math.log(2) / sizes, megabytes(model), statistics.median(seconds) * 1e3)


def run(args: argparse.Namespace) -> list[Row]:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from examples.byte_opt.train import CHECKPOINT
    from examples.llama_fp8 import text
    from scripts.load import load_kernel

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    kernel = load_kernel("cpu")
    model = AutoModelForCausalLM.from_pretrained(args.model or CHECKPOINT, dtype=getattr(torch, args.dtype)).eval()
    if model.config.model_type != "opt":
        raise ValueError(f"--model {args.model}: model_type {model.config.model_type!r}; needs 'opt'")
    if args.length > model.config.max_position_embeddings:
        raise ValueError(f"--length {args.length}: the model's context is {model.config.max_position_embeddings}")
    tokenizer = text.LibraryTokenizer(args.model) if args.model else text.ByteTokenizer()
    if not args.model:
        plant_outliers(model, args.outliers)
    calibration = text.calibration_windows(tokenizer, args.length, 64).split(16)
    samples = text.held_out_windows(tokenizer, args.length, args.samples)
    of = args.model or f"byte-level OPT, outliers x{args.outliers}"
    print(f"{of}; {len(samples)} held-out samples of {args.length} tokens; {torch.get_num_threads()} threads\n")
    print(f"{'':<18}{'last token':>12}{'bits per byte':>16}{'MB':>8}{'ms a sample':>14}")
    rows = []
    for name, alpha in ((args.dtype, False), ("int8, naive", None), ("int8, SmoothQuant", args.alpha)):
        one = model if alpha is False else kernel.smoothquant.quantize(copy.deepcopy(model), calibration, alpha=alpha)
        row = measure(name, one, tokenizer, samples)
        rows.append(row)
        print(
            f"{row.name:<18}{row.accuracy:>12.1%}{row.bits_per_byte:>16.4f}{row.megabytes:>8.2f}{row.milliseconds:>14.2f}",
            flush=True,
        )
    return rows


def draw(rows: list[Row], path: Path) -> None:
    from benchmarks.harness import bars

    panels = [
        bars.Panel(
            title, "", "", [row.name.replace(", ", ",\n") for row in rows], [bars.Bars(title, "tab:red", heights)]
        )
        for title, heights in (
            ("last token, share right", [row.accuracy for row in rows]),
            ("bits per byte", [row.bits_per_byte for row in rows]),
            ("memory, MB", [row.megabytes for row in rows]),
            ("ms a sample", [row.milliseconds for row in rows]),
        )
    ]
    bars.draw(panels, "SmoothQuant on int8", path)


def main() -> int:
    args = arguments()
    try:
        rows = run(args)
        if args.plot:
            draw(rows, args.plot)
            print(f"\nPlot: {args.plot}")
    except KeyboardInterrupt:
        print("\nsmoothquant_demo.py: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("DEMO_TRACEBACK"):
            raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        print(f"smoothquant_demo.py: {line}  (DEMO_TRACEBACK=1 shows where)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
