"""Tiny models of each architecture that is fused, and of some that are not, of tiny_llama's sizes."""

from transformers import (
    DiffLlamaConfig,
    Gemma2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from problems.tiny_llama import SIZES

WINDOW = 8  # tokens that a sliding window sees: shorter than the prompts of the tests
GROUPED = SIZES | dict(num_key_value_heads=2)
# Of two layers the first sees everything, the others see a window.
SLIDING = dict(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
# Names -> (configuration class, its arguments).
FUSED = {
    "llama": (LlamaConfig, GROUPED | dict(attention_bias=True, mlp_bias=True)),
    "mistral": (MistralConfig, GROUPED | dict(sliding_window=WINDOW, head_dim=24)),
    "qwen2": (Qwen2Config, GROUPED | SLIDING | dict(tie_word_embeddings=True)),
    "qwen3": (Qwen3Config, GROUPED | SLIDING | dict(head_dim=24)),
    "qwen3, biases": (Qwen3Config, GROUPED | dict(head_dim=16, attention_bias=True)),
}
NEOX = SIZES | dict(layer_norm_eps=SIZES["rms_norm_eps"])
OPT = SIZES | dict(ffn_dim=96, word_embed_proj_dim=32, bos_token_id=None)
UNFUSED = {
    "gemma2": (Gemma2Config, GROUPED | dict(head_dim=16)),  # four norms a layer, GELU, soft caps, tied embeddings
    "phi3": (Phi3Config, GROUPED),  # qkv_proj and gate_up_proj, as ours are called
    "gpt_neox": (GPTNeoXConfig, NEOX),  # LayerNorm, attention and MLP side by side
    "opt": (OPTConfig, OPT),  # linears outside of the layers, too
    "diffllama": (DiffLlamaConfig, GROUPED),  # parameters that transformers draws on the CPU, also within a device
}


def config(name: str, **changes) -> PretrainedConfig:
    kind, arguments = (FUSED | UNFUSED)[name]
    return kind(**(arguments | changes))
