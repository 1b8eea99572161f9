"""The contract between ``transporter cdc`` and readers that follow the changes of a database.

Such a reader needs objects at its source: rights, a publication, a replication slot. Operators
create, check, watch and drop them by the commands, which know no adaptor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from transporter.adaptor import Finding
    from transporter.message import Message

Service = Literal["plain", "rds", "cloud-sql", "azure", "supabase", "neon"]
"""A kind of server. Each has its own way to rights and settings."""


@dataclass(frozen=True, slots=True)
class LoggedReader:
    """A reader, and what its log has of it.

    Attributes:
        name: its name in the pipeline file.
        log_id: the id of the log, empty before the first start.
        position: the newest position in the log, or ``None`` before the first.
        read_state: returns the state of a name. See :meth:`transporter.adaptor.Resume.state`.

    """

    name: str
    log_id: str
    position: str | None
    read_state: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class SetupScript:
    """SQL for a DBA. ``notes`` say what it does not contain."""

    sql: str
    notes: tuple[str, ...] = ()


Outcome = Literal["created", "exists", "later", "problem"]


@dataclass(frozen=True, slots=True)
class SourceObject:
    """An object or a right at the source after ``init --run``.

    ``later`` is an object that the first start creates. ``detail`` explains that, or a problem.
    """

    name: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """A replication slot. Sizes are in bytes, and ``None`` where the server does not know them.

    Attributes:
        name: its name.
        is_active: whether a session reads from it.
        wal_status: whether the server has all that it needs (``reserved``, ``extended``,
            ``unreserved``, ``lost``).
        reason: why it was invalidated, or ``None``.
        retained: what the server's log keeps because of it.
        safe: what may still be written before it is in danger, or ``None`` without a limit.
        lag: what the server has written behind the log's position, or ``None`` before the first.

    """

    name: str
    is_active: bool
    wal_status: str | None
    reason: str | None
    retained: int | None
    safe: int | None
    lag: int | None


Phase = Literal["waiting", "copying", "catching up", "in sync", "left out", "gap"]


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table. ``copied`` is known while it is copied, ``estimated`` if the server knows it.

    ``run`` is the number of the present or the last copy, 0 for a table that is left out.
    ``has_copy`` is false for a table of which only the changes are read.
    """

    name: str
    phase: Phase
    run: int
    copied: int | None = None
    estimated: int | None = None
    has_copy: bool = True

    @property
    def percent(self) -> int | None:
        """Percent of the estimated rows that are copied, 100 only once the copy is complete."""
        if self.has_copy and self.phase in {"catching up", "in sync"}:
            return 100
        if self.copied is None or not self.estimated:
            return None
        return min(99, self.copied * 100 // self.estimated)


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The state of a reader at its source and in its log.

    ``logged`` is the log's position in the server's log, and ``server_end`` the end of that.
    ``problem`` says why the server's part is missing.
    """

    publications: tuple[str, ...]
    logged: str | None
    server_end: str | None
    slot: SlotStatus | None
    tables: list[TableStatus]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Removable:
    """What ``drop`` would remove, and what it leaves.

    ``kept`` has a text for each object of the reader that stays. ``leftovers`` are objects of
    other readers or logs in this database.
    """

    objects: tuple[str, ...]
    kept: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()


class ChangeSource(Protocol):
    """The source of one reader. Not thread-safe. Every method opens a session of its own."""

    def setup_script(self, service: Service) -> SetupScript:
        """Return the SQL for all objects. The database is asked only for tables of patterns."""

    def set_up(self, service: Service, dsn: str | None) -> Iterator[SourceObject]:
        """Create what is missing, and yield each object or right.

        *dsn* is a DBA's connection string. By default it is the reader's own.
        """

    def check(self) -> Iterator[Finding]:
        """Yield findings about all that an open of the reader needs. Changes nothing."""

    def table_entries(self) -> Iterator[Message]:
        """Yield the entries by which the reader would describe its tables now. None if it does not.

        Raise :class:`~transporter.errors.TransporterError` if the source cannot be asked.
        """

    def status(self) -> SourceStatus:
        """Return the present state."""

    def find_removable(self) -> Removable:
        """Return what :meth:`drop` would remove.

        Raise :class:`~transporter.errors.ActionRefused` while a session reads from it.
        """

    def drop(self) -> None:
        """Remove what :meth:`find_removable` returns."""


@runtime_checkable
class ChangeReader(Protocol):
    """A reader whose objects at the source ``transporter cdc`` manages. It need not be open."""

    def change_source(self, logged: LoggedReader) -> ChangeSource:
        """Return the source, for the reader as *logged*. No I/O."""


@runtime_checkable
class TableTarget(Protocol):
    """A writer that can tell in advance which tables of a source it could not take."""

    def probe_tables(self, entries: Iterable[Message]) -> Iterable[Finding]:
        """Yield a problem for each table of *entries* that does not fit. Changes nothing.

        Each entry describes a table as :meth:`ChangeSource.table_entries` does.
        """
