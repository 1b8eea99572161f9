"""The health of a whole log directory: the log, and the files of its routes beside it.

:func:`verify` reads every byte and changes nothing. :func:`repair_log` repairs the damage. An
unreadable offset log is begun again at the oldest entry: its route redelivers everything,
and nothing is lost. A parked entry is taken from the log again if the log still holds it.
Without a readable list of paused readers no reader is paused.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from transporter.errors import Corrupt, EnvironmentFault, OffsetRefused
from transporter.log.filesystem import RealFileSystem, replace_durably, translate_os_errors
from transporter.log.meta import META, published_offset, read_meta
from transporter.log.operator_pauses import PAUSED, read_paused
from transporter.log.reader import LogReader
from transporter.log.reader_states import check_states
from transporter.log.repair import Quarantine, log_id_of, repair_segments
from transporter.log.segment import segment_bases
from transporter.log.verify import Damage, examine
from transporter.offsets.offset_log import (
    NAMES,
    OffsetLog,
    declared_routes,
    read_state,
    route_folder,
)
from transporter.offsets.parked import (
    ParkedEntry,
    ParkedStore,
    ParkReason,
    parked_offsets,
    parked_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import FileSystem
    from transporter.log.verify import Examination


_MAX_TRIES: Final = 5
"""Times that a verification begins again because files were removed meanwhile."""


@dataclass(frozen=True, slots=True)
class OffsetLogHealth:
    """Findings of a verification.

    Attributes:
        examination: that of the segments, on which a repair acts. It is not compared, because
            a segment that was made again is another file.
        through: the last offset that must exist.
        damages: the damage of the segments and of the log's own files.
        routes: the damage of offset logs, each with its route.
        parked: the damage of parked entries, each with its route.
        lost: the ranges that an earlier repair declared lost.

    """

    examination: Examination = field(compare=False, repr=False)
    segments: int
    through: int
    damages: tuple[Damage, ...]
    routes: tuple[tuple[str, Damage], ...]
    parked: tuple[tuple[str, Damage], ...]
    lost: tuple[tuple[int, int], ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not (self.damages or self.routes or self.parked)


@dataclass(frozen=True, slots=True)
class OffsetLogRepair:
    """Result of a repair: its findings, the place of the copies, and the lost parked entries."""

    health: OffsetLogHealth
    quarantine: Path
    kept: tuple[str, ...]
    parked_lost: tuple[tuple[str, int], ...]


def require_log(directory: Path, files: FileSystem | None = None) -> None:
    """Raise :class:`EnvironmentFault` unless *directory* holds files of a log."""
    files = files or RealFileSystem()
    with translate_os_errors(directory):
        if not segment_bases(files, directory) and META not in files.names(directory):
            raise EnvironmentFault(f"{directory}: no transporter log here")


def verify(
    directory: Path,
    progress: Callable[[int], None] = lambda _: None,
    files: FileSystem | None = None,
) -> OffsetLogHealth:
    """Verify every byte of the log in *directory*. *progress* is called with each part's bytes.

    Raises:
        EnvironmentFault: there is no log, or it cannot be read.
        Corrupt: so much is gone that even the log's id is unknown.
        UnknownFormat: another version wrote it.

    """
    files = files or RealFileSystem()
    require_log(directory, files)
    with translate_os_errors(directory):
        for _ in range(_MAX_TRIES):
            # An engine that runs meanwhile removes old files and replaces compacted ones.
            with suppress(FileNotFoundError):
                return _verify_once(directory, progress, files)
        return _verify_once(directory, progress, files)


def _verify_once(
    directory: Path, progress: Callable[[int], None], files: FileSystem
) -> OffsetLogHealth:
    bases = segment_bases(files, directory)
    routes = tuple(_offset_log_damage(files, directory))
    parked = tuple(_parked_damage(files, directory))
    proved = max(_highest_proof(files, directory), *_meta_proof(files, directory))
    found = examine(files, directory, log_id_of(files, directory), proved, progress)
    gaps = [part.header for part in found.segments if part.header.lost]
    return OffsetLogHealth(
        examination=found,
        segments=len(bases),
        through=found.floor,
        damages=(
            *_meta_damage(files, directory),
            *_pauses_damage(files, directory),
            *_states_damage(files, directory),
            *_missing_segments(directory, found),
            *found.damages,
        ),
        routes=routes,
        parked=parked,
        lost=tuple((header.previous + 1, header.base - 1) for header in gaps),
    )


def repair_log(
    directory: Path, health: OffsetLogHealth, now: int, files: FileSystem | None = None
) -> OffsetLogRepair:
    """Repair the log in *directory*, at *now* (µs UTC).

    The caller holds the log's lock, and has held it since *health* was verified. Repeating the
    repair after a crash comes to the same end. Undamaged files are not touched. Raises as
    :func:`verify` does.
    """
    files = files or RealFileSystem()
    quarantine = Quarantine(files, directory, now)
    with translate_os_errors(directory):
        if health.damages:
            repair_segments(files, directory, health.examination, quarantine)
        if any(_pauses_damage(files, directory)):
            quarantine.keep_copy(directory / PAUSED)
            files.remove(directory / PAUSED)
        for route, _ in health.routes:
            _repair_offset_log(files, directory, route, quarantine)
        lost = [
            (route, damage.first)
            for route, damage in health.parked
            if not _repair_parked(files, directory, route, damage.first, quarantine, now)
        ]
    return OffsetLogRepair(health, quarantine.folder, tuple(quarantine.kept), tuple(lost))


def _highest_proof(files: FileSystem, directory: Path) -> int:
    """Return the highest offset proved durable by readable offset logs or the published mark."""
    highest = published_offset(files, directory)
    highest = -1 if highest is None else highest
    for route in declared_routes(directory, files):
        with suppress(Corrupt):
            highest = max(highest, read_state(directory, route, files).highest_offset())
    return highest


def _meta_proof(files: FileSystem, directory: Path) -> Iterator[int]:
    yield -1
    with suppress(Corrupt):
        if (meta := read_meta(files, directory)) is not None:
            yield meta.proved


def _meta_damage(files: FileSystem, directory: Path) -> Iterator[Damage]:
    path = str(directory / META)
    try:
        if read_meta(files, directory) is None:
            yield Damage(path, 0, "the log's meta file is missing", 0, -1)
    except Corrupt as error:
        yield Damage(path, 0, error.problem, 0, -1)


def _pauses_damage(files: FileSystem, directory: Path) -> Iterator[Damage]:
    try:
        read_paused(directory, files)
    except Corrupt as error:
        yield Damage(error.file, error.byte, error.problem, 0, -1)


def _states_damage(files: FileSystem, directory: Path) -> Iterator[Damage]:
    for error in check_states(directory, files):
        yield Damage(error.file, error.byte, error.problem, 0, -1)


def _missing_segments(directory: Path, examination: Examination) -> Iterator[Damage]:
    if not examination.segments:
        yield Damage(str(directory), 0, "no segment of this log is left", 0, examination.floor)


def _offset_log_damage(files: FileSystem, directory: Path) -> Iterator[tuple[str, Damage]]:
    for route in declared_routes(directory, files):
        try:
            read_state(directory, route, files)
        except Corrupt as error:
            yield route, Damage(error.file, error.byte, error.problem, 0, -1)


def _parked_damage(files: FileSystem, directory: Path) -> Iterator[tuple[str, Damage]]:
    for route in declared_routes(directory, files):
        folder = route_folder(directory, route)
        for offset in parked_offsets(folder, files):
            try:
                ParkedStore.read_entry(folder, offset, files)
            except EnvironmentFault:
                if offset in parked_offsets(folder, files):
                    raise
                # It was delivered meanwhile.
            except Corrupt as error:
                file = str(parked_path(folder, offset))
                yield route, Damage(file, 0, error.problem, offset, offset)


def _repair_offset_log(
    files: FileSystem, directory: Path, route: str, quarantine: Quarantine
) -> None:
    folder = route_folder(directory, route)
    for name in NAMES:
        quarantine.keep_copy(folder / name)
    for name in NAMES:
        files.remove(folder / name)
    with LogReader(directory, files) as reader:
        OffsetLog(directory, route, files, first_offset=lambda: _oldest_offset(reader)).close()


def _oldest_offset(reader: LogReader) -> int:
    """Return the first offset that is held or lost, because a route may not have passed it."""
    first = reader.first_offset()
    gap = reader.lost_gap(0, first - 1)
    return first if gap is None else gap.first


def _repair_parked(
    files: FileSystem,
    directory: Path,
    route: str,
    offset: int,
    quarantine: Quarantine,
    now: int,
) -> bool:
    """Replace an unreadable parked entry. Return whether the log still held it."""
    path = parked_path(route_folder(directory, route), offset)
    quarantine.keep_copy(path)
    found = _read_entry(files, directory, offset)
    if found is None:
        files.remove(path)
        return False
    entries, reader = found
    error = "its parked copy was damaged, so it was copied from the log again"
    reason = ParkReason(error, 0, now, reader=reader)
    replace_durably(files, path, [ParkedEntry(offset, entries, reason).encode()])
    return True


def _read_entry(
    files: FileSystem, directory: Path, offset: int
) -> tuple[pa.RecordBatch, str | None] | None:
    """Return the entry at *offset* and its reader, if the log holds it."""
    with suppress(Corrupt, OffsetRefused), LogReader(directory, files) as reader:
        for batch in reader.read(offset, offset):
            if batch.num_rows:
                return batch, reader.reader_of(offset)
    return None
