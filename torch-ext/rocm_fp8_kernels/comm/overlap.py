"""GEMMs beside the collectives of their operands or results, and gathers of large messages: on GPUs, for many rows.

What goes over the links here is copied by the copy engines from or to `staging`, memory of each rank that all map. No
multiprocessor works at it, so a GEMM takes all but one of them. (Copies within a GPU take multiprocessors: there are
none here while GEMMs run.) A collective of a few numbers (c._meet_on_device) is a barrier: behind it all ranks have
ended what was ahead of it in their streams.

    reduce-scatter, a rank of three
    caller's stream   | rows of rank + 1 -> staging | rows of rank + 2 -> staging | own rows   | sum of the parts
    the other           barrier                       barrier, pull from rank - 1   barrier, pull from rank - 2

    all-gather
    caller's stream   | own rows                                     | rows of rank + 1   | rows of rank + 2
    the other           barrier, own rows -> others' staging, barrier

A first barrier makes sure that staging has been read, whatever came before: graphs may be replayed in any order. What
does not fit into staging goes in chunks, of columns or rows. They depend on sizes and the number of ranks alone, so
all ranks cut alike. The bytes are those of the whole: each part's GEMM splits K as the whole's does, and who sums does
not change what is summed. Events fork the second stream off and join it, so a capture takes both; what a call has
launched is behind it in the caller's stream.
"""

import contextlib
import math

import torch

from ..ops.arguments import WIDE, bytes_of_e8m0, check_apart, refuse, result
from ..ops.calls import ops

# block_scaled_gemm's.
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]

TILE = 256  # rows and columns of chunks are multiples: of all tiles, and of what scales share
LEAST = 1 << 22  # numbers of a rank's part of a product: below, one launch after the other takes less
LEAST_GATHER = 1 << 22  # bytes of a rank's part of a gathered tensor: two H100, 36 us for 47; half of it 29 for 26
# Multiprocessors or compute units that GEMMs leave: a barrier's workgroup finds no place beside a GEMM's.
SPARE_UNITS = 1
_ALIGNED = 256


def cut(size: int, bytes_each: int, staging: int) -> list[tuple[int, int]]:
    """[begin, end) of the chunks of a dimension that has `bytes_each` in staging for each of its size: as few as fit,
    multiples of TILE. None where not even one such fits."""
    most = staging // max(bytes_each, 1) // TILE * TILE
    if most == 0 or size == 0:
        return []
    each = -(-size // (-(-size // most) * TILE)) * TILE
    return [(begin, min(begin + each, size)) for begin in range(0, size, each)]


# What is cut, by sizes alone; none where one operator after the other does as well.


def chunks_of_columns(c, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype | None) -> list[tuple[int, int]]:
    """Of a product [M, N] of which other ranks' rows go through staging."""
    rows, itemsize = len(a) // c.ranks, (dtype or torch.bfloat16).itemsize
    if len(a) % c.ranks or rows * len(b) < LEAST:
        return []
    return cut(len(b), (c.ranks - 1) * rows * itemsize, len(c._staging[0]))


def chunks_of_product(c, a: torch.Tensor, b: torch.Tensor, *scales: torch.Tensor) -> list[tuple[int, int]]:
    """Of rows that are gathered to be multiplied; scales: of these rows, as float32."""
    if len(a) * len(b) < LEAST:
        return []
    each = (c.ranks - 1) * (a.shape[1] * a.itemsize + sum(4 * of_rows.shape[1] for of_rows in scales))
    staging = len(c._staging[0]) - 2 * c.ranks * _ALIGNED
    whole = cut(len(a), each, staging)
    return whole if len(whole) < 2 else cut(len(a), each, staging // 2)  # one half is filled, the other one multiplied


def chunks_of_rows(c, x: torch.Tensor) -> list[tuple[int, int]]:
    """Of rows that are gathered."""
    each = x.shape[1] * x.itemsize
    return cut(len(x), each, len(c._staging[0])) if len(x) * each >= LEAST_GATHER else []


def result_of(operator: str, shape: tuple[int, int], a: torch.Tensor, out, dtype) -> torch.Tensor:
    """out, or what is allocated for it. Its parts would hide a wrong shape."""
    out = result(operator, out, dtype, WIDE, lambda wanted: a.new_empty(shape, dtype=wanted or torch.bfloat16))
    _check_shape(operator, out, shape)
    return out


def _check_shape(operator: str, out: torch.Tensor, shape: tuple[int, int]) -> None:
    if tuple(out.shape) != shape:
        refuse(operator, "out", f"shape {list(out.shape)}; needs {list(shape)}")


def gathered_result(x: torch.Tensor, out: torch.Tensor | None, ranks: int) -> torch.Tensor:
    """out, or what is allocated for it; refused where the operator all_gather would refuse it."""
    operator, shape = "all_gather", (len(x) * ranks, x.shape[1])
    out = result(operator, out, None, (), lambda _: x.new_empty(shape))
    if out.dtype != x.dtype or out.device != x.device:
        refuse(operator, "out", f"{out.dtype} on {out.device}; x is {x.dtype} on {x.device}")
    _check_shape(operator, out, shape)
    if out.stride(1) != 1 or out.stride(0) < shape[1]:
        refuse(operator, "out", f"strides {list(out.stride())}; needs rows apart, and each contiguous")
    check_apart(operator, "x", x, out=out)
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

    @contextlib.contextmanager
    def behind(self, event: torch.cuda.Event | None):
        """What is launched here begins behind the event, and behind what this stream has launched."""
        if event is not None:
            self._stream.wait_event(event)
        with torch.cuda.stream(self._stream):
            yield

    def event(self) -> torch.cuda.Event:
        return self._stream.record_event()

    def caller_event(self) -> torch.cuda.Event:
        return self._caller.record_event()

    def caller_waits(self, event: torch.cuda.Event) -> None:
        self._caller.wait_event(event)

    def join(self) -> None:
        self._caller.wait_stream(self._stream)


class Staged:
    """Tensors in each rank's staging, one behind the other, of the same shapes everywhere."""

    def __init__(self, staging: list[torch.Tensor], *shapes: tuple[tuple[int, ...], torch.dtype]):
        self._staging, self._places, first = staging, [], 0
        for shape, dtype in shapes:
            size = math.prod(shape) * dtype.itemsize
            self._places.append((first, first + size, shape, dtype))
            first += -(-size // _ALIGNED) * _ALIGNED
        assert first <= len(staging[0])

    def of(self, rank: int, number: int) -> torch.Tensor:
        begin, end, shape, dtype = self._places[number]
        return self._staging[rank][begin:end].view(dtype).view(shape)


def part_of_gemm(
    out, a, b, scale_a, scale_b, bias, constant_b: bool, whole: tuple[int, int], spare: int = SPARE_UNITS
) -> None:
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


def others_of(c) -> list[int]:
    """The other ranks, from this one on: each begins with another."""
    return [(c.rank + i) % c.ranks for i in range(1, c.ranks)]


def summed(parts: list[torch.Tensor], out: torch.Tensor) -> None:
    """Rank after rank in float32, rounded once. Parts may be overwritten."""
    if len(parts) == 2:
        torch.add(*parts, out=out)  # that, for numbers of 16 bits
        return
    total = parts[0].float()
    for part in parts[1:]:
        total.add_(part)
    out.copy_(total)


def gemm_reduce_scatter(c, operands: Operands, out: torch.Tensor, constant_b: bool, chunks) -> None:
    """c: a Communicator. chunks: of B's rows. out [M / ranks, N]."""
    a, b, scale_a, scale_b, bias = operands
    side, whole, rows = c._fork(), (len(a), len(b)), len(a) // c.ranks
    sizes, kept = (*whole, a.shape[1]), []

    def multiply(rank: int, columns: tuple, into: torch.Tensor) -> None:
        of = slice(rank * rows, (rank + 1) * rows)
        scales = scale_a if scale_a.numel() == 1 else scale_a[of]
        part_of_gemm(into, a[of], columns[0], scales, *columns[1:], constant_b, whole)

    try:
        for number, (begin, end) in enumerate(chunks):
            with side.behind_caller():
                c._meet_on_device(*sizes, number)  # all have read what lay in staging
                side.caller_waits(side.event())
            shift = None if bias is None else bias[begin:end]
            columns = b[begin:end], columns_of(scale_b, len(b), begin, end), shift
            shape = rows, end - begin
            staged = Staged(c._staging, *[(shape, out.dtype)] * (c.ranks - 1))
            parts = [out.new_empty(shape) for _ in range(c.ranks)]
            kept.append(parts)  # written on the other stream: freed when that has been joined
            for i, other in enumerate(others_of(c)):
                multiply(other, columns, staged.of(c.rank, i))
                with side.behind_caller():
                    c._meet_on_device(number, i)
                    sender = (c.rank - 1 - i) % c.ranks
                    parts[sender].copy_(staged.of(sender, i))
            come = side.event()
            multiply(c.rank, columns, parts[c.rank])
            side.caller_waits(come)
            summed(parts, out[:, begin:end])
    finally:
        side.join()


def all_gather_gemm(c, operands: Operands, out: torch.Tensor, constant_b: bool, chunks) -> None:
    """chunks: of this rank's rows of a; its own product needs none of them, and comes first. out [rows * ranks, N]."""
    a, b, scale_a, scale_b, bias = operands
    side, rows, whole = c._fork(), len(a), (len(a) * c.ranks, len(b))
    sent = [a] if scale_a.numel() == 1 else [a, scale_a]
    multiplied: list[torch.cuda.Event] = []

    def multiply(rank: int, begin: int, end: int, of_rank: list[torch.Tensor]) -> None:
        scales = scale_a if len(of_rank) == 1 else of_rank[1]
        to = out[rank * rows + begin : rank * rows + end]
        part_of_gemm(to, of_rank[0], b, scales, scale_b, bias, constant_b, whole)

    def push(number: int, begin: int, end: int) -> tuple[torch.cuda.Event, dict[int, list[torch.Tensor]]]:
        """What comes of the other ranks, by rank, and when."""
        shapes = [((end - begin, each.shape[1]), each.dtype) for each in sent]
        half = number % 2 * (len(c._staging[0]) // 2) if len(chunks) > 1 else 0
        staged = Staged([each[half:] for each in c._staging], *shapes * (c.ranks - 1))

        def place(of: int, on: int, i: int) -> torch.Tensor:
            return staged.of(on, (of - on - 1) % c.ranks * len(sent) + i)

        # Behind it all have multiplied what lay there.
        c._meet_on_device(*whole, a.shape[1], number)
        for other in others_of(c):
            for i, each in enumerate(sent):
                place(c.rank, other, i).copy_(each[begin:end])
        c._meet_on_device(*whole, a.shape[1], number)
        return side.event(), {other: [place(other, c.rank, i) for i in range(len(sent))] for other in others_of(c)}

    try:
        for number, (begin, end) in enumerate(chunks):
            if number == 0:
                with side.behind_caller():
                    come, parts = push(0, begin, end)
                multiply(c.rank, 0, rows, sent)
            this, now = come, parts
            if number + 1 < len(chunks):  # the next chunk comes while this one is multiplied
                with side.behind(multiplied[number - 1] if number else None):
                    come, parts = push(number + 1, *chunks[number + 1])
            side.caller_waits(this)
            for other in others_of(c):
                multiply(other, begin, end, now[other])
            multiplied.append(side.caller_event())
    finally:
        side.join()


def all_gather(c, x: torch.Tensor, out: torch.Tensor, chunks) -> None:
    """In the caller's stream. chunks: of x's rows. out [rows * ranks, d]."""
    rows = len(x)
    out[c.rank * rows : (c.rank + 1) * rows].copy_(x)
    for begin, end in chunks:
        staged = Staged(c._staging, ((end - begin, x.shape[1]), x.dtype))
        c._meet_on_device(*x.shape)  # all have read what lay there
        staged.of(c.rank, 0).copy_(x[begin:end])
        c._meet_on_device(*x.shape)
        for other in others_of(c):
            out[other * rows + begin : other * rows + end].copy_(staged.of(other, 0))
