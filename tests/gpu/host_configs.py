"""Host-compiled parts of the GPU backends that only tests need."""

from pathlib import Path

from scripts.host_configs import compile_host as compile_any

HOST = Path(__file__).resolve().parent / "host"


def compile_host(source: str, target: Path, *flags: str) -> Path:
    """A source of host/."""
    return compile_any(HOST / source, target, *flags)
