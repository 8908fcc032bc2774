"""Calls of the collective operators by one rank: bad ones are refused by name; torch.compile without graph breaks;
torch's own checks of the registrations; writes counted for autograd."""

import pytest
import torch

from tests.operators.bad_calls import Bad, assert_refused, guarded_call, replace, share_last_element, to_dtype
from tests.operators.compiled import BACKEND, assert_meta_as, both_ways
from tests.problems.buffers import same_bytes
from tests.problems.inputs import normal, positive, random_fp8, weights
from tests.problems.operators import comm_operators, operators, tensors

VALUES = ("all_reduce", "reduce_scatter", "all_gather")
NORMS = ("all_reduce_add_rms_norm_fp8", "all_reduce_add_rms_norm_dynamic_fp8")
GEMMS = ("skinny_gemm_all_reduce", "skinny_gemm_all_reduce_add_rms_norm_fp8")
OPERANDS = ("a", "b", "scale_a", "scale_b", "bias")
TENSORS = {name: ("out", "x", "order") for name in VALUES}
TENSORS[GEMMS[0]] = ("out", *OPERANDS, "order")
TENSORS[GEMMS[1]] = ("out", "product", "residual", "weight", "scale", *OPERANDS, "order")
TENSORS[NORMS[0]] = ("out", "x", "residual", "weight", "scale", "order")
TENSORS[NORMS[1]] = ("out", "scale_out", "x", "residual", "weight", "normalized_out", "scale_ub", "order")
WRITTEN = {name: ("out",) for name in (*VALUES, GEMMS[0])}
WRITTEN[GEMMS[1]] = ("out", "product", "residual")
WRITTEN[NORMS[0]] = ("out", "residual")
WRITTEN[NORMS[1]] = ("out", "scale_out", "residual", "normalized_out")
ROWS, D, K = 4, 40, 48

every_operator = pytest.mark.parametrize("operator", TENSORS)


@pytest.fixture(autouse=True)
def fresh_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def alone(kernel, device):
    """A communicator of one rank, without torch.distributed."""
    if device.type == "cpu" and kernel.ops.device.backend() != "cpu":
        pytest.skip("the simulator's devices: tests/gpu/test_rocm_all_reduce.py")
    with kernel.comm.Communicator(max_bytes=4096) as communicator:
        yield communicator


def valid_arguments(kernel, alone, operator: str, device, generator, rows: int = ROWS) -> dict:
    def half(*shape: int) -> torch.Tensor:
        return normal(shape, torch.bfloat16, generator).to(device)

    order, communicator = alone._handle()
    fp8 = kernel.fp8_dtype(device)
    given = dict(out=half(rows, D), x=half(rows, D))
    if operator in GEMMS:
        given = dict(out=half(rows, D), a=random_fp8((rows, K), fp8, generator), b=random_fp8((D, K), fp8, generator))
        given |= dict(scale_a=positive((rows, 1), generator), scale_b=positive((1, D), generator), bias=half(D))
        given = {name: t.to(device) for name, t in given.items()} | dict(constant_b=False)
    if operator == GEMMS[1]:
        given["product"] = half(rows, D)
    if operator in (*NORMS, GEMMS[1]):
        given["out"] = given["out"].to(fp8)
        given |= dict(residual=half(rows, D), weight=weights((D,), torch.bfloat16, generator).to(device), epsilon=1e-6)
    if operator in (NORMS[0], GEMMS[1]):
        given["scale"] = positive((1,), generator).to(device)
    if operator == NORMS[1]:
        given |= dict(scale_out=torch.zeros(rows, 1, device=device), normalized_out=half(rows, D))
        given |= dict(scale_ub=torch.ones(1, device=device), group=0, fp8_max=240.0, power_of_two=False)
    return given | dict(order=order, communicator=communicator)


def valid_call(kernel, alone, operator, device, generator):
    return guarded_call(
        operator, valid_arguments(kernel, alone, operator, device, generator), WRITTEN[operator], device
    )


def registered(kernel, operator: str):
    return getattr(kernel._ops.ops, operator).default


# --- bad input ---


def common(operator: str) -> list[Bad]:
    cases = []

    def add(name: str, why: str, change, says: str = "") -> None:
        cases.append(Bad(operator, name, why, change, says))

    for name in (each for each in TENSORS[operator] if each != "order"):
        for dtype in (torch.float64, torch.bool, torch.complex64, torch.int64):
            add(name, str(dtype).removeprefix("torch."), to_dtype(name, dtype), rf"(out|{name}): dtype")
        add(name, "meta", replace(name, lambda t: t.to("meta")), rf".*\b{name}\b.*\bmeta\b")
        if name in ("scale", "scale_ub"):
            add(name, "two-elements", replace(name, lambda t: t.repeat(2)))
            continue
        if name in ("scale_a", "scale_b", "bias"):
            add(name, "three-elements", replace(name, lambda t: t.flatten()[:3]))
            continue
        add(name, "zero-dim", replace(name, lambda t: t.flatten()[0]), rf"({name}|out|product|weight): ")
        if name not in ("weight", "scale_out"):
            add(name, "strided", replace(name, lambda t: t.new_zeros((*t.shape, 2))[..., 0]), rf"{name}: (last )?dim")
            add(name, "row-missing", replace(name, lambda t: t[:-1]), rf"({name}|out|product): shape")
            add(name, "narrow", replace(name, lambda t: t[:, :-1]), rf"({name}|b|out|weight): ")
    written = WRITTEN[operator]
    for i, target in enumerate(written):
        for source in TENSORS[operator]:
            if source not in (*written[: i + 1], "order"):
                both = rf"({target}|{source}): .*overlaps"
                add(target, f"overlaps-{source}", share_last_element(target, source), both)
    add("communicator", "unknown", lambda args: args.update(communicator=-1), "communicator: closed")
    return cases


CASES = [case for operator in TENSORS for case in common(operator)]


def test_every_tensor_of_every_operator_is_spoilt(kernel):
    schemas = operators(kernel)
    assert {name: set(names) for name, names in TENSORS.items()} == {
        name: tensors(schemas[name]) for name in comm_operators(kernel)
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_refused(kernel, alone, device, generator, case):
    assert_refused(kernel, valid_call(kernel, alone, case.operator, device, generator), case)


PYTHON = [
    ("max_bytes", dict(max_bytes=100)),
    ("max_bytes", dict(max_bytes=1 << 40)),
    ("max_bytes", dict(max_bytes=8192.0)),
    ("timeout", dict(timeout=0)),
    ("timeout", dict(timeout="10")),
    ("device", dict(device="meta")),
    ("group", dict(group="world")),
]


@pytest.mark.parametrize("name, given", PYTHON, ids=lambda v: str(v))
def test_what_a_communicator_refuses(kernel, name, given):
    with pytest.raises(RuntimeError, match=f"^Communicator: {name}: "):
        kernel.comm.Communicator(**given)
    with pytest.raises(TypeError):
        kernel.comm.Communicator(max_byte=4096)


@pytest.mark.parametrize("call", ("all_reduce", "reduce_scatter", "all_gather"))
def test_what_python_refuses(alone, device, call):
    for x in (0.5, None, [torch.ones(2, 8)]):
        with pytest.raises(RuntimeError, match=f"^{call}: x: "):
            getattr(alone, call)(x)
    x = torch.ones(2, 8, device=device)
    with pytest.raises(RuntimeError, match=f"^{call}: out: float"):
        getattr(alone, call)(x, out=0.5)
    with pytest.raises(TypeError):
        getattr(alone, call)(x, op="max")
    if call != "all_reduce":
        with pytest.raises(RuntimeError, match=f"^{call}: x: 1 dim"):
            getattr(alone, call)(x[0])


# --- torch.compile, torch's checks ---


def samples(kernel, alone, operator: str, device, generator):
    names = [argument.name for argument in registered(kernel, operator)._schema.arguments]
    for left_out, rows in (((), ROWS), (("normalized_out", "scale_ub", "bias"), ROWS), ((), 0)):
        given = valid_arguments(kernel, alone, operator, device, generator, rows)
        yield tuple(None if name in left_out else given[name] for name in names)


@every_operator
def test_torchs_checks_of_the_registration(kernel, alone, device, generator, operator):
    for sample in samples(kernel, alone, operator, device, generator):
        utilities = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
        torch.library.opcheck(registered(kernel, operator), sample, test_utils=utilities)


@every_operator
def test_what_the_schema_says_is_written(kernel, alone, device, generator, operator):
    """`order` alone keeps its bytes: it stands for what other ranks see."""
    op = registered(kernel, operator)
    for sample in list(samples(kernel, alone, operator, device, generator))[:2]:
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in sample]
        assert op(*sample) is None
        changed = {
            argument.name
            for argument, a, b in zip(op._schema.arguments, sample, before)
            if isinstance(a, torch.Tensor) and not same_bytes(a, b)
        }
        given = {argument.name for argument, a in zip(op._schema.arguments, sample) if a is not None}
        assert changed == set(WRITTEN[operator]) & given
        assert {a.name for a in op._schema.arguments if a.is_write} == {*WRITTEN[operator], "order"}


@every_operator
def test_written_arguments_count_their_writes(kernel, alone, device, generator, operator):
    given = valid_arguments(kernel, alone, operator, device, generator)
    before = {name: t._version for name, t in given.items() if isinstance(t, torch.Tensor)}
    getattr(kernel.ops.comm.ops, operator)(*(given[a.name] for a in registered(kernel, operator)._schema.arguments))
    written = {name for name, version in before.items() if given[name]._version > version}
    assert written == {*WRITTEN[operator], "order"}


def layer(alone):
    """What follows one another in a decoder layer."""

    def function(x, residual, weight, scale):
        y = alone.all_reduce(x)
        q = alone.all_reduce_add_rms_norm_fp8(y, residual, weight, scale)
        q2, scales = alone.all_reduce_add_rms_norm_dynamic_fp8(y * 2, residual, weight, scaling="group", group_size=32)
        parts = alone.all_gather(alone.reduce_scatter(residual))
        x = x.clone()
        alone.all_reduce(x * 3, out=x)
        return q.float() + q2.float() + parts.float(), scales, x

    return function


def layer_arguments(device, generator, rows: int = 5) -> tuple[torch.Tensor, ...]:
    x, residual = (normal((rows, D), torch.bfloat16, generator).to(device) for _ in range(2))
    return x, residual, weights((D,), torch.bfloat16, generator).to(device), positive((1,), generator).to(device)


def test_one_graph(alone, device, generator):
    both_ways(
        layer(alone), layer_arguments(device, generator), torch.compile(layer(alone), fullgraph=True, backend=BACKEND)
    )


def test_any_number_of_rows_in_one_graph(alone, device, generator):
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(layer(alone), fullgraph=True, backend="aot_eager", dynamic=True)
        for rows in (5, 17, 20):
            both_ways(layer(alone), layer_arguments(device, generator, rows), compiled)


def test_launches_keep_their_order(alone, device, generator):
    """Compiled code may not exchange collectives that share no operand: each rank might choose another order."""
    launched = []

    def function(x, y):
        return alone.all_reduce(y.relu()), alone.all_reduce(x)

    def look(module, inputs):
        names = [str(node.target) for node in module.graph.nodes if "all_reduce" in str(node.target)]
        launched.append(len(names))
        return module.forward

    x, y = (normal((3, D), torch.bfloat16, generator).to(device) for _ in range(2))
    both_ways(function, (x, y), torch.compile(function, fullgraph=True, backend=look))
    both_ways(function, (x, y), torch.compile(function, fullgraph=True, backend=BACKEND))
    assert launched == [2]


def test_meta_tensors_give_shapes(alone, device, generator):
    order = alone._order
    args = layer_arguments(device, generator)
    wanted = layer(alone)(*args)
    try:
        alone._order = order.to("meta")
        assert_meta_as(layer(alone)(*(a.to("meta") for a in args)), wanted)
    finally:
        alone._order = order


@pytest.mark.parametrize("compiler", [None, "aot_eager"])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_gradient_that_would_get_lost_is_refused(alone, device, generator, compiler, place):
    function = layer(alone)
    if compiler:
        function = torch.compile(function, fullgraph=True, backend=compiler)
    args = layer_arguments(device, generator)
    args[place].requires_grad_()
    with pytest.raises(Exception, match=r"(all_reduce\w*|reduce_scatter): \w+: requires grad"):
        function(*args)
    with torch.no_grad():
        function(*args)


def test_calls_are_counted(kernel, alone, device, generator):
    before = kernel.call_counts()
    layer(alone)(*layer_arguments(device, generator))
    now = kernel.call_counts()
    counted = {name: now[name] - before[name] for name in now if now[name] != before[name]}
    assert counted == {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, NORMS[0]: 1, NORMS[1]: 1}
