"""Parked entries of a route, read from disk without the lock, and as plain values."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from transporter.control.entry_values import entry_json, time_text
from transporter.errors import Corrupt, EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from transporter.control.parked_notes import ParkedNote
    from transporter.offsets.parked import ParkedEntry


def list_parked_offsets(directory: Path, route: str) -> list[int]:
    """Return the offsets of all entries that *route* has parked, ascending."""
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415 - imports pyarrow
    from transporter.offsets.offset_log import route_folder  # noqa: PLC0415
    from transporter.offsets.parked import parked_offsets  # noqa: PLC0415

    return parked_offsets(route_folder(directory, route), RealFileSystem())


def _raise(error: Corrupt) -> None:
    raise error


def read_parked(
    directory: Path,
    route: str,
    offsets: Iterable[int],
    on_damage: Callable[[Corrupt], None] = _raise,
) -> Iterator[ParkedEntry]:
    """Yield the entries parked at *offsets*, without those that an engine removes meanwhile.

    *on_damage* is called with the error of each entry that cannot be read.
    """
    from transporter.offsets.offset_log import route_folder  # noqa: PLC0415 - imports pyarrow
    from transporter.offsets.parked import ParkedStore, parked_path  # noqa: PLC0415

    folder = route_folder(directory, route)
    for offset in offsets:
        with suppress(EnvironmentFault):
            if not parked_path(folder, offset).exists():
                continue
            try:
                yield ParkedStore.read_entry(folder, offset)
            except Corrupt as error:
                on_damage(error)


def parked_json(
    parked: ParkedEntry, written: ParkedNote | None, *, retry_requested: bool
) -> dict[str, Any]:
    """Return a parked entry as plain values, with the reason why it is parked and its note."""
    from transporter.message import Entries  # noqa: PLC0415 - imports pyarrow

    entry = next(iter(Entries(parked.entries)))
    return {
        "offset": parked.offset,
        "error": parked.reason.error,
        "attempts": parked.reason.attempts,
        "parked_at": time_text(parked.reason.parked_at),
        "behind": parked.reason.behind,
        "retry_requested": retry_requested,
        "note": written.to_json() if written is not None else None,
        "entry": entry_json(entry, confirmed=parked.offset),
    }
