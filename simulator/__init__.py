"""A simulator of gfx942 and gfx950 code objects: waves of 64 lanes on NumPy, strict about what it does not know."""

from simulator.counting.counters import Counters
from simulator.memory.regions import Memory
from simulator.schedule.engine import Checks

from .faults import (
    CoherenceFault,
    DeadlockFault,
    Fault,
    HazardFault,
    LdsFault,
    MemoryFault,
    RaceFault,
    SimulationError,
    UninitialisedFault,
    UnsupportedError,
    WaitFault,
)
from .simulator import Simulator

__all__ = [
    "Checks", "CoherenceFault", "Counters", "DeadlockFault", "Fault", "HazardFault", "LdsFault", "Memory",
    "MemoryFault",
    "RaceFault", "SimulationError", "Simulator", "UninitialisedFault", "UnsupportedError", "WaitFault",
]  # fmt: skip
