"""A decode step of Llama 70B's layers under tensor parallelism: one rank's kernels, and how the sums between them are
made. Attention is left out: O takes the first columns of QKV, quantised."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.harness.shapes import LlamaShapes

Case = Callable[[], object]
FP8, EPSILON = torch.float8_e4m3fn, 1e-5


@dataclass(frozen=True)
class Layer:
    """One rank's: QKV and Gate/Up by columns, O and Down by rows of the input."""

    qkv: torch.Tensor  # FP8 [(heads + 2 kv_heads) head_dim / ranks, hidden]
    o: torch.Tensor  # FP8 [hidden, heads head_dim / ranks]
    gate_up: torch.Tensor  # FP8 [2 intermediate / ranks, hidden]
    down: torch.Tensor  # FP8 [hidden, intermediate / ranks]
    norms: tuple[torch.Tensor, torch.Tensor]  # bfloat16 [hidden]: behind O, behind Down


def layers_of(shape: LlamaShapes, count: int) -> list[Layer]:
    """Of one of its ranks."""

    def fp8(n: int, k: int) -> torch.Tensor:
        return (torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 4).to(FP8)

    return [
        Layer(
            *(fp8(*shape.linears[name]) for name in ("QKV", "O", "Gate/Up", "Down")),
            tuple(torch.ones(shape.hidden, device="cuda", dtype=torch.bfloat16) for _ in range(2)),
        )
        for _ in range(count)
    ]


class Step:
    """A step for `rows` sequences. ours, one_by_one, nccl: our kernels with each way of summing. torchs: torch's GEMMs,
    NCCL, norms by torch.compile."""

    def __init__(self, kernel, c, shape: LlamaShapes, layers: list[Layer], rows: int):
        self.kernel, self.c, self.layers, self.rows = kernel, c, layers, rows
        self.attention = shape.heads * shape.head_dim // c.ranks
        torch.manual_seed(0)  # all ranks have the same stream
        self.x = torch.randn(rows, shape.hidden, device="cuda").to(FP8)
        self.first = torch.randn(rows, shape.hidden, device="cuda", dtype=torch.bfloat16)
        self.residual = self.first.clone()
        # Such that products, of numbers with a spread of 4 in the weights, stay near 1.
        self.one, self.scale = torch.ones(1, device="cuda"), torch.full((1,), 0.05, device="cuda")
        self.weight_scale = torch.full((1,), 0.01, device="cuda")
        self._normed = torch.compile(self._add_norm, dynamic=False)
        self._activated = torch.compile(self._swiglu, dynamic=False)
        self._quantised = torch.compile(self._quantise, dynamic=False)

    def _gemm(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.kernel.skinny_gemm(a, b, self.scale, self.weight_scale, constant_b=True)

    def _summed(self, how: str, a: torch.Tensor, b: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        if how == "ours":
            operands = a, b, self.scale, self.weight_scale, None
            return self.c.skinny_gemm_all_reduce_add_rms_norm_fp8(
                *operands, self.residual, norm, self.scale, EPSILON, constant_b=True
            )
        y = self._gemm(a, b)
        if how == "one by one":
            return self.c.all_reduce_add_rms_norm_fp8(y, self.residual, norm, self.scale, EPSILON)
        dist.all_reduce(y)
        return self.kernel.add_rms_norm_fp8(y, self.residual, norm, self.scale, EPSILON)

    def step(self, how: str) -> torch.Tensor:
        x = self.x
        self.residual.copy_(self.first)
        for layer in self.layers:
            qkv = self._gemm(x, layer.qkv)
            a, _ = self.kernel.quantize_fp8(qkv[:, : self.attention], self.scale)
            x = self._summed(how, a, layer.o, layer.norms[0])
            h = self.kernel.swiglu_fp8(self._gemm(x, layer.gate_up), self.scale)
            x = self._summed(how, h, layer.down, layer.norms[1])
        return x

    # --- torch alone ---

    @staticmethod
    def _quantise(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x.float() / scale).clamp(-448, 448).to(FP8)

    @staticmethod
    def _swiglu(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return Step._quantise(torch.nn.functional.silu(gate) * up, scale)

    @staticmethod
    def _add_norm(x, residual, weight, scale) -> torch.Tensor:
        residual.add_(x)
        h = residual.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPSILON)
        return Step._quantise(weight * h.to(weight.dtype), scale)

    def torchs(self) -> torch.Tensor:
        def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            scales = dict(scale_a=self.scale, scale_b=self.weight_scale)
            return torch._scaled_mm(a, b.t(), **scales, out_dtype=torch.bfloat16)

        def summed(a: torch.Tensor, b: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
            y = gemm(a, b)
            dist.all_reduce(y)
            return self._normed(y, self.residual, norm, self.scale)

        x = self.x
        self.residual.copy_(self.first)
        for layer in self.layers:
            a = self._quantised(gemm(x, layer.qkv)[:, : self.attention], self.scale)
            x = summed(a, layer.o, layer.norms[0])
            x = summed(self._activated(gemm(x, layer.gate_up), self.scale), layer.down, layer.norms[1])
        return x

    def cases(self) -> dict[str, Case]:
        """Verified: ours is byte for byte one by one; NCCL sums two ranks as we do."""
        results = {how: self.step(how).view(torch.uint8) for how in ("ours", "one by one", "nccl")}
        self.c.check()
        exact = ("one by one", "nccl") if self.c.ranks == 2 else ("one by one",)
        for how in exact:
            if not torch.equal(results["ours"], results[how]):
                raise SystemExit(f"wrong: a step of {self.rows} rows: ours and {how} differ")
        if results["ours"].view(FP8).float().abs().max() == 0:
            raise SystemExit("wrong: a step of zeros")
        steps = {how: lambda how=how: self.step(how) for how in results}
        return steps | {"nccl, torch": self.torchs}
