"""The public contract of readers and writers; all that an adaptor needs to import.

A reader or writer is a class with a ``Config`` (a subclass of
:class:`AdaptorConfig`) and a constructor that takes an instance of it and does
no I/O. Register it under an entry point group (``transporter.readers``,
``transporter.writers``) for a short name, or name it as ``module:Class``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict

from transporter.defaults import settle_defaults
from transporter.message import Entries, Message
from transporter.units import Duration, LocalPath, Size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from transporter.errors import SinkError

__all__ = [
    "AcceptingWriter",
    "Ack",
    "AdaptorConfig",
    "Batch",
    "DeliveredReader",
    "Duration",
    "EndOfSource",
    "Entries",
    "Finding",
    "FrameSlice",
    "FrameWriter",
    "Gauge",
    "KeepAliveReader",
    "LocalPath",
    "Message",
    "Probe",
    "Reader",
    "Resume",
    "Size",
    "StoredOffset",
    "Writer",
    "WriterContext",
]


class AdaptorConfig(BaseModel):
    """Base of an adaptor's settings: unknown keys are errors, instances are frozen.

    A docstring under a field is what ``adaptors show`` says of it. Use
    :data:`Duration`, :data:`Size` and :data:`LocalPath` for such values. A default may be
    written as in a pipeline file (``timeout: Duration = "5s"``). One that does not fit raises
    :class:`~transporter.errors.ConfigError` when the class is made.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # Invariant 20: a setting may be a secret
    )

    @classmethod
    def __pydantic_on_complete__(cls) -> None:
        """Validate the defaults, which pydantic does not."""
        settle_defaults(cls)

    @property
    def upserts(self) -> bool:
        """Whether the sink keeps the newest value of a key, so that a replay overwrites it.

        For an operator's warning only; a writer's settings whose sink does so override it.
        """
        return False

    @property
    def needs_delivery(self) -> bool:
        """Whether this source may only hear of what every route has delivered.

        A reader's settings whose source is shared with other engines override it: these
        cannot see this engine's log. It makes ``release: delivered`` the only choice.
        """
        return False

    @property
    def can_wait_for_delivery(self) -> bool:
        """Whether ``release: delivered`` can be asked of a reader with these settings."""
        return True

    @property
    def shared(self) -> bool:
        """Whether engines take turns at this source, so that a sink must know whose turn it is.

        For readers with an elector; see :attr:`WriterContext.turns`.
        """
        return False


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found at a source or a sink, in words.

    A ``problem`` is what keeps the pipeline from working, a ``warning`` what it works with, but
    not as its operator will expect.
    """

    text: str
    level: Literal["fine", "warning", "problem"] = "fine"


@runtime_checkable
class Probe(Protocol):
    """A reader or a writer that can look at its source or sink without using it.

    For ``transporter check --connect``; what has no ``probe`` is passed over there.
    """

    def probe(self) -> Iterable[Finding]:
        """Connect, and yield what is found: versions, rights, what is missing.

        Changes nothing there. Called on an instance that is never opened. No wait lasts longer
        than some ten seconds. What is raised is a problem, too, and the last finding.
        """


Gauge = Literal["backlog_messages", "lag_seconds"]
"""What a reader may measure: how many messages its source holds for it, and for how many seconds
the oldest of them is there; 0 when there is none."""


class EndOfSource(Exception):
    """Raised by :meth:`Reader.poll` when the source will never have more."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one poll found: messages, in order, and the position behind the last of them.

    ``messages`` is a record batch of ``MESSAGE_SCHEMA`` or a sequence of
    :class:`Message`. ``position`` is the reader's own text (at most 1 MiB), kept
    in the same frame as the messages: both become durable, or neither. ``term`` is the
    number of the term under which they were read, where a source has such.
    """

    messages: pa.RecordBatch | Sequence[Message]
    position: str | None = None
    term: int | None = None


class Resume(Protocol):
    """What the log remembers of a reader."""

    @property
    def log_id(self) -> str:
        """Names the log, for ever: for marks that a reader leaves at its source."""

    @property
    def position(self) -> str | None:
        """The newest position logged by this reader; ``None`` before the first."""

    @property
    def committable(self) -> str | None:
        """The newest position that ``commit`` may be called with; ``None`` without any.

        It is :attr:`position`, or, with ``release: delivered``, one up to which every
        route has delivered all.
        """

    def recent(self) -> Iterator[tuple[str | None, Entries]]:
        """Yield this reader's logged batches, newest first, each with its position.

        A batch that needed several frames yields once a frame; only its last
        frame (which comes first here) carries the position. With ``release: delivered``
        only what every route has delivered is among the entries, and nothing that was
        superseded: with either, what comes is what the source may forget.
        """

    def undelivered(self) -> Iterator[tuple[str | None, Entries]]:
        """Yield what this reader logged and some route has still to deliver, oldest first.

        A frame each, with the position that it carries; parked entries are among it, and
        nothing that was superseded. With ``release: logged`` there is nothing.
        """

    def reopen(self, batches: Iterable[tuple[str, Sequence[int]]]) -> None:
        """Go on with entries of :meth:`undelivered`: their source holds them, and waits for them.

        The other way besides :meth:`supersede` for a :class:`DeliveredReader` to go on after a
        restart: only if nobody else can have had these entries since they were logged, and if
        the source does not give them again. Each of *batches* is a position of the reader's
        choice and ascending offsets; batches ascend too. ``delivered`` will name them so: a
        row is a place among the offsets. They take the place of all that was open. Entries
        that are not named are delivered, and the source is not told of them.
        """

    def supersede(self) -> None:
        """Have the routes pass what this reader logged and they have not delivered.

        For sources that give it again: after a term, or after a reader's end. Parked
        entries are among it. What is in a slice at this moment may still be delivered;
        nothing else. Durable on return: what is logged from now on is not among it. Does
        nothing with ``release: logged``.
        """

    def tell(self, event: str, **details: object) -> None:
        """Tell everybody who watches the engine; *details* are plain values."""

    def measure(self, gauge: Gauge, value: float | None) -> None:
        """Tell how things stand at the source now; ``None`` when that is not known any more.

        It stands in the status and in the metric ``transporter_source_<gauge>`` until the next
        call, or until the reader is closed. Measure now and then, and what is cheap there:
        estimates are welcome.
        """


class Reader(Protocol):
    """Reads messages from a source. Every method is called from one thread."""

    Config: ClassVar[type[AdaptorConfig]]

    def __init__(self, config: Any) -> None:  # noqa: ANN401 - an instance of its own Config
        """Keep *config*; no I/O here."""

    def open(self, resume: Resume) -> None:
        """Connect, and go on from what the log remembers.

        Raise :class:`~transporter.errors.SourceUnavailable` when trying again
        may help, :class:`~transporter.errors.EnvironmentFault` when it will not.
        """

    def poll(self, timeout: float) -> Batch:
        """Return what there is, waiting up to *timeout* seconds for something.

        The batch may be empty. What it found is appended and committed before
        the next poll. Raise :class:`EndOfSource` when nothing will come
        any more, :class:`~transporter.errors.SourceUnavailable` to be closed
        and, after a back-off, replaced by a new instance. Any other error stops
        this reader, visibly, until an operator restarts it, or the engine.
        """

    def commit(self, position: str) -> None:
        """Forget, at the source, everything up to *position*: it is durable in the log.

        Called after the batch that carried *position* is durable (Invariant 1),
        never earlier. Not called again after a failure: the reader itself keeps
        what it still has to forget.
        """

    def close(self) -> None:
        """Release every resource; safe before ``open``, after a failed one, and twice."""


@runtime_checkable
class KeepAliveReader(Reader, Protocol):
    """A reader with something at its source that must go on while nobody polls it."""

    def keep_alive(self) -> None:
        """Keep what must be kept alive at the source; called between two polls, or instead.

        At least twice a second, and ten times where engines take turns, also while the log
        is full or ``max_in_flight`` is reached, unless the log's disk does not answer.
        """


@runtime_checkable
class DeliveredReader(KeepAliveReader, Protocol):
    """A reader whose source hears of single messages, as they are delivered.

    ``delivered`` and ``confirm`` are called only with ``release: delivered``, and then in place
    of ``commit``. Any reader can be used so: one without them is committed in order.
    """

    def delivered(self, position: str, rows: Sequence[int]) -> None:
        """Forget, at the source, these *rows* of the batch at *position*.

        Every route has delivered them, or was told by an operator to give them up. Each row
        is named once; batches may come in any order, and parked entries late or never.
        """

    def confirm(self) -> bool | None:
        """Make sure at the source that this reader may still lead; else supersede.

        Called after a writer was opened and before it is given an entry: a sink that fences
        has then shut out every other engine, so one that still leads leads alone there.
        Return ``False`` while it is not decided whether what the log holds is delivered or
        superseded: the routes wait, and ask again.
        """


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """How far a sink that keeps its own offset has come, read once at open.

    ``epoch`` is that of the engine that wrote last, ``generation`` counts the replays of the
    route (below 0: a retry of a parked entry); see :meth:`WriterContext.stored`. ``run`` names
    the open of the log in which ``offset`` was delivered: it proves that the offset is of this
    log's history, and not of a copy's. It is empty in what older versions have stored.
    """

    log_id: str
    route: str
    epoch: int
    generation: int
    shard: int
    shards: int
    offset: int
    run: str = ""


@dataclass(frozen=True, slots=True)
class WriterContext:
    """Who is writing. ``deadline`` bounds every call to the sink, in seconds.

    ``turns`` names the pipeline when several engines take turns at its source, each with a
    log of its own: a sink that fences does so by that name, and by the log's otherwise.
    ``run`` is the random id of this open of the log; see :class:`StoredOffset`.
    """

    log_id: str
    route: str
    epoch: int
    generation: int = 0
    shard: int = 0
    shards: int = 1
    deadline: float = 30.0
    turns: str = ""
    run: str = ""

    def stored(
        self, generation: int, offset: int, known: StoredOffset | None = None
    ) -> StoredOffset:
        """Return what a sink stores when this writer has delivered up to *offset*.

        *generation* is that of the batch, which changes while a writer is open; below 0 it is
        a retry of a parked entry, which tells nothing of how far the route has come. So then
        *known*, what the sink stores now, stays as it is but for the epoch: the run that it
        names is the one that proves its offset.
        """
        if generation < 0 and known is not None and known.log_id == self.log_id:
            return replace(known, epoch=self.epoch)
        return StoredOffset(
            self.log_id,
            self.route,
            self.epoch,
            generation,
            self.shard,
            self.shards,
            offset,
            self.run,
        )


class Ack(Protocol):
    """How a writer tells what the sink has taken. Not thread-safe: call it from ``write``.

    Acks count as they come. While ``write`` is under way, the acked entries before the first
    one that is not acked are settled every 0.1 s, or every 1500 entries, so a kill repeats
    no more than what came after that. A writer that acks only at its end repeats all of a
    batch, which may hold 50 000 entries.
    """

    def __call__(self, offsets: Iterable[int]) -> None:
        """Take these entries as delivered: the sink has them durably.

        That cannot be taken back: a failure of an acked entry is taken for a failure that
        names no entry. Acks in the order of the batch cost least.
        """

    def all(self) -> None:
        """Take every entry of the batch as delivered."""

    def fail(self, error: SinkError, offset: int | None = None) -> None:
        """Take the entry at *offset* as failed; ``None`` when the sink does not tell which.

        Only the acked entries before the first failed or unacked one count.
        """


class Writer(Protocol):
    """Writes entries to a sink. Every method is called from one thread."""

    Config: ClassVar[type[AdaptorConfig]]

    def __init__(self, config: Any) -> None:  # noqa: ANN401 - an instance of its own Config
        """Keep *config*; no I/O here."""

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Connect; return the offset that the sink itself stores, if it does.

        Raise :class:`~transporter.errors.SinkUnavailable` when trying again may
        help, :class:`~transporter.errors.RouteFault` when it will not.
        """

    def write(self, batch: Entries, ack: Ack) -> None:
        """Deliver *batch* in order and settle every entry before returning.

        When it returns each offset was acked or failed; one that is neither
        counts as failed, and so does everything when it raises. After the first
        failure nothing more of the batch may be delivered (Invariant 9), except
        what was already on its way. Never write an entry again that this call
        has acked.
        """

    def close(self) -> None:
        """Release everything, flush nothing; safe before ``open``, after a failed one, twice."""


@runtime_checkable
class AcceptingWriter(Writer, Protocol):
    """A writer that can judge a single message before it delivers anything."""

    def accepts(self, message: Message) -> bool:
        """Return whether the sink takes *message*; called before ``write`` is given its entry.

        ``write`` gets the entries before the first one that is not accepted, and that one
        fails like one for which it had raised :class:`~transporter.errors.Rejected` with its
        offset. Raise ``Rejected`` in place of returning ``False`` to give a reason. Each
        message is judged again whenever its entry is delivered again. Not asked of a
        :class:`FrameWriter`.
        """


@dataclass(frozen=True, slots=True)
class FrameSlice:
    """Which entries a DataFrame holds: some of the offsets ``first`` to ``last``.

    ``generation`` counts the replays of the route; a retried parked entry has one below 0.
    ``rows()`` tells how many rows the first action on the DataFrame had, once there was one.
    """

    first: int
    last: int
    generation: int
    rows: Callable[[], int | None] = field(default=lambda: None, compare=False, repr=False)


class FrameWriter(Protocol):
    """Writes Spark DataFrames: what a route writes to whose entries stay on Spark.

    Used in place of :class:`Writer`, whose ``open`` and ``close`` it shares. Lives in the Spark
    driver; every method is called from one thread.
    """

    Config: ClassVar[type[AdaptorConfig]]

    def __init__(self, config: Any) -> None:  # noqa: ANN401 - an instance of its own Config
        """Keep *config*; no I/O here."""

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Connect; see :meth:`Writer.open`."""

    def save(self, frame: Any, part: FrameSlice) -> None:  # noqa: ANN401 - a DataFrame
        """Write *frame*, a ``pyspark.sql.DataFrame``; return when the sink has all of it.

        What it raises fails the slice. An error of Spark's is told apart by its cause; where
        no entry is named the slice is halved until the guilty one is found.
        """

    def close(self) -> None:
        """Release everything; see :meth:`Writer.close`."""
