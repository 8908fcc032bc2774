"""What gates of several families use."""

LDS_OF_A_UNIT = {"gfx942": 64 << 10, "gfx950": 160 << 10}
SIMDS = 4


def loop_loads(kernel) -> list:
    return [i for body in kernel.loops if any("mf" in i.name for i in body) for i in body if i.is_load]


def named(kernel, name: str) -> int:
    return sum(i.name == name for i in kernel.code)
