"""Counters, waits and a program with its counts, as text."""

from .counters import Counters
from .profile import Profile


def _table(rows: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def describe(counters: Counters, profile: Profile) -> str:
    """A line for each counter of a launch."""
    by_class = sorted(counters.instructions.items(), key=lambda each: -each[1])
    ran = "" if counters.workgroups == counters.grid else f"{counters.workgroups} of "
    held = counters.occupancy
    idle = f"; {counters.idle} have no work" if counters.idle else ""
    rows = [
        ("workgroups", f"{ran}{counters.grid}, of {held.waves} waves{idle}"),
        (
            "occupancy",
            f"{held.workgroups} workgroups a compute unit, {held.waves_per_simd:g} waves a SIMD; "
            f"limited by {held.limited_by}",
        ),
        ("instructions", f"{counters.total}: " + ", ".join(f"{name} {count}" for name, count in by_class)),
    ]
    if polls := counters.mnemonics.get("s_sleep"):
        rows.append(("of these", f"{polls} times looked in vain and slept, as the simulator's schedule had it"))
    rows += [
        ("bytes asked for", f"loaded {counters.bytes_loaded}, stored {counters.bytes_stored}"),
        (
            "lines of accesses",
            f"of 128 bytes: loaded {counters.lines_loaded}, stored {counters.lines_stored}; of 64: "
            f"{counters.half_lines_loaded}, {counters.half_lines_stored}; coalescing {100 * counters.coalescing:.1f} %",
        ),
        (
            "different lines",
            f"{counters.distinct_lines} of 128 bytes; {counters.bytes_distinct} bytes in lines of 64",
        ),
        ("LDS", f"{counters.lds_bytes_read} bytes read, {counters.lds_bytes_written} written"),
        ("LDS cycles", f"{counters.lds_cycles}, of these {counters.lds_conflict_cycles} by bank conflicts"),
        ("matrix cycles", f"{counters.matrix_cycles}"),
        ("in flight", f"at most {counters.most_in_flight} operations of a wave"),
    ]
    for (counter, what), waits in sorted(profile.waits.items(), key=lambda each: -each[1].times):
        mean = waits.outstanding / waits.times
        rows.append((f"waits, {counter}", f"{waits.times} for {what}, {mean:.1f} outstanding on average"))
    return _table(rows)


def annotated(counters: Counters, profile: Profile) -> str:
    """The kernel's instructions, each with how often a wave executed it; accesses with what they touched."""
    lines = []
    for ins, count, site in zip(counters.program, counters.counts, profile.sites):
        note = ""
        if site.lines:
            share = 100 * site.different_bytes / (128 * site.lines)
            note = f"{site.lines / site.accesses:.1f} lines an access, {share:.0f} % of them asked for"
        elif site.lds_cycles:
            cycles, conflicts = (each / site.accesses for each in (site.lds_cycles, site.lds_conflict_cycles))
            note = f"{cycles:.1f} cycles an access, {conflicts:.1f} by conflicts"
        lines.append(f"{count:9}  {ins.address:#8x}  {ins.text.line:<64}  {note}".rstrip())
    return "\n".join(lines)
