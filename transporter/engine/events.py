"""Events and status of the engine, for observers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from transporter.engine.timings import NO_LATENCY, NOTHING, Histogram

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.adaptor import Gauge
    from transporter.engine.backoff import BackoffWait


class Observer(Protocol):
    """Hears every event: a stable name and plain values. Called from any thread."""

    def __call__(self, event: str, **details: Any) -> None:  # noqa: ANN401 - plain values
        """Process the event. Must return quickly and never raise."""


@dataclass(frozen=True, slots=True)
class Event:
    """The specification of an event: its level, its fields, and its occasion."""

    level: Literal["info", "warning", "error"]
    fields: tuple[str, ...]
    meaning: str


_PROGRESS: Final = ("watermark", "delivered")
_GIVEN_UP: Final = ("route", "offset", "attempts", "problem")

EVENTS: Final[Mapping[str, Event]] = MappingProxyType(
    {
        "engine-started": Event(
            "info",
            ("log", "log_id", "epoch", "last_offset"),
            "the log is open, and everything is about to start",
        ),
        "engine-stopping": Event("info", ("reason",), "readers end, and routes drain; why"),
        "engine-stopped": Event("info", ("last_offset",), "everything was left in order"),
        "endpoint-opened": Event("info", ("url",), "metrics and health are served below this URL"),
        "endpoint-unavailable": Event(
            "warning",
            ("problem",),
            "the default port is taken, so this engine serves no metrics and no health",
        ),
        "tracing-unavailable": Event(
            "warning",
            ("problem",),
            "a collector does not take the spans; they are dropped and counted until it does",
        ),
        "spark-host-connected": Event(
            "info", ("pid",), "the Spark host is there; Spark is not yet"
        ),
        "spark-ready": Event("info", ("version", "master"), "Spark is up"),
        "spark-host-lost": Event(
            "warning",
            ("code", "problem", "retry_in"),
            "the Spark host has ended; it is started again",
        ),
        "worker-connected": Event("info", ("route", "shard", "pid"), "a worker has called back"),
        "worker-lost": Event(
            "warning", ("route", "problem", *_PROGRESS), "a route's worker is gone; it gets another"
        ),
        "worker-held-back": Event(
            "info",
            ("route", "shard", "seconds"),
            "on a cluster: the worker before this one may still be delivering, for so long",
        ),
        "reader-opened": Event("info", ("reader",), "a source is open, or open again"),
        "reader-secrets-renewed": Event(
            "info", ("reader",), "a secret file holds something else, which the next open uses"
        ),
        "reader-unavailable": Event(
            "warning",
            ("reader", "problem", "retry_in"),
            "a source cannot be reached; it is tried again for as long as it takes",
        ),
        "reader-stopped": Event(
            "error", ("reader", "problem"), "a reader has failed and waits for an operator"
        ),
        "reader-ended": Event("info", ("reader", "logged"), "a reader will append no more"),
        "reader-paused": Event(
            "info", ("reader",), "an operator has paused a reader: it is closed until a resume"
        ),
        "reader-resumed": Event("info", ("reader",), "a paused reader is opened again"),
        "reader-progress": Event(
            "info", ("reader", "state", "logged"), "now and then, where there is no live table"
        ),
        "file-lost": Event(
            "warning",
            ("reader", "file", "byte", "problem"),
            "a file cannot be read on behind this byte: it is gone, or was cut or overwritten",
        ),
        "file-refused": Event(
            "warning",
            ("reader", "file", "problem"),
            "a symbolic link, or what is not a regular file, is not read",
        ),
        "leader-acquired": Event(
            "info", ("reader", "term", "leader"), "this engine leads now, and has begun a term"
        ),
        "leader-refreshed": Event(
            "info", ("reader", "term", "leader"), "this engine leads on, under another term"
        ),
        "leader-revoked": Event(
            "warning", ("reader", "term", "problem"), "the election went to somebody else"
        ),
        "leader-fenced": Event(
            "warning",
            ("reader", "term", "problem"),
            "nothing was heard of the election for a term, or a later term has begun",
        ),
        "election-unavailable": Event(
            "warning", ("reader", "problem"), "the election cannot be reached; it is tried again"
        ),
        "batch-halved": Event(
            "warning",
            ("reader", "rows", "problem"),
            "a look at an outbox took too long; the next one asks for so many rows at most",
        ),
        "sequence-caches": Event(
            "warning",
            ("reader", "table", "problem"),
            "rows of an outbox may be read out of order, for sessions cache its ids; what helps",
        ),
        "outbox-polled": Event(
            "info",
            ("reader", "table", "problem"),
            "no trigger notifies of an outbox's rows, so it is polled; what installs one",
        ),
        "queue-deletes": Event(
            "warning",
            ("reader", "queue", "problem"),
            "a topic of the queue deletes what is still needed; what changes that",
        ),
        "messages-deleted": Event(
            "error",
            ("reader", "queue", "offsets", "problem"),
            "so many offsets of the queue's topic were deleted before they were read",
        ),
        "meter-read": Event(
            "info",
            ("reader", "purged", "rate", "seconds"),
            "every five seconds in which rows left an outbox: how many in this run, and how fast",
        ),
        "log-full": Event(
            "error", ("reader", "problem"), "an append found no room; its reader waits"
        ),
        "log-nearly-full": Event(
            "warning",
            ("used", "max_bytes", "holder", "needs_from"),
            "80 % of log.max_bytes are spent; the holder needs the oldest entries",
        ),
        "log-has-room": Event("info", ("used", "max_bytes"), "less than 80 % are spent again"),
        "log-compacted": Event(
            "info", ("segments", "dropped", "freed"), "old segments were rewritten without entries"
        ),
        "compaction-waiting": Event(
            "warning", ("problem",), "compaction waits for room on the disk; it is tried again"
        ),
        "compaction-resumed": Event("info", (), "compaction has found room, and goes on"),
        "segment-not-compacted": Event("warning", ("problem",), "a segment was left as it is"),
        "segment-removed": Event(
            "info", ("file", "through", "bytes"), "retention has removed a segment"
        ),
        "entries-released": Event(
            "warning", ("route", "first", "last"), "on_full: stop-route gave these up undelivered"
        ),
        "housekeeping-failed": Event(
            "warning", ("problem",), "compaction or retention failed; it is tried again"
        ),
        "file-ignored": Event(
            "warning",
            ("file", "problem"),
            "a file in the log directory looks like a segment and is not one of this log",
        ),
        "clock-jumped": Event(
            "warning",
            ("seconds",),
            "the wall clock went so far ahead between two appends; log time never goes back",
        ),
        "log-time-ahead": Event(
            "warning",
            ("seconds",),
            "an append was made while the wall clock was so far ahead; see docs/log.md, Log time",
        ),
        "route-begins": Event("info", ("route", "offset"), "a new route is declared, from here on"),
        "offset-log-unused": Event(
            "warning", ("route",), "no route of the pipeline uses this one; it holds the log back"
        ),
        "pipeline-renamed": Event(
            "info", ("before", "name"), "the log is that of a pipeline which had another name"
        ),
        "log-left-behind": Event(
            "warning",
            ("log", "name", "undelivered"),
            "this pipeline file ran on another log before, which holds entries that a route of it "
            "has not delivered: give the pipeline that name back, or run it once more with it",
        ),
        "route-secrets-renewed": Event(
            "info", ("route",), "a secret file holds something else, which a new worker uses"
        ),
        "route-retrying": Event(
            "warning",
            ("route", "problem", "retry_in", *_PROGRESS),
            "a sink cannot be reached, or an entry has failed; it is tried again",
        ),
        "route-stopped": Event(
            "error",
            ("route", "offset", "problem", *_PROGRESS),
            "a route waits for an operator before this offset",
        ),
        "route-abandoned": Event(
            "warning", ("route",), "shutdown_timeout is over; a slice in flight will be repeated"
        ),
        "route-ended": Event("info", ("route", *_PROGRESS), "a route will deliver no more"),
        "route-progress": Event(
            "info",
            ("route", "state", "delivered", "skipped", "parked", "watermark", "lag"),
            "now and then, where there is no live table",
        ),
        "slice-divided": Event(
            "warning",
            ("route", "first", "last", "problem"),
            "a slice failed and no entry of it was named; it is delivered in shorter slices, "
            "and at last one entry at a time",
        ),
        "entry-parked": Event("warning", _GIVEN_UP, "an entry was given up and set aside"),
        "entry-skipped": Event("warning", _GIVEN_UP, "an entry was given up and passed"),
        "parked-delivered": Event("info", ("route", "offset"), "a parked entry was delivered"),
        "parked-failed": Event(
            "warning", ("route", "offset", "problem"), "a parked entry has failed again"
        ),
        "control-unavailable": Event(
            "warning",
            ("problem",),
            "a control socket cannot be made or opened; its callers are not heard",
        ),
        "control-opened": Event(
            "info",
            ("socket",),
            "the disk has room again for this control socket; callers are heard",
        ),
        "pipeline-reloaded": Event(
            "info",
            ("file", "routes", "readers", "added", "removed"),
            "the file was read again; these routes get new workers, these readers are opened "
            "anew, and these readers and routes come and go",
        ),
        "operator-acted": Event(
            "info",
            ("route", "reader", "action", "who", "reason"),
            "an operator has changed something",
        ),
        "reload-refused": Event(
            "error", ("problem",), "the pipeline file was read again, and cannot be used"
        ),
        "callback-failed": Event(
            "error", ("about", "problem"), "a callback of the embedding program has raised"
        ),
    }
)
"""Every event there is. Names and fields are stable: people search and alert by them."""


def level_of(event: str) -> Literal["info", "warning", "error"]:
    """Return the level of *event*; ``info`` for events of other programs."""
    return EVENTS[event].level if event in EVENTS else "info"


class State(Enum):
    """The state of a reader or a route."""

    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    WAITING = "no space"
    PAUSED = "paused"
    CANDIDATE = "candidate"
    STOPPED = "stopped"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """A reader at one moment. The counts are of this run.

    ``size`` is in bytes, and ``still`` the seconds without progress. ``term`` is the number of
    the term under which it leads, where engines take turns. ``measured`` has the reader's
    measures of its source, by the names of ``adaptor.Gauge``. ``latency`` is from the
    timestamp of a message to its append.
    """

    name: str
    adaptor: str
    state: State
    logged: int
    problem: str = ""
    size: int = 0
    still: float = 0.0
    term: int | None = None
    measured: dict[Gauge, float] = field(default_factory=dict)
    leaving: bool = False
    """Whether it was removed from the pipeline, and ends."""
    latency: Histogram = NO_LATENCY


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """A route at one moment. The counts are of this run, and *lag* is in entries.

    ``size`` counts delivered bytes. ``still`` is the seconds without a settled entry while
    there was work. ``slices`` has the durations of slices. ``waiting`` is how long it has only
    failed, and the time to its next try. ``limited`` is the rate of ``max_rate`` in entries a
    second while that makes it wait, else 0. ``latency`` is from log time to the ack.
    """

    name: str
    adaptor: str
    state: State
    delivered: int
    skipped: int
    watermark: int
    lag: int
    parked: int = 0
    problem: str = ""
    size: int = 0
    still: float = 0.0
    replaying: bool = False
    slices: Histogram = NOTHING
    waiting: BackoffWait | None = None
    limited: float = 0.0
    leaving: bool = False
    """Whether it was removed from the pipeline, and ends."""
    latency: Histogram = NO_LATENCY

    @property
    def patience(self) -> BackoffWait | None:
        """The retry state of a route that is retrying, or ``None``."""
        return self.waiting if self.state is State.RETRYING else None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The engine at one moment. *size* is the log's, in bytes.

    ``used`` is the part of the budget ``max_bytes`` that is spent. ``syncs`` has the durations
    of syncs. ``dead`` names the threads that should be running and are not.
    """

    directory: str
    last: int
    size: int
    spark: bool
    readers: tuple[ReaderStatus, ...]
    routes: tuple[RouteStatus, ...]
    used: int = 0
    max_bytes: int | None = None
    syncs: Histogram = NOTHING
    dead: tuple[str, ...] = ()
