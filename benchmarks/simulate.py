"""Run one operator of the built ROCm variant in the simulator: verify it, count its work, estimate its time.

    python -m benchmarks simulate operator skinny_gemm --m 8 --n 64 --k 4096 --arch gfx942 --config s8x16
    python -m benchmarks simulate operator add_rms_norm_fp8 --rows 4 --d 1024 --dtype bfloat16 --annotate
    python -m benchmarks simulate operator swiglu_fp8 --rows 1 --d 256 --trace 0:0
    python -m benchmarks simulate operator skinny_gemm --m 1 --n 13312 --k 16384 --sample 4    # not verified
    python -m benchmarks simulate operator swiglu_fp8 --rows 8 --d 6656 --sample 4 --warm --timing profiler

The result is verified with the bounds of the tests. `--annotate` prints the kernel's instructions, each with how often
waves executed it, and at accesses the lines of memory or the LDS cycles that one takes. `--trace GROUP:WAVE` prints the
first instructions of a wave and the registers that each changed: of lanes that differ, the first two and the last.
`--sample N` runs the first N workgroups with work on zeros. `--timing` says how the time would be taken, which has a
price of its own. The estimate stands beside a band, by the errors of measured kernels of its kind.

Needs the variant (scripts/build.py --backend rocm) and what builds it (scripts/rocm_toolchain.py). The estimate ranks
versions of a kernel and is no measurement: simulator/README.md.
"""

import argparse

import torch

from benchmarks.harness.gpu_cases import forced
from benchmarks.harness.simulated_rocm import FORMATS, SimulatedRocm, empty
from problems import rms_norm as rms
from problems import skinny_gemm as gemm
from problems.comparisons import assert_between, assert_rounded_alike
from problems.inputs import normal
from scripts import machine_code
from simulator import SimulationError
from simulator.counting import report
from simulator.counting.profile import Profile
from simulator.timing import cost
from simulator.timing.recording import record


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise SystemExit(f"simulate.py: {message}")


def aligned(values: torch.Tensor) -> torch.Tensor:
    return empty(values.shape, values.dtype).copy_(values)


# An operator as (what to call, the check of its result), on random inputs; on zeros where only a sample runs, which
# takes as long and is not checked.


def skinny_gemm(kernel, fp8: torch.dtype, args, generator):
    if args.sample:
        a, b, scales, check = empty((args.m, args.k), fp8), empty((args.n, args.k), fp8), [torch.ones(())] * 2, None
    else:
        inputs = gemm.draw(gemm.Problem(args.m, args.n, args.k, fp8), generator)
        a, b, scales = aligned(inputs.a), aligned(inputs.b), [inputs.scale_a, inputs.scale_b]

        def check(out):
            inputs.assert_right(out, "skinny_gemm")

    out = empty((args.m, args.n), DTYPES[args.dtype])
    return lambda: kernel.skinny_gemm(a, b, *scales, out=out), check


def rms_norm(kernel, fp8: torch.dtype, args, generator):
    shape, dtype = (args.rows, args.d), DTYPES[args.dtype]
    if args.sample:
        x, residual, weight = empty(shape, dtype), empty(shape, dtype), empty(shape[1:], dtype)
        scale, check = torch.ones(1), None
    else:
        inputs = rms.draw(shape, dtype, generator)
        x, residual, weight, scale = (aligned(t) for t in (inputs.x, inputs.residual, inputs.weight, inputs.scale))
        h = inputs.x + inputs.residual if args.operator == "add_rms_norm_fp8" else inputs.x

        def check(out):
            assert_between(out, *rms.bounds(h, inputs, fp8 if out.dtype == fp8 else None), args.operator)

    out = empty(shape, dtype if args.operator == "rms_norm" else fp8)
    arguments = {"rms_norm": (x, weight), "rms_norm_fp8": (x, weight, scale)}
    arguments["add_rms_norm_fp8"] = (x, residual, weight, scale)
    return lambda: getattr(kernel, args.operator)(*arguments[args.operator], out=out), check


def swiglu_fp8(kernel, fp8: torch.dtype, args, generator):
    shape, dtype = (args.rows, 2 * args.d), DTYPES[args.dtype]
    scale = torch.full((1,), 0.05)
    x = empty(shape, dtype) if args.sample else aligned(normal(shape, dtype, generator, 3.0))

    def check(out):
        assert_rounded_alike(out, kernel.reference.swiglu_fp8(x, scale, out_dtype=fp8), "swiglu_fp8")

    out = empty((args.rows, args.d), fp8)
    return lambda: kernel.swiglu_fp8(x, scale, out=out), None if args.sample else check


DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
RMS_NORMS = ("rms_norm", "rms_norm_fp8", "add_rms_norm_fp8")
ROW_OPERATORS = {name: rms_norm for name in RMS_NORMS} | {"swiglu_fp8": swiglu_fp8}
OPERATORS = {"skinny_gemm": skinny_gemm} | ROW_OPERATORS


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def place(text: str) -> tuple[int, int]:
    group, _, wave = text.rpartition(":")
    return int(group or 0), int(wave)


def parse(arguments: list[str] | None = None):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="operator", required=True)
    common = Parser(add_help=False)
    common.add_argument("--arch", choices=["gfx942", "gfx950"], default="gfx942")
    common.add_argument("--seed", type=int, default=1, help="of the inputs and of the schedule")
    common.add_argument("--sample", type=positive, metavar="N", help="run N workgroups with work only; not verified")
    common.add_argument("--warm", action="store_true", help="what the launch reads is in the memory-side cache")
    common.add_argument("--timing", choices=cost.TIMINGS, default="graph", help="what a launch costs (default: graph)")
    common.add_argument("--annotate", action="store_true", help="print the disassembly with counts")
    common.add_argument("--trace", type=place, metavar="[GROUP:]WAVE", help="print what one wave executes")
    common.add_argument("--limit", type=positive, default=200, help="instructions to trace (default: 200)")
    one = commands.add_parser("skinny_gemm", parents=[common])
    for size in ("--m", "--n", "--k"):
        one.add_argument(size, type=positive, required=True)
    one.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the result")
    one.add_argument("--config", metavar="FORM[,split=N]", help="of skinny_gemm/hip/config.h's table, or fallback")
    for name in ROW_OPERATORS:
        one = commands.add_parser(name, parents=[common])
        one.add_argument("--rows", type=positive, required=True)
        one.add_argument("--d", type=positive, required=True, help="columns of the result")
        one.add_argument("--dtype", choices=["float16", "bfloat16"], default="float16")
    return parser.parse_args(arguments)


class Device:
    """The built variant on the simulator."""

    def __init__(self):
        self.rocm = SimulatedRocm.built()

    def run(self, args):
        """(launch, profile, recording) of an operator's last launch, verified if it ran whole."""
        generator = torch.Generator().manual_seed(args.seed)
        runtime, before = self.rocm.runtime, len(self.rocm.runtime.launches)
        profile = Profile(trace=args.trace, trace_limit=args.limit)
        sample = (lambda grid: range(min(args.sample, grid[0] * grid[1] * grid[2]))) if args.sample else None
        options = {"seed": args.seed, "sample": sample, "profile": profile}
        with self.rocm.on(args.arch, **options) as kernel:
            call, check = OPERATORS[args.operator](kernel, FORMATS[args.arch], args, generator)
            with forced(args.operator, getattr(args, "config", None)):
                out = call()
            launches = runtime.launches[before:]
            if check:
                check(out)
        if len(launches) > 1:
            print(f"{len(launches)} launches; this is the last one")
        return launches[-1], profile, record(launches[-1][4], profile, runtime.beginnings)


def show(args, launch, profile, recording) -> None:
    name, grid, block, _, counters = launch
    if args.trace and not profile.traced:
        raise SystemExit(f"simulate.py: no wave {args.trace[0]}:{args.trace[1]} ran")
    readable = machine_code.readable(machine_code.tool("llvm-cxxfilt", text=name).strip())
    sizes = " x ".join(map(str, grid)), " x ".join(map(str, block))
    print(f"{readable} on {args.arch}: {sizes[0]} workgroups of {sizes[1]} threads")
    print("a sample: not verified" if args.sample else "verified against the reference")
    if args.annotate:
        print(report.annotated(counters, profile))
    print(report.describe(counters, profile))
    print(cost.describe(cost.estimate(recording, warm=args.warm, timing=args.timing)))


def main() -> None:
    args = parse()
    device = Device()
    try:
        show(args, *device.run(args))
    except AssertionError as error:
        raise SystemExit(f"simulate.py: wrong result: {error}") from None
    except (RuntimeError, ValueError, SimulationError) as error:
        raise SystemExit(f"simulate.py: {error}") from None
