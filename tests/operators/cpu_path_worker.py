"""Run by test_cpu_paths.py in a process of its own: seeded problems on the CPU, results to a file.

    python -m tests.operators.cpu_path_worker RESULTS SEED

Every input, and every result, ends where the next page may not be touched; then, in a second round, begins where the
page before may not be. A load or store outside a tensor ends the process.
"""

import ctypes
import itertools
import mmap
import sys

import torch

from problems import int8, mla, mx
from problems.block_scaled_gemm import VALUES, draw
from problems.gemm import Problem, Scaling, bias_of
from problems.inputs import FLOATS, FP8, HALF, every_number, normal, positive, random_codes, short, weights
from problems.quantize import special_values
from problems.ranks import Ranks
from problems.registry import OPERATORS
from problems.registry.entry import Draw

PAGE = mmap.PAGESIZE
PROT_NONE = 0

_regions = []  # mappings stay as long as they are here


def between_forbidden_pages(values: torch.Tensor, at_end: bool) -> torch.Tensor:
    """A dense copy of `values`, in their order, that touches the forbidden page after it (or before it)."""
    if values.dim() == 2 and not values.is_contiguous():
        return between_forbidden_pages(values.t(), at_end).t()
    pages = -(-max(values.nbytes, 1) // PAGE)
    region = mmap.mmap(-1, (pages + 2) * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    start = PAGE + (pages * PAGE - values.nbytes if at_end else 0)
    tensor = torch.frombuffer(region, dtype=torch.uint8, count=values.nbytes, offset=start)
    tensor = tensor.view(values.dtype).view(values.shape)
    tensor.copy_(values)
    for page in (address, address + (pages + 1) * PAGE):
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), PROT_NONE) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    _regions.append(region)
    return tensor


def row_problems(g: torch.Generator):
    """(name, operator, arguments, result's shape and dtype): widths around every vector's length, special values."""
    for dtype in HALF:
        for d in (1, 7, 8, 15, 16, 17, 31, 32, 33, 47, 64, 100, 576, 2880, 4095):
            x, residual = normal((5, d), dtype, g, 2.0), normal((5, d), dtype, g, 3.0)
            gate_up, scale = normal((5, 2 * d), dtype, g, 3.0), positive((1,), g)
            for weight_dtype in (dtype, torch.float32):
                weight = weights((d,), weight_dtype, g)
                name = f"{short(dtype)}-{d}-w{short(weight_dtype)}"
                yield f"rms_norm-{name}", "rms_norm", (x, weight), dtype
                for fp8 in FP8:
                    yield f"rms_norm_fp8-{name}-{short(fp8)}", "rms_norm_fp8", (x, weight, scale), fp8
                    arguments = (x, residual, weight, scale)
                    yield f"add_rms_norm_fp8-{name}-{short(fp8)}", "add_rms_norm_fp8", arguments, fp8
            for fp8 in FP8:
                yield f"swiglu_fp8-{short(dtype)}-{d}-{short(fp8)}", "swiglu_fp8", (gate_up, scale), fp8
        # Every 16-bit number, NaN and infinities included, as weight and as gate; quotients with full mantissas.
        numbers, ones = every_number(dtype)[None], torch.ones(1, 2**16, dtype=dtype)
        up = normal((1, 2**16), dtype, g, 30.0)
        for fp8 in FP8:
            for divisor in (1.0, 0.3):
                name, scale = f"{short(dtype)}-all-{divisor}-{short(fp8)}", torch.tensor([divisor])
                yield f"rms_norm_fp8-{name}", "rms_norm_fp8", (ones, numbers[0], scale), fp8
                yield f"swiglu_fp8-{name}", "swiglu_fp8", (torch.cat([numbers, up], dim=1), scale), fp8
        yield f"rms_norm-{short(dtype)}-all", "rms_norm", (ones, numbers[0]), dtype


# Of computed scales: what has one, and how they are computed.
SCALINGS = (
    dict(scaling="tensor"),
    dict(scaling="row", fp8_max=200.0),
    dict(scaling="group", group_size=32, power_of_two=True),
    dict(scaling="group"),
)


def scaled_problems(g: torch.Generator):
    """The operators with computed scales: also (the scales' shape, further keywords). Those of special values, too."""
    for dtype in FLOATS:
        for d in (1, 7, 8, 15, 16, 17, 31, 32, 33, 47, 64, 100, 136, 576, 2880, 4095):
            x, other = normal((5, d), dtype, g, 2.0), normal((5, d), dtype, g, 3.0)
            special = special_values(dtype)
            x[3, : len(special)] = special[:d]
            inputs = {"quantize_fp8": (x,)}
            if dtype in HALF:
                weight = weights((d,), (dtype, torch.float32)[d % 2], g)
                inputs["rms_norm_dynamic_fp8"] = (x, weight)
                inputs["add_rms_norm_dynamic_fp8"] = (x, other, weight)
                inputs["swiglu_dynamic_fp8"] = (torch.cat([x, other], dim=1),)
            for (operator, arguments), options in itertools.product(inputs.items(), SCALINGS):
                group = options.get("group_size", 128)
                shape = {"tensor": (1,), "row": (5, 1), "group": (5, -(-d // group))}[options["scaling"]]
                for fp8 in FP8:
                    name = f"{operator}-{short(dtype)}-{d}-{options['scaling']}{group}-{short(fp8)}"
                    yield name, operator, arguments, fp8, shape, options
                if operator == "swiglu_dynamic_fp8":
                    yield f"{name}-limit", operator, arguments, fp8, shape, options | dict(limit=1.5)


def gemm_problems(g: torch.Generator):
    for format in FP8:
        for m in (1, 2, 3, 4, 5, 8, 17, 32):
            for n, k in ((1, 1), (5, 15), (13, 16), (12, 33), (14, 64), (37, 255), (13, 257), (26, 1000)):
                a, b = random_codes((m, k), format, g), random_codes((n, k), format, g)
                dtype = FLOATS[int(torch.randint(3, (), generator=g))]
                arguments = (a, b, positive((m, 1), g), positive((1, n), g), normal((n,), dtype, g))
                yield f"{m}x{n}x{k}-{short(format)}-{short(dtype)}", "skinny_gemm", arguments, dtype


def block_scaled_problems(g: torch.Generator):
    """Rows, columns and K around tiles, transposed squares and blocks; both orders of operands, types of scales."""
    kinds = itertools.product((False, True), (False, True), ("group", "square"), ("square", "group"))
    kinds = itertools.cycle(kinds)  # 16 of them for 9 sizes: each size meets others
    for format in FP8:
        for m in (1, 2, 3, 4, 5, 7, 17, 33, 130):
            for n, k in ((1, 1), (5, 15), (13, 16), (12, 33), (14, 64), (37, 255), (13, 257), (130, 400), (26, 1000)):
                *columns, shape_a, shape_b = next(kinds)
                drawn = draw(
                    Problem(m, n, k, format),
                    g,
                    Scaling(shape_a, VALUES[m % 3]),
                    Scaling(shape_b, VALUES[n % 3]),
                    bias_of(torch.float32),
                    random_codes,
                )
                a, b = (t.t().contiguous().t() if turned else t for t, turned in zip((drawn.a, drawn.b), columns))
                dtype = FLOATS[int(torch.randint(3, (), generator=g))]
                name = f"{m}x{n}x{k}-{columns}-{shape_a}-{shape_b}-{short(format)}-{short(dtype)}"
                yield name, "block_scaled_gemm", (a, b, drawn.scale_a, drawn.scale_b, drawn.bias), dtype


def int8_problems(g: torch.Generator):
    """Rows, columns and K around tiles, steps and blocks; each form of the epilogue, of scales, of softmax's mask."""
    activations = itertools.cycle((None, "relu", "gelu_tanh"))
    for m in (1, 2, 3, 4, 5, 7, 17, 33, 130):
        sizes = ((1, 1), (5, 15), (13, 16), (12, 33), (14, 64), (37, 255), (13, 513), (50, 1100), (7, 2100), (5, 4200))
        for n, k in sizes:
            a, b = int8.any_bytes((m, k), g), int8.extremes((n, k), g)
            dtype = int8.RESULTS[int(torch.randint(4, (), generator=g))]
            arguments = (a, b, int8.spread((m, 1), g, k), int8.spread((1, n), g, k), normal((n,), torch.bfloat16, g))
            options = dict(activation=next(activations))
            if n % 2:
                zero = torch.randint(-128, 128, (m,), generator=g).int()
                options |= dict(zero_a=zero, sum_b=b.sum(-1, dtype=torch.int32))
            yield f"int8_gemm-{m}x{n}x{k}-{short(dtype)}", "int8_gemm", arguments, dtype, None, options
            d, both = int8.any_bytes((m, n), g), dict(alpha=0.004, beta=0.5)
            yield f"linear-{m}x{n}x{k}", "linear_relu_abde_i8", (a, b, d), torch.int8, None, both
    for batch, m, n, k in ((3, 1, 70, 64), (12, 5, 13, 80), (9, 33, 7, 128)):
        batches = int8.any_bytes((batch, m, k), g), int8.any_bytes((batch, n, k), g)
        yield f"bmm-{batch}x{m}x{n}x{k}", "bmm_ab_i8_e_f32", batches, torch.float32, None, dict(alpha=0.01)
    for dtype in FLOATS:
        for d in (2, 7, 8, 15, 16, 17, 31, 32, 33, 47, 64, 100, 576, 1025, 2880):
            x, residual = int8.special_rows(dtype, d, g), normal((10, d), dtype, g, 3.0)
            for symmetric in (True, False):
                name, mode = f"{short(dtype)}-{d}-{symmetric}", dict(symmetric=symmetric)
                yield f"quantize_int8-{name}", "quantize_int8", (x,), torch.int8, (10, 1), mode
                norm = (residual, weights((d,), dtype, g), normal((d,), dtype, g))
                options = mode | dict(residual=normal((10, d), dtype, g))
                yield f"layer_norm_int8-{name}", "layer_norm_int8", norm, torch.int8, (10, 1), options
            yield f"quantize_int8-{short(dtype)}-{d}", "quantize_int8", (x, torch.tensor([0.3])), torch.int8
            yield f"softmax_int8-{short(dtype)}-{d}", "softmax_int8", (x, residual), torch.int8


def two_rounds(kernel, operator: str, given: dict) -> list[list[torch.Tensor]]:
    """What the registered operator writes, its tensors at the end of their pages and at the beginning."""
    rounds = []
    for at_end in (True, False):
        placed = {n: between_forbidden_pages(v, at_end) if isinstance(v, torch.Tensor) else v for n, v in given.items()}
        getattr(kernel._ops.ops, operator)(**placed)
        rounds.append([placed[name].clone() for name in OPERATORS[operator].written if placed.get(name) is not None])
        del placed
        _regions.clear()  # a process has 65530 mappings at most
    return rounds


def moe_results(kernel, g: torch.Generator):
    """(name, operator, its arguments, results of two rounds): those of mixtures of experts, which write several."""
    operators = ("moe_route", "moe_sort", "moe_combine", "moe_gate", "grouped_gemm", "grouped_gemm_swiglu_fp8")
    names = "quantize_mxfp4", "grouped_gemm_mx", "grouped_gemm_gate_mx"
    of_mx = [(name, form) for name in names for form in OPERATORS[name].forms]
    for operator, form in [*((name, OPERATORS[name].first) for name in operators), (operators[-1], "static"), *of_mx]:
        for tokens, d, k in itertools.product((1, 4, 19), (1, 24, 33, 130), (1, 40, 129, 300)):
            if (operator.startswith("moe") and k > 1) or ("mx" in operator and (d, k) != (1, 1)):
                continue
            draw = Draw(kernel, torch.device("cpu"), g, rows=tokens, d=d, k=k)
            given = OPERATORS[operator].registered_arguments(draw, form)
            rounds = two_rounds(kernel, operator, given)
            yield f"{operator}-{form}-{tokens}-{d}-{k}", operator, given, rounds


def mx_results(kernel, g: torch.Generator):
    """Of many rows, in kernels of their own: rows and columns around tiles, K around slices of 8 blocks."""
    sizes = itertools.cycle(((3, 1, 32), (16, 33, 96), (17, 13, 256), (33, 130, 288), (70, 40, 320)))
    for kinds, fp8, size in zip(mx.KINDS * 2, itertools.cycle(FP8), sizes):
        rows, n, k = size if kinds[1] == "mxfp4" else (*size[:2], max(64, size[2]))
        o = mx.draw(mx.plain(rows, n, k, kinds, biased=torch.float32), fp8, g)
        scales = {
            name: t if t is None or t.dtype == torch.float32 else t.view(torch.uint8)
            for name, t in (("scale_a", o.scale_a), ("scale_b", o.scale_b))
        }
        given = dict(out=torch.full((rows, n), torch.nan), a=o.a, b=o.b, **scales, expected_rows=rows)
        given |= dict(offsets=torch.tensor([0, rows], dtype=torch.int32), rows=o.rows, slots=o.slots, bias=o.bias)
        name = f"mx-{'-'.join(kinds)}-{short(fp8)}-{rows}x{n}x{k}"
        yield name, "grouped_gemm_mx", given, two_rounds(kernel, "grouped_gemm_mx", given)


def mla_results(kernel, g: torch.Generator):
    """The same of mla_decode and mla_append."""

    for dtype, form, page, heads in itertools.product(HALF, ("wide", "fp8", "mixed"), (0, 7, 64), (1, 3, 20)):
        problem = mla.Mla(2, 2, heads, page, 90, dtype, form, True, "dense")
        o = mla.draw(problem, g, FP8[0])
        read = dict(q=o.q, cache=o.cache, lengths=o.lengths, block_table=o.table, cache_scale=o.scale)
        out, lse = torch.empty(2, 2, heads, 512, dtype=dtype), torch.empty(2, 2, heads)
        given = dict(out=out, lse_out=lse, **read, softmax_scale=mla.SCALE, causal=True)
        yield (
            f"mla_decode-{problem.id}",
            "mla_decode",
            (vars(problem), vars(o)),
            two_rounds(kernel, "mla_decode", given),
        )
    for tokens in (1, 5, 28):
        draw = Draw(kernel, torch.device("cpu"), g, rows=tokens)
        given = OPERATORS["mla_append"].registered_arguments(draw, "fp8")
        yield f"mla_append-{tokens}", "mla_append", given, two_rounds(kernel, "mla_append", given)


def result_shape(operator: str, arguments: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    if operator.startswith(("linear", "bmm")):
        return *arguments[0].shape[:-1], arguments[1].shape[-2]
    rows, columns = arguments[0].shape
    if operator.endswith("gemm"):
        return rows, len(arguments[1])
    return rows, columns // 2 if "swiglu" in operator else columns


def compared(name: str, operator: str, arguments, rounds: list[list[torch.Tensor]]) -> dict:
    for first, second in zip(*rounds):
        if not torch.equal(first.view(torch.uint8), second.view(torch.uint8)):
            sys.exit(f"{name}: the result depends on where the tensors lie")
    return {"operator": operator, "arguments": arguments, "results": rounds[0]}


def sums_of_ranks(kernel, generator: torch.Generator):
    """(name, operator, arguments, rounds) of all_reduce and reduce_scatter: three ranks, as threads."""
    for dtype in FLOATS:
        for d in (1, 15, 16, 17, 31, 33, 64, 100, 4095):
            parts = [normal((3, d), dtype, generator, 3.0) for _ in range(3)]
            special = special_values(dtype)[:d]
            parts[1][0, : len(special)] = special
            for operator, rows in (("all_reduce", 3), ("reduce_scatter", 1)):
                rounds = []
                for at_end in (True, False):
                    placed = [between_forbidden_pages(part, at_end) for part in parts]
                    shape = torch.full((rows, d), torch.nan).to(dtype)
                    outs = [between_forbidden_pages(shape, at_end) for _ in range(3)]
                    together = Ranks(kernel, torch.device("cpu"), 3)
                    together.results(lambda rank, c: getattr(c, operator)(placed[rank], out=outs[rank]))
                    rounds.append([out.masked_fill(out.isnan(), torch.nan) for out in outs])
                yield f"{operator}-{short(dtype)}-{d}", operator, parts, rounds


def main(path: str, seed: str) -> None:
    from scripts.load import load_kernel

    kernel = load_kernel("cpu")
    generator = torch.Generator().manual_seed(int(seed))
    results = {}
    problems = (*row_problems(generator), *scaled_problems(generator), *gemm_problems(generator))
    problems += (*block_scaled_problems(generator), *int8_problems(generator))
    for name, operator, arguments, dtype, *scaled in problems:
        shape = result_shape(operator, arguments)
        scales, given = scaled or (None, {})
        rounds = []
        for at_end in (True, False):

            def written(shape: tuple[int, ...], dtype: torch.dtype, at_end=at_end) -> torch.Tensor:
                return between_forbidden_pages(torch.full(shape, torch.nan).to(dtype), at_end)

            placed = [between_forbidden_pages(a, at_end) for a in arguments]
            outs = {"out": written(shape, dtype)}
            if scales is not None:
                outs["scale_out"] = written(scales, torch.float32)
            # Half of the problems: where the values are not asked for, they are computed elsewhere.
            if "rms_norm_dynamic" in operator and shape[1] % 2 == 0:
                outs["normalized_out"] = written(shape, arguments[0].dtype)
            options = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in given.items()}
            getattr(kernel, operator)(*placed, **outs, **options)
            outs |= {name: options[name] for name in ("residual",) if name in options}
            if operator.startswith("add"):
                outs["residual"] = placed[1]
            if "normalized_out" in outs:  # of two NaN that are multiplied the result may have either's payload
                outs["normalized_out"].masked_fill_(outs["normalized_out"].isnan(), torch.nan)
            rounds.append([t.clone() for t in outs.values()])
        results[name] = compared(name, operator, arguments, rounds)
    more = (
        moe_results(kernel, generator),
        mx_results(kernel, generator),
        mla_results(kernel, generator),
        sums_of_ranks(kernel, generator),
    )
    for name, *run in itertools.chain(*more):
        results[name] = compared(name, *run)
    torch.save(results, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
