#!/usr/bin/env python3
"""Train the byte-level DeepSeek V3 of the demo on the running interpreter's standard library.

    python -m examples.byte_deepseek.train                              # on a GPU minutes, on one CPU thread an hour
    python -m examples.byte_deepseek.train --dense --out /tmp/llama     # the Llama that it is compared with

Text, schedule and measurement are those of the byte-level Llama (examples/byte_llama). The latent vector has
DeepSeek's own size, 512 numbers beside 64 rotated ones, since that is what mla_decode takes; all else is small.

Experts are kept busy as DeepSeek-V3 does it: without a loss of its own. After each step the bias that only chooses
experts rises where an expert had too few tokens, and falls where it had too many.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig, PreTrainedConfig, PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from examples.byte_llama import corpus
from examples.byte_llama.train import Settings, Streams, finish, fit_and_save, out_folder, positive

CHECKPOINT = Path(__file__).resolve().parent / "checkpoint"
BIAS_STEP = 1e-3  # DeepSeek-V3's


def model_config(**changes) -> DeepseekV3Config:
    """5.6 million parameters, of which a token takes 3.8; `changes` are fields of DeepseekV3Config."""
    fields = dict(
        hidden_size=256,
        num_hidden_layers=4,
        first_k_dense_replace=1,
        intermediate_size=512,
        moe_intermediate_size=128,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
        n_shared_experts=1,
        routed_scaling_factor=1.0,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=192,
        kv_lora_rank=512,
        qk_nope_head_dim=64,
        qk_rope_head_dim=64,
        v_head_dim=64,
        topk_method="noaux_tc",  # vLLM asks for this and the next, which transformers takes for granted
        scoring_func="sigmoid",
        num_nextn_predict_layers=0,
    )
    return DeepseekV3Config(**(corpus.CONFIG | fields | changes))


def dense_config(**changes) -> LlamaConfig:
    """A Llama with as many parameters as one token takes of the DeepSeek."""
    fields = dict(
        hidden_size=256,
        intermediate_size=968,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    )
    return LlamaConfig(**(corpus.CONFIG | fields | changes))


def as_one_mlp(
    experts: torch.nn.Module, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """All experts as one MLP, what is between its linears times the expert's weight, most of them zero: two GEMMs.
    Experts this small take less time so than by sorted tokens, and the host counts none.

    hidden [tokens, hidden]; chosen, weights [tokens, top k].
    """
    count, both, _ = experts.gate_up_proj.shape
    of_expert = weights.new_zeros(len(hidden), count).scatter(1, chosen, weights)
    gate, up = F.linear(hidden, experts.gate_up_proj.flatten(0, 1)).view(-1, count, both).chunk(2, dim=-1)
    between = experts.act_fn(gate) * up * of_expert[..., None]
    return F.linear(between.flatten(1), experts.down_proj.transpose(0, 1).flatten(1)).to(hidden.dtype)


@torch.no_grad()
def as_published(model: PreTrainedModel) -> None:
    """Makes the head of a model with experts a tensor of its own, a copy of the embedding, in place: it is trained
    tied, published ones are not, and vLLM ties none of these. Leaves out what only training asks for."""
    if routers(model):
        model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.clone())
        model.config.tie_word_embeddings = False
        if getattr(model.config, "output_router_logits", False):
            model.config.output_router_logits = False


def routers(model: PreTrainedModel) -> list[torch.nn.Module]:
    return [module for module in model.modules() if type(module).__name__.lower().endswith("topkrouter")]


def tokens_of_experts(router: torch.nn.Module, chosen: torch.Tensor) -> torch.Tensor:
    """int64 [experts]."""
    return F.one_hot(chosen.flatten(), len(router.weight)).sum(0)


def keep_experts_busy(model: PreTrainedModel) -> None:
    """Moves routers' correction biases, if they have them, after each forward of a training step. Called once a
    model."""

    @torch.no_grad()
    def move(router, _, result):
        if router.training:
            tokens = tokens_of_experts(router, result[2]).float()
            router.e_score_correction_bias.add_(torch.sign(tokens.mean() - tokens), alpha=BIAS_STEP)

    for router in routers(model):
        if hasattr(router, "e_score_correction_bias"):
            router.register_forward_hook(move)


@torch.no_grad()
def expert_load(model: PreTrainedModel, stream: torch.Tensor, length: int, windows: int = 64) -> list[list[float]]:
    """Of each layer with experts: which share of the choices each expert gets, on evenly spaced windows of `stream`."""
    found = {router: 0 for router in routers(model)}

    def count(router, _, result):
        found[router] = found[router] + tokens_of_experts(router, result[2])

    handles = [router.register_forward_hook(count) for router in found]
    was_training = model.training
    model.eval()
    starts = torch.linspace(0, stream.numel() - length, windows).long()
    for start in starts.tolist():
        model(input_ids=stream[None, start : start + length].long(), use_cache=False)
    model.train(was_training)
    for handle in handles:
        handle.remove()
    return [[round(share, 4) for share in (tokens / tokens.sum()).tolist()] for tokens in found.values()]


def active_parameters(model: PreTrainedModel) -> int:
    """Parameters that one token takes: of experts its chosen ones'."""
    total = sum(parameter.numel() for parameter in model.parameters())
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        stacked = own if any(p.dim() == 3 for p in own) else []  # biases, too
        idle = getattr(module, "num_experts", 0) - getattr(model.config, "num_experts_per_tok", 0)
        total -= sum(parameter.numel() // len(parameter) * idle for parameter in stacked)
    return total


def train(
    settings: Settings, config: PreTrainedConfig, streams: Streams, dropout: float, experts: Callable = as_one_mlp
) -> dict:
    """A whole run, checkpoint included; returns what training.json holds. experts: what computes them."""
    settings.out.parent.mkdir(parents=True, exist_ok=True)  # a folder that cannot be made should not cost a run
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    model = AutoModelForCausalLM.from_config(config).to(settings.device)
    if routers(model):
        ALL_EXPERTS_FUNCTIONS.register("one_mlp", experts)
        model.set_experts_implementation("one_mlp")
    keep_experts_busy(model)

    def drop(branch, _, added):
        if isinstance(added, tuple):  # gpt-oss' MLP returns scores, too
            return F.dropout(added[0], dropout, branch.training), *added[1:]
        return F.dropout(added, dropout, branch.training)

    for layer in model.model.layers if dropout else ():
        for branch in (layer.self_attn.o_proj, layer.mlp):
            branch.register_forward_hook(drop)
    about = dict(dropout=dropout, active_parameters=active_parameters(model), threads=torch.get_num_threads())
    print(f"seed {settings.seed}; {about}", flush=True)
    about["expert_load"] = lambda: expert_load(model, streams.held_out, settings.length)
    return fit_and_save(model, streams, settings, as_published, **about)


def parse_arguments(
    arguments: list[str] | None, name: str = "DeepSeek V3", checkpoint: Path = CHECKPOINT, has_dense: bool = True
) -> tuple[Settings, bool, float]:
    """(settings, dense, dropout); ends the program with a message where an argument is wrong. has_dense: --dense is
    one of them."""
    parser = argparse.ArgumentParser(description=f"Train a byte-level {name} on this Python's standard library.")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=positive(float), help="time budget (default: 4 on a GPU, 60 on a CPU)")
    budget.add_argument("--steps", type=positive(int), help="train for so many steps instead")
    parser.set_defaults(dense=False)
    if has_dense:
        parser.add_argument("--dense", action="store_true", help="a Llama of its active size instead; needs --out")
    parser.add_argument("--out", type=Path, help=f"checkpoint folder (default: {checkpoint.name} beside this script)")
    parser.add_argument("--batch", type=positive(int), help="sequences a step (default: 64 on a GPU, 8 on a CPU)")
    parser.add_argument("--length", type=positive(int), help="bytes a sequence (default: 1024 on a GPU, 256 on a CPU)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default: %(default)s)")
    parser.add_argument("--rate", type=positive(float), help="peak learning rate (default: 1e-3; dense 2e-3)")
    parser.add_argument("--dropout", type=float, help="of each branch's output (default: .2 on a GPU, 0 on a CPU)")
    parser.add_argument("--no-compile", action="store_true", help="do not use torch.compile on a GPU")
    given = parser.parse_args(arguments)
    if given.dense and given.out is None:
        parser.error("--dense: needs --out")
    out = out_folder(parser, given.out or checkpoint)
    on_gpu = torch.cuda.is_available()
    length = given.length or (1024 if on_gpu else 256)
    if not 2 <= length <= 1024:
        parser.error("--length: 2 to 1024")
    dropout = given.dropout if given.dropout is not None else 0.2 if on_gpu else 0.0
    if not 0 <= dropout < 1:
        parser.error("--dropout: at least 0 and below 1")
    settings = Settings(
        out=out,
        device=torch.device("cuda" if on_gpu else "cpu"),
        batch=given.batch or (64 if on_gpu else 8),
        steps=given.steps,
        minutes=None if given.steps else given.minutes or (4.0 if on_gpu else 60.0),
        length=length,
        peak_rate=given.rate or (2e-3 if given.dense else 1e-3),
        weight_decay=1.0 if dropout else 0.1,
        seed=given.seed,
        compiled=not given.no_compile,
        eval_every=250,
        eval_windows=512 if on_gpu else 64,
        final_windows=None if on_gpu else 512,
    )
    return settings, given.dense, dropout


def run(settings: Settings, config: PreTrainedConfig, dropout: float, experts: Callable = as_one_mlp) -> int:
    """The exit status of the program."""
    if settings.device.type == "cpu":
        torch.set_num_threads(1)
    return finish(lambda: train(settings, config, Streams.load(settings.device), dropout, experts), settings.out)


def main(arguments: list[str] | None = None) -> int:
    settings, dense, dropout = parse_arguments(arguments)
    config = (dense_config if dense else model_config)(max_position_embeddings=settings.length)
    return run(settings, config, dropout)


if __name__ == "__main__":
    sys.exit(main())
