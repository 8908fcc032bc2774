#!/usr/bin/env python3
"""Every form of the CUDA kernels once, on small sizes, each result compared: what compute-sanitizer watches.

make sanitize-cuda                                          # memcheck, racecheck, initcheck, synccheck
compute-sanitizer --kernel-regex kernel_substring=rocm_fp8 --error-exitcode 9 python -m tests.gpu.cuda_sanitizer_cases
"""

import itertools
import os
import sys
from dataclasses import replace

# Each tensor an allocation of its own, so that an access beside it is beside an allocation.
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch

from benchmarks.harness.forms import all_shapes_for, entry, table
from benchmarks.harness.gpu_cases import CONFIG_VARIABLE, variable
from problems import grouped_gemm as grouped
from problems import mla, mx
from problems import moe_routing as moe
from problems.inputs import HALF, random_fp8
from scripts.load import load_kernel

FP8 = torch.float8_e4m3fn


def same(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    """FP8 numbers that are equal but for one in a hundred, floats within a bound far above what rounding does."""
    if got.dtype == FP8:
        differing = (got.float() != wanted.float()).float().mean().item()
        assert differing < 0.01, f"{what}: {differing:.1%} differ"
    else:
        error = (got.double() - wanted.double()).abs().max() / wanted.double().abs().max()
        assert error < 1e-2, f"{what}: {error:.1e}"


def check_computed_scales(kernel, normal) -> None:
    """The fused operators in every mode: what holds a row, from a warp to a cluster, and element by element."""
    modes = (dict(scaling="row"), dict(scaling="tensor"), dict(scaling="group"))
    modes += (dict(scaling="group", group_size=32, scale_dtype=torch.float8_e8m0fnu),)
    sizes = ((3, 128), (2, 1032), (9, 2880), (140, 4096), (3, 16384), (300, 2048), (1, 40000), (2, 1001))
    for (rows, d), dtype, mode in itertools.product(sizes, (torch.float16, torch.bfloat16), modes):
        what = f"{rows}x{d} {dtype} {mode}"
        x, residual, weight = normal(rows, d, dtype=dtype), normal(rows, d, dtype=dtype), normal(d, dtype=dtype)
        y = torch.empty_like(x)
        for given in (weight, weight.float()):
            updated = residual.clone()
            q, scale = kernel.add_rms_norm_dynamic_fp8(x, updated, given, normalized_out=y, **mode)
            wanted = kernel.reference.quantize_fp8(y, **mode)
            assert torch.equal(updated, x + residual) and torch.equal(scale.float(), wanted[1].float()), what
            same(q, wanted[0], f"add_rms_norm_dynamic_fp8 {what}")
            alone, _ = kernel.rms_norm_dynamic_fp8(updated, given, **mode)
            assert torch.equal(alone.view(torch.uint8), q.view(torch.uint8)), what
        gates = normal(rows, 2 * d, dtype=dtype)
        (q, scale), wanted = (m.swiglu_dynamic_fp8(gates, limit=2.0, **mode) for m in (kernel, kernel.reference))
        torch.testing.assert_close(scale.float(), wanted[1].float(), rtol=0.01, atol=0)
        if mode["scaling"] == "tensor":
            same(q, wanted[0], f"swiglu_dynamic_fp8 {what}")


def each_form(operator: str, launch, most_splits: int = 8) -> int:
    """`launch(config)` with every form and some parts of K; how many were taken."""
    taken = 0
    for form, splits in itertools.product((-1, *range(len(table(operator, "cuda")))), (1, 2, 3, most_splits)):
        config = entry(operator, "cuda", form, splits)
        with variable(CONFIG_VARIABLE, config):
            try:
                launch(config)
                taken += 1
            except (RuntimeError, ValueError) as error:
                if "cannot take" not in str(error):
                    raise
    return taken


def check_block_scaled(kernel, random, normal) -> None:
    """Every form with tails in all sizes, scales of B that only some take, operands that are packed first."""
    for m, n, k in ((3, 70, 1040), (70, 136, 400), (130, 264, 272)):
        a, b = normal(m, k).to(FP8), normal(n, k).to(FP8)
        blocks = -(-k // 128)

        def positive(*shape: int) -> torch.Tensor:
            return torch.rand(shape, generator=random, device="cuda") + 0.1

        scale_a, bias = positive(m, blocks), normal(n)
        for scale_b in (positive(-(-n // 128), blocks), positive(n, blocks)):
            arguments = (a, b, scale_a, scale_b, bias)
            wanted = kernel.reference.block_scaled_gemm(*arguments, out_dtype=torch.float32)

            def launch(config: str, arguments=arguments, wanted=wanted) -> None:
                got = kernel.block_scaled_gemm(*arguments, out_dtype=torch.float32, constant_b=True)
                same(got, wanted, f"block_scaled_gemm {config}")

            assert each_form("block_scaled_gemm", launch) > 8
        columns = (x.t().contiguous().t() for x in (a, b))
        got = kernel.block_scaled_gemm(*columns, scale_a, scale_b, bias, out_dtype=torch.float32)
        same(got, wanted, f"block_scaled_gemm {m}x{n}x{k}, column-major")


def check_int8(kernel, random, normal) -> None:
    """Every form of int8_gemm, tiles for any chip and layout, batches; the operators of rows. All of them by bytes."""

    def codes(*shape: int) -> torch.Tensor:
        return torch.randint(-128, 128, shape, generator=random, device="cuda").to(torch.int8)

    def equal(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
        assert torch.equal(got.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8)), what

    for m, n, k in ((3, 70, 1040), (70, 136, 400), (130, 264, 272), (20, 33, 77)):
        a, b, scale, bias = codes(m, k), codes(n, k), normal(m, 1).float() / k, normal(n)
        arguments = (a, b, scale, normal(1, n).float(), bias)
        for dtype, activation in itertools.product((torch.float16, torch.float32, torch.int8), (None, "gelu")):
            result = dict(out_dtype=dtype, activation=activation)
            wanted = kernel.reference.int8_gemm(*arguments, **result)

            def launch(config: str, arguments=arguments, result=result, wanted=wanted) -> None:
                got = kernel.int8_gemm(*arguments, constant_b=True, **result)
                if result["activation"] is None:
                    equal(got, wanted, f"int8_gemm {config}")
                else:
                    torch.testing.assert_close(got.float(), wanted.float(), rtol=1e-2, atol=1)

            assert k % 16 or each_form("int8_gemm", launch, 4) > 8
            launch("picked")
    a, b = codes(6, 70, 80), codes(6, 90, 80)
    equal(kernel.bmm_abe_i8(a, b, 1e-3), kernel.reference.bmm_abe_i8(a, b, 1e-3), "bmm_abe_i8")
    for rows, d in ((3, 128), (5, 1001), (140, 2048), (2, 16384), (1, 40000)):
        x, residual, weight, bias = normal(rows, d), normal(rows, d), normal(d), normal(d)
        for symmetric in (True, False):
            got, wanted = (each.quantize_int8(x, symmetric=symmetric) for each in (kernel, kernel.reference))
            equal(got[0], wanted[0], f"quantize_int8 {rows}x{d}")
            got, wanted = (
                each.layer_norm_int8(x, weight, bias, residual=residual.clone(), symmetric=symmetric)[0].int()
                for each in (kernel, kernel.reference)
            )
            assert (got - wanted).abs().max() <= 2, f"layer_norm_int8 {rows}x{d}"
        got, wanted = (each.softmax_int8(x.float()).int() for each in (kernel, kernel.reference))
        assert (got - wanted).abs().max() <= 1, f"softmax_int8 {rows}x{d}"


def check_moe_routing(kernel) -> None:
    """Every kernel of moe_route, moe_sort and moe_combine; ids and positions that no expert and no row has."""
    drawn = torch.Generator().manual_seed(torch.seed() % 2**31)

    def placed(*tensors: torch.Tensor | None) -> tuple:
        return tuple(None if t is None else t.cuda() for t in tensors)

    for dtype, experts, tokens in itertools.product(moe.FLOATS, (50, 200, 1000), (3, 700)):
        problem = moe.Route(tokens, experts, 5, 3, 6, dtype, "softmax", True, "top2", True, 1.0, "dense")
        logits, bias = moe.draw_route(problem, drawn)
        on_gpu, of_bias = placed(logits, bias)
        got = kernel.moe_route(on_gpu, 6, **problem.options(of_bias))
        moe.assert_route(problem, logits, bias, *(t.cpu() for t in got))
    for dtype, name, tokens in itertools.product((torch.int32, torch.int64), moe.MAPS, (0, 1, 20, 700)):
        ids, of_map = moe.draw_sort(moe.Sort(tokens, 8, 60, "far", name, dtype), drawn)
        on_gpu, map_on_gpu = placed(ids, of_map)
        got = kernel.moe_sort(on_gpu, 60, expert_map=map_on_gpu)
        wanted = kernel.reference.moe_sort(ids, 60, expert_map=of_map)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(got, wanted)), f"moe_sort {dtype} {name} {tokens}"
    for dtype, shared, d in itertools.product(moe.FLOATS, (None, *moe.FLOATS), (1040, 1041)):
        o = moe.draw_combine(moe.Combine(5, 9, d, dtype, shared, dtype, "some-dropped", "dense", "dense"), drawn)
        y, weights, positions, added = placed(o.y, o.weights, o.positions, o.shared)
        for out in moe.FLOATS:
            got = torch.empty(5, d, dtype=out, device="cuda")
            kernel.moe_combine(y, weights, positions, shared=added, out=got)
            assert torch.equal(got.cpu(), moe.combined(o, out)), f"moe_combine {dtype} {shared} {out} {d}"


def check_experts(kernel, tiles: bool) -> None:
    """grouped_gemm and grouped_gemm_swiglu_fp8: experts of no row, one and more than a tile; rows gathered or not, at
    odd addresses or not; scales of blocks, channels and one. tiles: every form, split or not, and SwiGLU behind it;
    else the kernels for any chip and operands, and SwiGLU's passes."""
    drawn = torch.Generator().manual_seed(torch.seed() % 2**31)
    scales = (("group", "block"), ("row", "channel"), ("one", "tensor"))
    count = 0

    def check(rows: int, which: int, slots: int, layout: str, n: int = 136) -> None:
        nonlocal count
        counts, of_scales = [rows + 3, 0, 10, 1], scales[count % 3]
        count += 1
        case = grouped.Case(
            sum(counts) + 5, 4, n, 1296 // (1 + which % 2), which, lambda *_: counts, slots, *of_scales, count % 2 == 0,
            torch.bfloat16, torch.float32, random_fp8, layout, None,
        )  # fmt: skip
        inputs, held = grouped.draw(case, (FP8,), drawn).placed("cuda", layout)

        def product(config: str) -> None:
            inputs.assert_right(inputs.call(kernel, out_dtype=torch.float32)[: inputs.live()], f"{case.id} {config}")

        def gated(config: str) -> None:
            scaling = dict(scaling="group" if tiles or count % 2 else "row")
            q, scale = kernel.grouped_gemm_swiglu_fp8(*inputs.operands(), **inputs.gather(), **scaling)
            wanted, of_wanted = kernel.reference.swiglu_dynamic_fp8(
                kernel.grouped_gemm(*inputs.operands(), **inputs.gather(), out_dtype=torch.bfloat16)[: inputs.live()],
                **scaling,
            )
            same(q[: inputs.live()], wanted, f"{case.id} {config}, SwiGLU")
            same(scale[: inputs.live()], of_wanted, f"{case.id} {config}, its scales")

        for launch in (product, gated):
            if tiles:
                assert each_form("grouped_gemm", launch) > 8
            else:
                with variable(CONFIG_VARIABLE, "grouped_gemm:fallback"):
                    launch("fallback")
        for each in held:
            each.assert_unchanged()

    # A launch under a tool takes a second: each type, gathered or not, in one layout.
    for which, slots in enumerate((2, 0, 2)):
        check(130 if slots else 16, which, slots, "dense", 512)
    check(20, 0, 0, "padded" if tiles else "odd")


def check_mx(kernel) -> None:
    """Streams of all types; Hopper's tiles in every form and for all types but float16, K whole and shared out in a
    cluster; gathered rows, groups of none; gates in their epilogues. The plain kernel, beside float16 by 24 columns."""
    drawn = torch.Generator().manual_seed(torch.seed() % 2**31)
    whole = (("bf16", "mxfp4"), ("row", "mxfp4"), ("mxfp8", "mxfp8"))
    some = (("mxfp8", "mxfp4"), ("mxfp4", "mxfp4"), ("bf16", "mxfp8"), ("row", "mxfp8"))
    for kinds in (*whole, *some, ("f16", "mxfp4"), ("f16", "mxfp8")):
        tiles = kinds in whole
        few = [(5, 24, 288), *((rows, 136, 1184) for rows in (3, 12, 30))]
        by_tiles = [(rows, 136, k) for rows, k in itertools.product((60, 100, 200, 300), (288, 2080, 8224))]
        by_tiles += [(rows, 8512, 2080) for rows in (3, 12, 30)]
        for rows, n, k in (*few, *(by_tiles if tiles else ())):
            inputs, held = mx.draw(mx.plain(rows, n, k, kinds), FP8, drawn).placed("cuda", "dense")
            inputs.assert_right(inputs.dense(kernel, out_dtype=torch.float32), f"{kinds} {rows} {n} {k}")
        for turn, rows in enumerate((1, 12, 30, 60, 150) if tiles else (4,)):
            case = mx.plain(4 * rows, 136, 288, kinds, 4, routing=lambda *_, n=rows: [n, 0, 2 * n, 1], slots=2)
            inputs, held = mx.draw(replace(case, biased=torch.bfloat16), FP8, drawn).placed("cuda", "dense")
            got = inputs.call(kernel, out_dtype=torch.float32, expected_rows=rows)
            inputs.assert_right(got, f"{kinds} {rows}, grouped")
            mx.assert_gates_the_product(kernel, inputs, mx.GATES[turn], torch.bfloat16, "cuda", rows)
            for each in held:
                each.assert_unchanged()


def check_mla(kernel) -> None:
    """Every kernel of mla_decode and mla_append: caches, pages that TMA takes or not, unaligned rows, splits."""
    drawn = torch.Generator().manual_seed(torch.seed() % 2**31)
    for dtype, form, page, layout in itertools.product(
        HALF, ("wide", "fp8", "mixed"), (0, 7, 16, 64), ("dense", "padded")
    ):
        heads = {0: 6, 7: 12, 16: 20, 64: 40}[page]  # codes: tiles of 16 and of 32 rows
        problem = mla.Mla(2, 2, heads, page, 700, dtype, form, True, layout)
        if form != "wide" and (page, layout) == (64, "dense"):
            problem = mla.Mla(132, 1, 40, page, 128, dtype, form, False, layout)  # of 64 rows
        o = mla.draw(problem, drawn, torch.float8_e4m3fn)
        args, options = o.call("cuda")
        cache = args[1]
        if layout == "padded":
            # Rows at odd multiples of 8 bytes.
            wide = torch.zeros(*cache.shape[:2], problem.width + 8 // cache.itemsize, dtype=torch.uint8, device="cuda")
            wide = wide.repeat_interleave(cache.itemsize, -1).view(cache.dtype)
            wide.view(torch.uint8)[..., : problem.width * cache.itemsize] = cache.view(torch.uint8)
            args = (args[0], wide[..., : problem.width], *args[2:])
        lse = torch.empty(problem.batch, problem.queries, heads, device="cuda")
        out = kernel.mla_decode(*args, lse_out=lse, **options)
        mla.assert_attended(problem, o, out, lse, problem.id)
        kv = torch.randn(9, 512, generator=drawn).to(dtype)
        got, wanted = cache.clone(), cache.cpu().clone()
        slots = torch.tensor([0, 5, -1, 30, 2**40, 3, 1, 2, 6])
        scale = {} if o.scale is None else dict(cache_scale=o.scale)
        for latent, rope in ((kv, kv[:, :64]), (None, kv[:, 64:128])):
            read = [None if t is None else t.cuda() for t in (latent, rope)]
            kernel.mla_append(*read, got, slots.cuda(), **{n: t.cuda() for n, t in scale.items()})
            kernel.reference.mla_append(latent, rope, wanted, slots, **scale)
            assert torch.equal(got.cpu().view(torch.uint8), wanted.view(torch.uint8)), f"mla_append {problem.id}"


def check_others(kernel, normal) -> None:
    """Norms, SwiGLU, quantisation, routing, skinny_gemm, and experts' kernels for any chip."""
    scale, one = torch.tensor(0.02, device="cuda"), torch.ones((), device="cuda")
    # A warp a row, a block, a cluster of 2, 4, 8, the next kernel let in later; long rows; element by element; rows
    # fetched ahead.
    sizes = (
        (3, 128),
        (140, 2880),
        (9, 2880),
        (2, 4096),
        (3, 16384),
        (20, 16384),
        (300, 2048),
        (1, 40000),
        (2, 1001),
        (240, 24576),
    )
    for rows, d in sizes:
        for dtype in (torch.float16, torch.bfloat16):
            x, residual, weight = normal(rows, d, dtype=dtype), normal(rows, d, dtype=dtype), normal(d, dtype=dtype)
            updated = residual.clone()
            got = kernel.add_rms_norm_fp8(x, updated, weight, scale)
            wanted = kernel.reference.add_rms_norm_fp8(x, residual, weight, scale)
            same(got, wanted, f"add_rms_norm_fp8 {rows}x{d}")
            assert torch.equal(updated, residual)
            wide = weight.float()
            same(kernel.rms_norm(x, wide), kernel.reference.rms_norm(x, wide), f"rms_norm {rows}x{d}")
    for rows, d in ((1, 8192), (40, 8192), (70, 1000), (3, 1001), (300, 8192), (1200, 8192)):
        x = normal(rows, 2 * d)
        same(kernel.swiglu_fp8(x, scale), kernel.reference.swiglu_fp8(x, scale), f"swiglu_fp8 {rows}x{d}")
    # The vectors of rows, a warp, a CTA with 1 to 8 vectors a thread, element by element; the tensor's two launches.
    modes = (dict(scaling="row"), dict(scaling="tensor"), dict(scaling="group"), dict(scaling="group", group_size=32))
    modes += (dict(scaling="group", group_size=64, scale_dtype=torch.float8_e8m0fnu), dict(scale=scale))
    for rows, d in (
        (1, 7),
        (3, 128),
        (5, 520),
        (2, 1032),
        (140, 2048),
        (2, 8192),
        (300, 16384),
        (1, 40000),
        (1, 65536),
    ):
        for dtype, mode in itertools.product((torch.float16, torch.bfloat16, torch.float32), modes):
            x = normal(rows, d, dtype=dtype)
            got, wanted = (module.quantize_fp8(x, **mode)[0] for module in (kernel, kernel.reference))
            same(got, wanted, f"quantize_fp8 {rows}x{d} {dtype} {mode}")
    check_computed_scales(kernel, normal)
    check_moe_routing(kernel)
    check_experts(kernel, tiles=False)
    for m, n, k in ((1, 70, 1040), (1, 70, 4112), (9, 33, 4096), (32, 200, 2064)):
        shapes = [(shape, splits) for splits in (1, 3) for shape in all_shapes_for(m, splits)]
        for form in (None, (-1, 1), *shapes, (1, 8), (3, 2, 9), (1, 1, 30)):
            config = form and entry("skinny_gemm", "cuda", *form)
            a, b = normal(m, k).to(FP8), normal(n, k).to(FP8)
            torch.cuda.synchronize()
            for constant in (False, True):
                with variable(CONFIG_VARIABLE, config):
                    got = kernel.skinny_gemm(a, b, scale, one, out_dtype=torch.float32, constant_b=constant)
                wanted = kernel.reference.skinny_gemm(a, b, scale, one, out_dtype=torch.float32)
                same(got, wanted, f"skinny_gemm {m}x{n}x{k} {config}")
    a, b = normal(3, 77).to(FP8), normal(5, 77).to(FP8)
    same(kernel.skinny_gemm(a, b, scale, one), kernel.reference.skinny_gemm(a, b, scale, one), "skinny_gemm 3x5x77")


def main() -> int:
    kernel = load_kernel("cuda")
    random = torch.Generator("cuda").manual_seed(torch.seed() % 2**31)

    def normal(*shape: int, dtype=torch.float16) -> torch.Tensor:
        return torch.randn(shape, generator=random, device="cuda").to(dtype)

    if "--gemms" in sys.argv:
        check_block_scaled(kernel, random, normal)
        check_int8(kernel, random, normal)
    elif "--experts" in sys.argv:
        check_experts(kernel, tiles=True)
    elif "--mx" in sys.argv:
        check_mx(kernel)
    elif "--mla" in sys.argv:
        check_mla(kernel)
    else:
        check_others(kernel, normal)
    torch.cuda.synchronize()
    print("all results right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
