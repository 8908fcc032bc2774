"""A decode step of a whole Llama in transformers on this GPU, as markdown.

    python -m benchmarks model decode
    python -m benchmarks model decode --only static --rows 1 --layers 4     # less of it

The step: one new token of each request behind 64 cached ones, by transformers' model with a static cache of 128,
compiled as a whole by torch.compile and replayed as a CUDA or HIP graph. "torch" is the same FP8 model whose norms and
SwiGLU are torch.compile's and whose linears are torch._scaled_mm; "bfloat16" the model before it was quantised. Weights
are random, of Llama 3.1 8B's shapes. "static": a scale a tensor; "dynamic": one a row and a channel.
All of a table row are timed in turn, after our logits were found no further from the reference's than torch's: in 32
layers of random weights each rounding grows.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
from transformers.cache_utils import StaticLayer

from benchmarks.harness import gpu_report, gpu_timing
from benchmarks.harness.gpu_cases import Wrong
from benchmarks.harness.gpu_environment import Gpu, find_gpu
from benchmarks.harness.gpu_report import note
from benchmarks.harness.shapes import LLAMA_8B
from benchmarks.harness.table import Table, cell
from examples.llama_fp8.decoding import with_cache

CONTEXT, CACHE, VOCABULARY = 64, 128, 128256
SCALES = {"static": dict(granularity="tensor"), "dynamic": dict(granularity="channel", activations="dynamic")}
ROWS = (1, 8, 32)
# Our logits' distance from the reference's by that of torch's, which leaves out roundings (benchmarks/gpu_layer.py).
TOLERANCE = 1.25


class Standing(StaticLayer):
    """A static cache that does not go on: every replay of a graph is the same step."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        position = self.cumulative_length.reshape(1)
        self.keys.index_copy_(2, position, key_states)
        self.values.index_copy_(2, position, value_states)
        return self.keys, self.values


def recorded_step(step: Callable[[], torch.Tensor]) -> tuple[gpu_timing.Recorded, torch.Tensor]:
    """A graph of one step, and where its replays leave the result."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = step()
    graph.replay()
    return gpu_timing.Recorded([graph], 1), result


class Step:
    """A model's step for `rows` requests. Its graph reads this object's tensors."""

    def __init__(self, model: torch.nn.Module, rows: int, generator: torch.Generator):
        def ids(length: int) -> torch.Tensor:
            return torch.randint(VOCABULARY, (rows, length), generator=generator, device="cuda")

        self.cache = StaticCache(config=model.config, max_cache_len=CACHE)
        self.given = with_cache(model, self.cache)
        model(input_ids=ids(CONTEXT), **self.given, use_cache=True, logits_to_keep=1)
        for layer in self.cache.layers:
            layer.__class__ = Standing
        self.ids, self.position = ids(1), torch.full((rows, 1), CONTEXT, device="cuda")
        torch._dynamo.reset()
        self.compiled = torch.compile(model, dynamic=False, fullgraph=True)

    def __call__(self, model: torch.nn.Module | None = None) -> torch.Tensor:
        """The logits; of `model`: not compiled."""
        inputs = dict(input_ids=self.ids, position_ids=self.position, **self.given, use_cache=True)
        return (model or self.compiled)(**inputs).logits

    def record(self) -> gpu_timing.Recorded:
        """A graph of one step, whose logits are self.logits from then on."""
        recorded, self.logits = recorded_step(self)
        return recorded


def torchs(reference) -> SimpleNamespace:
    """The operators as torch alone has them; Inductor compiles the reference with the rest of the model."""

    def fp8_linear(a, b, scale_a, scale_b, bias=None, *, out_dtype, constant_b):
        return torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=out_dtype)

    return SimpleNamespace(
        **{name: getattr(reference, name) for name in reference.__all__} | {"fp8_linear": fp8_linear}
    )


@contextmanager
def by_torch(gpu: Gpu) -> Iterator[None]:
    """Models call torch's operators meanwhile."""
    chosen = sys.modules[f"{gpu.kernel.__name__}.operators"]
    own, chosen.ops = chosen.ops, torchs(gpu.kernel.reference)
    try:
        yield
    finally:
        chosen.ops = own


def drawn_on_gpu(make: Callable[[], torch.nn.Module], seed: int) -> torch.nn.Module:
    """In bfloat16, for inference."""
    torch.manual_seed(seed)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return make().eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(default)


def llama(layers: int, generator: torch.Generator) -> torch.nn.Module:
    config = LlamaConfig(
        **(LLAMA_8B.config | dict(num_hidden_layers=layers)),
        vocab_size=VOCABULARY,
        max_position_embeddings=8192,
        rope_parameters=dict(rope_type="default", rope_theta=500000.0),
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    return drawn_on_gpu(lambda: LlamaForCausalLM(config), generator.initial_seed() % 2**32)


def versions(gpu: Gpu, scales: str, layers: int, generator: torch.Generator) -> dict[str, torch.nn.Module]:
    """Name -> model."""
    import kernels

    original = llama(layers, generator)
    model = copy.deepcopy(original)
    text = None if scales == "dynamic" else [torch.randint(VOCABULARY, (4, 64), generator=generator, device="cuda")]
    gpu.kernel.quantization.quantize(model, text, **SCALES[scales])
    on_torch = copy.deepcopy(model)  # kernelize changes the other; the reference is another backend of the same modules
    with kernels.use_kernel_mapping(gpu.kernel.layers.mapping()):
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE)
    return {"ours": model, "bfloat16": original, "torch": on_torch, "reference": on_torch}


def row(gpu: Gpu, models: dict[str, torch.nn.Module], rows: int, seed: int, args) -> dict[str, gpu_timing.Times]:
    steps, recorded = {}, {}
    contexts = {"torch": lambda: by_torch(gpu), "reference": gpu.kernel.by_reference}
    for name, model in models.items():
        note(f"{rows} rows: {name}")
        with contexts.get(name, nullcontext)():
            steps[name] = Step(model, rows, torch.Generator("cuda").manual_seed(seed))  # the same text for all
            if name == "reference":
                right = steps[name](model).float()
            else:
                recorded[name] = steps[name].record()
    away = {name: (steps[name].logits.float() - right).square().mean().sqrt().item() for name in ("ours", "torch")}
    size = right.square().mean().sqrt().item()
    note(f"{rows} rows: logits {away['ours'] / size:.2%} away from the reference's, torch's {away['torch'] / size:.2%}")
    if not away["ours"] <= TOLERANCE * away["torch"]:
        raise Wrong(f"{rows} rows: our logits are further away from the reference's than torch's are")
    return gpu_report.times_of(recorded, args)


@torch.inference_mode(False)
@torch.no_grad()
def run(gpu: Gpu, args) -> dict:
    generator, figures = gpu_report.begin(gpu, args)
    results = []
    columns = ["scales", "rows", "ours", "±", "torch", "bfloat16", "torch by ours", "bfloat16 by ours"]
    title = f"A decode step of Llama 3.1 8B's shapes, {args.layers} layers: microseconds"
    table = Table(columns, ["ours", "torch", "bfloat16"], title)
    for scales in args.only or SCALES:
        models = versions(gpu, scales, args.layers, generator)
        for rows in args.rows or ROWS:
            times = row(gpu, models, rows, generator.initial_seed() + rows, args)
            us = {name: one.median_us for name, one in times.items()}
            cells = [cell(value, 0) for value in (us["ours"], times["ours"].spread_us, us["torch"], us["bfloat16"])]
            ratios = [cell(us[name] / us["ours"]) for name in ("torch", "bfloat16")]
            table.row(scales, str(rows), *cells, *ratios)
            results.append({"scales": scales, "rows": rows, "times": gpu_report.raw(times)})
        del models
        torch.cuda.empty_cache()
    return figures | {"results": results}


def main(argv: list[str] | None = None) -> int:
    parser = gpu_report.parser(__doc__, SCALES, metavar="SCALES")
    gpu_report.add_rows(parser, 32)
    parser.add_argument("--layers", type=int, default=32)
    args = parser.parse_args(argv)
    return 0 if gpu_report.figures_of("gpu_decode", lambda: run(find_gpu(), args), args) is not None else 1
