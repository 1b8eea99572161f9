"""The report of a run, as Markdown. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.figures import OURS, Spread

if TYPE_CHECKING:
    from benchmarks.figures import Aim, Comparison, Section
    from benchmarks.machine import Machine

_HEAD: Final = """\
# Benchmarks

Written by `make bench`; do not edit. Every line compares two things that were measured in turns
(A B A B …) in the same run, after one turn to warm up. A figure is the median of its turns, with
the least and the greatest in brackets. The ratio is ours over theirs, pair by pair. For rates more
is better, for times and sizes less.

In the pictures the rival is grey, and its median is 1. The flag is an aim, and points to where it
is reached. Our side is green if its aim is reached, orange if it is missed, and blue without one.
"""
_TABLE: Final = """\
| what | ours | theirs | ratio | aim | |
|---|---|---|---|---|---|
"""
_FINE: Final = 10.0
_COARSE: Final = 1000.0


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one run. ``seconds`` is its length."""

    machine: Machine
    sections: tuple[Section, ...]
    quick: bool
    seconds: float
    load_after: float


def markdown(report: Report) -> str:
    """Return the page for *report*."""
    parts = [_HEAD, _machine(report), *(_section(section) for section in report.sections)]
    return "\n".join(parts)


def _machine(report: Report) -> str:
    machine = report.machine
    versions = " · ".join(f"{name} {number}" for name, number in machine.versions.items())
    kind = "a quick run, good for nothing but a smoke test" if report.quick else "a full run"
    small, large = _pair(machine.sync_small_ms), _pair(machine.sync_large_ms)
    load = f"load {machine.load_before:.1f} before, {report.load_after:.1f} after"
    lines = (
        f"- {machine.date}, commit {machine.commit}, {kind}, {report.seconds:.0f} s",
        f"- {machine.cores} cores of {machine.processor}, {machine.memory_gib} GiB; {load}",
        f"- {machine.kernel}, {machine.file_system}; fdatasync of 4 KiB {small} ms, of 256 KiB",
        f"  {large} ms (p50, p99); other disks take 1 to 10 ms",
        "- everything is synced as in production: the log before each append returns, PostgreSQL",
        "  at each commit; Kafka with acks=all, one broker",
        f"- {versions}",
    )
    return "\n".join(lines) + "\n"


def _pair(times: tuple[float, float]) -> str:
    return f"{times[0]:.2f} and {times[1]:.2f}"


def plot_name(section: Section) -> str:
    """Return the name of the file with the picture of *section*."""
    return f"{section.name}.svg"


def _section(section: Section) -> str:
    rows = "".join(f"{row}\n" for row in map(_row, section.comparisons))
    notes = "".join(f"- {note}\n" for note in section.notes)
    missed = f"**Why an aim is missed.** {section.limits}\n" if section.has_missed_aim else ""
    plot = f"![{section.name}, ours beside theirs](plots/{plot_name(section)})\n"
    blocks = (f"## {section.name}\n", f"{section.method}\n", plot, _TABLE + rows, notes, missed)
    return "\n".join(block for block in blocks if block)


def _row(comparison: Comparison) -> str:
    unit = comparison.unit
    cells = (
        comparison.subject,
        f"{_spread(Spread.of(comparison.ours))} {unit}",
        f"{comparison.rival}: {_spread(Spread.of(comparison.theirs))} {unit}",
        _spread(comparison.ratio),
        _aim(comparison.aim),
        {True: "reached", False: "**missed**", None: ""}[comparison.is_reached],
    )
    return f"| {' | '.join(cells)} |"


def _aim(aim: Aim | None) -> str:
    if aim is None:
        return ""
    sign = "≥" if aim.at_least else "≤"
    return f"{'ours ' if aim.figure == OURS else ''}{sign} {aim.limit:g}"


def _spread(spread: Spread) -> str:
    return f"{number(spread.median)} ({number(spread.low)}-{number(spread.high)})"


def number(value: float) -> str:
    """Return *value* rounded for reading, to about three digits."""
    if value >= _COARSE:
        return f"{value:,.0f}".replace(",", " ")
    if value >= _FINE:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"
