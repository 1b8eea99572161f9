"""Messages between the engine, its Spark host and its workers.

Plain frozen values, sent over an ``engine.channel`` once each side has proved itself.
A worker is started with an ``Invitation`` and knows nothing else. Its conversation is
``Hello``, answered by ``Begin`` once no other worker of the shard can be delivering,
``Opened | OpenFailed``, then for each ``Slice`` or ``Retry`` any number of ``Output``,
``PartialOutcome`` and ``Progress`` (answered by ``Proceed``) and one ``Outcome``, until
the engine closes. A worker that does not see the log asks with ``Need`` for what it is
to deliver, which comes as ``Frames``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from transporter.adaptor import StoredOffset  # noqa: TC001 - what is heard is checked by it
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
    """What a failure asks for."""

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
    """Why a slice was not delivered to its end, and at which offset, if that is known."""

    kind: FailureKind
    text: str
    offset: int | None = None
    wait: float = 0.0
    """Seconds for which the sink asks not to be tried again."""

    @classmethod
    def of(cls, error: BaseException, offset: int | None = None) -> Self:
        """Classify what a writer raised or reported."""
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
        """Return what a writer would have raised for it."""
        match self.kind:
            case FailureKind.UNAVAILABLE:
                return SinkUnavailable(self.text, self.wait)
            case FailureKind.TIMEOUT:
                return SinkTimeout(self.text)
            case FailureKind.FAULT:
                return RouteFault(self.text)
            case _:
                return Rejected(self.text, self.offset)

    def without(self, secrets: Secrets) -> Self:
        """Return the same failure with *secrets* blotted out of its text (Invariant 20)."""
        return replace(self, text=secrets.hide(self.text))


@dataclass(frozen=True, slots=True)
class Ticket:
    """By which one process calls the engine, and each knows the other."""

    address: Any
    claim: str
    """As whom it calls."""
    key: bytes = field(repr=False)
    """Proves the claim, and to the caller that this is its engine."""
    certificate: str = ""
    """The digest of the certificate at the engine's door, where that speaks TLS."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What the job of a worker holds: where to call, as whom, and where the log is.

    No secret of the pipeline's, nor any key but one that is good for this worker's call and
    no other: Spark keeps jobs, and sends them to whoever executes them (Invariant 20).
    """

    ticket: Ticket
    route: str
    shard: int
    epoch: int
    attempt: int
    log_directory: str
    place: str = ""
    """Which directory of which machine the log is; see ``engine.network.place_of``."""
    on_frames: bool = False

    def hello(self, pid: int, *, remote: bool = False) -> Hello:
        """Return what the worker says first."""
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
    """Which worker of this shard it is: one that was asked for before may call late."""
    modules: bytes | None = field(default=None, repr=False)
    """Those beside the pipeline file, zipped, for tasks that do not see it; see ``engine.kit``."""
    on_frames: bool = False
    """Whether its slices are Spark DataFrames, in the driver, and not served by a task."""
    turns: str = ""
    """Names the pipeline when engines take turns at its source; see ``adaptor.WriterContext``."""
    runs: Runs = field(default=Runs(), repr=False)
    """The history by which a stored offset is proved; the last of them is that of the engine."""
    handed: int = -1
    """The highest offset that this run of the engine has handed to workers of the route."""
    declared: int = 0
    """The epoch in which the route was declared: what sinks stored before says nothing of it."""


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
    """The worker may open its writer; *modules* are those beside the pipeline file, zipped."""

    spec: WorkerSpec = field(repr=False)
    modules: bytes = field(default=b"", repr=False)
    tasks: Ticket | None = None
    """By what the tasks of a DataFrame route call, for the same spec."""


@dataclass(frozen=True, slots=True)
class TaskHello:
    """A task of a DataFrame route wants the spec; answered by ``Begin``, and that is all."""

    route: str
    epoch: int
    attempt: int

    @property
    def claim(self) -> str:
        """As whom the tasks of one worker of the route call."""
        return json.dumps(["task", self.route, self.epoch, self.attempt])


@dataclass(frozen=True, slots=True)
class Opened:
    """The worker's writer is open; *stored* is what its sink remembers."""

    stored: StoredOffset | None
    shards: tuple[StoredOffset, ...] = ()
    """What the sink of each shard remembers, where several workers make up the route."""


@dataclass(frozen=True, slots=True)
class OpenFailed:
    """The worker's writer could not be opened; the worker ends."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Slice:
    """Deliver the offsets ``first`` to ``last``.

    With ``single`` one entry at a time, each announced before it is delivered.
    The offsets in ``without`` are settled already, and passed over; so is what the
    regular expression ``namespace`` of a replay does not match.
    """

    first: int
    last: int
    generation: int
    single: bool = False
    without: tuple[int, ...] = ()
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Retry:
    """Deliver the parked entry at ``offset``.

    In a generation of its own: a sink that stores this offset does not say with
    it how far the route, or its replay, has come.
    """

    offset: int
    generation: ClassVar[int] = -1


@dataclass(frozen=True, slots=True)
class Progress:
    """The entry at ``offset`` is delivered next: if the worker dies now, that one is guilty."""

    offset: int


@dataclass(frozen=True, slots=True)
class Proceed:
    """The engine has heard the announcement."""


@dataclass(frozen=True, slots=True)
class Need:
    """Send what comes next of what I am to deliver; answered by ``Frames``."""


@dataclass(frozen=True, slots=True)
class Lent:
    """A frame of the log, or a parked file, as it stands at *byte* of *file*.

    *head* is its header, and *size* the bytes of its payload, which follow the
    message as they are; a parked file is a payload altogether.
    """

    file: str
    byte: int
    head: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Frames:
    """Some frames of a slice, in order; *failure* says why what follows cannot be read."""

    lent: tuple[Lent, ...] = ()
    done: bool = True
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """Text that a writer printed: it belongs on the engine's standard output."""

    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a slice.

    Everything up to ``through`` was delivered or skipped; ``through`` is the
    slice's last offset unless ``failure`` says why not. ``size`` counts the
    bytes of ``data`` delivered; ``namespaces`` gives the newest settled offset of each.
    Counts and namespaces leave out all that a ``PartialOutcome`` has reported before.
    """

    through: int
    delivered: int
    skipped: int
    size: int
    namespaces: dict[str, int]
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class PartialOutcome:
    """The outcome of a further part of a slice whose delivery goes on; never has a failure."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class HostHello:
    """The Spark host is there, as this process; Spark is not up yet."""

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
    """The task of this shard has ended; *problem* is empty when it ended as asked.

    ``gone`` is whether its process has ended for certain: Spark may also have lost
    sight of the executor, and the worker still run there.
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


HEARD: Final = (
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
    Progress,
    Need,
    TaskHello,
)
"""What an engine hears."""
