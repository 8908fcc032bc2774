#!/usr/bin/env python3
"""Times of a model in vLLM with and without this package's plugin, by `vllm bench latency`, as markdown.

    python -m benchmarks.vllm_latency                                             # a Llama of 1.1 B parameters
    python -m benchmarks.vllm_latency --experts                                   # a Qwen3-MoE, 1.1 B of 3.2 B active
    python -m benchmarks.vllm_latency --model DIR --batch 1 2 4 8 16 32 --prompt 1 --new 128 --iterations 30
    python -m benchmarks.vllm_latency --int8-linears                              # the plugin's beside vLLM's, on a CPU

Each figure is a process of its own: vLLM starts, warms up, and serves a batch `--iterations` times; the median counts.
Without --model the model is TinyLlama's by shape, with vLLM's dummy weights. They are small numbers, and zeros in FP8:
on a CPU no kernel's time depends on them. On a GPU, whose power does, name a checkpoint: an FP8 one is served with the
plugin and without it.

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
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import sections
from benchmarks.harness.gpu_environment import commit
from scripts.load import use_local_build

SWITCH = "ROCM_FP8_KERNELS_VLLM"
TINY_LLAMA = dict(
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=22,
    num_attention_heads=32,
    num_key_value_heads=4,
    vocab_size=32000,
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    torch_dtype="bfloat16",
)


# 16 experts, of which a token takes 4.
MIXTURE = dict(
    architectures=["Qwen3MoeForCausalLM"],
    model_type="qwen3_moe",
    hidden_size=2048,
    intermediate_size=6144,
    moe_intermediate_size=1536,
    num_experts=16,
    num_experts_per_tok=4,
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    num_hidden_layers=20,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=64,
    vocab_size=32000,
    max_position_embeddings=2048,
    rms_norm_eps=1e-6,
    hidden_act="silu",
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    torch_dtype="bfloat16",
)


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
        ignore=["lm_head"],
        config_groups=dict(group=group),
    )


# Mode -> (quantization_config, whether the plugin is on). Static FP8 without the plugin fails on a CPU.
MODES = {
    "bfloat16": (None, False),
    "INT8, vLLM's": (compressed("int", False), False),
    "INT8, ours": (compressed("int", False), True),
    "FP8, vLLM's": (compressed("float", False), False),
    "FP8, ours, dynamic": (compressed("float", False), True),
    "FP8, ours, static": (compressed("float", True), True),
}
# Of experts. On a CPU without AMX vLLM has none in FP8.
BLOCKS = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[128, 128])
OF_EXPERTS = {"bfloat16": (None, False), "FP8 blocks, ours": (BLOCKS, True)}
# Of a checkpoint.
GIVEN = {"vLLM's": (None, False), "ours": (None, True)}


class Failed(Exception):
    """The last lines of a run that failed."""


def median(model: Path, plugin: bool, batch: int, prompt: int, new: int, args: argparse.Namespace) -> float:
    """Seconds for a batch."""
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        command = [str(Path(sys.executable).with_name("vllm")), "bench", "latency", "--model", str(model)]
        command += ["--dtype", "bfloat16", "--input-len", str(prompt), "--output-len", str(new)]
        command += ["--batch-size", str(batch), "--num-iters", str(args.iterations), "--disable-detokenize"]
        command += ["--num-iters-warmup", str(args.warmups), "--output-json", result.name]
        # A start computes this many tokens once, which takes minutes on a CPU.
        command += ["--max-model-len", str(max(prompt + new, 64)), "--max-num-batched-tokens", str(max(prompt, 64))]
        command += ["--max-num-seqs", str(batch)]
        if args.model is None:
            command += ["--load-format", "dummy", "--skip-tokenizer-init"]
        command += args.vllm
        environment = os.environ | {SWITCH: str(int(plugin))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise Failed("\n".join((done.stdout + done.stderr).splitlines()[-15:]))
        return statistics.median(json.load(result)["latencies"])


def models(folder: Path, args: argparse.Namespace) -> Iterator[tuple[str, Path, bool]]:
    """(mode, model's folder, whether the plugin is on)"""
    given = args.model
    for mode, (quantization, plugin) in (GIVEN if given else OF_EXPERTS if args.experts else MODES).items():
        if args.only and mode not in args.only:
            continue
        if given is None:
            path = folder / mode.replace(" ", "-")
            path.mkdir()
            config = (MIXTURE if args.experts else TINY_LLAMA) | (
                {} if quantization is None else dict(quantization_config=quantization)
            )
            (path / "config.json").write_text(json.dumps(config))
        yield mode, given or path, plugin


def report(args: argparse.Namespace) -> None:
    print(f"- machine: {platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    print(f"- commit: {commit()}\n- date: {datetime.date.today()}")
    shape = "a Qwen3-MoE, 16 experts of which 4" if args.experts else "TinyLlama 1.1B by shape"
    print(f"- model: {args.model or f'{shape}, dummy weights'}")
    print(f"- median of {args.iterations} after {args.warmups}\n")
    cases = [(batch, args.prompt, args.new) for batch in args.batch]
    cases += [(1, args.prefill, 1)] if args.prefill else []
    names = [f"batch {b}: {p} + {n} tokens" for b, p, n in cases]
    print("| mode | " + " | ".join(f"{name}, ms" for name in names) + " |")
    print("| --- " * (len(names) + 1) + "|")
    first: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for mode, model, plugin in models(Path(folder), args):
            times = []
            for case in cases:
                try:
                    times.append(median(model, plugin, *case, args))
                except Failed as error:
                    print(f"{mode}: failed\n{error}", file=sys.stderr)
                    times.append(None)
            first = first or times
            cells = [
                "failed" if time is None else f"{time * 1e3:.0f} ({base / time:.2f})" if base else f"{time * 1e3:.0f}"
                for time, base in zip(times, first)
            ]
            print(f"| {mode} | " + " | ".join(cells) + " |", flush=True)
    print("\nIn parentheses: how many times faster than the first row.")


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
    print(f"| K x N | rows | ours, ms | {other.__name__}, ms | times as fast | error of ours | of the other |")
    print("| --- " * 7 + "|")
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
            figures = f"{ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} | {errors[0]:.4f} | {errors[1]:.4f}"
            print(f"| {k} x {n} | {rows} | {figures} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--model", type=Path, help="an FP8 checkpoint's folder (default: TinyLlama by shape)")
    kinds.add_argument("--experts", action="store_true", help="a mixture of experts by shape")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="requests at once")
    parser.add_argument("--prompt", type=int, default=1, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=32, help="tokens decoded")
    parser.add_argument("--prefill", type=int, default=512, help="also one prompt of this length; 0: none")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--warmups", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], metavar="MODE", help="of: " + "; ".join(MODES | OF_EXPERTS))
    parser.add_argument("--int8-linears", action="store_true", help="no model: INT8 linears alone")
    parser.add_argument("--vllm", nargs=argparse.REMAINDER, default=[], help="last: options for vllm bench latency")
    sections.add_options(parser)
    args = parser.parse_args()
    use_local_build()
    with sections.recorded("vllm_latency", args):
        int8_linears() if args.int8_linears else report(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
