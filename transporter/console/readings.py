"""Readings of a log's files for pages: entries, parked entries, changes. Without the lock."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from transporter.audit import AUDIT, read_audit
from transporter.console.fate import Fate, RouteFacts, fate_of
from transporter.console.outline import PipelineOutline, read_outline
from transporter.console.search import neighbours, read_entry
from transporter.control.parked_notes import read_notes
from transporter.control.parked_values import list_parked_offsets, parked_json, read_parked
from transporter.errors import ConfigError, TransporterError, UnknownName
from transporter.log.filesystem import RealFileSystem
from transporter.offsets.given_up import NEWEST, OLDER, read_given_up
from transporter.offsets.offset_log import declared_routes, inspect_log, read_state, route_folder
from transporter.offsets.parked import ParkedStore, parked_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from transporter.console.sources import LogSource
    from transporter.control.parked_notes import ParkedNote
    from transporter.errors import Corrupt
    from transporter.message import Entry
    from transporter.offsets.parked import ParkReason
    from transporter.offsets.state import RouteState

CHANGES: Final = 50
"""Changes that are shown by default, as ``transporter audit`` does."""
AUDIT_BYTES: Final = 8 << 20
"""Bytes at the end of the audit file that one page reads."""
MOST_PARKED: Final = 1_000
_KEPT: Final = 4
"""Logs whose changes are kept, until their audit file grows."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The newest changes to a log, the oldest first.

    ``whole`` is false if older lines of the audit file were not read.
    """

    changes: list[dict[str, Any]]
    whole: bool


def read_changes(directory: Path, limit: int = 0) -> Changes:
    """Return the newest *limit* changes to the log in *directory*, 0 for all that are read."""
    path = directory / AUDIT
    if not RealFileSystem().is_file(path):
        return Changes([], whole=True)
    stat = path.stat()
    found = _read_tail(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return replace(found, changes=found.changes[-limit:]) if limit else found


@lru_cache(maxsize=_KEPT)
def _read_tail(path: Path, inode: int, size: int, changed: int) -> Changes:  # noqa: ARG001 - the key of the cache
    """Return the changes at the end of the audit file, which is as it was if all of this is."""
    with path.open("rb") as file:
        start = max(0, size - AUDIT_BYTES)
        file.seek(start)
        if start:
            file.readline()  # the rest of a line whose begin is not read
        return Changes(list(read_audit(file)), whole=not start)


def read_given_up_lines(folder: Path) -> Mapping[int, Mapping[str, Any]]:
    """Return the newest line of ``given-up.jsonl`` about each entry of the route in *folder*."""
    stamps = []
    for name in (OLDER, NEWEST):
        with suppress(OSError):
            found = (folder / name).stat()
            stamps += [found.st_ino, found.st_size, found.st_mtime_ns]
    return _parse_given_up(folder, *stamps) if stamps else {}


@lru_cache(maxsize=_KEPT)
def _parse_given_up(folder: Path, *_stamps: int) -> Mapping[int, Mapping[str, Any]]:
    """Return the lines of files that are as they were if their stamps are."""
    lines = read_given_up(folder)
    return {each["offset"]: each for each in lines if isinstance(each.get("offset"), int)}


def outline_of(source: LogSource) -> tuple[PipelineOutline | None, str]:
    """Return the outline of the pipeline file of *source*, or ``None`` and the reason."""
    file = source.file
    if file is None:
        return None, "No pipeline has run on this log, so its file is not known."
    try:
        return read_outline(file), ""
    except ConfigError as error:
        return None, str(error)


@dataclass(frozen=True, slots=True)
class Parked:
    """The parked entries of one route, the oldest first, as ``transporter parked list`` has them.

    ``total`` counts all of them. ``damaged`` has the errors of those that cannot be read.
    """

    entries: list[dict[str, Any]]
    total: int
    damaged: tuple[str, ...]


def read_parked_page(directory: Path, route: str, most: int = MOST_PARKED) -> Parked:
    """Return the oldest *most* entries that *route* has parked.

    Raises:
        UnknownName: no such route has run on this log.

    """
    retries = frozenset(read_state(directory, route).retries)
    offsets = list_parked_offsets(directory, route)
    damaged: list[Corrupt] = []
    notes = _read_notes(directory, route) if offsets else {}
    found = [
        parked_json(each, notes.get(each.offset), retry_requested=each.offset in retries)
        for each in read_parked(directory, route, offsets[:most], damaged.append)
    ]
    return Parked(found, len(offsets), tuple(map(str, damaged)))


def _read_notes(directory: Path, route: str) -> dict[int, ParkedNote]:
    path = directory / AUDIT
    if not RealFileSystem().is_file(path):
        return {}
    with path.open("rb") as lines:
        return read_notes(lines, route)


class Fates:
    """The fates of entries in every route of one log, by one reading of its files."""

    def __init__(self, source: LogSource) -> None:
        """Read the state of each route, and the changes to it."""
        directory = source.directory
        self._directory = directory
        self._outline, _ = outline_of(source)
        self._states = dict(_read_states(directory))
        changes = read_changes(directory).changes
        self._changes: Mapping[str, Sequence[Mapping[str, Any]]] = {
            route: [each for each in changes if each.get("route") == route]
            for route in self._states
        }
        self._parked = {
            route: frozenset(list_parked_offsets(directory, route)) for route in self._states
        }
        self._given_up = {
            route: read_given_up_lines(route_folder(directory, route)) for route in self._states
        }
        self._takes: dict[tuple[str, str], bool | None] = {}

    @property
    def routes(self) -> list[str]:
        """The routes that have run on the log."""
        return list(self._states)

    def of(self, entry: Entry) -> list[tuple[str, Fate]]:
        """Return the fate of *entry* in each route."""
        return [
            (route, fate_of(entry.offset, entry.message.op, self._facts(route, state, entry)))
            for route, state in self._states.items()
        ]

    def parked_reason(self, route: str, offset: int) -> ParkReason | None:
        """Return why *route* has parked the entry at *offset*, ``None`` if it has not."""
        if offset not in self._parked[route]:
            return None
        folder = route_folder(self._directory, route)
        try:
            if not parked_path(folder, offset).exists():
                return None
            return ParkedStore.read_entry(folder, offset).reason
        except TransporterError:
            return None

    def _facts(self, route: str, state: RouteState, entry: Entry) -> RouteFacts:
        return RouteFacts(
            state=state,
            takes=self._takes_namespace(route, entry.message.namespace),
            parked=self.parked_reason(route, entry.offset),
            changes=self._changes[route],
            given_up=self._given_up[route].get(entry.offset),
        )

    def _takes_namespace(self, route: str, namespace: str) -> bool | None:
        if (route, namespace) not in self._takes:
            part = self._outline.route(route) if self._outline is not None else None
            self._takes[route, namespace] = None if part is None else part.takes(namespace)
        return self._takes[route, namespace]


def _read_states(directory: Path) -> Iterator[tuple[str, RouteState]]:
    """Yield the state of each route. One that is forgotten or damaged is left out."""
    for route in declared_routes(directory):
        try:
            yield route, read_state(directory, route)
        except (UnknownName, TransporterError):
            continue


@dataclass(frozen=True, slots=True)
class EntryReading:
    """One entry of the log, with the offsets of its key's entries before and after it."""

    entry: Entry
    confirmed: int
    log_id: str
    before: int | None
    after: int | None


def read_entry_page(directory: Path, offset: int) -> EntryReading | None:
    """Return the entry at *offset*, ``None`` if the log lacks it: lost, or compacted away.

    Raises:
        OffsetRefused: the log does not hold this offset.

    """
    entry = read_entry(directory, offset)
    if entry is None:
        return None
    log = inspect_log(directory)
    before, after = neighbours(directory, entry)
    return EntryReading(entry, log.confirmed, log.log_id, before, after)
