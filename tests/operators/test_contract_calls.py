"""What every operator of the registry promises of a call: its schema is true, it writes what it says and nothing else.
It gives what the reference gives, wherever its tensors lie; it loses no gradient. And the registry is whole."""

import inspect

import pytest
import torch

from problems.buffers import guarded, same_bytes
from problems.comparisons import assert_near
from problems.inputs import FLOATS, FP8, normal, positive
from problems.operators import function_of, operators, tensors
from problems.registry import FORMS, OPERATORS, name_of
from problems.registry.entry import Operator
from tests.operators.compiled import parts

REGISTERED = [(each, form) for each, form in FORMS if not each.composite]
every_form = pytest.mark.parametrize("operator, form", FORMS, ids=name_of)
every_registered_form = pytest.mark.parametrize("operator, form", REGISTERED, ids=name_of)
every_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=name_of)


def tensors_of(arguments: dict) -> dict[str, torch.Tensor]:
    return {name: t for name, t in arguments.items() if isinstance(t, torch.Tensor)}


def without(arguments: dict, names) -> dict:
    return {name: v for name, v in arguments.items() if name not in names}


# --- the registry ---


def takes_tensors(function) -> bool:
    return any("Tensor" in str(parameter.annotation) for parameter in inspect.signature(function).parameters.values())


def test_no_operator_is_left_out(kernel):
    """Of the library's namespace, of the package's functions, of the methods between ranks."""
    assert {name for name, each in OPERATORS.items() if not each.composite} == operators(kernel).keys()
    functions = {name: getattr(kernel.ops, name) for name in kernel.ops.__all__}
    of_package = {name for name, each in functions.items() if inspect.isfunction(each) and takes_tensors(each)}
    assert {function_of(name) for name, each in OPERATORS.items() if not each.between_ranks} == of_package
    methods = inspect.getmembers(kernel.comm.Communicator, inspect.isfunction)
    of_ranks = {name for name, method in methods if name[0] != "_" and takes_tensors(method)}
    assert {name for name, each in OPERATORS.items() if each.between_ranks} == of_ranks


@pytest.mark.parametrize("operator", [each for each in OPERATORS.values() if not each.composite], ids=name_of)
def test_no_tensor_and_no_write_is_left_out(kernel, operator: Operator):
    """What is not described is not spoilt."""
    schema = operators(kernel)[operator.name]
    assert operator.tensors.keys() == tensors(schema)
    spoilt = [name for names in operator.spoilt.values() for name in names] or operator.tensors
    assert set(spoilt) == operator.tensors.keys()
    handles = {name for name, each in operator.tensors.items() if each.kind == "handle"}
    assert {argument.name for argument in schema.arguments if argument.is_write} - handles == set(operator.written)


@pytest.mark.parametrize("name", sorted({function_of(name) for name in OPERATORS}))
def test_every_parameter_is_given_in_some_form(on, name):
    of_function = [(each, form) for each, form in FORMS if function_of(each.name) == name]
    given = {parameter for each, form in of_function for parameter in each.arguments(on(each), form)}
    given |= {result for each, _ in of_function for result in each.results}
    assert set(inspect.signature(of_function[0][0].function(on(of_function[0][0]))).parameters) == given


# --- schemas and fakes ---


@pytest.mark.covering
@every_registered_form
def test_torchs_checks_of_the_registration(on, operator: Operator, form):
    """Rows apart, and in the first form none: graphs of dense and of no rows are test_contract_compile.py's."""
    op = getattr(on(operator).kernel._ops.ops, operator.name).default
    for rows in (4, 0) if form == operator.first else (4,):
        given = operator.registered_arguments(on(operator, rows=rows), form)
        sample = [apart(operator, name, t) for name, t in given.items()]
        utilities = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
        # It compares arguments with arithmetic that torch lacks for FP8; the next test does the same for all.
        if not any(isinstance(t, torch.Tensor) and t.dtype in FP8 for t in sample):
            utilities.append("test_schema")
        torch.library.opcheck(op, tuple(sample), test_utils=utilities)


@every_registered_form
def test_what_the_schema_says_is_written_and_nothing_else(on, operator: Operator, form):
    """Through the package each write counts for autograd. `order` keeps its bytes: it stands for other ranks' view."""
    draw = on(operator)
    given = operator.registered_arguments(draw, form)
    held = {name: guarded(t, draw.device) for name, t in tensors_of(given).items() if name in operator.written}
    given |= {name: each.t for name, each in held.items()}
    before = {name: (t.clone(), t._version) for name, t in tensors_of(given).items()}
    assert getattr(draw.kernel.ops.calls.ops, operator.name)(*given.values()) is None
    for name, each in held.items():
        each.assert_guards_intact(name)
    after = tensors_of(given)
    counted = {name for name, (_, version) in before.items() if after[name]._version > version}
    assert counted - {"order"} == held.keys() and ("order" in counted) == ("order" in given)
    assert {name for name, (t, _) in before.items() if not same_bytes(t, after[name])} == held.keys()


@every_form
def test_calls_are_valid(on, operator: Operator, form):
    """Those that are spoilt among them: results are the tensors that were given."""
    draw = on(operator)
    call = operator.call(draw, form, of_registered=False)
    before = draw.kernel.call_counts().get(function_of(operator.name), 0)
    got = parts(call())
    if not operator.composite:
        assert draw.kernel.call_counts()[function_of(operator.name)] == before + 1
    for name, part in zip(operator.results, got):
        assert name not in call.arguments or part is call.arguments[name]
    for each in call.written:
        each.assert_guards_intact(form)
    with pytest.raises(TypeError):
        call.function(**call.arguments, unknown=1)


# --- results ---


@pytest.mark.parametrize("operator, form", [each for each in FORMS if not each[0].between_ranks], ids=name_of)
def test_results_are_the_references(on, operator: Operator, form):
    """Between ranks: test_all_reduce.py."""
    draw = on(operator)
    given = operator.arguments(draw, form)
    results = []
    for module in (draw.kernel, draw.kernel.reference):
        copies = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in given.items()}
        got = getattr(module, function_of(operator.name))(**copies)
        written = [copies[name] for name in operator.written if copies.get(name) is not None]
        results.append([t for t in (*parts(got), *written) if t is not None])
    # Scales of a product are computed of sums that were rounded to 16 bits.
    of_sums = "b" in given and any(each.dtype in FP8 for each in results[1])
    for got, wanted in zip(*results, strict=True):
        if operator.exact:
            assert same_bytes(got, wanted)
        else:
            assert_near(got, wanted, torch.bfloat16 if of_sums and wanted.dtype == torch.float32 else None)


def apart(operator: Operator, name: str, value, pad: int = 16):
    """A tensor whose rows may lie apart, so that they do; any other value as it is."""
    may = name in operator.tensors and operator.tensors[name].layout != "dense"
    if not isinstance(value, torch.Tensor) or not may or pad == 0 or value.dim() < 2:
        return value
    return guarded(value, value.device, pad=pad).t


@every_registered_form
def test_rows_may_lie_apart(on, operator: Operator, form):
    """Sizes and places stay multiples of 16 bytes: a GPU takes the same kernels."""
    draw = on(operator)
    given = operator.registered_arguments(draw, form)
    results = []
    for pad in (0, 16):
        placed = {
            name: apart(operator, name, v.clone() if isinstance(v, torch.Tensor) and name != "order" else v, pad)
            for name, v in given.items()
        }
        getattr(draw.kernel._ops.ops, operator.name)(*placed.values())
        results.append({name: t for name, t in placed.items() if name in operator.written and t is not None})
    assert all(same_bytes(t, results[1][name]) for name, t in results[0].items())


@every_form
def test_calls_without_rows(on, operator: Operator, form):
    draw = on(operator, rows=0)
    given = operator.arguments(draw, form)
    got = parts(operator.function(draw)(**given))
    for name, part in zip(operator.results, got):
        assert part is None or name != "out" or part.numel() == 0


# --- autograd ---


@every_operator
@pytest.mark.parametrize("compiler", [None, "aot_eager"])
def test_a_gradient_that_would_get_lost_is_refused(on, operator: Operator, compiler):
    draw = on(operator)
    form_of: dict[str, str] = {}  # the first form in which a tensor has gradients at all
    for form in operator.forms:
        floats = [name for name, t in tensors_of(operator.arguments(draw, form)).items() if t.dtype in FLOATS]
        form_of = dict.fromkeys(floats, form) | form_of
    if compiler and operator.composite:  # of what it calls, each is compiled by itself
        form_of = dict(list(form_of.items())[:1])
    for name, form in form_of.items():
        given = operator.arguments(draw, form)
        given[name].requires_grad_()
        function = operator.function(draw)
        if compiler:
            torch._dynamo.reset()
            function = torch.compile(function, fullgraph=True, backend=compiler)
        versions = {each: t._version for each, t in tensors_of(given).items()}
        refused = (
            r"\w+: \w+: requires grad" if operator.composite else f"{function_of(operator.name)}: {name}: requires"
        )
        with pytest.raises(Exception, match=refused):
            function(**given)
        assert versions == {each: t._version for each, t in tensors_of(given).items()}
        if not compiler or name == next(iter(form_of)):  # each is a graph of its own
            with torch.no_grad():
                function(**given)


@every_operator
def test_inference_tensors_are_written(on, operator: Operator):
    with torch.inference_mode():
        draw = on(operator)
        operator.function(draw)(**operator.arguments(draw, operator.first))


def test_autograd_sees_that_a_saved_residual_has_changed(kernel, device, generator):
    """x * x saves x. A residual written afterwards gave 2 * (x + residual) as its gradient, without a word."""
    leaf = torch.ones(1, 8, dtype=torch.bfloat16, device=device, requires_grad=True)
    residual = leaf * 1
    loss = (residual * residual).sum()
    x, scale = normal((1, 8), torch.bfloat16, generator).to(device), positive((1,), generator).to(device)
    weight = torch.ones_like(x[0])
    with torch.no_grad():
        kernel.add_rms_norm_fp8(x, residual, weight, scale)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
