"""GEMMs in chunks beside the collectives of their operands or results: on GPUs, where there are many rows.

    the caller's stream       | GEMM 0 | GEMM 1         | GEMM 2         |                 | next
    the communicator's own             | send 0, sum 0  | send 1, sum 1  | send 2, sum 2   |

Chunks depend on sizes and the number of ranks alone, so that all ranks cut alike. The bytes are those of the whole:
each chunk's GEMM splits K as the whole's does, and who sums does not change what is summed. Events fork the second
stream off and join it, so a capture takes both; what a call has launched is behind it in the caller's stream.

A chunk of a GEMM before reduce_scatter are columns, not some rank's rows: each then has rows of all ranks, and the
links to all of them work at the same time, beginning with another one on each rank (common/comm/gpu/exchange.h).
"""

import contextlib

import torch

from ..ops.arguments import WIDE, bytes_of_e8m0, refuse, result
from ..ops.calls import ops

# block_scaled_gemm's.
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]

TILE = 256  # rows and columns of chunks are multiples: of all tiles, and of what scales share
LEAST = 1 << 22  # numbers of a chunk's product: a tile of 256 by 128 for each multiprocessor of an H200
MOST_CHUNKS = 8
# Multiprocessors or compute units that GEMMs leave to sums and gathers: their workgroups wait for links.
SPARE_UNITS = 16


def cut(size: int, others: int) -> list[tuple[int, int]]:
    """[begin, end) of the chunks of one dimension, where a product has `others` numbers for each of its size.

    None where that is too little.
    """
    chunks = min(MOST_CHUNKS, size * others // LEAST, size // TILE)
    if chunks < 1:
        return []
    each = -(-size // (chunks * TILE)) * TILE
    return [(begin, min(begin + each, size)) for begin in range(0, size, each)]


def result_of(operator: str, shape: tuple[int, int], a: torch.Tensor, out, dtype) -> torch.Tensor:
    """out, or what is allocated for it. Its parts would hide a wrong shape."""
    out = result(operator, out, dtype, WIDE, lambda wanted: a.new_empty(shape, dtype=wanted or torch.bfloat16))
    if tuple(out.shape) != shape:
        refuse(operator, "out", f"shape {list(out.shape)}; needs {list(shape)}")
    return out


def dense(a: torch.Tensor) -> torch.Tensor:
    """a as a gathered tensor lies in memory: own rows then take the kernel that the others' take."""
    return a if a.is_contiguous() and a.data_ptr() % 16 == 0 else a.clone(memory_format=torch.contiguous_format)


class Side:
    """The communicator's own stream, forked off the caller's one by events, and joined at the end."""

    def __init__(self, stream: torch.cuda.Stream):
        self._stream, self._caller = stream, torch.cuda.current_stream(stream.device)

    @contextlib.contextmanager
    def behind_caller(self):
        """What is launched here begins when all that the caller has launched so far has ended."""
        self._stream.wait_stream(self._caller)
        with torch.cuda.stream(self._stream):
            yield

    def event(self) -> torch.cuda.Event:
        return self._stream.record_event()

    def join(self) -> None:
        self._caller.wait_stream(self._stream)


def part_of_gemm(out, a, b, scale_a, scale_b, bias, constant_b: bool, whole: tuple[int, int], spare: int) -> None:
    """block_scaled_gemm of some rows or columns of a larger one, bits as that has them."""
    scale_a = bytes_of_e8m0("block_scaled_gemm", "scale_a", scale_a)
    scale_b = bytes_of_e8m0("block_scaled_gemm", "scale_b", scale_b)
    ops.block_scaled_gemm(out, a, b, scale_a, scale_b, bias, constant_b, *whole, spare)


def columns_of(scale_b: torch.Tensor, n: int, begin: int, end: int) -> torch.Tensor:
    """Scales of B's rows [begin, end) of n: one, a row's, a block's of rows; begin is a multiple of a block's 128."""
    if scale_b.numel() == 1:
        return scale_b
    if scale_b.dim() == 1:
        return scale_b[begin:end]
    rows = scale_b.shape[0]
    if rows == n:
        return scale_b[begin:end]
    if rows == -(-n // 128):
        return scale_b[begin // 128 : -(-end // 128)]
    return scale_b[:, begin:end]  # [1, n]


def gemm_reduce_scatter(c, side: Side, operands: Operands, out: torch.Tensor, constant_b: bool, chunks) -> None:
    """c: a Communicator. chunks: of B's rows. out [M / ranks, N]."""
    a, b, scale_a, scale_b, bias = operands
    whole, products = (len(a), len(b)), []
    try:
        for begin, end in chunks:
            # A chunk's product is dense: what is sent of it lies together.
            product = out.new_empty((len(a), end - begin))
            scale = columns_of(scale_b, len(b), begin, end)
            shift = None if bias is None else bias[begin:end]
            spare = SPARE_UNITS if products else 0
            part_of_gemm(product, a, b[begin:end], scale_a, scale, shift, constant_b, whole, spare)
            with side.behind_caller():
                c.reduce_scatter(product, out=out[:, begin:end])
            products.append(product)  # read on the other stream: freed when that has been joined
    finally:
        side.join()


def all_gather_gemm(c, side: Side, operands: Operands, out: torch.Tensor, constant_b: bool, chunks) -> None:
    """chunks: of this rank's rows of a; its own product needs none of them, and comes first. out [rows * ranks, N]."""
    a, b, scale_a, scale_b, bias = operands
    rows, whole, one = len(a), (len(a) * c.ranks, len(b)), scale_a.numel() == 1
    caller, gathered = torch.cuda.current_stream(a.device), []

    def multiply(of_a: torch.Tensor, scales: torch.Tensor, first: int) -> None:
        to = out[first : first + len(of_a)]
        part_of_gemm(to, of_a, b, scales, scale_b, bias, constant_b, whole, SPARE_UNITS)

    try:
        with side.behind_caller():
            for begin, end in chunks:
                scales = scale_a if one else c.all_gather(scale_a[begin:end])
                gathered.append((c.all_gather(a[begin:end]), scales, side.event()))
        multiply(a, scale_a, c.rank * rows)
        for (begin, end), (of_all, scales, come) in zip(chunks, gathered):
            caller.wait_event(come)
            for other in range(c.ranks):
                if other != c.rank:
                    of = slice(other * (end - begin), (other + 1) * (end - begin))
                    multiply(of_all[of], scales if one else scales[of], other * rows + begin)
    finally:
        side.join()
