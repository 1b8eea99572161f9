"""The maintenance record: facts about the upkeep of a log that outlive its engine.

A small file beside the segments, replaced atomically by the engine or by a command that
holds the log's lock. It lets ``log compact`` follow the rules of the last engine, and
lets a restart skip segments that were already compacted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from transporter.log import checksummed_file
from transporter.log.filesystem import open_file, replace_durably

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.compaction import CompactionSettings
    from transporter.log.filesystem import FileSystem
    from transporter.log.key_history import Keep

MAINTENANCE: Final = "maintenance"
_MOST: Final = 1 << 20
_REMEDY: Final = "remove the file, and the next engine writes it again"


class CompactionRules(NamedTuple):
    """Compaction settings of a pipeline file. ``after`` is ``None`` if compaction is off."""

    after: float | None
    keep: Keep
    tombstones: float
    compression: str | None


class Extent(NamedTuple):
    """A compaction that has processed all segments up to the offset ``through``.

    The other fields are its settings. With other settings the record does not count.
    """

    through: int
    after: float
    keep: str
    tombstones: float


@dataclass(frozen=True, slots=True)
class MaintenanceRecord:
    """The content of the file.

    Attributes:
        rules: those of the last engine, ``None`` before the first one.
        readers: for each reader of that engine, an offset up to which its source needs no
            entry any more. It is a lower bound, because it is written at intervals.
        waiting: the same for readers whose sources wait for deliveries and give nothing again,
            and for those of earlier pipelines whose entries some route had yet to deliver.
        compacted: the extent of compaction, ``None`` if that is not known.

    """

    rules: CompactionRules | None = None
    readers: dict[str, int] = field(default_factory=dict)
    compacted: Extent | None = None
    waiting: dict[str, int] = field(default_factory=dict)

    def compacted_through(self, settings: CompactionSettings) -> int:
        """Return the offset up to which the log is compacted with *settings*. -1: not at all."""
        key = _settings_key(settings)
        return self.compacted.through if self.compacted and self.compacted[1:] == key else -1

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return checksummed_file.encode(asdict(self))

    @classmethod
    def decode(cls, data: bytes, file: str) -> Self:
        """Decode the return value of :meth:`encode`."""
        return checksummed_file.decode(
            data, file, "the maintenance record", _REMEDY, cls._from_fields
        )

    @classmethod
    def _from_fields(cls, fields: dict[str, Any]) -> Self:
        rules, compacted = fields["rules"], fields["compacted"]
        found = cls(
            CompactionRules(*rules) if rules else None,
            dict(fields["readers"]),
            Extent(*compacted) if compacted else None,
            dict(fields.get("waiting", {})),
        )
        _check_types(found)
        return found


def _check_types(record: MaintenanceRecord) -> None:
    """Raise ``TypeError`` if *record* has values of types that no engine writes.

    A checksum proves the absence of damage, not the author of the file (Invariant 17).
    """
    numbers: list[object] = [*record.readers.values(), *record.waiting.values()]
    spans: list[object] = []
    texts: list[object] = [*record.readers, *record.waiting]
    if (rules := record.rules) is not None:
        spans += [rules.tombstones, 0 if rules.after is None else rules.after]
        texts += [rules.keep, "" if rules.compression is None else rules.compression]
    if (done := record.compacted) is not None:
        numbers.append(done.through)
        spans += [done.after, done.tombstones]
        texts.append(done.keep)
    kinds = [{*map(type, values)} for values in (numbers, spans, texts)]
    if not (kinds[0] <= {int} and kinds[1] <= {int, float} and kinds[2] <= {str}):
        raise TypeError


def extent_of(through: int, settings: CompactionSettings) -> Extent:
    """Return the extent of a compaction with *settings* that came to the offset *through*."""
    return Extent(through, *_settings_key(settings))


def read_maintenance(files: FileSystem, directory: Path) -> MaintenanceRecord | None:
    """Return the record of the log in *directory*, ``None`` if no engine has written one.

    Raises:
        Corrupt: it is damaged.
        UnknownFormat: another version wrote it.

    """
    path = directory / MAINTENANCE
    try:
        with open_file(files, path) as file:
            return MaintenanceRecord.decode(file.pread(_MOST, 0), str(path))
    except FileNotFoundError:
        return None


def write_maintenance(files: FileSystem, directory: Path, record: MaintenanceRecord) -> None:
    """Replace the record of the log in *directory*, durably on return."""
    replace_durably(files, directory / MAINTENANCE, [record.encode()])


def _settings_key(settings: CompactionSettings) -> tuple[float, str, float]:
    return settings.after, settings.keep, settings.tombstones
