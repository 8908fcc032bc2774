#!/usr/bin/env python3
"""Train the byte-level Llama of the demo on the running interpreter's standard library.

    python -m examples.byte_llama.train

What bounds the run is not the GPU but the text: seven to nine megabytes are read dozens of times.
Hence dropout, strong weight decay, and the checkpoint that is kept: the best one on a validation
slice that is never trained on, rather than the last. The published figure is measured at the end, on
modules which neither training nor that choice has seen, and on the weights as they are saved
(rounded to bfloat16).
"""

import argparse
import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

# The script runs from any folder, and the tests import it as byte_llama.train.
from examples.byte_llama import corpus


@dataclass(frozen=True)
class Settings:
    """One run. Of `steps` and `minutes`, exactly one is set."""

    out: Path
    device: torch.device
    batch: int
    steps: int | None = None
    minutes: float | None = None
    length: int = 1024
    peak_rate: float = 2e-3
    weight_decay: float = 2.0
    seed: int = 0
    compiled: bool = True
    eval_every: int = 250
    eval_windows: int | None = 512
    final_windows: int | None = None


@dataclass(frozen=True)
class Streams:
    """The three parts of the corpus, each `uint8 [bytes]` on the training device."""

    training: torch.Tensor
    validation: torch.Tensor
    held_out: torch.Tensor

    @classmethod
    def load(cls, device: torch.device) -> "Streams":
        held_out = corpus.join(text for _, text in corpus.held_out_files())
        parts = (corpus.training_bytes(), corpus.validation_bytes(), held_out)
        return cls(*(torch.frombuffer(bytearray(part), dtype=torch.uint8).to(device) for part in parts))


class Schedule:
    """Progress of the run in [0, 1], by steps or by the clock, and the learning rate that follows from it."""

    WARM_UP = 0.02
    FLOOR = 0.02

    def __init__(self, settings: Settings):
        self._settings = settings
        self._began = time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def progress(self, steps_done: int) -> float:
        if self._settings.steps is not None:
            return min(1.0, steps_done / self._settings.steps)
        return min(1.0, self.elapsed() / (60 * self._settings.minutes))

    def rate(self, progress: float) -> float:
        """Linear warm-up, then a cosine from the peak to `FLOOR` of it."""
        if progress < self.WARM_UP:
            # Never zero: the first step of a run would be lost.
            return self._settings.peak_rate * max(progress / self.WARM_UP, self.FLOOR)
        cosine = 0.5 * (1 + math.cos(math.pi * (progress - self.WARM_UP) / (1 - self.WARM_UP)))
        return self._settings.peak_rate * (self.FLOOR + (1 - self.FLOOR) * cosine)


def model_config(**changes) -> LlamaConfig:
    """5.6 million parameters, 11 MB in bfloat16; `changes` are fields of LlamaConfig."""
    fields = dict(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        attention_dropout=0.25,
    )
    return LlamaConfig(**(corpus.CONFIG | fields | changes))


def autocast(device: torch.device) -> AbstractContextManager:
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()


def sample_batch(stream: torch.Tensor, batch: int, length: int, generator: torch.Generator) -> tuple:
    """(inputs, targets), `int64 [batch, length]`, from random offsets; gathered where the stream lies."""
    starts = torch.randint(stream.numel() - length, (batch, 1), device=stream.device, generator=generator)
    tokens = stream[starts + torch.arange(length + 1, device=stream.device)].long()
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def add_dropout(model: LlamaForCausalLM, probability: float) -> None:
    """Dropout on what each attention and each MLP adds to the residual stream.

    Llama has dropout on attention weights alone, which hardly slows memorising here. Hooks leave the
    weights and the configuration as they are, so the checkpoint is a plain Llama.
    """
    for layer in model.model.layers:
        for branch in (layer.self_attn.o_proj, layer.mlp.down_proj):
            branch.register_forward_hook(lambda module, _, added: F.dropout(added, probability, module.training))


def make_loss(model: PreTrainedModel, device: torch.device, compiled: bool, sample: tuple) -> Callable:
    """The training loss in nats a byte; compiled on a GPU when the compiler works there."""

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with autocast(device):
            result = model(input_ids=inputs, use_cache=False)
        nats = F.cross_entropy(result.logits.float().flatten(0, 1), targets.flatten())
        # How unevenly experts are chosen, of a model that is configured to say so.
        uneven = getattr(result, "aux_loss", None)
        return nats if uneven is None else nats + model.config.router_aux_loss_coef * uneven

    if device.type != "cuda" or not compiled:
        return loss
    fast = torch.compile(loss, dynamic=False)
    try:
        # Compilation happens on the first call, so that call is made here, where failing is cheap.
        fast(*sample).backward()
    except Exception as error:  # whatever the compiler, its host compiler or the driver raises
        print(f"torch.compile does not work here ({type(error).__name__}); training without it", flush=True)
        fast = loss
    model.zero_grad(set_to_none=True)
    return fast


def make_optimizer(model: PreTrainedModel, settings: Settings) -> torch.optim.AdamW:
    """Weight decay on matrices alone: decaying the norms' gains only shifts scale between layers."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    gains = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.peak_rate, betas=(0.9, 0.95), fused=settings.device.type == "cuda")


@torch.no_grad()
def bits_per_byte(model: PreTrainedModel, stream: torch.Tensor, settings: Settings, windows: int | None) -> float:
    """Mean bits per byte of `stream`.

    Windows of `settings.length` bytes advance by half their length and only the second half is scored: each
    byte counts once and is predicted from `length / 2` to `length` bytes of context. The stream's
    first half window, and what is left over at its end, are not scored. `windows` limits the work
    to so many windows, evenly spaced and the same on every call.
    """
    length = settings.length
    half = length // 2
    starts = torch.arange(0, stream.numel() - length, length - half, device=stream.device)
    if starts.numel() == 0:
        raise ValueError(f"{stream.numel()} bytes are too few for one window of {length}")
    if windows is not None and windows < starts.numel():
        starts = starts[torch.linspace(0, starts.numel() - 1, windows).long().to(stream.device)]
    offsets = torch.arange(length + 1, device=stream.device)
    was_training = model.training
    model.eval()
    nats = torch.zeros((), dtype=torch.float64, device=stream.device)
    for chunk in starts.split(settings.batch):
        tokens = stream[chunk[:, None] + offsets].long()
        with autocast(stream.device):
            logits = model(input_ids=tokens[:, :-1], use_cache=False).logits[:, half:]
        nats += F.cross_entropy(logits.float().flatten(0, 1), tokens[:, half + 1 :].flatten(), reduction="sum")
    model.train(was_training)
    return nats.item() / (starts.numel() * (length - half)) / math.log(2)


@dataclass
class Best:
    """The weights with the lowest validation figure so far, in CPU memory."""

    bits: float = math.inf
    step: int = 0
    weights: dict | None = None

    def offer(self, bits: float, step: int, model: PreTrainedModel) -> None:
        if bits < self.bits:
            self.bits, self.step = bits, step
            self.weights = {name: value.to("cpu", copy=True) for name, value in model.state_dict().items()}


def fit(model: PreTrainedModel, streams: Streams, settings: Settings) -> tuple[Best, int, float]:
    """Train `model`; returns the best weights, the number of steps and the seconds they took."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    optimizer = make_optimizer(model, settings)
    model.train()
    sample = sample_batch(streams.training, settings.batch, settings.length, generator)
    loss_of = make_loss(model, settings.device, settings.compiled, sample)
    best, step, progress = Best(), 0, 0.0
    # The clock starts after compilation: otherwise the schedule would jump over its warm-up.
    schedule = Schedule(settings)
    with tqdm(total=settings.steps, unit="step", disable=None, dynamic_ncols=True) as bar:
        while progress < 1:
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate(progress)
            loss = loss_of(*sample_batch(streams.training, settings.batch, settings.length, generator))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            progress = schedule.progress(step)
            bar.update()
            # Reading the loss waits for the device, so it is read now and then only. That wait also
            # keeps the host's clock, which the schedule follows, close to the device's work.
            if step % 10 == 0 or settings.device.type == "cpu":
                bar.set_postfix(done=f"{progress:.0%}", bits_per_byte=f"{loss.item() / math.log(2):.3f}")
            if step % settings.eval_every == 0 or progress >= 1:
                bits = bits_per_byte(model, streams.validation, settings, settings.eval_windows)
                best.offer(bits, step, model)
                tqdm.write(
                    f"step {step:6d}  {schedule.elapsed():6.0f} s  {progress:4.0%}  bits per byte:"
                    f" training {loss.item() / math.log(2):.3f}  validation {bits:.3f}  best {best.bits:.3f}"
                )
                sys.stdout.flush()
    if best.weights is None:
        raise FloatingPointError("training diverged: the validation loss was never finite")
    return best, step, schedule.elapsed()


def train(settings: Settings, config: LlamaConfig, streams: Streams) -> dict:
    """A whole run, checkpoint included; returns what training.json holds."""
    # Before the work: a folder that cannot be made should not cost a training run.
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    model = LlamaForCausalLM(config).to(settings.device)
    add_dropout(model, config.attention_dropout)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    sizes = ", ".join(f"{name} {part.numel()}" for name, part in vars(streams).items())
    print(f"seed {settings.seed}; {device_name(settings.device)}; {parameters} parameters; bytes: {sizes}", flush=True)

    return fit_and_save(model, streams, settings, dropout=config.attention_dropout)


def fit_and_save(
    model: PreTrainedModel,
    streams: Streams,
    settings: Settings,
    before_saving: Callable[[PreTrainedModel], None] | None = None,
    **more,
) -> dict:
    """Trains and writes the checkpoint; returns what training.json holds: `more` as well, of which functions are called
    when the weights are those that are saved. before_saving changes the model that was measured, as files ask for."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    best, steps, seconds = fit(model, streams, settings)
    # Rounded, then measured: the figures belong to the file that is written.
    model.load_state_dict({name: value.bfloat16().float() for name, value in best.weights.items()})
    validation, held_out = (
        round(bits_per_byte(model, stream, settings, settings.final_windows), 4)
        for stream in (streams.validation, streams.held_out)
    )
    report = {
        "seed": settings.seed,
        "steps": steps,
        "best_step": best.step,
        "bytes_seen": steps * settings.batch * settings.length,
        "training_bytes": streams.training.numel(),
        **{name: getattr(settings, name) for name in ("batch", "length", "peak_rate", "weight_decay")},
        **{name: value() if callable(value) else value for name, value in more.items()},
        "parameters": parameters,
        "device": device_name(settings.device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "seconds": round(seconds, 1),
        "validation_bits_per_byte": validation,
        "held_out_bits_per_byte": held_out,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    model = model.to("cpu", torch.bfloat16)
    if before_saving is not None:
        before_saving(model)
    save(model, report, settings.out)
    return report


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"


def save(model: PreTrainedModel, report: dict, out: Path) -> None:
    """Write the checkpoint beside `out`, then rename: `out` is the old checkpoint or the new one, never a part."""
    # Without it, generate() warns on each call that it pads with EOS. Not in the model's own
    # configuration, where it would freeze the embedding of BOS.
    model.generation_config.pad_token_id = corpus.EOS
    partial, old = (out.with_name(f".{out.name}.{suffix}") for suffix in ("partial", "old"))
    for left_over in (partial, old):
        shutil.rmtree(left_over, ignore_errors=True)
    try:
        model.save_pretrained(partial)
        (partial / "training.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        if out.exists():
            os.rename(out, old)
        os.rename(partial, out)
    except BaseException:  # Ctrl-C too
        if old.exists() and not out.exists():
            os.rename(old, out)
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


def positive(kind: type) -> Callable[[str], int | float]:
    def parse(text: str) -> int | float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not positive")
        return value

    # argparse names this in its message about a text that is no number at all.
    parse.__name__ = kind.__name__
    return parse


def parse_arguments(arguments: list[str] | None) -> tuple[Settings, float]:
    """(settings, dropout); ends the program with a message where an argument is wrong."""
    parser = argparse.ArgumentParser(
        description="Train a 5.6 M parameter byte-level Llama on this Python's standard library.",
        epilog="Ctrl-C stops the run and writes nothing; a checkpoint already at --out stays as it is.",
    )
    budget = parser.add_mutually_exclusive_group()
    minutes_help = (
        "time budget (default: 3.3); the learning rate decays over it. Loading, compilation (about a minute"
        " on a GPU) and the final measurement come on top"
    )
    budget.add_argument("--minutes", type=positive(float), help=minutes_help)
    budget.add_argument("--steps", type=positive(int), help="train for so many steps instead")

    def option(name: str, kind: type | Callable, default, help: str) -> None:
        shown = "" if default is None else " (default: %(default)s)"
        parser.add_argument(name, type=kind, default=default, help=help + shown)

    option("--out", Path, Path(__file__).resolve().parent / "checkpoint", "checkpoint folder")
    option("--device", str, None, "cpu, cuda or cuda:N (default: cuda if there is one)")
    option("--batch", positive(int), None, "sequences a step (default: 64 on a GPU, 8 on a CPU)")
    option("--length", positive(int), 1024, "bytes a sequence, at most 1024")
    option("--seed", int, 0, "of weights, batches and dropout")
    option("--rate", positive(float), 2e-3, "peak learning rate")
    option("--weight-decay", float, 2.0, "AdamW's, on matrices")
    option("--dropout", float, 0.25, "of attention weights and of each branch's output")
    option("--eval-every", positive(int), 250, "steps between validations")
    option("--eval-windows", positive(int), None, "windows a validation (default: 512 on a GPU, 16 on a CPU)")
    option("--final-windows", positive(int), None, "windows of each final measurement (default: all there are)")
    parser.add_argument("--no-compile", action="store_true", help="do not use torch.compile on a GPU")
    given = parser.parse_args(arguments)

    try:
        device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        parser.error(f"--device: {str(error).splitlines()[0]}")
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        parser.error(f"--device: {device} is not available here")
    if not 2 <= given.length <= model_config().max_position_embeddings:
        parser.error("--length: 2 to 1024")
    if not 0 <= given.dropout < 1:
        parser.error("--dropout: at least 0 and below 1")
    out = out_folder(parser, given.out)
    on_gpu = device.type == "cuda"
    settings = Settings(
        out=out,
        device=device,
        batch=given.batch or (64 if on_gpu else 8),
        steps=given.steps,
        minutes=None if given.steps else given.minutes or 3.3,
        length=given.length,
        peak_rate=given.rate,
        weight_decay=given.weight_decay,
        seed=given.seed,
        compiled=not given.no_compile,
        eval_every=given.eval_every,
        eval_windows=given.eval_windows or (512 if on_gpu else 16),
        final_windows=given.final_windows,
    )
    return settings, given.dropout


def out_folder(parser: argparse.ArgumentParser, out: Path) -> Path:
    """--out; ends the program where it is something else than a checkpoint."""
    out = out.resolve()
    if out.exists() and not (out / "config.json").is_file():
        parser.error(f"--out: {out} exists and is no checkpoint")
    return out


def finish(work: Callable[[], dict], out: Path) -> int:
    """The exit status of a run that returns what training.json holds."""
    try:
        report = work()
    except KeyboardInterrupt:
        print("\ninterrupted: nothing was written", file=sys.stderr)
        return 130
    except (OSError, FloatingPointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{json.dumps(report, indent=2)}\ncheckpoint: {out}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    settings, dropout = parse_arguments(arguments)
    config = model_config(attention_dropout=dropout)
    return finish(lambda: train(settings, config, Streams.load(settings.device)), settings.out)


if __name__ == "__main__":
    sys.exit(main())
