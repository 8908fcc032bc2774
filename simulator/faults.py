"""The errors that a simulated program can cause, and the one for what the simulator itself does not know."""


class SimulationError(Exception):
    """Anything that ends a simulation; `where` is filled in by the engine."""

    where = ""

    def __str__(self) -> str:
        return f"{super().__str__()}{self.where}"


class UnsupportedError(SimulationError):
    """An instruction, modifier, register or mode that the simulator does not model. Never guessed at."""


class Fault(SimulationError):
    """A bug of the simulated program."""


class MemoryFault(Fault):
    """Global memory outside every registered buffer, or misaligned where alignment is demanded."""


class LdsFault(Fault):
    """LDS beyond the workgroup's allocation, or read before it was written."""


class WaitFault(Fault):
    """A register touched before the s_waitcnt that covers the load into it."""


class UninitialisedFault(Fault):
    """A register read that nothing has written."""


class DeadlockFault(Fault):
    """No wave can make progress."""


class RaceFault(Fault):
    """Two waves touched the same LDS bytes, one of them writing, with nothing that orders them."""


class HazardFault(Fault):
    """An instruction that follows another with fewer wait states between them than the hardware needs."""


class CoherenceFault(Fault):
    """A load of what another wave stored to global memory, with nothing that makes it visible to this one."""
