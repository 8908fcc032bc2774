"""The registry of operators: each one's name, sample calls, tensors, written arguments, bad calls.

What holds for every operator is tested by it: tests/operators/test_contract_*.py. A new operator joins its family's
OPERATORS; test_contract_calls.py finds one that is missing.
"""

from problems.registry import comm, fused, gemms, int8, mla, moe, mx, rows
from problems.registry.entry import Operator

OPERATORS: dict[str, Operator] = {
    each.name: each for family in (rows, gemms, int8, moe, mx, fused, mla, comm) for each in family.OPERATORS
}
FORMS = tuple((each, form) for each in OPERATORS.values() for form in each.forms)


def name_of(value) -> str | None:
    """In the names of tests."""
    return value.name if isinstance(value, Operator) else None
