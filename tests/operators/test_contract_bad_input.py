"""Every kind of bad input: RuntimeError names operator and argument; nothing that the call would write has changed."""

import pytest
import torch

from problems.buffers import same_bytes
from problems.operators import function_of
from problems.registry import OPERATORS, name_of, spoilt
from problems.registry.changes import Bad
from problems.registry.entry import Operator

ARGUMENTS = [(each, name) for each in OPERATORS.values() for name in {bad.named: None for bad in spoilt.cases(each)}]


@pytest.mark.parametrize("operator, argument", ARGUMENTS, ids=name_of)
def test_refused(on, operator: Operator, argument: str):
    for bad in spoilt.cases(operator):
        if bad.named == argument:
            try:
                assert_refused(on, operator, bad)
            except BaseException as error:
                error.add_note("-".join(filter(None, (bad.form, bad.named, bad.why))))
                raise


def assert_refused(on, operator: Operator, bad: Bad) -> None:
    of_registered = operator.registered_is_spoilt and not bad.of_function
    call = operator.call(on(operator), bad.form or operator.first, of_registered)
    bad.change(call.arguments)
    tensors = {name: t for name, t in call.arguments.items() if isinstance(t, torch.Tensor) and not t.is_meta}
    before = {name: (t.clone(), t._version) for name, t in tensors.items()}
    functions = [call.function]
    if bad.of_reference:
        functions.append(getattr(on(operator).kernel.reference, operator.name))
    for function in functions:
        with pytest.raises(Exception, match=bad.pattern(function_of(operator.name))) as caught:
            function(**call.arguments)
        assert caught.type is RuntimeError
    for guard in call.written:
        guard.assert_unchanged(bad.why)
    for name, t in tensors.items():
        assert same_bytes(t, before[name][0]) and t._version == before[name][1], name
