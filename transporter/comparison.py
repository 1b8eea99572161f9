"""The contract between ``transporter compare`` and writers whose sink holds rows by key.

The command knows no adaptor, and an adaptor cannot open a log. So the command passes the route as
its log has it, and the writer yields the rows that differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from transporter.adaptor import Finding
    from transporter.change_source import LoggedReader
    from transporter.message import Entries

Against = Literal["source", "log"]
"""The expected rows: those of the readers' databases, or the last state of each key in the log."""


@dataclass(frozen=True, slots=True)
class RouteProgress:
    """The progress of a route, as its offset log has it.

    Attributes:
        watermark: every offset up to it is settled.
        generation: the number of replays.
        is_replaying: whether a replay is under way, during which rows take older values.

    """

    watermark: int
    generation: int = 0
    is_replaying: bool = False


class ComparedRoute(Protocol):
    """A route with its readers and its log, all of which may be in use by an engine."""

    @property
    def name(self) -> str:
        """The route's name."""

    @property
    def log_id(self) -> str:
        """The permanent id of the log."""

    @property
    def readers(self) -> Mapping[str, object]:
        """The pipeline's readers by name, none of which is open."""

    @property
    def has_steps(self) -> bool:
        """Whether steps may change the entries."""

    @property
    def is_whole(self) -> bool:
        """Whether the log has every key: nothing but obsolete entries was removed from it."""

    def takes(self, namespace: str) -> bool:
        """Return whether the route delivers entries of *namespace*."""

    def is_running(self) -> bool:
        """Return whether an engine runs."""

    def progress(self) -> RouteProgress:
        """Return the present progress."""

    def last_offset(self) -> int:
        """Return the last offset, or -1. A position that was returned before is not behind it."""

    def logged_reader(self, name: str) -> LoggedReader:
        """Return a reader as the log has it now."""

    def read(self, first: int, last: int) -> Iterator[tuple[int, Entries]]:
        """Yield the route's output for the entries from *first* to *last*, in order.

        Each item ends at the offset before it, as some may have no entries. An entry whose steps
        fail is left out.
        """


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The options of one comparison.

    Attributes:
        against: the expected rows. ``None`` is the source, if that is possible, else the log.
        tables: only these tables of the sink, or all.
        with_values: whether the values of columns that differ are returned.
        patience: the seconds to wait for a running pipeline to deliver a row that differs.
        on_progress: called with the part of the work, and the amounts done and in total.

    """

    against: Against | None = None
    tables: Sequence[str] = ()
    with_values: bool = False
    patience: float = 120.0
    on_progress: Callable[[str, int, int | None], object] = field(default=lambda *_: None)


DifferenceKind = Literal["missing", "extra", "different"]


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row of a table of the sink that is not as expected.

    Attributes:
        table: the table of the sink.
        kind: ``missing`` and ``extra`` rows are only expected, or only in the sink.
        key: the text of each key column.
        columns: the columns of a ``different`` row that differ. None if it cannot be converted.
        expected: texts of the columns, if they are asked for. NULL is ``None``.
        found: the same for the row of the sink.

    """

    table: str
    kind: DifferenceKind
    key: Mapping[str, str]
    columns: tuple[str, ...] = ()
    expected: Mapping[str, str | None] | None = None
    found: Mapping[str, str | None] | None = None


@dataclass(frozen=True, slots=True)
class UndecidedRow:
    """A row that kept changing, or that the pipeline did not deliver in time."""

    table: str
    key: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table that was compared to its end, with its number of rows as expected.

    ``source`` names the expected rows: a table of the source, or the log.
    """

    table: str
    source: str
    rows: int


Result = RowDifference | UndecidedRow | ComparedTable


@runtime_checkable
class ComparableWriter(Protocol):
    """A writer whose sink can be compared. It need not be open."""

    def compare(self, route: ComparedRoute, options: CompareOptions) -> Iterator[Result | Finding]:
        """Yield rows that differ, tables that are compared, and remarks as findings.

        Changes nothing in the source, the log or the sink. A row that differs only because the
        pipeline has yet to deliver a change is not a difference.

        Raise :class:`~transporter.errors.ActionRefused` if the settings or the present state
        do not allow a comparison.
        """
