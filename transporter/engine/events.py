"""Events and status of the engine, for observers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from transporter.engine.meters import NO_LATENCY, NOTHING, Histogram

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
            "the log is open; readers and routes start next",
        ),
        "engine-stopping": Event("info", ("reason",), "readers end, and routes drain; the reason"),
        "engine-stopped": Event("info", ("last_offset",), "everything has ended cleanly"),
        "endpoint-opened": Event("info", ("url",), "metrics and health are served below this URL"),
        "endpoint-unavailable": Event(
            "warning",
            ("problem",),
            "the default port is taken, so this engine serves no metrics and no health",
        ),
        "tracing-unavailable": Event(
            "warning",
            ("problem",),
            "a collector does not accept the spans; they are dropped and counted until it does",
        ),
        "spark-host-connected": Event(
            "info", ("pid",), "the Spark host is connected; Spark has not started yet"
        ),
        "spark-ready": Event("info", ("version", "master"), "Spark is up"),
        "spark-host-lost": Event(
            "warning",
            ("code", "problem", "retry_in"),
            "the Spark host has ended and is restarted",
        ),
        "worker-connected": Event("info", ("route", "shard", "pid"), "a worker has connected"),
        "worker-lost": Event(
            "warning",
            ("route", "problem", *_PROGRESS),
            "a route has lost its worker and gets another",
        ),
        "worker-held-back": Event(
            "info",
            ("route", "shard", "seconds"),
            "on a cluster: the previous worker may still deliver for this time",
        ),
        "reader-opened": Event("info", ("reader",), "a source is open, or open again"),
        "reader-secrets-renewed": Event(
            "info", ("reader",), "a secret file has changed; the next open uses the new secret"
        ),
        "reader-unavailable": Event(
            "warning",
            ("reader", "problem", "retry_in"),
            "a source is unreachable; it is retried without limit",
        ),
        "reader-stopped": Event(
            "error", ("reader", "problem"), "a reader has failed and waits for an operator"
        ),
        "reader-ended": Event(
            "info", ("reader", "logged"), "a reader has ended and appends no more"
        ),
        "reader-paused": Event(
            "info",
            ("reader",),
            "an operator has paused a reader; it stays closed until it is resumed",
        ),
        "reader-resumed": Event("info", ("reader",), "a paused reader is opened again"),
        "reader-progress": Event(
            "info", ("reader", "state", "logged"), "regularly, without a live table"
        ),
        "file-lost": Event(
            "warning",
            ("reader", "file", "byte", "problem"),
            "a file cannot be read after this byte: it was removed, cut or overwritten",
        ),
        "file-refused": Event(
            "warning",
            ("reader", "file", "problem"),
            "a symbolic link, anything else that is not a regular file, or a file whose name is "
            "not UTF-8, is not read",
        ),
        "leader-acquired": Event(
            "info", ("reader", "term", "leader"), "this engine leads and has begun a term"
        ),
        "leader-refreshed": Event(
            "info",
            ("reader", "term", "leader"),
            "this engine continues to lead, under another term",
        ),
        "leader-revoked": Event(
            "warning", ("reader", "term", "problem"), "another engine has won the election"
        ),
        "leader-fenced": Event(
            "warning",
            ("reader", "term", "problem"),
            "the election did not answer for a term, or a later term has begun",
        ),
        "election-unavailable": Event(
            "warning", ("reader", "problem"), "the election is unreachable; it is retried"
        ),
        "batch-halved": Event(
            "warning",
            ("reader", "rows", "problem"),
            "a query of an outbox took too long; the next one requests at most this number of rows",
        ),
        "sequence-caches": Event(
            "warning",
            ("reader", "table", "problem"),
            "rows of an outbox may be read out of order, because sessions cache its ids; the "
            "remedy",
        ),
        "outbox-polled": Event(
            "info",
            ("reader", "table", "problem"),
            "no trigger notifies of an outbox's rows, so it is polled; how to install one",
        ),
        "slot-created": Event(
            "info",
            ("reader", "slot", "publication"),
            "a reader of a database begins; the server keeps its log for this slot from now on",
        ),
        "slot-waits": Event(
            "warning",
            ("reader", "slot", "problem"),
            "the server creates a slot once transactions that run have ended: after two seconds, "
            "and each minute, their process ids and ages",
        ),
        "copy-began": Event("info", ("reader", "table", "run"), "a table is being copied"),
        "copy-complete": Event(
            "info", ("reader", "table", "run", "rows"), "all rows of a table were copied"
        ),
        "table-in-sync": Event(
            "info", ("reader", "table"), "the log has everything of a table that was copied"
        ),
        "schema-changed": Event(
            "info",
            ("reader", "table", "added", "dropped", "retyped"),
            "a table has other columns from here on",
        ),
        "table-rewritten": Event(
            "warning",
            ("reader", "table", "problem"),
            "rows of a table have values that its server does not send; the remedy",
        ),
        "table-removed": Event(
            "info",
            ("reader", "table"),
            "a table was dropped or renamed, or the pipeline file leaves it out now",
        ),
        "table-left-out": Event(
            "warning",
            ("reader", "table", "problem"),
            "a new table that a pattern matches cannot be read; the remedy",
        ),
        "partitions-changed": Event(
            "warning",
            ("reader", "table"),
            "partitions were attached or detached; rows that came or went with them are not sent",
        ),
        "value-as-text": Event(
            "warning",
            ("reader", "table", "column", "problem"),
            "a value does not fit its type of now, as after an ALTER TYPE, and is logged as a text",
        ),
        "slot-in-danger": Event(
            "error",
            ("reader", "slot", "retained", "status"),
            "the server is about to remove log that this slot needs, because the reader is behind",
        ),
        "queue-deletes": Event(
            "warning",
            ("reader", "queue", "problem"),
            "the brokers delete messages or offsets that the queue still needs; the remedy",
        ),
        "messages-deleted": Event(
            "error",
            ("reader", "queue", "offsets", "problem"),
            "this number of offsets of the queue's topic were deleted before they were read",
        ),
        "meter-read": Event(
            "info",
            ("reader", "purged", "rate", "seconds"),
            "every five seconds in which rows left an outbox: their number in this run, and the "
            "rate",
        ),
        "log-full": Event(
            "error", ("reader", "problem"), "an append found no space; its reader waits"
        ),
        "log-nearly-full": Event(
            "warning",
            ("used", "max_bytes", "holder", "needs_from"),
            "80 % of log.max_bytes are used; the holder needs the oldest entries",
        ),
        "log-has-room": Event("info", ("used", "max_bytes"), "less than 80 % are used again"),
        "log-compacted": Event(
            "info",
            ("segments", "dropped", "freed"),
            "old segments were rewritten without obsolete entries",
        ),
        "compaction-waiting": Event(
            "warning", ("problem",), "compaction waits for space on the disk; it is retried"
        ),
        "compaction-resumed": Event("info", (), "compaction has found space, and continues"),
        "segment-not-compacted": Event("warning", ("problem",), "a segment was left unchanged"),
        "segment-removed": Event(
            "info", ("file", "through", "bytes"), "retention has removed a segment"
        ),
        "console-listening": Event(
            "info", ("url",), "'transporter ui --login' prints a link to the console"
        ),
        "console-failed": Event(
            "warning",
            ("problem",),
            "there is no console, or its process has failed; it is tried again",
        ),
        "release-refused": Event(
            "warning",
            ("route", "reader", "why"),
            "on_full: stop-route takes nothing from this route, because of this reader",
        ),
        "entries-released": Event(
            "warning", ("route", "first", "last"), "on_full: stop-route dropped these undelivered"
        ),
        "housekeeping-failed": Event(
            "warning", ("problem",), "compaction or retention failed; it is retried"
        ),
        "file-ignored": Event(
            "warning",
            ("file", "problem"),
            "a file in the log directory looks like a segment and is not one of this log",
        ),
        "clock-jumped": Event(
            "warning",
            ("seconds",),
            "the wall clock jumped ahead by this time between two appends; log time never goes "
            "back",
        ),
        "log-time-ahead": Event(
            "warning",
            ("seconds",),
            "an append was made while the wall clock was this far ahead; see docs/log.md, Log time",
        ),
        "route-begins": Event("info", ("route", "offset"), "a new route is declared, from here on"),
        "offset-log-unused": Event(
            "warning",
            ("route",),
            "no route of the pipeline uses this one; it keeps entries from being removed",
        ),
        "pipeline-renamed": Event(
            "info", ("before", "name"), "the log belongs to a pipeline that had another name"
        ),
        "log-left-behind": Event(
            "warning",
            ("log", "name", "undelivered"),
            "this pipeline file ran on another log before, which holds entries that a route of it "
            "has not delivered: give the pipeline that name again, or run it once more under it",
        ),
        "route-secrets-renewed": Event(
            "info", ("route",), "a secret file has changed; a new worker uses the new secret"
        ),
        "route-retrying": Event(
            "warning",
            ("route", "problem", "retry_in", *_PROGRESS),
            "a sink is unreachable, or an entry has failed; it is retried",
        ),
        "route-stopped": Event(
            "error",
            ("route", "offset", "problem", *_PROGRESS),
            "a route waits for an operator before this offset",
        ),
        "route-abandoned": Event(
            "warning",
            ("route", "lag"),
            "shutdown_timeout has passed; these entries wait for the next run, which redelivers a "
            "slice in flight",
        ),
        "replay-ended": Event(
            "info", ("route", "first", "last", *_PROGRESS), "a replay was delivered to its end"
        ),
        "route-ended": Event(
            "info", ("route", *_PROGRESS), "a route has ended and delivers no more"
        ),
        "route-progress": Event(
            "info",
            ("route", "state", "delivered", "skipped", "parked", "watermark", "lag"),
            "regularly, without a live table",
        ),
        "slice-divided": Event(
            "warning",
            ("route", "first", "last", "problem"),
            "a slice failed and the error named none of its entries; it is delivered in shorter "
            "slices, at last one entry at a time",
        ),
        "entry-parked": Event("warning", _GIVEN_UP, "an entry has failed too often and was parked"),
        "entry-skipped": Event(
            "warning", _GIVEN_UP, "an entry has failed too often and was skipped"
        ),
        "given-up-unwritten": Event(
            "warning",
            ("route", "problem"),
            "the disk has no room for the lines about skipped entries; they wait in memory",
        ),
        "parked-delivered": Event("info", ("route", "offset"), "a parked entry was delivered"),
        "parked-failed": Event(
            "warning", ("route", "offset", "problem"), "a parked entry has failed again"
        ),
        "control-unavailable": Event(
            "warning",
            ("problem",),
            "a control socket cannot be created or opened; commands do not reach this engine "
            "through it",
        ),
        "control-opened": Event(
            "info",
            ("socket",),
            "the disk has space again for this control socket; commands work",
        ),
        "pipeline-reloaded": Event(
            "info",
            ("file", "routes", "readers", "added", "removed"),
            "the file was read again; these routes get new workers, these readers are opened "
            "again, and these readers and routes are added and removed",
        ),
        "operator-acted": Event(
            "info",
            ("route", "reader", "action", "reason", "who", "via", "from", "uid", "pid"),
            "an operator has changed something; `via` and `from` are set where a front end acted "
            "for a person",
        ),
        "reload-refused": Event(
            "error", ("problem",), "the pipeline file was read again, and is not valid"
        ),
        "callback-failed": Event(
            "error", ("about", "problem"), "a callback of the embedding program has raised"
        ),
    }
)
"""Every event there is. Names and fields are stable: people search and alert by them."""


LEVELS: Final = ("info", "warning", "error")
"""The levels of events, the lowest first."""


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
    of syncs. ``dead`` names the threads that should be running and are not, and ``hung`` those
    that run and have not come through their loop for minutes. ``ending`` is for how many seconds
    the engine drains already, to end then, or ``None``.
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
    hung: tuple[str, ...] = ()
    ending: float | None = None
