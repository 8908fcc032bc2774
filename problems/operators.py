"""The operators as the loaded library has registered them: what the tests' lists and the documents are held to."""

from types import ModuleType

import torch


def registered(kernel: ModuleType) -> dict[str, torch.FunctionSchema]:
    """All schemas of the package's namespace, by the names without it."""
    prefix = f"{kernel._ops.ops.name}::"
    schemas = (each for each in torch._C._jit_get_all_schemas() if each.name.startswith(prefix))
    return {each.name.removeprefix(prefix): each for each in schemas}


def operators(kernel: ModuleType) -> dict[str, torch.FunctionSchema]:
    """Those of the library that take tensors. It returns none: what returns one is made in Python."""
    return {name: each for name, each in registered(kernel).items() if tensors(each) and not each.returns}


def tensors(schema: torch.FunctionSchema) -> set[str]:
    """Names of its arguments that are tensors."""
    return {argument.name for argument in schema.arguments if "Tensor" in str(argument.type)}


def moe_operators(kernel: ModuleType) -> set[str]:
    """Of mixtures of experts, whatever the types."""
    return {name for name in operators(kernel) if name.startswith(("moe_", "grouped_"))}


def comm_operators(kernel: ModuleType) -> set[str]:
    """Between ranks."""
    return {name for name, schema in operators(kernel).items() if "order" in tensors(schema)}


def function_of(operator: str) -> str:
    """Name of the Python function that calls the operator."""
    return operator.replace("_static", "").removesuffix("_mx")


def functions(kernel: ModuleType) -> set[str]:
    """Of the package; those between ranks are methods of comm.Communicator."""
    return {function_of(name) for name in operators(kernel).keys() - comm_operators(kernel)}
