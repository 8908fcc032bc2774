"""The layers of real models, as one GPU (or one process) of a deployment sees them."""

from dataclasses import dataclass


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


LLAMA_8B = LlamaShapes("Llama 3.1 8B", hidden=4096, heads=32, kv_heads=8, intermediate=14336)
LLAMA_70B_TP8 = LlamaShapes("Llama 3.1 70B, TP8", hidden=8192, heads=64, kv_heads=8, intermediate=28672, ranks=8)
LLAMA_405B_TP8 = LlamaShapes("Llama 3.1 405B, TP8", hidden=16384, heads=128, kv_heads=8, intermediate=53248, ranks=8)
MODELS = (LLAMA_8B, LLAMA_405B_TP8)
