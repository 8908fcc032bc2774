"""Executes AMD's pseudocode of instructions (the CDNA manuals', as packaged in tinygrad) on Python's integers and exact
fractions: what the simulator is held to. Nothing in here knows the simulator.

A pseudocode text is rewritten as Python, whose operators `Value` has; bits, types and slices are its attributes and
items. Integers wrap at their width, operations on floats round once, to nearest even.
"""

import functools
import math
import re
from fractions import Fraction

from tinygrad.runtime.autogen.amd.cdna.str_pcode import PCODE

SOURCES = {key.name: text for key, text in PCODE.items()}
# (precision, least exponent of a normal number)
FORMATS = {"f16": (11, -14), "bf16": (8, -126), "f32": (24, -126), "f64": (53, -1022)}
TYPE = re.compile(r"(u|i|f|bf|b)(\d+)$")


class Value:
    """Bits with a type: u and i are integers, f and bf floats, b plain bits.

    A part of a value (`D0.u32`, `D0[15 : 0]`) has the bits of when it was read; assigning to it changes the whole.
    `vague` are the places, (low bit, width), of NaNs that an operation made: their bits the pseudocode does not say.
    """

    def __init__(self, kind: str, width: int, bits: int, vague=frozenset(), whole=None, low: int = 0):
        self.__dict__.update(kind=kind, width=width, bits=bits & (1 << width) - 1, vague=vague, whole=whole, low=low)

    @property
    def number(self):
        if self.kind in ("f", "bf"):
            return decode(self.bits, f"{self.kind}{self.width}")
        return self.bits - (1 << self.width) if self.kind == "i" and self.bits >> self.width - 1 else self.bits

    def part(self, low: int, width: int, kind: str = "b") -> "Value":
        vague = frozenset((at - low, size) for at, size in self.vague if low <= at and at + size <= low + width)
        return Value(kind, width, self.bits >> low, vague, self, low)

    def write(self, low: int, width: int, value) -> None:
        value = of(value)
        bits = (value.bits if value.kind != "i" else value.number) & (1 << width) - 1
        kept = {(at, size) for at, size in self.vague if at + size <= low or low + width <= at}
        vague = frozenset(kept | {(at + low, size) for at, size in value.vague})
        whole_width = max(self.width, low + width)
        self.__dict__.update(bits=self.bits & ~((1 << width) - 1 << low) | bits << low, width=whole_width, vague=vague)
        if self.whole is not None:
            self.whole.write(self.low + low, width, value)

    def __getattr__(self, name):
        kind, width = TYPE.match(name).groups()
        return self.part(0, int(width), kind)

    def __setattr__(self, name, value):
        kind, width = TYPE.match(name).groups()
        value = of(value)
        if kind in ("f", "bf") and value.kind == "f":
            value = converted(value, name)
        self.write(0, int(width), value)

    def __getitem__(self, index):
        low, width = place(index)
        if low >= self.width and self.whole is not None:  # S0.u32[63 : 32] means S0's
            return self.whole[index]
        if width < 0:  # [0 : 31] turns the bits round
            return Value("b", -width, int(f"{self.part(low, -width).bits:0{-width}b}"[::-1], 2))
        return self.part(low, width)

    def __setitem__(self, index, value):
        low, width = place(index)
        # D0[31 : 0] = S0[0 : 31] turns the source; no target is turned.
        self.write(low, abs(width), value)

    def __bool__(self):
        return self.bits != 0

    def __index__(self):
        return self.number

    def __neg__(self):
        if self.kind == "f":
            return Value("f", self.width, self.bits ^ 1 << self.width - 1, self.vague)
        return Value(self.kind, self.width, -self.bits)

    def __invert__(self):
        return Value(self.kind, self.width, ~self.bits)

    def __lshift__(self, count):
        return Value(self.kind, self.width, self.number << of(count).bits)

    def __rlshift__(self, value):
        return of(value) << self

    def __rshift__(self, count):
        return Value(self.kind, self.width, self.number >> of(count).bits)

    def __mod__(self, other):
        return Value(self.kind, self.width, self.number % other.number)

    def __truediv__(self, other):
        if self.kind != "f":
            return Value(self.kind, self.width, self.number // other.number)
        if other.number == 0 and not math.isnan(self.number):
            return encode(math.copysign(math.inf, self.number) * math.copysign(1, other.number), "f32")
        return compute("f32", lambda a, b: a / b, self, other)

    def __pow__(self, exponent):
        # 2 ** n; a double holds every power that can matter to a float32.
        assert self.number == 2
        return encode(math.ldexp(1.0, max(-1000, min(1000, exponent.number))), "f64")


def _operator(compute_numbers):
    def apply(left, right):
        a, b = of(left), of(right)
        if a.kind == "bf":
            return compute("bf16", compute_numbers, a, b)
        if "f" in (a.kind, b.kind):
            # The double is a power of two, and the product a single.
            return compute(f"f{min(a.width, b.width)}", compute_numbers, a, b)
        kind = "i" if a.kind == b.kind == "i" else "u"
        return Value(kind, max(a.width, b.width), compute_numbers(a.number, b.number))

    return apply


for _name, _function in {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
}.items():  # fmt: skip
    setattr(Value, f"__{_name}__", _operator(_function))
    setattr(Value, f"__r{_name}__", lambda self, other, function=_operator(_function): function(other, self))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _compare = lambda self, other, name=f"__{_name}__": getattr(float if self.kind == "f" else int, name)(
        self.number, of(other).number
    )
    setattr(Value, f"__{_name}__", _compare)


def of(value) -> Value:
    """A Python number (a loop's index, a comparison's outcome) as a value."""
    if isinstance(value, Value):
        return value
    return Value("u", 1, value) if isinstance(value, bool) else Value("i", 32, value)


def place(index) -> tuple[int, int]:
    """(lowest bit, width) of an index or slice; the width is negative where the slice turns the bits round."""
    if not isinstance(index, slice):
        return of(index).number, 1
    high, low = of(index.start).number, of(index.stop).number
    return min(low, high), (high - low + 1 if high >= low else high - low - 1)


# --- Floats ---


def decode(bits: int, kind: str) -> float:
    precision, least = FORMATS[kind]
    width = int(TYPE.match(kind)[2])
    sign = -1.0 if bits >> width - 1 else 1.0
    exponent, fraction = bits >> precision - 1 & (1 << width - precision) - 1, bits & (1 << precision - 1) - 1
    if exponent == (1 << width - precision) - 1:
        return math.nan if fraction else sign * math.inf
    mantissa = fraction | (1 << precision - 1 if exponent else 0)
    return sign * math.ldexp(mantissa, max(exponent, 1) + least - precision)


def encode(number: Fraction | float, kind: str) -> Value:
    """The nearest number of the format, ties to even."""
    precision, least = FORMATS[kind]
    letters, width = TYPE.match(kind)[1], int(TYPE.match(kind)[2])
    sign, infinity = 1 << width - 1, (1 << width - precision) - 1 << precision - 1
    negative = math.copysign(1, number) < 0 if isinstance(number, float) else number < 0
    if isinstance(number, float) and math.isnan(number):
        return Value(letters, width, infinity | 1 << precision - 2, frozenset({(0, width)}))
    if isinstance(number, float) and math.isinf(number):
        return Value(letters, width, infinity | sign * negative)
    exact, exponent = abs(Fraction(number)), least
    if exact:
        below = exact.numerator.bit_length() - exact.denominator.bit_length() - 1
        exponent = max(least, below + (exact >= Fraction(2) ** (below + 1)))
    # Fraction rounds half to even. A carry out of the mantissa goes into the exponent by itself.
    mantissa = round(exact / Fraction(2) ** (exponent - precision + 1))
    return Value(letters, width, min(mantissa + (exponent - least << precision - 1), infinity) | sign * negative)


def compute(kind: str, operation, *sources: Value) -> Value:
    """An operation on floats: exact, then rounded. Zeros, infinities and NaN are as Python's floats have them."""
    numbers = [float(each.number) for each in sources]
    if all(map(math.isfinite, numbers)):
        exact = operation(*map(Fraction, numbers))
        if exact != 0:
            return encode(exact, kind)
    return encode(float(operation(*numbers)), kind)


def converted(value: Value, kind: str) -> Value:
    """To another format; a NaN keeps its sign, its payload and whether it signals."""
    if value.kind not in ("f", "bf") or not math.isnan(value.number):
        return encode(value.number, kind)
    old, new = FORMATS[f"{value.kind}{value.width}"][0] - 1, FORMATS[kind][0] - 1
    payload = value.bits & (1 << old) - 1
    payload = payload << new - old if new >= old else payload >> old - new
    nan = encode(math.nan, kind)
    bits = nan.bits >> new << new | payload | value.bits >> value.width - 1 << nan.width - 1
    return Value(nan.kind, nan.width, bits, nan.vague if value.vague else frozenset())


def quiet_bit(value: Value) -> int:
    return 1 << FORMATS[f"{value.kind}{value.width}"][0] - 2


def is_signalling(value: Value) -> bool:
    return math.isnan(value.number) and not value.bits & quiet_bit(value)


def to_integer(value: Value, kind: str, low: int, high: int) -> Value:
    """Towards zero, saturating, 0 of NaN."""
    number = value.number
    return Value(kind, 32, 0 if math.isnan(number) else int(min(max(number, low), high)))


def sign_extended(value: Value, count: Value) -> Value:
    used = count.bits
    return Value(
        "i", value.width, value.part(0, used, "i").number if 0 < used < value.width else value.bits * (used > 0)
    )


def truncated(value: Value) -> Value:
    number = value.number
    whole = math.copysign(math.trunc(number), number) if math.isfinite(number) else number
    return encode(whole, f"f{value.width}")


def fused(a: Value, b: Value, c: Value) -> Value:
    # Python's product of two doubles may overflow where the exact one does not matter.
    if math.isinf(c.number) and math.isfinite(a.number) and math.isfinite(b.number):
        return encode(c.number, f"f{c.width}")
    return compute(f"f{a.width}", lambda x, y, z: x * y + z, a, b, c)


def concatenated(*parts: Value) -> Value:
    whole = Value("b", 0, 0)
    for each in reversed(parts):
        whole.write(whole.width, each.width, each)
    return whole


def logarithm(a: Value) -> Value:
    if a.number == 0:
        return encode(-math.inf, "f32")
    return encode(math.nan if a.number < 0 else math.log2(a.number), "f32")


FUNCTIONS = {
    "V": Value,
    "literal": lambda text: encode(float(text.rstrip("F")), "f32" if text.endswith("F") else "f64"),
    "concatenated": concatenated,
    "span": lambda first, last: range(of(first).number, of(last).number + 1),
    "array": lambda width, count: [Value("b", width, 0) for _ in range(count)],
    "cast": lambda kind, width: lambda value: (
        converted(value, f"{kind}{width}") if kind in ("f", "bf") else Value(kind, width, of(value).number)
    ),
    # `<>` of floats is "less or greater": V_CMP_NEQ is written with ==.
    "differ": lambda a, b: a < b or a > b,
    "fma": fused,
    "isNAN": lambda a: math.isnan(a.number),
    "isSignalNAN": is_signalling,
    "isQuietNAN": lambda a: math.isnan(a.number) and not is_signalling(a),
    "cvtToQuietNAN": lambda a: Value(a.kind, a.width, a.bits | quiet_bit(a)),
    "is_zero": lambda a, sign: a.bits == sign << a.width - 1,
    "exponent": lambda a: Value("i", 32, a.bits >> 23 & 255),
    "sign": lambda a: a.bits >> a.width - 1,
    "abs": lambda a: Value(a.kind, a.width, a.bits & (1 << a.width - 1) - 1),
    "trunc": truncated,
    "sqrt": lambda a: encode(math.sqrt(a.number) if not a.number < 0 else math.nan, "f32"),
    "pow": lambda a, b: encode(math.inf if b.number > 1000 else a.number ** max(b.number, -1000), "f32"),
    "log2": logarithm,
    "signext": lambda a: a,
    "signext_from_bit": sign_extended,
    "s_ff1_i32_b64": lambda a: Value("i", 32, (a.bits & -a.bits).bit_length() - 1),
    **dict.fromkeys(["i32_to_f32", "u32_to_f32", "f16_to_f32", "f64_to_f32"], lambda a: encode(a.number, "f32")),
    **dict.fromkeys(["i32_to_f64", "u32_to_f64", "f32_to_f64"], lambda a: encode(a.number, "f64")),
    "f32_to_f16": lambda a: encode(a.number, "f16"),
    "f32_to_bf16": lambda a: encode(a.number, "bf16"),
    **dict.fromkeys(["f32_to_u32", "f64_to_u32"], lambda a: to_integer(a, "u", 0, 2**32 - 1)),
    **dict.fromkeys(["f32_to_i32", "f64_to_i32"], lambda a: to_integer(a, "i", -(2**31), 2**31 - 1)),
}  # fmt: skip

# --- From pseudocode to Python ---

NUMBER = r"0x[0-9a-fA-F]+|\d+"
REWRITES = [
    (r"//[^\n]*", ""),
    (r"\b(?:INST|WAVE_MODE)\.", ""),
    (r"declare (\w+) : (\d+)'\w+\[(\d+)\]", r"\1 = array(\2, \3)"),
    (r"declare [^\n]*", ""),
    (r"\.(?:fp|bf)([48])\b", r".u\1"),
    # Two zeros are equal, but these lines want to tell them apart.
    (r"\((?:64'F\()?(S\S+?)\)? == ([+-])0\.0\)", lambda m: f"(is_zero({m[1]}, {int(m[2] == '-')}))"),
    (rf"\b(\d+)'({NUMBER})([UI]?)", lambda m: f"V('{m[3].lower() or 'b'}', {m[1]}, {m[2]})"),
    (r"\b(\d+)'([A-Z]+)\(", lambda m: f"cast('{m[2].lower()}', {m[1]})("),
    (r"\b\d+\.\d+F?", r"literal('\g<0>')"),
    (rf"\b({NUMBER})ULL\b", r"V('u', 64, \1)"),
    (rf"\b({NUMBER})LL\b", r"V('i', 64, \1)"),
    (rf"\b({NUMBER})U\b", r"V('u', 32, \1)"),
    (r"&&", " and "),
    (r"\|\|", " or "),
    (r"!(?!=)", " not "),
    (r"([\w.]+) <> ([\w.]+)", r"differ(\1, \2)"),
    (r"(?m)^\{ (\S+), (\S+) \} = (.*)$", lambda m: spread(*m.groups())),
    (r"\{", "concatenated("),
    (r"\}", ")"),
    (r"\bin\b(?! \d)(?! [^\n]* do\b)", "in_"),
    (r"for (\w+) in (.*?) : (.*?) do\b", r"for \1 in span(\2, \3) do"),
]  # fmt: skip


def spread(high: str, low: str, value: str) -> str:
    """{ D1.u1, D0.u64 } = value"""
    width = TYPE.search(low)[2]
    return f"wide = {value}\n{low} = wide\n{high} = wide >> {width}"


def without_questions(text: str) -> str:
    """`a ? b : c` as Python has it; the innermost, which is the last, first."""
    while (at := text.rfind("?")) >= 0:
        start, depth = at, 0
        while start and (depth or text[start - 1] not in "([,") and not re.search(r"[^<>=!]= $", text[:start]):
            depth += {")": 1, "]": 1, "(": -1, "[": -1}.get(text[start - 1], 0)
            start -= 1
        colon, depth = at, 0
        while depth or text[colon] != ":":
            depth += {")": -1, "]": -1, "(": 1, "[": 1}.get(text[colon], 0)
            colon += 1
        end, depth = colon, 0
        while end < len(text) and (depth or text[end] not in ")],"):
            depth += {")": -1, "]": -1, "(": 1, "[": 1}.get(text[end], 0)
            end += 1
        test, yes, no = text[start:at], text[at + 1 : colon], text[colon + 1 : end]
        text = f"{text[:start]}({yes} if {test} else {no}){text[end:]}"
    return text


def to_python(text: str) -> str:
    for pattern, replacement in REWRITES:
        text = re.sub(pattern, replacement, text)
    # A statement a line, and `then`, `do` and `else` at the end of one.
    lines, depth = [], 0
    for line in (each.strip() for each in text.replace(";", "\n").split("\n")):
        if match := re.match(r"(\w+) = lambda\((.*?)\) \($", line):
            line = f"def {match[1]}({match[2]}):"
        closes_function = line == "endif)"
        line = line.rstrip(")") if closes_function else line
        if line.startswith(("elsif", "else", "endif", "endfor")):
            depth -= 1
        depth -= closes_function
        if line and line not in ("endif", "endfor"):
            line = re.sub(r"^elsif\b", "elif", re.sub(r" ?\b(then|do)$|(?<=^else)$", ":", line))
            lines.append("    " * depth + without_questions(line))
        if line.endswith(":"):
            depth += 1
    return "\n".join(lines)


class Names(dict):
    """A variable that is assigned in parts begins empty; a function may be another instruction."""

    def __missing__(self, name):
        if name in FUNCTIONS:
            return FUNCTIONS[name]
        if pseudocode(name):
            return functools.partial(as_function, name)
        self[name] = Value("b", 0, 0)
        return self[name]


def as_function(name: str, *values: Value) -> Value:
    sources = {f"S{i}": value for i, value in enumerate(values)}
    return execute(name, sources)["D0"].part(0, values[0].width, values[0].kind)


@functools.cache
def pseudocode(mnemonic: str) -> str | None:
    """An instruction's text, None if there is none; the encodings of one instruction have the same."""
    name = mnemonic.upper()
    text = next((SOURCES[each] for each in (name, name + "_E64", name + "_E32") if each in SOURCES), None)
    if text is None and name.startswith("V_FMA_MIX"):
        # Written down under its older name, which rounds the product too, with an array of the sources.
        text = SOURCES[name.replace("FMA", "MAD")].replace("in[0] * in[1] + in[2]", "fma(in[0], in[1], in[2])")
        text = re.sub(r"\bS\[i\]", "[S0, S1, S2][i]", text.replace("declare S : 32'B[3];\n", ""))
    # V_BITOP3_B32 alone calls its destination D.
    return text and re.sub(r"\bD\.", "D0.", text)


@functools.cache
def compiled(mnemonic: str):
    return compile(to_python(pseudocode(mnemonic)), mnemonic, "exec")


def execute(mnemonic: str, names: dict) -> dict:
    """Runs an instruction's pseudocode on its operands and the wave's state by name; returns all names."""
    env = Names(names)
    env.setdefault("IEEE", True)
    exec(compiled(mnemonic), dict(FUNCTIONS), env)
    return env


def kind_of(name: str, source: int) -> str:
    types = re.findall(rf"\bS{source}(?:\[\d+ : \d+\])?\.(f\d+)", pseudocode(name))
    return types[0] if types else "int"


def assert_same(got: int, expected: Value, what: str) -> None:
    """The bits, but of NaNs that an operation made: any quiet one."""
    for low, width in expected.vague:
        part = got >> low & (1 << width) - 1
        infinity, quiet = {16: (0x7C00, 0x200), 32: (0x7F800000, 0x400000), 64: (0x7FF << 52, 1 << 51)}[width]
        assert part & infinity == infinity and part & quiet, f"{what}: {got:#x}, not a quiet NaN"
        expected = Value("b", expected.width, expected.bits & ~((1 << width) - 1 << low))
        got &= ~((1 << width) - 1 << low)
    assert got == expected.bits, f"{what}: {got:#x}, not {expected.bits:#x}"
