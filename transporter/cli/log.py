"""The group of commands ``transporter log``, and its command ``log info``.

They work with and without a running engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transporter.cli.command_group import command_group
from transporter.cli.log_compact import compact
from transporter.cli.log_export import export
from transporter.cli.log_repair import repair, verify
from transporter.cli.log_show import show, tail
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import count_text, printable, write, write_json, write_table
from transporter.control.log_facts import log_facts

if TYPE_CHECKING:
    import typer


def build() -> typer.Typer:
    """Build the group."""
    return command_group(
        "Inspect, export, compact or repair a log.",
        info=info,
        show=show,
        tail=tail,
        export=export,
        compact=compact,
        verify=verify,
        repair=repair,
    )


def info(target: Target, *, as_json: AsJson = False) -> None:
    """Show segments, offsets and gaps of a log.

    It also shows times and bytes, and the route or replay that holds the oldest entry.

    Example:
        transporter log info pipeline.yaml
    """
    facts = log_facts(log_directory(target))
    if as_json:
        write_json(facts)
        return
    ahead, gaps, ignored, segments = (
        facts.pop(name) for name in ("ahead", "gaps", "ignored", "segments")
    )
    facts["bytes"] = f"{facts['bytes']:,}"
    for name, value in facts.items():
        write(f"{name.replace('_', ' '):<12}{_value_text(value)}")
    if ahead is not None:
        write(f"{'log time':<12}{ahead} s ahead of the wall clock; see docs/log.md, Log time")
    for gap in gaps:
        write(f"{'gap':<12}{gap['first']}..{gap['last']} {gap['kind']}")
    for each in ignored:
        write(f"{'ignored':<12}{printable(each['name'])}: {each['problem']}")
    write()
    columns = (
        *("segment", "offsets", "dropped", "first logged", "last logged", "bytes"),
        *("sealed", "epoch"),
    )
    write_table(columns, map(_segment_row, segments))


def _segment_row(segment: dict[str, Any]) -> tuple[object, ...]:
    empty = segment["last"] < segment["base"]
    return (
        segment["file"],
        f"{segment['base']}.." if empty else f"{segment['base']}..{segment['last']}",
        segment["dropped"],
        segment["oldest"] or "",
        segment["newest"] or "",
        f"{segment['bytes']:,}",
        "yes" if segment["sealed"] else "no",
        segment["epoch"],
    )


def _value_text(value: object) -> str:
    if isinstance(value, dict):
        return printable(_hold_text(value))
    return "none" if value is None else printable(value)


def _hold_text(hold: dict[str, Any]) -> str:
    if not hold["lag"]:
        return "nothing: every route has settled all entries"
    behind = count_text(hold["lag"], "entry", "entries")
    place = f"{hold['kind']} {hold['route']}, settled up to offset {hold['watermark']}"
    return f"{place}; {behind} behind"
