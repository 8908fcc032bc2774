"""A decode step of DeepSeek-V3's and Qwen3-235B's layers on this GPU, as markdown.

    python -m benchmarks model layers
    python -m benchmarks model layers --only qwen3-235b --rows 1
    python -m benchmarks model layers --deep-gemm       with an installed DeepGEMM, too

Two layers of the model's own shapes, random weights; of DeepSeek-V3 one GPU's share of eight: 16 heads, an eighth of
each expert. The step is one new token of each sequence behind 1024: the model without its head, compiled by
torch.compile and replayed as a graph; times are of one layer. "ours" has FP8 blocks, DeepSeek's attention a latent
cache. "DeepGEMM" has the same blocks in DeepGEMM's GEMMs, all else by torch.compile and SDPA; "bfloat16" is the model
before it was quantised, by torch.compile, SDPA and torch's grouped GEMM. All of a table row are timed in turn.

Before, the hidden values of ours are held to those of the same quantised model on the reference, the median
over sequences. Random routers have many experts of near scores, which change places by each rounding: that one step has
other routers. Layers of random weights make much of a last bit that moves an FP8 code, hence the tolerances; without a
latent cache the latent vectors are quantised once more.
"""

import contextlib
import copy

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache
from transformers.cache_utils import StaticLayer

from benchmarks.gpu_decode import Standing, drawn_on_gpu, recorded_step
from benchmarks.harness import gpu_report, gpu_timing
from benchmarks.harness.gpu_cases import Wrong
from benchmarks.harness.gpu_environment import Gpu, find_gpu
from benchmarks.harness.gpu_report import attempt, note
from benchmarks.harness.layer_peers import PeerExperts, PeerLinear, in_blocks
from benchmarks.harness.shapes import EIGHTH_OF_HEADS
from benchmarks.harness.table import Table, cell
from benchmarks.one_layer import VOCABULARY, settings
from examples.llama_fp8.decoding import with_cache

LAYERS, CONTEXT, AT_ONCE = 2, 1024, 1 << 14  # AT_ONCE: tokens of a prompt
MODELS = {"deepseek-v3": EIGHTH_OF_HEADS | dict(moe_intermediate_size=256), "qwen3-235b": {}}
ROWS = (1, 8, 32, 128)
TOLERANCES, VERIFIED_ROWS = {"ours": 0.15, "latent cache": 0.2}, 8  # of the hidden values' norm; sequences
# A latent cache goes on with each replay.
EFFORT = gpu_timing.Effort(warm_up=20, iterations=200)


class Step:
    """A model's step for `rows` sequences. reader: what computes the prompt, into a cache of the same kind."""

    def __init__(self, model: torch.nn.Module, reader: torch.nn.Module, caches, rows: int, seed: int):
        generator = torch.Generator("cuda").manual_seed(seed)

        def ids(length: int) -> torch.Tensor:
            return torch.randint(VOCABULARY, (rows, length), generator=generator, device="cuda")

        self.model, self.cache = model.model, caches(model.config)
        self.given = with_cache(self.model, self.cache)
        for part in ids(CONTEXT).split(max(1, AT_ONCE // rows), dim=1):
            reader.model(input_ids=part, **self.given, use_cache=True)
        for layer in self.cache.layers:
            if isinstance(layer, StaticLayer):
                layer.__class__ = Standing
        self.ids, self.position = ids(1), torch.full((rows, 1), CONTEXT, device="cuda")

    def __call__(self, model=None) -> torch.Tensor:
        inputs = dict(input_ids=self.ids, position_ids=self.position, **self.given, use_cache=True)
        return (self.model if model is None else model)(**inputs).last_hidden_state

    def record(self) -> gpu_timing.Recorded:
        torch._dynamo.reset()
        compiled = torch.compile(self.model, dynamic=False)
        recorded, self.hidden = recorded_step(lambda: self(compiled))
        return recorded


def static_cache(config) -> StaticCache:
    return StaticCache(config=config, max_cache_len=CONTEXT + 64)


def model_of(name: str, seed: int) -> torch.nn.Module:
    changed = settings(name, **MODELS[name]) | dict(num_hidden_layers=LAYERS)
    del changed["quantization_config"]
    config = AutoConfig.for_model(changed.pop("model_type"), **changed)
    model = drawn_on_gpu(lambda: AutoModelForCausalLM.from_config(config), seed)
    model.set_experts_implementation("grouped_mm")
    return model


def on_deep_gemm(model: torch.nn.Module) -> torch.nn.Module:
    """A copy whose linears and experts are DeepGEMM's."""
    model = copy.deepcopy(model)
    for name, module in list(model.model.layers.named_modules()):
        if isinstance(module, torch.nn.Linear):
            peer = PeerLinear(in_blocks(module.weight))
        elif getattr(module, "gate_up_proj", None) is not None:
            peer = PeerExperts(in_blocks(module.gate_up_proj), in_blocks(module.down_proj))
        else:
            continue
        parent, _, own = name.rpartition(".")
        setattr(model.model.layers.get_submodule(parent), own, peer)
    return model


def ours_of(gpu: Gpu, model: torch.nn.Module) -> tuple[torch.nn.Module, torch.nn.Module]:
    """What runs on our kernels, and a copy for the reference."""
    import kernels

    model = copy.deepcopy(model)
    gpu.kernel.quantization.quantize(model, granularity="block", activations="dynamic")
    reference = copy.deepcopy(model)
    with kernels.use_kernel_mapping(gpu.kernel.layers.mapping()):
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE)
    return model, reference


def step_of(gpu: Gpu, models: dict[str, torch.nn.Module], name: str, rows: int, seed: int, latent: bool) -> Step:
    def latent_cache(config):
        return gpu.kernel.quantization.latent_cache(config, max_length=CONTEXT + 512)

    # DeepGEMM has room for all tokens at each expert, and the reference takes long: not for a prompt.
    reader = {"DeepGEMM": models["bfloat16"], "reference": models.get("ours")}.get(name, models[name])
    return Step(models[name], reader, latent_cache if latent else static_cache, rows, seed)


def has_latent_cache(models: dict[str, torch.nn.Module]) -> bool:
    return hasattr(models["ours"].config, "kv_lora_rank")


def with_clear_choices(models: dict[str, torch.nn.Module], seed: int):
    """Routers whose scores of a token are its product with one vector, times distinct factors: their order is that of
    the factors, or the reverse. Returns what gives the routers their own weights back."""
    gates = [
        [module for name, module in model.named_modules() if name.endswith("mlp.gate")] for model in models.values()
    ]
    kept = [gate.weight.clone() for gate in gates[0]]
    generator = torch.Generator("cuda").manual_seed(seed)
    for of_layer in zip(*gates):
        experts, hidden = of_layer[0].weight.shape
        factors = torch.linspace(1, 3, experts, device="cuda")[
            torch.randperm(experts, device="cuda", generator=generator)
        ]
        vector = torch.randn(hidden, device="cuda", generator=generator) * hidden**-0.5
        for gate in of_layer:
            gate.weight.copy_(factors[:, None] * vector)

    def restore() -> None:
        for weight, of_layer in zip(kept, zip(*gates)):
            for gate in of_layer:
                gate.weight.copy_(weight)

    return restore


def verify(gpu: Gpu, models: dict[str, torch.nn.Module], seed: int) -> None:
    def hidden(name: str, latent: bool = False) -> torch.Tensor:
        step = step_of(gpu, models, name, VERIFIED_ROWS, seed, latent)
        with gpu.kernel.by_reference() if name == "reference" else contextlib.nullcontext():
            return step()[:, 0].float()

    restore = with_clear_choices(models, seed)
    right, found = hidden("reference"), {name: hidden(name) for name in models if name != "reference"}
    if has_latent_cache(models):
        found["latent cache"] = hidden("ours", True)
    restore()
    for name, values in found.items():
        away = ((values - right).norm(dim=-1) / right.norm(dim=-1)).median().item()
        note(f"{name}: {away:.2%} away from the reference")
        if not away <= TOLERANCES.get(name, torch.inf):
            raise Wrong(f"{name}: {away:.2%} away from the reference")


def row(gpu: Gpu, models: dict[str, torch.nn.Module], rows: int, seed: int) -> dict[str, gpu_timing.Times | None]:
    steps, recorded = {}, {}  # a graph reads its step's tensors
    for name in models:
        steps[name] = step_of(gpu, models, name, rows, seed, name == "ours" and has_latent_cache(models))
        recorded[name] = attempt(f"{name}, {rows} rows", steps[name].record)
    measured = gpu_timing.measure({name: one for name, one in recorded.items() if one}, EFFORT)
    return {name: measured.get(name) for name in models}


@torch.inference_mode(False)
@torch.no_grad()
def run(gpu: Gpu, args) -> dict:
    generator, figures = gpu_report.begin(gpu, args)
    results = []
    names = ["DeepGEMM", "bfloat16"] if args.deep_gemm else ["bfloat16"]
    columns = ["layer", "sequences", "ours", "±", *names, *(f"{name} by ours" for name in names)]
    title = f"A decode step of one layer behind {CONTEXT} tokens: microseconds"
    table = Table(columns, ["ours", *names], title)
    for name in args.only or MODELS:
        original = model_of(name, generator.initial_seed() % 2**31)
        models = dict(zip(("ours", "reference"), ours_of(gpu, original)))
        if args.deep_gemm:
            models["DeepGEMM"] = on_deep_gemm(original)
        models["bfloat16"] = original
        verify(gpu, models, generator.initial_seed() % 2**31)
        del models["reference"]
        for rows in args.rows or ROWS:
            times = row(gpu, models, rows, generator.initial_seed() % 2**31 + rows)
            us = {key: one and one.median_us / LAYERS for key, one in times.items()}
            cells = [cell(us["ours"], 1), cell(times["ours"].spread_us / LAYERS if us["ours"] else None, 1)]
            cells += [cell(us.get(key), 1) for key in names]
            cells += [cell(us[key] / us["ours"] if us.get(key) and us["ours"] else None) for key in names]
            table.row(name, str(rows), *cells)
            results.append({"model": name, "rows": rows, "times": gpu_report.raw(times)})
        del models, original
        torch.cuda.empty_cache()
    return figures | {"results": results}


def main(argv: list[str] | None = None) -> int:
    parser = gpu_report.parser(__doc__, MODELS, metavar="MODEL")
    gpu_report.add_rows(parser)
    parser.add_argument("--deep-gemm", action="store_true", help="beside DeepGEMM's GEMMs; needs the package")
    args = parser.parse_args(argv)
    return 0 if gpu_report.figures_of("gpu_model_layers", lambda: run(find_gpu(), args), args) is not None else 1
