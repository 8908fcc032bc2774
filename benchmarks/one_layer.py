"""One decoder layer of a large model's own shapes, from a checkpoint in its published layout: written, loaded, run.

    python -m benchmarks model checkpoint deepseek-v3 FOLDER        # 11.6 GB on disk, 13 GB of memory
    python -m benchmarks model checkpoint qwen3-235b FOLDER         # 2.5 GB

Codes and scales are random. FOLDER is written where it does not exist. Printed are bytes a parameter, how far the
kernels' logits are from the reference's, and decode steps' times on this machine. Only the vocabulary is
smaller than the model's own, and there is one layer, with experts.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import kernels
import torch
from safetensors.torch import save_file

from benchmarks.harness.shapes import CONFIGS
from scripts.load import default_backend, load_kernel

BLOCK = 128
VOCABULARY = 1024
BIASED = "e_score_correction_bias"
# Beside CONFIGS of harness/shapes.py. All layers have experts.
MODELS = {
    "deepseek-v3": dict(
        first_k_dense_replace=0,
        rope_theta=10000,
        rope_scaling=dict(
            type="yarn",
            factor=40,
            original_max_position_embeddings=4096,
            beta_fast=32,
            beta_slow=1,
            mscale=1.0,
            mscale_all_dim=1.0,
        ),
        max_position_embeddings=163840,
    ),
    "qwen3-235b": dict(rope_theta=1000000.0, max_position_embeddings=40960),
}


def settings(name: str, **changes) -> dict:
    """config.json of the model `name`, with one layer."""
    return (
        CONFIGS[name]
        | MODELS[name]
        | changes
        | dict(
            num_hidden_layers=1,
            vocab_size=VOCABULARY,
            hidden_act="silu",
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            torch_dtype="bfloat16",
            bos_token_id=0,
            eos_token_id=1,
            quantization_config=dict(
                quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[BLOCK, BLOCK]
            ),
        )
    )


def linears(config: dict) -> Iterator[tuple[str, int, int]]:
    """(name, outputs, inputs) of what is stored in FP8."""
    d, heads, layer = config["hidden_size"], config["num_attention_heads"], "model.layers.0"
    if config["model_type"] == "deepseek_v3":
        rope, nope, value = (config[name] for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
        of_attention = {
            "q_a_proj": (config["q_lora_rank"], d),
            "q_b_proj": (heads * (nope + rope), config["q_lora_rank"]),
            "kv_a_proj_with_mqa": (config["kv_lora_rank"] + rope, d),
            "kv_b_proj": (heads * (nope + value), config["kv_lora_rank"]),
            "o_proj": (d, heads * value),
        }
    else:
        own, of_keys = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
        of_attention = {"q_proj": (own, d), "k_proj": (of_keys, d), "v_proj": (of_keys, d), "o_proj": (d, own)}
    for part, sizes in of_attention.items():
        yield f"{layer}.self_attn.{part}", *sizes
    count = config.get("n_routed_experts") or config["num_experts"]
    places = [f"experts.{e}" for e in range(count)] + ["shared_experts"] * bool(config.get("n_shared_experts"))
    hidden = config["moe_intermediate_size"]
    for place in places:
        for part, sizes in {"gate_proj": (hidden, d), "up_proj": (hidden, d), "down_proj": (d, hidden)}.items():
            yield f"{layer}.mlp.{place}.{part}", *sizes


def others(config: dict, generator: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    """What is not in FP8; of DeepSeek-V3 also a tensor of the layer that predicts one token more: nobody reads it."""
    d, layer = config["hidden_size"], "model.layers.0"

    def drawn(*shape: int, around: float = 0.0, spread: float = 1.0) -> torch.Tensor:
        return (around + spread * torch.randn(shape, generator=generator)).bfloat16()

    yield "model.embed_tokens.weight", drawn(VOCABULARY, d)
    yield "lm_head.weight", drawn(VOCABULARY, d, spread=d**-0.5)
    norms = {"model.norm": d, f"{layer}.input_layernorm": d, f"{layer}.post_attention_layernorm": d}
    if config["model_type"] == "deepseek_v3":
        norms[f"{layer}.self_attn.q_a_layernorm"] = config["q_lora_rank"]
        norms[f"{layer}.self_attn.kv_a_layernorm"] = config["kv_lora_rank"]
        norms["model.layers.1.enorm"] = d
        bias = 0.01 * torch.randn(config["n_routed_experts"], generator=generator)
        yield f"{layer}.mlp.gate.{BIASED}", bias
    else:
        norms |= {f"{layer}.self_attn.{name}": config["head_dim"] for name in ("q_norm", "k_norm")}
    for name, size in norms.items():
        yield f"{name}.weight", drawn(size, around=1.0, spread=0.1)
    count = config.get("n_routed_experts") or config["num_experts"]
    yield f"{layer}.mlp.gate.weight", drawn(count, d, spread=d**-0.5)


def write(config: dict, folder: Path, seed: int = 0, in_file: int = 4 << 30) -> None:
    """Files of about in_file bytes, with an index, beside `folder`; then renamed."""
    generator = torch.Generator().manual_seed(seed)
    # Codes of normal numbers; other parts of them for each weight. A prime length, so that rows differ.
    codes = (torch.randn(8388593, generator=generator) * 64).to(torch.float8_e4m3fn).view(torch.uint8)
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(parents=True)
    tensors, places, size, count = {}, {}, 0, 0

    def close() -> None:
        nonlocal tensors, size, count
        count += 1
        name = f"model-{count:05d}.safetensors"
        save_file(tensors, partial / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, name))
        tensors, size = {}, 0

    def drawn() -> Iterator[tuple[str, torch.Tensor]]:
        yield from others(config, generator)
        for i, (name, n, k) in enumerate(linears(config)):
            taken = codes.roll(-7919 * i).repeat(-(-n * k // len(codes)))[: n * k]
            yield f"{name}.weight", taken.view(n, k).view(torch.float8_e4m3fn)
            of_blocks = 0.5 + torch.rand(-(-n // BLOCK), -(-k // BLOCK), generator=generator)
            yield f"{name}.weight_scale_inv", of_blocks * (k**-0.5 / 64)

    for name, values in drawn():
        tensors[name] = values.clone()
        size += values.nbytes
        if size >= in_file:
            close()
    close()
    (partial / "model.safetensors.index.json").write_text(json.dumps(dict(metadata={}, weight_map=places)))
    (partial / "config.json").write_text(json.dumps(config, indent=2))
    partial.rename(folder)


def stored_bytes(model: torch.nn.Module) -> tuple[int, int]:
    """(bytes, parameters) of a loaded layer: scales and what decode steps absorb are bytes, not parameters."""
    layer = model.model.layers[0]
    tensors = [*layer.parameters(), *layer.buffers()]
    extra = {id(t) for name, t in layer.named_buffers() if "scale" in name or "absorbed" in name or BIASED in name}
    return sum(t.nbytes for t in tensors), sum(t.numel() for t in tensors if id(t) not in extra)


def decode_steps(kernel, model: torch.nn.Module, ids: torch.Tensor, steps: int) -> tuple[torch.Tensor, list[float]]:
    """(logits of the last step, seconds of each): a prompt of all but `steps` tokens, then one at a time."""
    latent = hasattr(model.config, "kv_lora_rank")
    cache = kernel.quantization.latent_cache(model.config) if latent else None
    prompt = ids.shape[1] - steps
    result = model(ids[:, :prompt], past_key_values=cache, use_cache=True)
    seconds = []
    for n in range(prompt, ids.shape[1]):
        begin = time.perf_counter()
        cache = result.past_key_values
        result = model(ids[:, n : n + 1], past_key_values=cache)
        seconds.append(time.perf_counter() - begin)
    return result.logits, seconds


@torch.no_grad()
def check(kernel, folder: Path, batch: int = 1, length: int = 6, steps: int = 3) -> dict[str, float]:
    """Loads the checkpoint; decodes by the reference, then on the kernels."""
    model = kernel.quantization.load_quantized(folder)
    size, parameters = stored_bytes(model)
    ids = torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))
    with kernel.by_reference():
        wanted, _ = decode_steps(kernel, model, ids, steps)
    with kernels.use_kernel_mapping(kernel.layers.mapping()):
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE)
    got, seconds = decode_steps(kernel, model, ids, steps)
    return dict(
        parameters=parameters,
        bytes_a_parameter=size / parameters,
        distance=((got - wanted).float().norm() / wanted.float().norm()).item(),
        milliseconds_a_step=1e3 * statistics.median(seconds),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    if default_backend() != "cpu":
        parser.error("on a CPU alone")
    if not args.folder.exists():
        write(settings(args.model), args.folder)
    for name, value in check(load_kernel("cpu"), args.folder).items():
        print(f"{name:<22}{value:.4g}")
    return 0
