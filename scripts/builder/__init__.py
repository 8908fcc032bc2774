"""The developer's build of a kernels-hub package: see ../build.py."""

from .config import BuildConfig, BuildError, read_config
from .ninja_build import compile_library
from .toolchains import TOOLCHAINS
from .variant import install_variant

__all__ = ["TOOLCHAINS", "BuildConfig", "BuildError", "build", "read_config"]


def build(config: BuildConfig, backend: str, *, jobs: int | None = None, verbose: bool = False):
    """Compile and install one backend; returns the Path of build/<variant>. BuildError says what is wrong."""
    if backend not in config.backends:
        raise BuildError(f"backend {backend!r} is not in build.toml (it lists: {', '.join(config.backends)})")
    if backend not in TOOLCHAINS:
        raise BuildError(f"no toolchain for backend {backend!r} (there are: {', '.join(TOOLCHAINS)})")
    toolchain = TOOLCHAINS[backend](config)
    library = compile_library(config, backend, toolchain, jobs=jobs, verbose=verbose)
    return install_variant(config, backend, toolchain, library)
