#!/usr/bin/env python3
"""Decode real text with a Llama on FP8 kernels, beside the same model without them.

    python -m examples.demo                              # the byte-level Llama of this repository
    python -m examples.demo --prompt "def fibonacci(n):"
    python -m examples.demo --deepseek                   # the byte-level DeepSeek V3: experts, and a latent cache
    python -m examples.demo --model PATH_OR_ID           # any Llama checkpoint instead

quantises the model, loads the kernels with `kernels.get_kernel`, puts them in with `kernels.kernelize`, and prints
both continuations, how well both predict held-out text, and how fast they decode. Then it prints and draws the time of
each operator at the layer shapes of Llama 3.1; of the DeepSeek, where a decoding step's time goes. Build the package
first: make build (make demo does).
"""

import argparse
import copy
import logging
import os
import sys
from pathlib import Path


class DemoError(Exception):
    """One line for the user."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--model", help="a Llama checkpoint: a folder or a Hub id (default: the byte-level Llama)")
    models.add_argument("--deepseek", action="store_true", help="the byte-level DeepSeek V3")
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt", help="text to continue (default: part of a held-out module)")
    prompts.add_argument("--prompt-file", type=Path, help="a UTF-8 file with the text to continue")
    parser.add_argument("--tokens", type=int, default=160, help="tokens to decode (default: %(default)s)")
    parser.add_argument("--windows", type=int, default=16, help="held-out windows to score (default: %(default)s)")
    parser.add_argument(
        "--granularity",
        choices=["channel", "tensor", "block"],
        help="of the weight scales (default: channel; with --deepseek block, as its checkpoints have it)",
    )
    parser.add_argument(
        "--activations",
        choices=["static", "dynamic"],
        help="scales of the linears' inputs: from calibration, or computed for each row, or of blocks for each group"
        " of 128 (default: static; of blocks dynamic)",
    )
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], help="cuda means any GPU (default: a GPU that torch sees, else cpu)"
    )
    parser.add_argument("--skip-operators", action="store_true", help="no times of operators, no plot")
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), help="folder of the plot (default: %(default)s)"
    )
    args = parser.parse_args()
    if args.tokens < 1 or args.windows < 1:
        parser.error("--tokens and --windows must be at least 1")
    args.granularity = args.granularity or ("block" if args.deepseek else "channel")
    args.activations = args.activations or ("dynamic" if args.granularity == "block" else "static")
    if args.granularity == "block" and args.activations == "static":
        parser.error("--granularity block needs --activations dynamic")
    return args


def prompt_text(args: argparse.Namespace) -> str:
    from examples.llama_fp8 import text

    if args.prompt_file is None:
        prompt = text.default_prompt() if args.prompt is None else args.prompt
    else:
        try:
            prompt = args.prompt_file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DemoError(
                f"{args.prompt_file} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
            ) from None
    if not prompt:
        raise DemoError("the prompt is empty")
    return prompt


def run(args: argparse.Namespace) -> None:
    prompt = prompt_text(args)  # before the work: a mistake here should not cost a minute
    import kernels
    import torch
    from tqdm import tqdm

    from benchmarks.harness.shapes import LLAMA_8B, LLAMA_405B_TP8
    from examples.llama_fp8 import decoding, operator_times, plot, step_times, text
    from scripts.load import default_backend, load_kernel

    backend = "cpu" if args.device == "cpu" else default_backend()
    if args.device == "cuda" and backend == "cpu":
        raise DemoError(f"--device {args.device}: torch sees no GPU here")
    device = "cpu" if backend == "cpu" else "cuda"
    where = f"{torch.get_num_threads()} threads" if device == "cpu" else torch.cuda.get_device_name()
    try:
        kernel = load_kernel(backend)
    except Exception as error:
        raise DemoError(
            f"no build of the kernels for this machine (make build makes one): {first_line(error)}"
        ) from None

    def bar(total: int, what: str) -> tqdm:
        return tqdm(total=total, desc=what, unit="", leave=False, disable=None, dynamic_ncols=True)

    source = text.DEEPSEEK if args.deepseek else args.model
    try:
        loaded = text.load(source, device)
    except Exception as error:
        raise DemoError(f"--model {args.model or '(default)'}: {first_line(error)}") from error
    length = min(1024, loaded.context)
    ids = loaded.tokenizer.encode(prompt)
    room = loaded.context - args.tokens
    if room < 1:
        raise DemoError(f"--tokens {args.tokens}: the model's context is {loaded.context}")
    if len(ids) > room:
        print(f"The prompt has {len(ids)} tokens; the last {room} fit beside {args.tokens} new ones.")
        ids = ids[-room:]
    print(f"Model: {loaded.name}, bfloat16. Kernels: {kernel.__name__}, on {device}, {where}.")

    with bar(1, "quantising"):
        quantized = copy.deepcopy(loaded.model)
        static = args.activations == "static"
        calibration = text.calibration_windows(loaded.tokenizer, min(512, length), 8).split(1) if static else None
        options = dict(granularity=args.granularity, activations=args.activations)
        kernel.quantization.quantize(quantized, calibration, **options)
        # Without a word on every other layer that could have a kernel.
        logging.getLogger("kernels").setLevel(logging.ERROR)
        with kernels.use_kernel_mapping(kernel.layers.mapping()):
            kernels.kernelize(quantized, mode=kernels.Mode.INFERENCE)
    scales = f"weight scales per {args.granularity}, {args.activations} activations"
    print(f"Quantised: linears of {len(quantized.model.layers)} layers to FP8, {scales}.\n")

    print(f"Prompt:\n{prompt[-400:]}\n")
    models = {"bfloat16": loaded.model, "FP8": quantized}
    caches = {name: decoding.default_caches(model) for name, model in models.items()}
    if args.deepseek:
        caches["FP8"] = lambda most: kernel.quantization.latent_cache(quantized.config, most)
    rates, qualities = {}, {}
    for name, model in models.items():
        with bar(args.tokens, f"decoding, {name}") as progress:
            result = decoding.continue_text(loaded, model, ids, args.tokens, progress.update, caches[name])
        rates[name] = result.tokens_per_second
        print(f"--- {name}:\n{loaded.tokenizer.decode(result.ids)}\n")

    held_out = text.held_out_windows(loaded.tokenizer, length, args.windows)
    for name, model in models.items():
        with bar(len(held_out), f"scoring, {name}") as progress:
            qualities[name] = decoding.measure(model, loaded.tokenizer, held_out, progress.update)
    same = decoding.share_of_equal(qualities["bfloat16"], qualities["FP8"])
    print(f"{'':<12}{'bits per byte':>16}{'tokens per second':>20}")
    for name in models:
        print(f"{name:<12}{qualities[name].bits_per_byte:>16.4f}{rates[name]:>20.1f}")
    scored = qualities["FP8"].next_tokens.numel()
    print(f"Equal next tokens: {same:.2%} of {scored}, on modules held out from training.\n")
    if args.skip_operators:
        return
    title = f"torch {torch.__version__}, {device}, {where}"
    if args.deepseek:
        if device != "cpu":
            print("Where a decoding step's time goes is told on a CPU alone (--device cpu).")
            return
        steps = {}
        for name, model in models.items():
            with torch.no_grad(), bar(1, f"a step, {name}"):
                step = decoding.StaticStep(model, ids, step_times.STEPS + 1, caches[name])
                steps[name] = step_times.measure(step, kernel._ops.add_op_namespace_prefix("").rstrip(":"))
        print("Where a decoding step's time goes, as torch's profiler sees it (what it costs is in it):")
        print(step_times.table(steps) + "\n")
        path = args.output / "deepseek.png"
        step_times.draw(steps, f"A decoding step of the {loaded.name}; {title}", path)
        print(f"Plot: {path}")
        return

    times = []
    for shapes in (LLAMA_8B, LLAMA_405B_TP8):
        with bar(6, f"operators, {shapes.name}") as progress:
            for time in operator_times.measure(kernel, shapes, device):
                times.append(time)
                progress.update(1)
        print(f"{shapes.name}, one row; torch in bfloat16; the floor: the weights at the highest rate of memory")
        print("that anything reached meanwhile, or that is published for this GPU; activations stay in the caches:")
        print(operator_times.table([t for t in times if t.model == shapes.name]) + "\n")
    path = args.output / "operators.png"
    plot.draw(times, title, path)
    print(f"Plot: {path}")


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def main() -> int:
    args = arguments()
    try:
        run(args)
        sys.stdout.flush()  # a closed pipe shows here, not when the interpreter exits
    except KeyboardInterrupt:
        print("\ndemo.py: interrupted; nothing half-written is left", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("DEMO_TRACEBACK"):
            raise
        print(f"demo.py: {first_line(error)}  (DEMO_TRACEBACK=1 shows where)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
