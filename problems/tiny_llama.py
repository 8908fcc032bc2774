"""A Llama of two layers that runs in milliseconds, its numbers drawn from a test's generator; and how near two of its
results are."""

import copy
import itertools

import kernels
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PretrainedConfig

VOCABULARY = 128
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=256,
    rms_norm_eps=0.25,  # so large that a result shows whether it is the model's
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=None,
    tie_word_embeddings=False,
)

# name -> what differs from SIZES: the shapes and options that change how the linears are joined.
VARIANTS = {
    "plain": {},
    "grouped": dict(num_key_value_heads=2),
    "biases": dict(num_key_value_heads=1, attention_bias=True, mlp_bias=True),
    "attention bias": dict(attention_bias=True),
    "wide heads": dict(num_attention_heads=2, num_key_value_heads=1, head_dim=24),
}

# Activations -> what a decoder layer quantises by, beside quantize_fp8.
LAYER = {
    "static": ("rms_norm_fp8", "add_rms_norm_fp8", "swiglu_fp8"),
    "dynamic": ("rms_norm_dynamic_fp8", "add_rms_norm_dynamic_fp8", "swiglu_dynamic_fp8"),
}
ACTIVATIONS = tuple(LAYER)
# (activations, granularity) of `quantize`.
SCHEMES = [*itertools.product(ACTIVATIONS, ("channel", "tensor")), ("dynamic", "block")]

LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=5000.0,
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)

# How far the logits of two computations of one quantised model may be apart, as a share of their norm. Both round at
# the same points; only sums run in another order. That changes few bfloat16 numbers, by 2^-8, and through them fewer
# FP8 codes, by at most 2^-3 of their value. An operator's test allows 0.1 % of codes, 0.06 of the 64 in a row. They
# move a linear's result by sqrt(0.06) * 2^-3 / sqrt(64) = 2^-8 of its norm. Eight linears, one after the other: 2^-6.5.
# A wrong operand, scale or order moves it by its whole size.
NEAR = 2.0**-5

# The same of a model that computes in another dtype, float16 or float32 instead of bfloat16. All inputs of a linear
# differ by up to 2^-9 of their size, so that 2^-5 of the FP8 codes, whose steps are 2^-4 to 2^-3, are the next ones.
# That moves a result by sqrt(2^-5) * 2^-3.5 = 2^-6 of its norm; nine linears, one after the other: 2^-4.4. Twice that
# for spread.
ANOTHER_DTYPE = 4 * NEAR


def near(device: torch.device) -> float:
    """NEAR where skinny_gemm computes all rows. On a GPU more than 32 go through torch._scaled_mm, which rounds a sum
    to bfloat16 before a bias is added, and to bfloat16 in a float16 model: one rounding more at each linear, twice as
    many changed numbers. Its matrix instructions keep 13 bits of a sum of FP8, too."""
    return NEAR if device.type == "cpu" else 2 * NEAR


def llama(generator: torch.Generator, dtype: torch.dtype = torch.bfloat16, device="cpu", **changes) -> LlamaForCausalLM:
    return drawn(LlamaConfig(**(SIZES | changes)), generator, dtype, device)


def drawn(config: PretrainedConfig, generator: torch.Generator, dtype: torch.dtype = torch.bfloat16, device="cpu"):
    """A model of this configuration: activations of about 1 everywhere, norm weights and biases unlike any default."""
    # As from_pretrained does it: `.to(dtype)` would round the frequencies of the rotary embedding as well.
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1 and name.endswith("weight"):  # a norm's
                values = 1 + 0.5 * values
            elif name.endswith("bias") or parameter.dim() == 1:  # gpt-oss has sinks
                values = 0.5 * values
            elif "embed" not in name:
                values = values / parameter.shape[1] ** 0.5
            parameter.copy_(values)
    model.tie_weights()
    return model.to(device).eval()


def quantize(kernel, model: torch.nn.Module, inputs: list[torch.Tensor], activations: str, **keywords):
    """quantize with static scales from `inputs`, or with dynamic ones, which need none."""
    given = inputs if activations == "static" else None
    return kernel.quantization.quantize(model, given, activations=activations, **keywords)


def tokens(generator: torch.Generator, batch: int, length: int, device="cpu") -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=generator).to(device)


def kernelized(kernel, model: torch.nn.Module, mode: kernels.Mode = kernels.Mode.INFERENCE) -> torch.nn.Module:
    """In place; an error where a layer that the mapping names keeps its own forward.

    Other layers may: transformers' rotary embedding, for one, is open to kernels too.
    """
    with kernels.use_kernel_mapping(kernel.layers.mapping(), inherit_mapping=False):
        return kernels.kernelize(model, mode=mode, use_fallback=kernels.KernelizeFallback.NO_LAYER)


def on_reference(kernel, model: torch.nn.Module) -> torch.nn.Module:
    """In place: calls of this module itself, not of its parts, are by the reference."""
    entered = []

    def enter(*_) -> None:
        entered.append(kernel.by_reference())
        entered[-1].__enter__()

    def leave(*_) -> None:
        entered.pop().__exit__(None, None, None)

    model.register_forward_pre_hook(enter)
    model.register_forward_hook(leave, always_call=True)
    return model


def quantized(kernel, generator, device, shapes: str = "grouped", activations: str = "static", **changes):
    """(The quantised model on the reference, a copy on the operators and kernelized.)"""
    return pair(kernel, llama(generator, device=device, **(VARIANTS[shapes] | changes)), generator, activations)


def pair(kernel, model: torch.nn.Module, generator: torch.Generator, activations: str):
    """As `quantized`, of any model."""
    quantize(kernel, model, [tokens(generator, 2, 48, model.device)], activations)
    fast = kernelized(kernel, copy.deepcopy(model))
    return on_reference(kernel, model), fast


def fp8_linears(kernel, model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in model.modules() if isinstance(module, kernel.quantization.Fp8Linear)]


def logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, use_cache=False).logits


def reference_logits(kernel, model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with kernel.by_reference():
        return logits(model, ids)


def assert_likeliest(model: torch.nn.Module, sequences: torch.Tensor, prompt: int, near: float) -> None:
    """Each token behind the prompt is the best after those before it, or so near to it, in standard deviations of a
    position's logits, that the order of sums may decide."""
    full = logits(model, sequences)[:, prompt - 1 : -1].float()
    chosen = full.gather(-1, sequences[:, prompt:, None]).squeeze(-1)
    assert (full.amax(-1) - chosen <= near * full.std(-1)).all()


def distance(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference, as a share of the norm."""
    got, wanted = got.double(), wanted.double()
    return ((got - wanted).norm() / wanted.norm()).item()


def decided(wanted: torch.Tensor, margin: float) -> torch.Tensor:
    """Where the best logit leads by so many standard deviations of a position's logits: the token is no near-tie."""
    best = wanted.float().topk(2).values
    return best[..., 0] - best[..., 1] > margin * wanted.float().std(-1)
