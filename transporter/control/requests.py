"""Requests of operators, and the interface that carries them out. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.audit import Operator


@dataclass(frozen=True, slots=True)
class Status:
    """Status of readers and routes."""


@dataclass(frozen=True, slots=True)
class LogMetadata:
    """Metadata of the newest ``most`` entries from ``first`` to ``last``, without payloads."""

    first: int = 0
    last: int = 1 << 62
    most: int = 10


@dataclass(frozen=True, slots=True)
class Events:
    """The engine's newest events after number ``after``, at most ``most`` of them.

    Only those of ``level`` or above, and with ``route`` only those of that route.
    """

    after: int = 0
    level: Literal["info", "warning", "error"] = "info"
    route: str = ""
    most: int = 100


@dataclass(frozen=True, slots=True)
class History:
    """Half an hour of the counts of all readers and routes, or of one ``route``."""

    route: str = ""


@dataclass(frozen=True, slots=True)
class Ack:
    """Settle ``first`` to ``last`` without delivering them."""

    route: str
    first: int
    last: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Replay:
    """Redelivery of a range: from ``first``, or from the log time ``since`` (µs UTC).

    It ends with ``last``, with the log time ``until``, or at the watermark.
    """

    route: str
    first: int | None = None
    since: int | None = None
    last: int | None = None
    until: int | None = None
    namespace: str = ""
    dry_run: bool = False
    partial: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CancelReplay:
    """End a replay where it is."""

    route: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Deliver nothing more."""

    route: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on, after a pause or where the route has halted."""

    route: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """Deliver one entry, and stay paused."""

    route: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PauseReader:
    """Close a reader, and open it no more."""

    reader: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResumeReader:
    """End a reader's pause, or its wait for a source that is away."""

    reader: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RestartReader:
    """Close a reader and open it again, also one that has stopped."""

    reader: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the offset log of a route that is not run any more."""

    route: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RetryParked:
    """Deliver the parked entries from ``first`` to ``last``, and then those behind them.

    With ``offsets`` those in these ranges instead, each with its first and its last offset. With
    ``only`` those behind them stay parked.
    """

    route: str
    first: int = 0
    last: int = 1 << 62
    reason: str = ""
    only: bool = False
    offsets: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SkipParked:
    """Drop the parked entries from ``first`` to ``last``, then deliver those behind them.

    With ``offsets`` those in these ranges instead, as of :class:`RetryParked`. With ``only`` those
    behind them stay parked.
    """

    route: str
    first: int = 0
    last: int = -1
    reason: str = ""
    only: bool = False
    offsets: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class NoteParked:
    """Record a note about the parked entry at ``offset``; an empty one removes the note."""

    route: str
    offset: int
    text: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reload:
    """Read the pipeline file again. With ``dry_run`` change nothing and return the changes."""

    reason: str = ""
    dry_run: bool = False


ReadRequest = Status | LogMetadata | Events | History
"""Requests that change nothing, and may be repeated."""
OffsetRequest = Ack | CancelReplay | Pause | Resume | RetryParked | NoteParked
"""Requests that need a route's files alone, whether an engine runs or not."""
ReaderRequest = PauseReader | ResumeReader | RestartReader
Request = ReadRequest | OffsetRequest | Replay | Step | ReaderRequest | Forget | SkipParked | Reload
KINDS: Final[dict[str, type[Any]]] = {
    "status": Status,
    "log-metadata": LogMetadata,
    "events": Events,
    "history": History,
    "ack": Ack,
    "replay": Replay,
    "replay-cancel": CancelReplay,
    "pause": Pause,
    "resume": Resume,
    "step": Step,
    "reader-pause": PauseReader,
    "reader-resume": ResumeReader,
    "reader-restart": RestartReader,
    "forget": Forget,
    "parked-retry": RetryParked,
    "parked-skip": SkipParked,
    "parked-note": NoteParked,
    "reload": Reload,
}


class Operations(Protocol):
    """Carries requests out: on a running engine's own objects, or alone with the log."""

    def perform(
        self, request: Request, operator: Operator, is_abandoned: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Perform *request*, audited as done by *operator*; return plain values.

        The effect is durable on return. A :class:`~transporter.errors.TransporterError` means
        that nothing was changed. A long read-only request ends early when *is_abandoned* returns
        true: its client no longer waits.
        """
