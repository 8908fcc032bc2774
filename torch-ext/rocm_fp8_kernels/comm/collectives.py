"""The operators between ranks: what a Communicator is called for."""

import zlib

import torch

from ..ops.arguments import check_dims, check_tensors, result, rows
from ..ops.calls import ops
from ..ops.gemm import block_scaled_gemm, gemm_result
from ..ops.norms import add_and_quantize
from ..ops.scales import with_computed_scales
from . import overlap


class Collectives:
    """Of a Communicator, which has `ranks`, `device`, `_memory` and, on a GPU, `_side` and `_meeting`."""

    ranks: int
    device: torch.device

    def _handle(self) -> tuple[torch.Tensor, int]:
        """What operators are told: `order`, which every launch writes as far as torch knows; the communicator's
        number."""
        raise NotImplementedError

    # --- sums ---

    def all_reduce(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The sum over ranks.

        Args:
            x: float32, float16 or bfloat16 [..., d], last dimension contiguous, rows strided freely.
            out: x's dtype and shape; may be x itself; allocated if None.

        Returns: out.
        """
        check_tensors("all_reduce", x=x)
        out = result("all_reduce", out, None, (), lambda _: torch.empty_like(x, memory_format=torch.contiguous_format))
        written = out
        if out is x or (out.dim() > 2 and not out.is_contiguous()):
            # In place, as torch's compiler takes it: a result of its own.
            written = torch.empty_like(x, memory_format=torch.contiguous_format)
        ops.all_reduce(written, rows("all_reduce", "x", x, out=written), *self._handle())
        return out if written is out else out.copy_(written)

    def reduce_scatter(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """This rank's rows of the sum, [rows / ranks, d]. x [rows, d]: rows is a multiple of the ranks."""
        check_tensors("reduce_scatter", x=x)
        check_dims("reduce_scatter", "x", x, 2, "[rows, d]")

        def allocate(_) -> torch.Tensor:
            return x.new_empty((x.shape[0] // self.ranks, *x.shape[1:]))

        out = result("reduce_scatter", out, None, (), allocate)
        ops.reduce_scatter(out, x, *self._handle())
        return out

    def all_gather(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """x of rank 0, then of rank 1, ...: [rows * ranks, d]. x [rows, d]: what all_reduce takes, FP8 or int8."""
        handle = self._handle()
        if self._copies(x) and (chunks := overlap.chunks_of_rows(self, x)):
            out = overlap.gathered_result(x, out, self.ranks)
            overlap.all_gather(self, x, out, chunks)
            return out
        check_tensors("all_gather", x=x)
        check_dims("all_gather", "x", x, 2, "[rows, d]")

        def allocate(_) -> torch.Tensor:
            return x.new_empty((x.shape[0] * self.ranks, *x.shape[1:]))

        out = result("all_gather", out, None, (), allocate)
        ops.all_gather(out, x, *handle)
        return out

    # --- sums, and the norm behind them ---

    def all_reduce_add_rms_norm_fp8(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        scale: torch.Tensor,
        epsilon: float = 1e-6,
        *,
        out: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """add_rms_norm_fp8 of all_reduce(x), whose arguments these are.

        On a GPU one launch where rows are multiples of 16 bytes and the weight has x's dtype; else two.
        """
        operands = weight, scale, epsilon, *self._handle()
        return add_and_quantize("all_reduce_add_rms_norm_fp8", x, residual, operands, out, out_dtype)

    def all_reduce_add_rms_norm_dynamic_fp8(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        epsilon: float = 1e-6,
        *,
        scaling: str = "row",
        group_size: int = 128,
        scale_dtype: torch.dtype = torch.float32,
        power_of_two: bool = False,
        scale_ub: torch.Tensor | None = None,
        fp8_max: float | None = None,
        column_major_scales: bool = False,
        normalized_out: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        scale_out: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """add_rms_norm_dynamic_fp8 of all_reduce(x), whose arguments these are. Launches: as above; "tensor": three."""
        operator = "all_reduce_add_rms_norm_dynamic_fp8"
        check_tensors(operator, x=x, residual=residual, weight=weight)
        check_dims(operator, "x", x, 1, "[..., d]")
        operands = weight, epsilon, normalized_out
        scales = scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max, column_major_scales
        results = out, scale_out, out_dtype, normalized_out
        return with_computed_scales(operator, x, x.shape[-1], operands, scales, *results, residual, last=self._handle())

    # --- with the GEMM before them ---

    def skinny_gemm_all_reduce(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        constant_b: bool = False,
    ) -> torch.Tensor:
        """all_reduce of skinny_gemm, whose arguments these are: a and b hold this rank's K. Each rank's bias counts.

        On a GPU the products leave for the other ranks while the GEMM works, where rows are multiples of 16 bytes and
        the message is one that goes one way; else the two follow one another. The bytes are the same.
        """
        operands = a, b, scale_a, scale_b, bias
        out = gemm_result("skinny_gemm_all_reduce", *operands, out, out_dtype)
        ops.skinny_gemm_all_reduce(out, *operands, constant_b, *self._handle())
        return out

    def skinny_gemm_all_reduce_add_rms_norm_fp8(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor,
        weight: torch.Tensor,
        scale: torch.Tensor,
        epsilon: float = 1e-6,
        *,
        out: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        constant_b: bool = False,
    ) -> torch.Tensor:
        """all_reduce_add_rms_norm_fp8 of skinny_gemm in residual's dtype, whose arguments these are. As above."""
        operator, gemm = "skinny_gemm_all_reduce_add_rms_norm_fp8", (a, b, scale_a, scale_b, bias)
        check_tensors(operator, residual=residual)
        product = gemm_result(operator, *gemm, None, residual.dtype)
        operands = weight, scale, epsilon, *gemm, constant_b, *self._handle()
        return add_and_quantize(operator, product, residual, operands, out, out_dtype)

    def block_scaled_gemm_reduce_scatter(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        constant_b: bool = False,
    ) -> torch.Tensor:
        """reduce_scatter of block_scaled_gemm, whose arguments these are: a and b hold this rank's K.

        On a GPU the other ranks' rows come first, and are on their way while the GEMM works at its own, where there are
        enough of them and they fit into 2 max_bytes, by parts of 256 columns.

        Returns: rows [rank * M / ranks, (rank + 1) * M / ranks) of the sum; M is a multiple of the ranks.
        """
        dtype = out.dtype if out is not None and out_dtype is None else out_dtype
        self._handle()  # closed?
        if self._copies(a, b) and (chunks := overlap.chunks_of_columns(self, a, b, dtype)):
            shape = len(a) // self.ranks, len(b)
            out = overlap.result_of("block_scaled_gemm_reduce_scatter", shape, a, out, dtype)
            overlap.gemm_reduce_scatter(self, (a, b, scale_a, scale_b, bias), out, constant_b, chunks)
            return out
        partial = block_scaled_gemm(a, b, scale_a, scale_b, bias, out_dtype=dtype, constant_b=constant_b)
        return self.reduce_scatter(partial, out=out)

    def all_gather_block_scaled_gemm(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        constant_b: bool = False,
    ) -> torch.Tensor:
        """block_scaled_gemm of all ranks' rows of a with this rank's columns, b [N / ranks, K].

        Args:
            a: FP8 [rows, K]: this rank's. scale_a: of these rows, [rows, 1] or [rows, ceil(K / 128)]; or one element,
                the same on all ranks.
            The others: as in block_scaled_gemm.

        On a GPU this rank's own rows are multiplied while the others' come, where there are enough of them and they fit
        into 2 max_bytes, by parts of 256 rows.

        Returns: [rows * ranks, N / ranks].
        """
        self._handle()  # closed?
        of_rows = [scale_a] if scale_a.numel() > 1 else []
        if self._copies(a, b, *of_rows) and (chunks := overlap.chunks_of_product(self, a, b, *of_rows)):
            shape = len(a) * self.ranks, len(b)
            out = overlap.result_of("all_gather_block_scaled_gemm", shape, a, out, out_dtype)
            scales = _float_scales(scale_a) if of_rows else scale_a
            operands = overlap.dense(a), b, scales, scale_b, bias
            overlap.all_gather_gemm(self, operands, out, constant_b, chunks)
            return out
        if of_rows:
            scale_a = self.all_gather(_float_scales(scale_a))
        return block_scaled_gemm(
            self.all_gather(a), b, scale_a, scale_b, bias, out=out, out_dtype=out_dtype, constant_b=constant_b
        )

    # --- large messages: overlap.py ---

    def _copies(self, *operands) -> bool:
        """Whether copy engines may take what is large: between GPUs, outside of torch.compile, which knows no second
        stream. What is no matrix the operators refuse."""
        matrices = all(isinstance(x, torch.Tensor) and x.dim() == 2 for x in operands)
        return self.ranks > 1 and self.device.type != "cpu" and matrices and not torch.compiler.is_compiling()

    @property
    def _staging(self) -> list[torch.Tensor]:
        """Each rank's, as this rank sees it: uint8, the same number of bytes."""
        return self._memory.staging

    def _fork(self) -> overlap.Side:
        return overlap.Side(self._side)

    def _meet_on_device(self, *sizes: int) -> None:
        """A barrier in the current stream. Ranks that come with other sizes are found as those of any call are, but for
        one in a thousand."""
        mixed = zlib.crc32(repr(sizes).encode())
        self.all_reduce(self._meeting[: 1 + mixed % 16, : 8 * (1 + mixed // 16 % 64)])


def _float_scales(scale: torch.Tensor) -> torch.Tensor:
    # float8_e8m0fnu is gathered as the float32 numbers that it stands for.
    return scale if scale.dtype == torch.float32 else scale.float()
