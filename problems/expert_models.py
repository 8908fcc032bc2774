"""A tiny model of every causal language model of transformers that has experts, of one list of sizes."""

import functools
import inspect
import re
import sys
from pathlib import Path

import torch
import transformers
from packaging import version
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

# Each configuration takes those that it knows.
SIZES = dict(
    vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=2, max_position_embeddings=256,
    bos_token_id=1, eos_token_id=None, pad_token_id=None, tie_word_embeddings=False,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, sliding_window=64, layer_types=None,
    swa_num_attention_heads=4, swa_num_key_value_heads=2, swa_head_dim=32,
    global_head_dim=32, num_global_key_value_heads=2,
    q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32, qk_head_dim=32,
    o_lora_rank=32, o_groups=2, index_n_heads=4, index_head_dim=32, index_topk=4, compress_ratios=None,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32,
    mamba_d_state=16, mamba_n_heads=4, mamba_d_head=64, mamba_num_heads=4, mamba_head_dim=64, ssm_state_size=16,
    moe_intermediate_size=128, expert_ffn_hidden_size=128, expert_intermediate_size=128, ffn_hidden_size=256,
    shared_expert_intermediate_size=128, shared_intermediate_size=128, moe_shared_expert_intermediate_size=128,
    num_local_experts=4, num_experts=4, n_routed_experts=4, moe_num_experts=4,
    num_experts_per_tok=2, moe_topk=2, moe_k=2, top_k_experts=2, n_group=2, topk_group=1,
    n_shared_experts=1, num_shared_experts=1, moe_num_shared_experts=1,
    first_k_dense_replace=1, num_dense_layers=1, moe_layer_start_index=1, moe_layer_end_index=1, mlp_layer_types=None,
    moe_latent_size=None, router_hidden_size=64, hidden_size_per_layer_input=0, vocab_size_per_layer_input=128,
    d_model=128, n_heads=4, n_layers=2, max_seq_len=256,
)  # fmt: skip
_LATENT = dict(head_dim=16, num_key_value_heads=4)  # attention without groups
CHANGES = {
    "axk2": _LATENT,
    "beam": dict(mlp_layer_types=["dense", "sparse"]),
    "deepseek_v32": _LATENT,
    "doge": dict(is_moe=True, num_experts=16),  # a square
    "dots3_note_text": dict(num_key_value_heads=4),
    "flint": dict(mlp_only_layers=[0]),
    "gemma4_text": dict(enable_moe_block=True),
    "glm4_moe_lite": dict(head_dim=16),
    "glm_moe_dsa": _LATENT,
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"]),
    "longcat_flash": dict(head_dim=16, num_layers=2),
    "zaya": dict(num_experts_per_tok=1),
}
# transformers 5.19 and 5.24 make no model of the first two's default configurations. 5.19 does not compute what it has
# saved of DeepSeek-V4, 5.17 nothing of Doge.
_SINCE = {"deepseek_v4": "5.24", "doge": "5.19"}
_VERSION = version.parse(transformers.__version__)
_BROKEN = {"dbrx", "nemotron_h"} | {kind for kind, since in _SINCE.items() if version.parse(since) > _VERSION}


def _has_experts(kind: str) -> bool:
    """Told from the source: an import of each takes a worker of the tests many seconds."""
    folder = Path(transformers.__file__).parent / "models" / model_type_to_module_name(kind)
    sources = [file.read_text() for file in folder.glob("modeling_*.py")]
    if not sources:  # it has another architecture's
        cls = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[kind]]
        sources = [inspect.getsource(sys.modules[cls.__module__])]
    if kind in _BROKEN or not any(re.search(r"class \w*(?:Experts|MoE|Moe|MOE)\w*\(", each) for each in sources):
        return False
    return not getattr(CONFIG_MAPPING[kind], "sub_configs", None)  # of pictures and text: its text model is a kind


@functools.cache
def kinds() -> list[str]:
    return [kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if _has_experts(kind)]


def config(kind: str, **changes):
    cls = CONFIG_MAPPING[kind]
    known = set(inspect.signature(cls.__init__).parameters) | set(getattr(cls, "attribute_map", {}))
    known = known.union(*(getattr(each, "__annotations__", {}) for each in cls.__mro__))
    given = CHANGES.get(kind, {}) | changes
    return cls(**({name: value for name, value in SIZES.items() if name in known} | given))


def model(kind: str, generator: torch.Generator) -> torch.nn.Module:
    """bfloat16; activations of about 1 everywhere, norms and biases unlike any default."""
    made = AutoModelForCausalLM.from_config(config(kind), dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                values = 1 + 0.5 * values if name.endswith("weight") else 0.5 * values
            elif "embed" not in name:
                values = values / parameter.shape[-1] ** 0.5
            parameter.copy_(values)
    made.tie_weights()
    return made.eval()
