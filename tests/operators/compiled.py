"""Compiled and eager results side by side: for the tests of torch.compile."""

import shutil
from collections.abc import Callable

import torch

from problems.buffers import same_bytes

Result = torch.Tensor | tuple[torch.Tensor, ...]

# Inductor needs a C++ compiler for what it generates around the operators; tracing and functionalisation do not.
BACKEND = "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager"


def parts(result: Result) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def both_ways(
    function: Callable[..., Result], args: tuple, compiled: Callable[..., Result], *, counts: bool = True
) -> Result:
    """The compiled result, after its bytes and those of every argument afterwards were found equal to eager's; with
    `counts` whether an argument was written, for autograd, too."""
    eager_args, compiled_args = (tuple(a.clone() for a in args) for _ in range(2))
    versions = [a._version for a in eager_args]
    wanted, got = function(*eager_args), compiled(*compiled_args)
    assert len(parts(got)) == len(parts(wanted))
    for i, (a, b) in enumerate(zip(parts(got), parts(wanted))):
        assert same_bytes(a, b) and a.stride() == b.stride(), f"result {i}"
    for i, (a, b, before) in enumerate(zip(compiled_args, eager_args, versions)):
        assert same_bytes(a, b), f"argument {i} afterwards"
        assert not counts or (a._version > before) == (b._version > before), (
            f"argument {i}: a write that is not counted"
        )
    return got


def assert_meta_as(got: Result, wanted: Result) -> None:
    for a, b in zip(parts(got), parts(wanted), strict=True):
        assert a.is_meta and (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
