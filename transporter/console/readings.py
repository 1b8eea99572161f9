"""Readings of a log's files for pages: entries, parked entries, changes. Without the lock."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from transporter.audit import AUDIT, read_audit
from transporter.console.fate import Fate, RouteFacts, fate_of
from transporter.console.search import neighbours, read_entry
from transporter.control.parked_notes import read_notes
from transporter.control.parked_values import list_parked_offsets, parked_json
from transporter.errors import ConfigError, Corrupt, EnvironmentFault, TransporterError, UnknownName
from transporter.log.filesystem import RealFileSystem
from transporter.offsets.given_up import NEWEST, OLDER, read_given_up
from transporter.offsets.offset_log import declared_routes, inspect_log, read_state, route_folder
from transporter.offsets.parked import ParkedStore, ParkReason, parked_path
from transporter.pipeline.config import READER_KEYS, RouteConfig
from transporter.pipeline.namespace_filter import EVERYTHING, NamespaceFilter
from transporter.pipeline.yaml_document import read

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from transporter.console.sources import LogSource
    from transporter.control.parked_notes import ParkedNote
    from transporter.message import Entry
    from transporter.offsets.parked import ParkedEntry
    from transporter.offsets.state import RouteState
    from transporter.pipeline.yaml_document import Document

_APART: Final = frozenset({"name", "adaptor", "steps", "writer"})
_READER_OPTIONS: Final = tuple(key for key in READER_KEYS if key not in _APART)
_ROUTE_OPTIONS: Final = tuple(key for key in RouteConfig.model_fields if key not in _APART)
"""Keys whose values are ours, and never secret."""


@dataclass(frozen=True, slots=True)
class PartOutline:
    """A reader or a route as the file has it.

    Attributes:
        adaptor: of the reader, or of the route's writer.
        options: the keys with values that may be shown.
        hidden: the names of the adaptor's settings.
        steps: the names of a route's steps, in order.

    """

    kind: str
    name: str
    line: int
    adaptor: str
    options: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]
    steps: tuple[str, ...] = ()

    @property
    def pattern(self) -> str | None:
        """The namespace filter of a route, or ``None`` if a variable hides it."""
        found = dict(self.options).get("namespace", EVERYTHING)
        return None if "${" in found else found

    def takes(self, namespace: str) -> bool | None:
        """Return whether the filter takes *namespace*, ``None`` if that is not known."""
        import pyarrow as pa  # noqa: PLC0415 - only for a filter

        if self.pattern is None:
            return None
        try:
            return bool(NamespaceFilter(self.pattern).mask(pa.array([namespace]))[0].as_py())
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class PipelineOutline:
    """A pipeline file as it lies there now."""

    file: str
    readers: tuple[PartOutline, ...]
    routes: tuple[PartOutline, ...]

    def route(self, name: str) -> PartOutline | None:
        """Return the route *name*, if the file has it."""
        return next((each for each in self.routes if each.name == name), None)


def read_outline(file: Path) -> PipelineOutline:
    """Read the outline of the pipeline *file*.

    Raises:
        ConfigError: it cannot be read, or is not strict YAML.

    """
    document = read(file, {}, only=lambda _: False)
    return PipelineOutline(
        str(file), tuple(_outlines(document, "readers")), tuple(_outlines(document, "routes"))
    )


def _outlines(document: Document, section: str) -> Iterator[PartOutline]:
    root = document.root if isinstance(document.root, dict) else {}
    parts = root.get(section)
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, dict) and "name" in part:
            yield _outline(section, part, document.line((section, index, "name")))


def _outline(section: str, part: Mapping[str, Any], line: int) -> PartOutline:
    if section == "routes":
        ours, writer = _ROUTE_OPTIONS, part.get("writer")
        settings = writer if isinstance(writer, dict) else {}
    else:
        ours, settings = _READER_OPTIONS, dict(part)
    steps = part.get("steps")
    return PartOutline(
        kind=section[:-1],
        name=str(part["name"]),
        line=line,
        adaptor=str(settings.get("adaptor", "")),
        options=tuple((key, _text(part[key])) for key in ours if key in part),
        hidden=tuple(str(key) for key in settings if key not in {*_READER_OPTIONS, *_APART}),
        steps=tuple(map(_step_name, steps)) if isinstance(steps, list) else (),
    )


def _step_name(step: object) -> str:
    return str(next(iter(step), "")) if isinstance(step, dict) else ""


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


T = TypeVar("T")

CHANGES: Final = 50
"""Changes that are shown by default, as ``transporter audit`` does."""
AUDIT_BYTES: Final = 8 << 20
"""Bytes at the end of the audit file that one page reads."""
MOST_PARKED: Final = 1_000
MOST_PARKED_BYTES: Final = 256 << 20
"""Bytes of parked entries that one page reads."""
_KEPT: Final = 4
"""Logs whose changes are kept, until their audit file grows."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The newest changes to a log, the oldest first.

    ``whole`` is false if older lines of the audit file were not read.
    """

    changes: list[dict[str, Any]]
    whole: bool


def read_changes(directory: Path) -> Changes:
    """Return the newest changes to the log in *directory*, as many as are read."""
    path = directory / AUDIT
    if not RealFileSystem().is_file(path):
        return Changes([], whole=True)
    stat = path.stat()
    return _read_tail(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


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
class Parked(Generic[T]):
    """Parked entries of one route, the oldest first.

    Attributes:
        entries: those that can be read, each as its reader wants to have it.
        damaged: the offsets of those that cannot, each with its error.
        left_out: the number of those that were not read, because they are too many or too large.

    """

    entries: list[T]
    damaged: dict[int, str]
    left_out: int

    @property
    def total(self) -> int:
        """The number of all of them."""
        return len(self.entries) + len(self.damaged) + self.left_out


def read_parked_page(
    directory: Path,
    route: str,
    view: Callable[[dict[str, Any]], T],
    offsets: Sequence[int] | None = None,
    most: int = MOST_PARKED,
    most_bytes: int = MOST_PARKED_BYTES,
) -> Parked[T]:
    """Return the oldest entries that *route* has parked, or those of them at *offsets*.

    Each is what *view* makes of its plain values, which hold its payload: so no more than one
    payload is in memory at a time, unless *view* keeps them. Beyond *most* entries, or
    *most_bytes* of them, the rest is left out.

    Raises:
        UnknownName: no such route has run on this log.

    """
    retries = frozenset(read_state(directory, route).retries)
    offsets = list_parked_offsets(directory, route) if offsets is None else offsets
    notes = _notes_of(directory, route) if offsets else {}
    entries: list[T] = []
    damaged: dict[int, str] = {}
    size = gone = 0
    for offset in offsets[:most]:
        if size > most_bytes:
            break
        found = _read_parked(directory, route, offset)
        if found is None:
            gone += 1  # delivered or skipped meanwhile
        elif isinstance(found, TransporterError):
            damaged[offset] = str(found)
        else:
            size += found.entries.nbytes
            noted = notes.get(offset)
            entries.append(view(parked_json(found, noted, retry_requested=offset in retries)))
    return Parked(entries, damaged, len(offsets) - len(entries) - len(damaged) - gone)


def _read_parked(directory: Path, route: str, offset: int) -> ParkedEntry | TransporterError | None:
    """Return the entry parked at *offset*, its error if it is damaged, ``None`` if it is gone."""
    folder = route_folder(directory, route)
    try:
        return ParkedStore.read_entry(folder, offset)
    except (Corrupt, EnvironmentFault) as error:
        return error if parked_path(folder, offset).exists() else None


def list_waiting(directory: Path, route: str, chosen: Collection[int]) -> list[int]:
    """Return the other entries that *route* has parked behind those at the offsets *chosen*."""
    folder, first = route_folder(directory, route), min(chosen)
    found = []
    for offset in list_parked_offsets(directory, route):
        if offset > first and offset not in chosen:
            with suppress(Corrupt, EnvironmentFault):
                if ParkedStore.read_reason(folder, offset).behind in chosen:
                    found.append(offset)
    return found


def _notes_of(directory: Path, route: str) -> Mapping[int, ParkedNote]:
    """Return the notes about the entries of *route*, read again only once the file has grown."""
    path = directory / AUDIT
    if not RealFileSystem().is_file(path):
        return {}
    stat = path.stat()
    return _parse_notes(path, route, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=_KEPT)
def _parse_notes(path: Path, route: str, *_stamps: int) -> Mapping[int, ParkedNote]:
    """Return the notes in an audit file that is as it was if its stamps are."""
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
            return ParkedStore.read_reason(folder, offset)
        except (Corrupt, EnvironmentFault) as error:
            is_there = parked_path(folder, offset).exists()
            return ParkReason(f"its copy cannot be read: {error}", 0, 0) if is_there else None

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
