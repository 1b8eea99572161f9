"""What the engine tells its surroundings while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol


class Observer(Protocol):
    """Hears every event: a stable name and plain values. Called from any thread."""

    def __call__(self, event: str, **details: Any) -> None:  # noqa: ANN401 - plain values
        """Take note; must return quickly and never raise."""


class State(Enum):
    """What a reader or a route is doing."""

    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    WAITING = "no space"
    STOPPED = "stopped"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """A reader at one moment; *logged* counts messages of this run."""

    name: str
    adaptor: str
    state: State
    logged: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """A route at one moment; the counts are of this run, *lag* is in entries."""

    name: str
    adaptor: str
    state: State
    delivered: int
    skipped: int
    watermark: int
    lag: int
    parked: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The engine at one moment; *size* is the log's, in bytes."""

    directory: str
    last: int
    size: int
    spark: bool
    readers: tuple[ReaderStatus, ...]
    routes: tuple[RouteStatus, ...]
