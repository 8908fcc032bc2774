"""Times of a model in vLLM with this package's plugin, with vLLM's own FP8, and in bfloat16, as markdown.

    python -m benchmarks model vllm                                  # on a CPU a Llama of 1.1 B, on a GPU Llama 8B
    python -m benchmarks model vllm --shape llama-70b --layers 16 --scheme dynamic static blocks
    python -m benchmarks model vllm --shape deepseek-v3 --layers 4 --scheme blocks --batch 1 8 32 64 --plot PNG
    python -m benchmarks model vllm --shape gpt-oss-120b --layers 8 --scheme mxfp4 --prompts 512 2048
    python -m benchmarks model vllm --int8-linears                   # the plugin's beside vLLM's, on a CPU

Each row is a process of its own (harness/vllm_engine.py), one after the other: vLLM starts, and serves each batch.
Shown are medians: a decode step, the first token after a prompt, how long the engine took to start, and on a GPU the
most memory that its tensors took, and a captured step's graph alone. Weights are random, but those of --model, a
checkpoint. --layers cuts a model: with too few of them a step takes the host's time, not the GPU's.

--int8-linears times no model: it calls the plugin's INT8 linear and vLLM's in turn in one process, from bfloat16 inputs
to bfloat16 results, on random normal numbers. Their errors are against float64, the products of the same int8 numbers.

vLLM and the plugin must be installed (make vllm, on a machine without a GPU), and the package built.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import sections
from benchmarks.harness.gpu_environment import commit
from benchmarks.harness.shapes import CONFIGS, EIGHTH_OF_HEADS
from benchmarks.harness.table import Table
from problems import mx_checkpoints
from scripts.load import use_local_build

SWITCH = "ROCM_FP8_KERNELS_VLLM"


OF_ALL = dict(
    vocab_size=32000,
    max_position_embeddings=32768,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    torch_dtype="bfloat16",
)
# Of DeepSeek-V3 a worker's heads, and one dense layer: a cut model has experts. No layer that predicts a token more.
SHAPES = CONFIGS | {
    "deepseek-v3": CONFIGS["deepseek-v3"] | EIGHTH_OF_HEADS | dict(first_k_dense_replace=1, num_nextn_predict_layers=0)
}
ROUTERS = ("mlp.gate", "block_sparse_moe.gate")  # no checkpoint quantises them


def compressed(kind: str, static: bool) -> dict:
    """A quantization_config of compressed-tensors: 8 bits, one scale a tensor (static), or a channel and a row."""
    code = dict(num_bits=8, type=kind, symmetric=True)
    inputs = dict(strategy="tensor", dynamic=False) if static else dict(strategy="token", dynamic=True)
    group = dict(
        targets=["Linear"],
        weights=code | dict(strategy="tensor" if static else "channel", dynamic=False),
        input_activations=code | inputs,
    )
    return dict(
        quant_method="compressed-tensors",
        format=f"{kind}-quantized",
        quantization_status="compressed",
        ignore=["lm_head", *(f"re:.*{router}$" for router in ROUTERS)],
        config_groups=dict(group=group),
    )


def blocks(config: dict) -> dict:
    layers = range(config["num_hidden_layers"])
    left = ["lm_head", *(f"model.layers.{i}.{router}" for i in layers for router in ROUTERS)]
    how = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[128, 128])
    return how | dict(modules_to_not_convert=left)


def mxfp4(config: dict) -> dict:
    """Inputs in 16 bits. Of gpt-oss' own checkpoints experts alone, of compressed-tensors all linears."""
    if config["model_type"] == "gpt_oss":
        left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
        return dict(quant_method="mxfp4", modules_to_not_convert=left)
    return mx_checkpoints.compressed(4, None, ("re:.*block_sparse_moe.gate$",))  # beside the other routers


SCHEMES = {
    "dynamic": lambda config: compressed("float", False),
    "static": lambda config: compressed("float", True),
    "blocks": blocks,
    "int8": lambda config: compressed("int", False),
    "mxfp4": mxfp4,
}


class Failed(Exception):
    """The last lines of an engine that failed."""


class Engine:
    """harness/vllm_engine.py on a checkpoint, or on a model of a configuration. It is starting."""

    def __init__(self, model: dict | Path, plugin: bool, args: argparse.Namespace, folder: Path):
        folder.mkdir()
        made = not isinstance(model, Path)
        if made:
            (folder / "config.json").write_text(json.dumps(model))
        asked = dict(model=str(folder if made else model), random=made, batches=args.batch, prompts=args.prompts)
        asked |= dict(context=args.context, new=args.new, cache=args.cache, arguments=json.loads(args.engine))
        asked |= dict(repeats=args.repeats)
        # Nothing compiled is left from other runs.
        environment = os.environ | {SWITCH: str(int(plugin)), "VLLM_CACHE_ROOT": str(folder)}
        self._log = folder / "log"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness.vllm_engine", json.dumps(asked)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
        )

    def answer(self, word: str) -> str:
        """What follows `word` in the next line that begins with it."""
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if line.startswith(word):
                return line.removeprefix(word)
        raise Failed("".join([*lines, *self._log.read_text().splitlines(keepends=True)][-15:]))

    def ready(self) -> bool:
        return bool(self.answer("ready"))  # the line's end

    def figures(self) -> dict:
        print("go", file=self._process.stdin, flush=True)
        return json.loads(self.answer("figures:"))

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def stands(mode: str, call: Callable):
    """What call() gives, or None where the engine fails."""
    try:
        return call()
    except Failed as error:
        print(f"{mode}: failed\n{error}", file=sys.stderr)


def measured(args: argparse.Namespace) -> Iterator[tuple[str, dict | None]]:
    """(mode, its figures, or None where the engine failed)"""
    asked = [each for each in modes(args) if not args.only or each[0] in args.only]
    with tempfile.TemporaryDirectory() as folder:
        for number, group in enumerate([asked] if args.together else [[each] for each in asked]):
            engines = {}
            for mode, model, plugin in group:
                engines[mode] = Engine(model, plugin, args, Path(folder, f"{number}-{len(engines)}"))
            # One is timed while the others wait; none ends before all are, since freeing memory disturbs.
            ready = {mode: stands(mode, engine.ready) for mode, engine in engines.items()}
            for mode, engine in engines.items():
                yield mode, ready[mode] and stands(mode, engine.figures)
            for engine in engines.values():
                engine.end()


def modes(args: argparse.Namespace) -> Iterator[tuple[str, dict | Path, bool]]:
    """(name, a model's configuration or a checkpoint, whether the plugin is on)"""
    if args.model:
        yield "ours", args.model, True
        yield "vLLM's", args.model, False
        return
    config = OF_ALL | SHAPES[args.shape] | ({} if args.layers is None else dict(num_hidden_layers=args.layers))
    for scheme in args.scheme:
        quantized = config | dict(quantization_config=SCHEMES[scheme](config))
        yield f"{scheme}, ours", quantized, True
        yield f"{scheme}, vLLM's", quantized, False
    yield "bfloat16", config, False


def report(args: argparse.Namespace) -> None:
    import torch
    import vllm

    gpu = torch.cuda.is_available()
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(f"- machine: {torch.cuda.get_device_name() if gpu else machine}")
    print(f"- torch {torch.__version__}, vLLM {vllm.__version__}")
    print(f"- commit: {commit()}\n- date: {datetime.date.today()}")
    layers = args.layers or SHAPES[args.shape]["num_hidden_layers"]
    print(f"- model: {args.model or f'{args.shape} by shape, {layers} layers, random weights'}")
    print(f"- milliseconds, medians; decode steps after {args.context} tokens")
    print("- in parentheses: how many times faster than vLLM's own of that scheme; of bfloat16, than the first row\n")
    names = [f"batch {batch}" for batch in args.batch] + [f"first token of {prompt}" for prompt in args.prompts]
    names += [f"graph, batch {batch}" for batch in args.batch if gpu]
    columns = ["mode", *names, "start, s", *(["memory, GiB"] if gpu else [])]
    table = Table(columns, names)
    rows: dict[str, list[float | None]] = {}
    memory: dict[str, list[str]] = {}
    for mode, found in measured(args):
        if found is None:
            rows[mode], memory[mode] = [None] * len(names), ["failed"] + [""] * gpu
            continue
        times = [found["step"][str(batch)] for batch in args.batch]
        times += [found["first"][str(prompt)] for prompt in args.prompts]
        rows[mode] = times + [found["graph"].get(str(batch)) for batch in args.batch if gpu]
        memory[mode] = [f"{found['start']:.0f}"] + ([f"{found['memory']:.2f}"] if gpu else [])
    for mode, times in rows.items():
        beside = rows.get(mode.replace("ours", "vLLM's")) if "ours" in mode else None
        beside = next(iter(rows.values())) if mode == "bfloat16" else beside
        cells = [cell(time, beside and beside[index]) for index, time in enumerate(times)]
        table.row(mode, *cells, *memory[mode])


def cell(time: float | None, beside: float | None) -> str:
    if time is None:
        return "-"
    return f"{time:.2f} ({beside / time:.2f})" if beside else f"{time:.2f}"


def int8_linears() -> None:
    """Times and errors of the plugin's linear and of the one that vLLM would choose. Dynamic scales of rows, scales of
    channels, symmetric."""
    import torch
    from rocm_fp8_vllm.int8_linear import Int8GemmLinear
    from rocm_fp8_vllm.kernel import kernel
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.kernels import linear as choice
    from vllm.platforms import current_platform

    from benchmarks.harness.timing import copies, samples_in_turn

    config = choice.Int8ScaledMMLinearLayerConfig(
        is_static_input_scheme=False, is_channelwise=True, input_symmetric=True
    )
    supported = choice.is_supported_and_can_implement_kernel
    listed = choice._POSSIBLE_INT8_KERNELS[current_platform._enum]
    other = next(each for each in listed if each is not Int8GemmLinear and supported(each, config, None)[0])
    torch.set_default_dtype(torch.bfloat16)  # vLLM's prepares its weights for it

    def linear(kind: type, weight: torch.Tensor, scale: torch.Tensor):
        layer = torch.nn.Module()
        for name, value in dict(weight=weight.clone(), weight_scale=scale.clone()).items():
            layer.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
        layer.input_scale = layer.input_zero_point = layer.azp_adj = layer.bias = None
        layer.logical_widths = [len(weight)]
        with set_current_vllm_config(VllmConfig()):
            made = kind(config, ["weight", "weight_scale", "input_scale", "input_zero_point", "azp_adj"])
        made.process_weights_after_loading(layer)
        return lambda x: made.apply_weights(layer, x)

    print(f"{torch.get_num_threads()} threads, {datetime.date.today()}, commit {commit()}\n")
    timed = ["ours, ms", f"{other.__name__}, ms"]
    table = Table(["K x N", "rows", *timed, "times as fast", "error of ours", "of the other"], timed)
    for k, n in ((4096, 4096), (4096, 11008)):
        weight = torch.randn(n, k)
        scale = weight.float().abs().amax(1, keepdim=True) / 127
        weight = (weight / scale).round().to(torch.int8)
        layers = {kind: [linear(kind, weight, scale) for _ in range(copies(n * k))] for kind in (Int8GemmLinear, other)}
        for rows in (1, 8, 32, 512):
            x = torch.randn(rows, k)
            cases = {kind.__name__: lambda i, each=each: each[i % len(each)](x) for kind, each in layers.items()}
            q, of_rows, _ = kernel.quantize_int8(x[:32])
            exact = q.double() @ weight.t().double() * of_rows.double() * scale.t().double()
            errors = [(call(0)[:32] - exact).norm() / exact.norm() for call in cases.values()]
            ours, theirs = (statistics.median(each) * 1e3 for each in samples_in_turn(cases).values())
            figures = [f"{value:.2f}" for value in (ours, theirs, theirs / ours)] + [f"{error:.4f}" for error in errors]
            table.row(f"{k} x {n}", str(rows), *figures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="an FP8 checkpoint's folder")
    parser.add_argument("--shape", choices=SHAPES, help="default: llama-8b on a GPU, tiny-llama on a CPU")
    parser.add_argument("--layers", type=int, help="of the model's, the first so many")
    parser.add_argument("--scheme", nargs="+", choices=SCHEMES, default=["dynamic"])
    parser.add_argument("--batch", type=int, nargs="+", help="requests at once; default: 1 8 32 128, on a CPU 1 8")
    parser.add_argument("--prompts", type=int, nargs="*", default=None, help="tokens; default: 512 2048, on a CPU 512")
    parser.add_argument("--context", type=int, default=128, help="tokens before those that are decoded")
    parser.add_argument("--new", type=int, default=32, help="tokens decoded")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cache", type=int, default=4096, help="MiB of keys and values, on a GPU")
    parser.add_argument("--only", nargs="+", default=[], metavar="MODE", help="rows, such as 'dynamic, ours' bfloat16")
    parser.add_argument("--together", action="store_true", help="start all engines at once: a GPU has room for all")
    parser.add_argument("--engine", default="{}", metavar="JSON", help='more arguments of LLM: {"enforce_eager": true}')
    parser.add_argument("--int8-linears", action="store_true", help="no model: INT8 linears alone")
    sections.add_options(parser)
    args = parser.parse_args()
    use_local_build()
    if args.int8_linears:
        with sections.recorded("vllm_latency", args):
            int8_linears()
        return 0
    import torch

    gpu = torch.cuda.is_available()
    args.shape = args.shape or ("llama-8b" if gpu else "tiny-llama")
    args.batch = args.batch or ([1, 8, 32, 128] if gpu else [1, 8])
    args.prompts = ([512, 2048] if gpu else [512]) if args.prompts is None else args.prompts
    with sections.recorded("vllm_latency", args):
        report(args)
    return 0
