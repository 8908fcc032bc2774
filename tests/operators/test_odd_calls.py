"""Calls that differ from bad ones by little, and are taken; bad ones where nothing has run before."""

import pytest
import torch

from problems.buffers import raw, same_bytes
from problems.inputs import normal
from problems.registry import OPERATORS
from problems.registry.changes import in_other_format
from problems.registry.entry import Call
from problems.registry.gemms import rows_beyond_the_limit
from problems.registry.rows import grouped

NORMS = ("rms_norm_dynamic_fp8", "add_rms_norm_dynamic_fp8")
every_computed = pytest.mark.parametrize("operator", ("quantize_fp8", *NORMS, "swiglu_dynamic_fp8"))


@pytest.fixture
def call(on):
    """call(operator) -> the first form's call, which test_contract_bad_input.py spoils."""

    def call(name: str) -> Call:
        operator = OPERATORS[name]
        return operator.call(on(operator), operator.first, of_registered=False)

    return call


def on_a_copy(call: Call, **changes) -> list[torch.Tensor]:
    """(q, scale, normalized_out if given) of a call with everything dense and a residual of its own."""
    arguments = call.arguments | changes
    for name in ("residual", "normalized_out"):
        if name in arguments:
            arguments[name] = arguments[name].clone(memory_format=torch.contiguous_format)
    out_dtype = arguments.pop("out").dtype
    results = call.function(**arguments | dict(scale_out=None, out_dtype=out_dtype))
    return [*results, *(arguments[name] for name in ("normalized_out",) if name in arguments)]


@pytest.mark.parametrize("strides", [(3, 1), (1, 4), (1, 7), (5, 1), (6, 2), (2, 11)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e8m0fnu], ids=["f32", "e8m0"])
@every_computed
def test_scales_of_any_strides_are_taken(call, device, operator, strides, dtype):
    """The calls that `grouped` spoils by their strides alone."""
    call = call(operator)
    grouped(strides)(call.arguments)
    memory = torch.zeros(64 * dtype.itemsize, dtype=torch.uint8, device=device).view(dtype)
    call.arguments["scale_out"] = memory.as_strided((4, 3), strides)
    wanted = on_a_copy(call, scale_dtype=dtype)
    q, scale = call()
    assert scale is call.arguments["scale_out"] and scale.dtype == dtype
    got = [q, scale, *(call.arguments[name] for name in ("normalized_out",) if name in call.arguments)]
    assert all(map(same_bytes, got, wanted))


@every_computed
def test_scales_may_lie_beside_their_rows(call, device, operator):
    """Rows of one buffer, each its FP8 values and then its scale: the ranges of addresses cross."""
    call = call(operator)
    wanted = on_a_copy(call)
    rows, d = wanted[0].shape
    arena = torch.zeros(rows, d + 4, dtype=torch.uint8, device=device)
    call.arguments["out"] = arena[:, :d].view(wanted[0].dtype)
    call.arguments["scale_out"] = arena.view(torch.float32)[:, d // 4 :]
    assert all(map(same_bytes, call(), wanted))
    # One element earlier a scale lies in its row's values.
    call.arguments["scale_out"] = arena.view(torch.float32)[:, d // 4 - 1 : d // 4]
    with pytest.raises(RuntimeError, match=f"^{operator}: scale_out: overlaps out in memory"):
        call()


@pytest.mark.parametrize("operator", NORMS)
def test_normalized_out_may_lie_beside_x(call, device, operator):
    """In the same rows of one buffer; so may the residual."""
    call = call(operator)
    wanted = on_a_copy(call)
    rows, d = call.arguments["x"].shape
    arena = torch.zeros(rows, 3 * d, dtype=torch.bfloat16, device=device)
    for i, name in enumerate(("x", "normalized_out", "residual")):
        if name in call.arguments:
            call.arguments[name] = arena[:, i * d : (i + 1) * d].copy_(call.arguments[name])
    x = call.arguments["x"].clone()
    got = [*call(), call.arguments["normalized_out"]]
    assert all(map(same_bytes, got, wanted)) and same_bytes(call.arguments["x"], x)


@pytest.mark.parametrize("operator", ["rms_norm", "swiglu_fp8"])
def test_columns_of_one_buffer_do_not_overlap(call, device, generator, operator):
    # out beside x in the same rows: the ranges of addresses cross, the elements do not.
    call = call(operator)
    (rows, columns), (_, d) = call.arguments["x"].shape, call.arguments["out"].shape
    arena = normal((rows, columns + d), torch.bfloat16, generator).to(device)
    x = call.arguments["x"] = arena[:, :columns].copy_(call.arguments["x"])
    wanted = call().clone()
    call.arguments["out"] = arena[:, columns:].view(call.arguments["out"].dtype)[:, :d]
    before = x.clone()
    assert torch.equal(raw(call()), raw(wanted))
    assert torch.equal(x, before)


def test_the_most_rows_are_taken(kernel, call):
    call = call("skinny_gemm")
    rows_beyond_the_limit(call.arguments)
    call.arguments["a"] = call.arguments["a"][: kernel.SKINNY_GEMM_MAX_ROWS]
    assert kernel.SKINNY_GEMM_MAX_ROWS == 32
    assert call().shape[0] == 32


@pytest.mark.parametrize("operator", ["mla_decode", "mla_append"])
def test_the_other_format_on_a_gpu(call, backend, operator):
    """A CPU reads and writes both."""
    call = call(operator)
    call.arguments["cache"] = in_other_format(call.arguments["cache"].clone())
    if backend == "cpu":
        call()
    else:
        with pytest.raises(RuntimeError, match=f"^{operator}: cache: dtype float8"):
            call()


FIRST_USE = """
import torch
from scripts.load import load_kernel
kernel = load_kernel("cpu")
a, b, one = torch.ones(2, 8, dtype=torch.int8), torch.ones(3, 9, dtype=torch.int8), torch.ones(1)
for call in (
    lambda: kernel.int8_gemm(a, b, one, one),
    lambda: kernel.quantize_int8(a),
    lambda: kernel.layer_norm_int8(one[None], one.double()),
    lambda: kernel.softmax_int8(a),
    lambda: kernel.bmm_abe_i8(a, b),
):
    try:
        call()
    except RuntimeError as error:
        print(error)
"""


def test_bad_input_at_the_first_use(kernel, device, forked):
    """In a process that has not launched anything yet."""
    if device.type != "cpu":
        pytest.skip("the program loads the CPU's variant")
    said = forked(FIRST_USE).splitlines()
    names = ("int8_gemm: b", "quantize_int8: x", "layer_norm_int8: weight", "softmax_int8: x", "bmm_abe_i8: a")
    assert [line[: len(name)] for line, name in zip(said, names, strict=True)] == list(names)


REFUSED = [
    ("max_bytes", dict(max_bytes=100)),
    ("max_bytes", dict(max_bytes=1 << 40)),
    ("max_bytes", dict(max_bytes=8192.0)),
    ("timeout", dict(timeout=0)),
    ("timeout", dict(timeout="10")),
    ("device", dict(device="meta")),
    ("group", dict(group="world")),
]


@pytest.mark.parametrize("name, given", REFUSED, ids=lambda v: str(v))
def test_what_a_communicator_refuses(kernel, name, given):
    with pytest.raises(RuntimeError, match=f"^Communicator: {name}: "):
        kernel.comm.Communicator(**given)
    with pytest.raises(TypeError):
        kernel.comm.Communicator(max_byte=4096)
