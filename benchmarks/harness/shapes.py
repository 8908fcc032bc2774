"""The layers of real models, as one GPU (or one process) of a deployment sees them, and their config.json's sizes."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LlamaShapes:
    """Sizes of one decoder layer on one of `ranks` tensor-parallel ranks."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    head_dim: int = 128
    ranks: int = 1
    layers: int = 1  # of the whole model

    @property
    def intermediate_per_rank(self) -> int:
        return self.intermediate // self.ranks

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """name -> (N, K) of the weight [N, K]."""
        queries = self.heads // self.ranks * self.head_dim
        return {
            "QKV": (queries + 2 * self.kv_heads // self.ranks * self.head_dim, self.hidden),
            "O": (self.hidden, queries),
            "Gate/Up": (2 * self.intermediate_per_rank, self.hidden),
            "Down": (self.hidden, self.intermediate_per_rank),
        }

    @property
    def config(self) -> dict:
        """Of all ranks."""
        return dict(
            architectures=["LlamaForCausalLM"],
            model_type="llama",
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
        )


LLAMA_8B = LlamaShapes("Llama 3.1 8B", hidden=4096, heads=32, kv_heads=8, intermediate=14336, layers=32)
LLAMA_70B = LlamaShapes("Llama 3.1 70B", hidden=8192, heads=64, kv_heads=8, intermediate=28672, layers=80)
LLAMA_70B_TP8 = replace(LLAMA_70B, name="Llama 3.1 70B, TP8", ranks=8)
LLAMA_405B_TP8 = LlamaShapes("Llama 3.1 405B, TP8", hidden=16384, heads=128, kv_heads=8, intermediate=53248, ranks=8)
MODELS = (LLAMA_8B, LLAMA_405B_TP8)


def qwen3_moe(hidden: int, intermediate: int, experts: int, chosen: int, layers: int, heads: int, head: int) -> dict:
    return dict(
        architectures=["Qwen3MoeForCausalLM"],
        model_type="qwen3_moe",
        hidden_size=hidden,
        intermediate_size=8 * intermediate,
        moe_intermediate_size=intermediate,
        num_experts=experts,
        num_experts_per_tok=chosen,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=4,
        head_dim=head,
    )


def gpt_oss(experts: int, layers: int) -> dict:
    return dict(
        architectures=["GptOssForCausalLM"],
        model_type="gpt_oss",
        hidden_size=2880,
        intermediate_size=2880,
        num_local_experts=experts,
        num_experts_per_tok=4,
        num_hidden_layers=layers,
        sliding_window=128,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
    )


DEEPSEEK_V3 = dict(
    architectures=["DeepseekV3ForCausalLM"],
    model_type="deepseek_v3",
    hidden_size=7168,
    intermediate_size=18432,
    moe_intermediate_size=2048,
    num_hidden_layers=61,
    num_attention_heads=128,
    num_key_value_heads=128,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    n_group=8,
    topk_group=4,
    first_k_dense_replace=3,
    moe_layer_freq=1,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    scoring_func="sigmoid",
    topk_method="noaux_tc",
    num_nextn_predict_layers=1,
)
EIGHTH_OF_HEADS = dict(num_attention_heads=16, num_key_value_heads=16)  # of DeepSeek-V3's, as each of eight has
# Numbers of config.json that are no sizes differ between the benchmarks: they stand there.
CONFIGS = {
    "tiny-llama": LlamaShapes("Llama of 1.1 B", hidden=2048, heads=32, kv_heads=4, intermediate=5632, layers=22).config,
    "tiny-mixture": qwen3_moe(2048, 1536, 16, 4, 20, 32, 64),  # 1.1 B of 3.2 B active
    "llama-8b": LLAMA_8B.config,
    "llama-70b": LLAMA_70B.config,
    "qwen3-30b-a3b": qwen3_moe(2048, 768, 128, 8, 48, 32, 128),
    "qwen3-235b": qwen3_moe(4096, 1536, 128, 8, 94, 64, 128),
    "mixtral-8x7b": LLAMA_8B.config
    | dict(architectures=["MixtralForCausalLM"], model_type="mixtral", num_local_experts=8, num_experts_per_tok=2),
    "deepseek-v3": DEEPSEEK_V3,
    "gpt-oss-20b": gpt_oss(32, 24),
    "gpt-oss-120b": gpt_oss(128, 36),
}
