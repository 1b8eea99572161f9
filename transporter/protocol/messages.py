"""Messages between the engine, its Spark host and its workers.

Plain frozen values, sent over a :mod:`~transporter.protocol.channel` after each side has
proved its identity. A worker is started with an ``Invitation`` alone. Its conversation is
``Hello``, answered by ``Begin`` once no other worker of the shard can be delivering,
``Opened | OpenFailed``, then for each ``Slice`` or ``Retry`` any number of ``Output``,
``PartialOutcome`` and ``Announcement`` (answered by ``Proceed``) and one ``Outcome``, until
the engine closes. A worker that does not see the log requests entries with ``Need``, and
receives them as ``Frames``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self

from transporter.adaptor import StoredOffset  # noqa: TC001 - received messages are validated by it
from transporter.errors import (
    DiskUnavailable,
    Rejected,
    RouteFault,
    SinkError,
    SinkTimeout,
    SinkUnavailable,
    StepFailed,
    TransporterError,
)
from transporter.log.runs import Runs
from transporter.pipeline.secrets import Secrets

if TYPE_CHECKING:
    from transporter.pipeline.steps.step import StepConfig


class FailureKind(Enum):
    """The kind of a failure, which decides the reaction to it."""

    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    POISON = "poison"
    FAULT = "fault"

    @property
    def retriable(self) -> bool:
        """Whether trying again, for as long as it takes, is the answer."""
        return self in (FailureKind.UNAVAILABLE, FailureKind.TIMEOUT)


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a slice was not delivered to its end, and the offset if known."""

    kind: FailureKind
    text: str
    offset: int | None = None
    wait: float = 0.0
    """Seconds that the sink asks to wait before a retry."""

    @classmethod
    def of(cls, error: BaseException, offset: int | None = None) -> Self:
        """Classify an error that a writer raised or reported."""
        match error:
            case SinkUnavailable():
                return cls(FailureKind.UNAVAILABLE, str(error), offset, error.wait)
            case DiskUnavailable():
                return cls(FailureKind.UNAVAILABLE, str(error), offset)
            case SinkTimeout():
                return cls(FailureKind.TIMEOUT, str(error), offset)
            case Rejected() | StepFailed():
                named = error.offset if offset is None else offset
                return cls(FailureKind.REJECTED, str(error), named)
            case TransporterError():
                return cls(FailureKind.FAULT, str(error), offset)
            case _:
                return cls(FailureKind.REJECTED, f"{type(error).__name__}: {error}", offset)

    def error(self) -> SinkError:
        """Return the error that a writer would have raised for it."""
        match self.kind:
            case FailureKind.UNAVAILABLE:
                return SinkUnavailable(self.text, self.wait)
            case FailureKind.TIMEOUT:
                return SinkTimeout(self.text)
            case FailureKind.FAULT:
                return RouteFault(self.text)
            case _:
                return Rejected(self.text, self.offset)

    def redact(self, secrets: Secrets) -> Self:
        """Return the same failure with *secrets* blotted out of its text (Invariant 20)."""
        return replace(self, text=secrets.hide(self.text))


@dataclass(frozen=True, slots=True)
class Ticket:
    """The credentials of one process for one connection to the engine."""

    address: Any
    claim: str
    """As whom it calls."""
    key: bytes = field(repr=False)
    """Proves the claim, and to the caller that this is its engine."""
    certificate: str = ""
    """The digest of the certificate at the engine's door, where that speaks TLS."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """The contents of a worker's job: the engine's address, a ticket, and the log's place.

    It has no secret of the pipeline, and only a key for this worker's one connection, because
    Spark keeps jobs and sends them to executors (Invariant 20).
    """

    ticket: Ticket
    route: str
    shard: int
    epoch: int
    attempt: int
    log_directory: str
    place: str = ""
    """Directory and machine of the log; see :func:`~transporter.protocol.network.place_of`."""
    on_frames: bool = False

    def hello(self, pid: int, *, remote: bool = False) -> Hello:
        """Return the worker's first message."""
        return Hello(self.route, self.shard, self.epoch, pid, self.attempt, remote)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that a worker needs to serve one shard of a route.

    ``settings`` may hold secrets: it goes over the engine's own channel to a worker that has
    proved itself, and nowhere else. Never log a spec (Invariant 20).
    """

    route: str
    shard: int
    shards: int
    epoch: int
    generation: int
    log_directory: str
    log_id: str
    namespace: str
    writer: str
    settings: dict[str, Any] = field(repr=False)
    folder: str
    steps: tuple[StepConfig, ...] = field(default=(), repr=False)
    one_per_key: bool = False
    slice_timeout: float = 60.0
    memory: int | None = None
    secrets: Secrets = field(default=Secrets(), repr=False)
    attempt: int = 0
    """Number of the worker, because an earlier one may connect late."""
    modules: bytes | None = field(default=None, repr=False)
    """Modules beside the pipeline file, zipped, for tasks that do not see it."""
    on_frames: bool = False
    """Whether its slices are Spark DataFrames, in the driver, and not served by a task."""
    turns: str = ""
    """Name of the pipeline where engines take turns at its source; see ``WriterContext``."""
    runs: Runs = field(default=Runs(), repr=False)
    """The history that proves a stored offset. The last run is that of the engine."""
    handed: int = -1
    """The highest offset that this run of the engine has handed to workers of the route."""
    declared: int = 0
    """The epoch in which the route was declared. Offsets that sinks stored before do not count."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker is there, of this epoch, as this process."""

    route: str
    shard: int
    epoch: int
    pid: int
    attempt: int = 0
    remote: bool = False
    """Whether it does not see the log, and so cannot hold the shard's lock either."""

    @property
    def claim(self) -> str:
        """As whom the worker calls."""
        return json.dumps(["worker", self.route, self.shard, self.epoch, self.attempt])


@dataclass(frozen=True, slots=True)
class Begin:
    """Permission to open the writer. *modules* are those beside the pipeline file, zipped."""

    spec: WorkerSpec = field(repr=False)
    modules: bytes = field(default=b"", repr=False)
    tasks: Ticket | None = None
    """The invitation for the tasks of a DataFrame route, for the same spec."""


@dataclass(frozen=True, slots=True)
class TaskHello:
    """A task of a DataFrame route requests the spec. ``Begin`` is the answer, and the end."""

    route: str
    epoch: int
    attempt: int

    @property
    def claim(self) -> str:
        """As whom the tasks of one worker of the route call."""
        return json.dumps(["task", self.route, self.epoch, self.attempt])


@dataclass(frozen=True, slots=True)
class Opened:
    """The worker's writer is open. *stored* is the sink's stored offset."""

    stored: StoredOffset | None
    shards: tuple[StoredOffset, ...] = ()
    """The stored offset of each shard's sink, where several workers serve the route."""


@dataclass(frozen=True, slots=True)
class OpenFailed:
    """The worker's writer could not be opened, and the worker ends."""

    failure: Failure


class Slice(NamedTuple):
    """Deliver the offsets ``first`` to ``last``.

    With ``single`` one entry at a time, each announced before it is delivered. Offsets in
    ``without`` are settled already and skipped. So are entries that the regular expression
    ``namespace`` of a replay does not match. ``frames`` has the bytes of all frames of a small
    slice, if the engine still has them, so that the worker need not read them.
    """

    first: int
    last: int
    generation: int
    single: bool = False
    without: tuple[int, ...] = ()
    namespace: str = ""
    frames: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Retry:
    """Deliver the parked entry at ``offset``.

    It has a generation of its own, so that this offset, stored by a sink, is not taken for
    the progress of the route or of its replay.
    """

    offset: int
    generation: ClassVar[int] = -1


@dataclass(frozen=True, slots=True)
class Announcement:
    """The entry at ``offset`` is delivered next: if the worker dies now, that one is guilty."""

    offset: int


@dataclass(frozen=True, slots=True)
class Proceed:
    """The engine has received the announcement."""


@dataclass(frozen=True, slots=True)
class Need:
    """A request for the next entries of the slice, answered by ``Frames``."""


@dataclass(frozen=True, slots=True)
class Lent:
    """A frame of the log, or a parked file, as it stands at *byte* of *file*.

    *head* is its header, and *size* the bytes of its payload, which follow the message
    unchanged. A parked file has a payload only.
    """

    file: str
    byte: int
    head: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Frames:
    """Some frames of a slice, in order. *failure* is the reason why the rest cannot be read."""

    lent: tuple[Lent, ...] = ()
    done: bool = True
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """Text that a writer printed: it belongs on the engine's standard output."""

    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a slice.

    All entries up to ``through`` were delivered or skipped. ``through`` is the slice's last
    offset, unless there is a ``failure``. ``size`` counts the delivered bytes of ``data``, and
    ``namespaces`` has the newest settled offset of each namespace. Counts and namespaces leave
    out earlier parts, which a ``PartialOutcome`` has reported.
    """

    through: int
    delivered: int
    skipped: int
    size: int
    namespaces: dict[str, int]
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class PartialOutcome:
    """The outcome of a part of a slice whose delivery continues. It never has a failure."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class HostHello:
    """The Spark host runs as this process. Spark is not up yet."""

    claim: ClassVar[str] = "host"
    pid: int


@dataclass(frozen=True, slots=True)
class HostReady:
    """Spark is up."""

    version: str
    master: str


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Submit one more long-running task."""

    invitation: Invitation


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The task of this shard has ended. *problem* is empty if it ended on request.

    ``gone`` is whether its process has certainly ended. Otherwise Spark may have lost the
    executor, and the worker may still run there.
    """

    route: str
    shard: int
    problem: str
    attempt: int = 0
    gone: bool = True


@dataclass(frozen=True, slots=True)
class HostEnding:
    """The host ends because Spark can do nothing more in it, and why."""

    problem: str


@dataclass(frozen=True, slots=True)
class StopHost:
    """Stop Spark and end."""


ENGINE_MESSAGES: Final = (
    HostHello,
    HostReady,
    WorkerEnded,
    HostEnding,
    Hello,
    Opened,
    OpenFailed,
    Output,
    PartialOutcome,
    Outcome,
    Announcement,
    Need,
    TaskHello,
)
"""The messages that an engine receives."""
