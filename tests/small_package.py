"""build.toml of a package with one small kernel, for the tests of scripts/build.py."""


def build_toml(backend: str, section: str) -> str:
    """`section`: what [kernel.twice] has beside its backend."""
    return f"""\
[general]
name = "one-kernel"
version = 1
edition = 5
license = "Apache-2.0"
backends = ["{backend}"]

[general.hub]
repo-id = "somebody/one-kernel"

[torch]
src = ["torch-ext/binding.cpp"]

[torch.stable-abi]
{backend} = "2.11"

[kernel.twice]
backend = "{backend}"
depends = ["torch"]
{section}"""
