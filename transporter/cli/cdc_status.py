"""Text of ``transporter cdc status``: the slot, and a line a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.cli.output import printable, write, write_table

if TYPE_CHECKING:
    from transporter.change_source import SlotStatus, SourceStatus, TableStatus


def write_status(reader: str, found: SourceStatus) -> None:
    """Print the status of *reader*: facts about its slot, and a line a table."""
    facts = {
        "reader": reader,
        "publication": ", ".join(found.publications),
        "logged": found.logged or "nothing yet",
        "server": found.server_end or "unknown",
        **_slot_facts(found.slot),
    }
    for name, value in facts.items():
        write(printable(f"{name:<13}{value}"))
    if found.tables:
        write()
        columns = ("table", "phase", "run", "copied", "rows", "%")
        write_table(columns, [_table_row(each) for each in found.tables])


def _slot_facts(slot: SlotStatus | None) -> dict[str, str]:
    from transporter.units import display_size  # noqa: PLC0415 - imports pydantic

    if slot is None:
        return {"slot": "none"}
    state = "active" if slot.is_active else "not active"
    reason = f", invalidated: {slot.reason}" if slot.reason else ""
    return {
        "slot": f"{slot.name}: {state}, {slot.wal_status or 'lost'}{reason}",
        "retained": "unknown" if slot.retained is None else display_size(slot.retained),
        "safe": "unlimited" if slot.safe is None else display_size(max(0, slot.safe)),
        "lag": "unknown" if slot.lag is None else display_size(slot.lag),
    }


def _table_row(table: TableStatus) -> tuple[object, ...]:
    counts = ["" if each is None else f"{each:,}" for each in (table.copied, table.estimated)]
    percent = "" if table.percent is None else table.percent
    return (table.name, table.phase, table.run or "", *counts, percent)
