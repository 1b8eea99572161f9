"""The public contract of readers and writers, and all that an adaptor needs to import.

A reader or writer is a class with a ``Config`` (a subclass of
:class:`AdaptorConfig`) and a constructor that takes an instance of it and does
no I/O. Register it under an entry point group (``transporter.readers``,
``transporter.writers``) for a short name, or name it as ``module:Class``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict

from transporter.defaults import validate_defaults
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
    "DataFrameSlice",
    "DataFrameWriter",
    "DeliveredReader",
    "Duration",
    "EndOfSource",
    "Entries",
    "Finding",
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
    "state_name",
]


class AdaptorConfig(BaseModel):
    """Base of an adaptor's settings: unknown keys are errors, instances are frozen.

    ``adaptors show`` prints the docstring under a field. Use
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
        validate_defaults(cls)

    @property
    def upserts(self) -> bool:
        """True if the sink keeps the newest value of a key, so that a replay overwrites it.

        Used only for a warning to the operator. The settings of such a writer override it.
        """
        return False

    @property
    def needs_delivery(self) -> bool:
        """True if entries may be acknowledged to this source only after every route's delivery.

        Readers override it if their source is shared with other engines, which cannot see this
        engine's log. It makes ``release: delivered`` the only choice.
        """
        return False

    @property
    def can_wait_for_delivery(self) -> bool:
        """True if a reader with these settings supports ``release: delivered``."""
        return True

    @property
    def shared(self) -> bool:
        """True if engines take turns at this source, so that a sink must fence the others.

        For readers with an elector. See :attr:`WriterContext.turns`.
        """
        return False


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check of a source or a sink, in words.

    A ``problem`` keeps the pipeline from working. With a ``warning`` it works, but not as its
    operator will expect.
    """

    text: str
    level: Literal["fine", "warning", "problem"] = "fine"


@runtime_checkable
class Probe(Protocol):
    """A reader or a writer that can check its source or sink without using it.

    For ``transporter check --connect``, which skips adaptors without ``probe``.
    """

    def probe(self) -> Iterable[Finding]:
        """Connect, and yield findings: versions, rights, missing objects.

        Changes nothing there. Called on an instance that is never opened. No wait lasts longer
        than some ten seconds. An exception is also a problem, and the last finding.
        """


Gauge = Literal[
    "backlog_messages",
    "lag_seconds",
    "lag_bytes",
    "retained_bytes",
    "safe_bytes",
    "spilled_bytes",
    "catalog_xmin_age",
    "copy_rows_left",
    "tables_waiting",
    "tables_copying",
    "tables_in_sync",
]
"""Measurements by a reader: the number of messages that its source holds for it, and the seconds
since the oldest of them came, both 0 without messages. The others are those of ``postgres-cdc``;
see :data:`~transporter.observe.metric_table.METRICS`."""


class EndOfSource(Exception):
    """The end of a source, raised by :meth:`Reader.poll` when no more messages will come."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of one poll: messages, in order, and the position behind the last of them.

    ``messages`` is a record batch of ``MESSAGE_SCHEMA`` or a sequence of
    :class:`Message`. ``position`` is the reader's own text (at most 1 MiB), kept
    in the same frame as the messages: both become durable, or neither. ``term`` is the
    number of the term under which they were read, if the source has terms.

    A new position without messages is logged, too, by an entry of the op ``noop``, and committed.
    A source that moves on while it has nothing for this reader can so forget what is behind.
    No route delivers a noop, also one from the reader itself.

    ``state`` is what a reader needs besides and rarely changes, of any length. It is in a file
    of its own, written before the position. A position names it by :func:`state_name`, and so do
    all later ones until the next state.
    """

    messages: pa.RecordBatch | Sequence[Message]
    position: str | None = None
    term: int | None = None
    state: str | None = None


def state_name(state: str) -> str:
    """Return the name of a *state*, 32 hexadecimal digits, for the positions that belong to it."""
    return blake2b(state.encode(), digest_size=16).hexdigest()


class Resume(Protocol):
    """A reader's state in the log."""

    @property
    def log_id(self) -> str:
        """The permanent id of the log, for marks that a reader leaves at its source."""

    @property
    def reader(self) -> str:
        """The reader's name in the pipeline file, for what it creates at its source."""

    @property
    def position(self) -> str | None:
        """The newest position logged by this reader, or ``None`` before the first."""

    @property
    def committable(self) -> str | None:
        """The newest position that may be committed, or ``None`` without any.

        It is :attr:`position` or, with ``release: delivered``, a position up to which every
        route has delivered all entries.
        """

    def state(self, name: str) -> str:
        """Return the state that :attr:`position` names. See :attr:`Batch.state`.

        Raise :class:`~transporter.errors.EnvironmentFault` if it is missing, and
        :class:`~transporter.errors.Corrupt` if it is damaged.
        """

    def recent(self) -> Iterator[tuple[str | None, Entries]]:
        """Yield this reader's logged batches, newest first, each with its position.

        A batch that needed several frames yields once per frame. Only its last
        frame (which comes first here) carries the position. With ``release: delivered``
        only entries that every route has delivered are included, and no superseded ones.
        With either setting, these entries may be acknowledged to the source.
        """

    def undelivered(self) -> Iterator[tuple[str | None, Entries]]:
        """Yield this reader's logged entries that some route has yet to deliver, oldest first.

        Each item is a frame with the position that it carries. Parked entries are included,
        superseded ones are not. With ``release: logged`` nothing is yielded.
        """

    def reopen(self, batches: Iterable[tuple[str, Sequence[int]]]) -> None:
        """Continue with entries of :meth:`undelivered`, which the source still holds open.

        After a restart, a :class:`DeliveredReader` calls this or :meth:`supersede`. It requires
        that no other engine can have had these entries since they were logged, and that the
        source does not redeliver them. Each of *batches* is a position of the reader's choice
        and ascending offsets. Batches ascend too. ``delivered`` will use these positions, with
        rows as indexes into the offsets. They replace all batches that were open. Entries that
        are not named are delivered, but not acknowledged to the source.
        """

    def supersede(self) -> None:
        """Have the routes skip this reader's logged entries that they have not delivered.

        For sources that redeliver them: after a term, or after a reader's end. Parked
        entries are included. Only entries in a slice at this moment may still be delivered.
        The call is durable on return, and does not affect entries logged later. It does
        nothing with ``release: logged``.
        """

    def report(self, event: str, **details: object) -> None:
        """Notify the engine's observers of *event*. Its *details* are plain values."""

    def measure(self, gauge: Gauge, value: float | None) -> None:
        """Report the present *value* of *gauge*, or ``None`` if it is no longer known.

        It stays in the status and in the metric ``transporter_source_<gauge>`` until the next
        call, or until the reader is closed. Measure occasionally, and only if it is cheap.
        Estimates are welcome.
        """


class Reader(Protocol):
    """A reader of messages from a source. Every method is called from one thread."""

    Config: ClassVar[type[AdaptorConfig]]

    def __init__(self, config: Any) -> None:  # noqa: ANN401 - an instance of its own Config
        """Keep *config*, without any I/O."""

    def open(self, resume: Resume) -> None:
        """Connect, and continue from the reader's state in the log.

        Raise :class:`~transporter.errors.SourceUnavailable` if a retry may
        help, :class:`~transporter.errors.EnvironmentFault` if it will not.
        """

    def poll(self, timeout: float) -> Batch:
        """Return the available messages, waiting up to *timeout* seconds for the first.

        The batch may be empty. It is appended and, if it has a position, committed
        before the next poll. Raise :class:`EndOfSource` when no more messages will come,
        :class:`~transporter.errors.SourceUnavailable` to be closed
        and, after a back-off, replaced by a new instance. Any other error stops
        this reader, visibly, until an operator restarts it or the engine.
        """

    def commit(self, position: str) -> None:
        """Acknowledge to the source everything up to *position*, which is durable in the log.

        Called after the batch that carried *position* is durable (Invariant 1),
        never earlier. With ``release: delivered`` that batch may have been read before the
        reader was opened, or by an earlier run. Not called again after a failure: the reader
        itself keeps the positions that it has yet to acknowledge.
        """

    def close(self) -> None:
        """Release every resource. Safe before ``open``, after a failed one, and twice."""


@runtime_checkable
class KeepAliveReader(Reader, Protocol):
    """A reader with a session or lease at its source to keep up between polls."""

    def keep_alive(self) -> None:
        """Keep the session or lease at the source alive, between two polls or instead of one.

        Called at least twice a second, and ten times where engines take turns. It is also called
        while the log is full or ``max_in_flight`` is reached, unless the log's disk does not
        answer.
        """


@runtime_checkable
class DeliveredReader(KeepAliveReader, Protocol):
    """A reader that acknowledges single messages to its source, as they are delivered.

    ``delivered`` and ``confirm`` are called only with ``release: delivered``, and then in place
    of ``commit``. That setting works with any reader: one without them is committed in order.
    """

    def delivered(self, position: str, rows: Sequence[int]) -> None:
        """Acknowledge to the source these *rows* of the batch at *position*.

        Every route has delivered them, or has dropped them on an operator's request. Each row
        is named once. Batches may come in any order, and parked entries late or never.
        """

    def confirm(self) -> bool | None:
        """Verify at the source that this reader still leads, or supersede its entries.

        Called after a writer was opened and before it gets an entry. A sink that fences has
        then fenced every other engine, so a reader that still leads is the only leader there.
        Return ``False`` while it is undecided whether the logged entries are delivered or
        superseded. The routes wait, and call it again.
        """


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """The progress of a sink that stores its own offset, read once at open.

    ``epoch`` is that of the engine that wrote last. ``generation`` counts the replays of the
    route (below 0: a retry of a parked entry). See :meth:`WriterContext.stored`. ``run`` names
    the open of the log in which ``offset`` was delivered. It proves that the offset belongs to
    this log's history, and not to a copy's. It is empty in offsets stored by older versions.
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
    """The identity of a writer. ``deadline`` bounds every call to the sink, in seconds.

    ``turns`` names the pipeline when several engines take turns at its source, each with its
    own log. A sink that fences does so by that name, and by the log's otherwise.
    ``run`` is the random id of this open of the log. See :class:`StoredOffset`.
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
        """Return the record for a sink to store when this writer has delivered up to *offset*.

        *generation* is that of the batch, which changes while a writer is open. Below 0 it is
        a retry of a parked entry, which proves nothing about the route's progress. Then only
        the epoch of *known*, the stored record, changes: its run is the one that proves its
        offset.
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
    """A writer's report of deliveries. Not thread-safe: call it from ``write``.

    Acks count as they come. While ``write`` is under way, the acked entries before the first
    unacked one are settled every 0.1 s, or every 1500 entries. After a kill only later entries
    are redelivered. A writer that acks only at its end repeats a whole batch, which may hold
    50 000 entries.
    """

    def __call__(self, offsets: Iterable[int]) -> None:
        """Record these entries as delivered: the sink has them durably.

        An ack is final. A later failure of an acked entry counts as a failure that
        names no entry. Acks in the order of the batch cost least.
        """

    def all(self) -> None:
        """Record every entry of the batch as delivered."""

    def fail(self, error: SinkError, offset: int | None = None) -> None:
        """Record the entry at *offset* as failed, or ``None`` if the sink does not name one.

        Only the acked entries before the first failed or unacked one count.
        """


class Writer(Protocol):
    """A writer of entries to a sink. Every method is called from one thread."""

    Config: ClassVar[type[AdaptorConfig]]

    def __init__(self, config: Any) -> None:  # noqa: ANN401 - an instance of its own Config
        """Keep *config*, without any I/O."""

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Connect, and return the offset that the sink itself stores, if it does.

        Raise :class:`~transporter.errors.SinkUnavailable` if a retry may
        help, :class:`~transporter.errors.RouteFault` if it will not.
        """

    def write(self, batch: Entries, ack: Ack) -> None:
        """Deliver *batch* in order and settle every entry before returning.

        When it returns, each offset was acked or failed. Any other offset counts
        as failed, and so does every offset that is not acked when it raises. After
        the first failure nothing more of the batch may be delivered (Invariant 9),
        except entries already in flight. Never write an entry again that this call
        has acked.
        """

    def close(self) -> None:
        """Release everything, flush nothing. Safe before ``open``, after a failed one, twice."""


@runtime_checkable
class AcceptingWriter(Writer, Protocol):
    """A writer that can check a single message before it delivers anything."""

    def accepts(self, message: Message) -> bool:
        """Return whether the sink accepts *message*, before ``write`` gets its entry.

        ``write`` gets the entries before the first one that is not accepted. That one fails
        as if ``write`` had raised :class:`~transporter.errors.Rejected` with its offset. To
        give a reason, raise ``Rejected`` in place of returning ``False``. Each message is
        checked again whenever its entry is redelivered. Not called on a :class:`DataFrameWriter`.
        """


@dataclass(frozen=True, slots=True)
class DataFrameSlice:
    """The entries that a DataFrame holds: some of the offsets ``first`` to ``last``.

    ``generation`` counts the replays of the route. It is below 0 for a retried parked entry.
    ``rows()`` returns the row count of the first action on the DataFrame, once there was one.
    """

    first: int
    last: int
    generation: int
    rows: Callable[[], int | None] = field(default=lambda: None, compare=False, repr=False)


class DataFrameWriter(Protocol):
    """A writer of Spark DataFrames, for routes whose entries stay on Spark.

    Used in place of :class:`Writer`, whose ``open`` and ``close`` it shares. It lives in the
    Spark driver. Every method is called from one thread.
    """

    Config: ClassVar[type[AdaptorConfig]]

    def __init__(self, config: Any) -> None:  # noqa: ANN401 - an instance of its own Config
        """Keep *config*, without any I/O."""

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Connect. See :meth:`Writer.open`."""

    def save(self, frame: Any, part: DataFrameSlice) -> None:  # noqa: ANN401 - a DataFrame
        """Write *frame*, a ``pyspark.sql.DataFrame``, and return when the sink has all of it.

        An exception fails the slice. Spark's errors are classified by their causes. If no
        entry is named, the slice is halved until the failing one is found.
        """

    def close(self) -> None:
        """Release everything. See :meth:`Writer.close`."""
