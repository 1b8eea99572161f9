"""A reader and a writer over lists: real adaptors without a system behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from pydantic import Field

from transporter.adaptor import AdaptorConfig, Batch, EndOfSource
from transporter.errors import Rejected, RouteFault, SinkError, SinkTimeout, SinkUnavailable
from transporter.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from transporter.adaptor import Ack, Entries, Gauge, Resume, StoredOffset, WriterContext
    from transporter.message import Entry

FailureName = Literal["rejected", "unavailable", "timeout", "fault", "unnamed"]

_FAILURES: Final[dict[FailureName, Callable[[str, int], SinkError]]] = {
    "rejected": Rejected,
    "unavailable": lambda text, _: SinkUnavailable(text),
    "timeout": lambda text, _: SinkTimeout(text),
    "fault": lambda text, _: RouteFault(text),
    "unnamed": lambda text, _: Rejected(text),
}


class FixedResume:
    """An implementation of ``transporter.adaptor.Resume`` for a position that a test chose."""

    reader = "reader"
    """The reader's name."""

    def __init__(self, position: str | None = None, log_id: str = "log-1") -> None:
        """Keep *position*, and no batches, of the log *log_id*."""
        self.position, self.log_id = position, log_id
        self.told: list[tuple[str, dict[str, object]]] = []
        """Events that the reader has reported, each with its details."""
        self.superseded = 0
        """The number of the reader's calls to :meth:`supersede`."""
        self.measured: dict[str, float | None] = {}
        """The reader's latest measurements at its source."""
        self.reopened: list[tuple[str, list[int]]] = []
        """Positions and offsets that the reader goes on with."""
        self.states: dict[str, str] = {}
        """The states that positions may name, by their names."""

    @property
    def committable(self) -> str | None:
        """The position, because no delivery is awaited here."""
        return self.position

    def state(self, name: str) -> str:
        """Return the state of this *name*."""
        return self.states[name]

    def recent(self) -> Iterator[tuple[str | None, Entries]]:
        """Yield nothing: no batch is remembered."""
        return iter(())

    def undelivered(self) -> Iterator[tuple[str | None, Entries]]:
        """Yield nothing, because nothing is delivered here."""
        return iter(())

    def reopen(self, batches: Iterable[tuple[str, Sequence[int]]]) -> None:
        """Keep *batches* in :attr:`reopened`."""
        self.reopened += [(position, list(offsets)) for position, offsets in batches]

    def supersede(self) -> None:
        """Count the call, because nothing is logged here."""
        self.superseded += 1

    def measure(self, gauge: Gauge, value: float | None) -> None:
        """Keep *value* in :attr:`measured`."""
        self.measured[gauge] = value

    def report(self, event: str, **details: object) -> None:
        """Keep *event* in :attr:`told`."""
        self.told.append((event, details))


class ListReaderConfig(AdaptorConfig):
    """Settings of a :class:`ListReader`."""

    data: tuple[str, ...] = ()
    """Data of the messages, in order."""

    namespace: str = "list"
    """Namespace of every message."""

    rows: Annotated[int, Field(ge=1)] = 100
    """Messages in a batch, at most."""


class ListReader:
    """Reader of a list, to its end. The position is the number of messages read."""

    Config: ClassVar[type[AdaptorConfig]] = ListReaderConfig

    def __init__(self, config: ListReaderConfig) -> None:
        """Read the messages of *config*. Assign :attr:`messages` to read others."""
        self._rows = config.rows
        self._next = 0
        self.messages = [Message(config.namespace, text.encode()) for text in config.data]
        self.committed: list[str] = []
        """Positions that were committed, in order."""

    def open(self, resume: Resume) -> None:
        """Go on behind the newest logged message."""
        self._next = int(resume.position or 0)

    def poll(self, timeout: float) -> Batch:  # noqa: ARG002 - it never has to wait
        """Return the next messages, or raise ``EndOfSource`` behind the last."""
        found = self.messages[self._next : self._next + self._rows]
        if not found:
            raise EndOfSource
        self._next += len(found)
        return Batch(found, str(self._next))

    def commit(self, position: str) -> None:
        """Keep *position* for a test to look at."""
        self.committed.append(position)

    def close(self) -> None:
        """Do nothing: no resource is open."""


class ListWriterConfig(AdaptorConfig):
    """Settings of a :class:`ListWriter`."""

    failures: dict[int, tuple[FailureName, ...]] = Field(default_factory=dict)
    """By offset: the failures of this entry, one after another, before it succeeds."""


class ListWriter:
    """Writer that keeps its entries in memory, in the order of delivery.

    An entry that fails stops the batch, as Invariant 9 demands. ``unnamed`` is a refusal that does
    not name its entry.
    """

    Config: ClassVar[type[AdaptorConfig]] = ListWriterConfig

    def __init__(self, config: ListWriterConfig) -> None:
        """Fail by the ``failures`` of *config*."""
        self._script = {offset: list(names) for offset, names in config.failures.items()}
        self.entries: list[Entry] = []
        """Delivered entries."""
        self.contexts: list[WriterContext] = []
        """The context of each open."""

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Keep *context* for a test to look at."""
        self.contexts.append(context)
        return None

    def write(self, batch: Entries, ack: Ack) -> None:
        """Keep the entries up to the first that is to fail."""
        for entry in batch:
            if script := self._script.get(entry.offset):
                name = script.pop(0)
                error = _FAILURES[name](f"offset {entry.offset} fails as scripted", entry.offset)
                ack.fail(error, entry.offset if name == "rejected" else None)
                return
            self.entries.append(entry)
            ack([entry.offset])
        ack.all()

    def close(self) -> None:
        """Do nothing: no resource is open."""
