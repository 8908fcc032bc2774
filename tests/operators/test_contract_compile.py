"""torch.compile without graph breaks, and torch.export, of every operator of the registry: byte for byte as eager.

Programs of several operators: test_compile.py."""

import contextlib

import pytest
import torch

from problems.registry import FORMS, OPERATORS, name_of
from problems.registry.entry import Draw, Operator
from tests.operators.compiled import BACKEND, assert_meta_as, both_ways, parts

pytestmark = pytest.mark.usefixtures("fresh_graphs")

every_form = pytest.mark.parametrize("operator, form", FORMS, ids=name_of)
every_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=name_of)
# Inductor, which takes seconds: one form of each operator, scales of bytes, and each kind of scales that are computed
# (by one function for all operators).
COMPILED = [(*each, "aot_eager") for each in FORMS]
if BACKEND != "aot_eager":
    COMPILED += [
        (each, form, BACKEND) for each, form in FORMS if form in (each.first, "bytes") or each.name == "quantize_fp8"
    ]


class Program(torch.nn.Module):
    """A call as a function of its tensors alone. What is computed from a written one must see the new values."""

    def __init__(self, operator: Operator, draw: Draw, arguments: dict):
        super().__init__()
        self.function = operator.function(draw)
        self.names = [name for name, v in arguments.items() if isinstance(v, torch.Tensor)]
        self.others = {name: v for name, v in arguments.items() if name not in self.names}
        self.read = [name for name in operator.written if name in self.names]

    def of(self, arguments: dict) -> tuple[torch.Tensor, ...]:
        return tuple(arguments[name] for name in self.names)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(self.names, tensors))
        before = [given[name].float() * 2 for name in self.read]
        results = parts(self.function(**given, **self.others))
        after = [given[name].float() + 1 for name in self.read]
        return *(t for t in results if t is not None), *before, *after


def filled(operator: Operator, arguments: dict) -> dict:
    """With numbers, not NaN, in what is written: a NaN's bytes are nobody's contract."""
    for name in operator.written:
        if arguments.get(name) is not None:
            arguments[name] = torch.ones(arguments[name].shape).to(arguments[name].dtype).to(arguments[name].device)
    return arguments


@pytest.mark.parametrize("operator, form, compiler", COMPILED, ids=lambda v: v if isinstance(v, str) else name_of(v))
def test_one_graph_that_writes_into_its_arguments(on, operator: Operator, form, compiler):
    draw = on(operator)
    arguments = operator.arguments(draw, form)
    if compiler == "inductor" and draw.fp8 == torch.float8_e4m3fn and draw.device.type == "cuda":
        # Its Triton converts no float8_e4m3fnuz on NVIDIA's GPUs.
        arguments = {name: draw.fp8 if v is torch.float8_e4m3fnuz else v for name, v in arguments.items()}
    if not (compiler == "inductor" and arguments.get("scale_dtype") == torch.float8_e8m0fnu):  # it writes none
        arguments = operator.with_results(draw, arguments)
    arguments = filled(operator, arguments)
    program = Program(operator, draw, arguments)
    got = both_ways(program, program.of(arguments), torch.compile(program, fullgraph=True, backend=compiler))
    assert sum(t.float().abs().nan_to_num().sum() for t in got) > 0


@every_form
def test_any_number_of_rows_in_one_graph(on, operator: Operator, form):
    """The first numbers of rows are no other size of a call: a graph would be of equal sizes."""
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = program = None
        for rows in (11, 17, 31):
            draw = on(operator, rows=rows)
            arguments = operator.arguments(draw, form)
            if program is None:
                program = Program(operator, draw, arguments)
                compiled = torch.compile(program, fullgraph=True, backend="aot_eager", dynamic=True)
            both_ways(program, program.of(filled(operator, arguments)), compiled)


@contextlib.contextmanager
def order_on_meta(draw: Draw):
    """A communicator's own tensor is on the device of the others."""
    if draw.communicator is None:
        yield
        return
    order = draw.communicator._order
    draw.communicator._order = order.to("meta")
    try:
        yield
    finally:
        draw.communicator._order = order


@every_form
@pytest.mark.parametrize("rows", [0, 4])
def test_meta_tensors_give_shapes(on, operator: Operator, form, rows):
    draw = on(operator, rows=rows)
    arguments = operator.arguments(draw, form)
    program = Program(operator, draw, arguments)
    wanted = program(*(t.clone() for t in program.of(arguments)))
    with order_on_meta(draw):
        assert_meta_as(program(*(t.to("meta") for t in program.of(arguments))), wanted)


@every_operator
def test_one_graph_without_rows(on, operator: Operator):
    """In its first form: test_meta_tensors_give_shapes has the others' fakes."""
    draw = on(operator, rows=0)
    arguments = filled(operator, operator.arguments(draw, operator.first))
    program = Program(operator, draw, arguments)
    both_ways(program, program.of(arguments), torch.compile(program, fullgraph=True, backend="aot_eager"))


@every_operator
def test_an_exported_program_is_the_call(on, operator: Operator):
    draw = on(operator)
    arguments = filled(operator, operator.arguments(draw, operator.first))
    program = Program(operator, draw, arguments)
    exported = torch.export.export(program, program.of(arguments)).module()
    # It calls the library itself, where no write counts.
    both_ways(program, program.of(arguments), exported, counts=False)
