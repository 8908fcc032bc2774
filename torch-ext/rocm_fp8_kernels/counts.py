"""How often the operators ran: whether a model or an engine really uses them."""

from ._ops import ops
from .fakes import OPERATORS

__all__ = ["call_counts"]


def call_counts() -> dict[str, int]:
    """Name of an operator of this module -> its calls in this process since the package was loaded.

    Counted where an operator is launched, eager or from compiled code. A CUDA or HIP graph counts when it is captured,
    not when it is replayed. A refused call does not count. `quantize_fp8` counts both static and computed scales.
    """
    counts = {name: ops.call_count(name) for name in OPERATORS}
    counts["quantize_fp8"] += counts.pop("quantize_static_fp8")
    return counts
