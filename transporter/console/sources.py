"""The logs that the console shows: each with a running engine, with a dead one, or damaged.

All viewers share a look, and the events and the history of the engine.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from transporter.console.rates import RateMeter, history_rates, with_history
from transporter.control.client import EngineClient, EngineEnded, NoEngine
from transporter.control.event_cursor import EventCursor
from transporter.control.offline_status import read_status
from transporter.control.requests import History, Status
from transporter.errors import ActionRefused, EngineUnreachable, EnvironmentFault, TransporterError
from transporter.log.filesystem import RealFileSystem
from transporter.log.lock import owner_of
from transporter.log.meta import read_meta
from transporter.log.pipeline_record import read_pipeline_record
from transporter.pipeline.log_location import log_directory
from transporter.pipeline.yaml_document import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from transporter.console.rates import Rates
    from transporter.control.requests import ReadRequest

ANSWER: Final = 2.0
"""Seconds for an engine's answer before a page shows the last picture instead."""
FRESH: Final = 0.5
"""Seconds for which all viewers share one look, so that ten tabs cost the engine what one does."""
_KEPT_EVENTS: Final = 1_000
"""Events in memory: as many as an engine keeps."""
HISTORY_FRESH: Final = 5.0
"""Seconds between two points of an engine's history."""
EVENTS_FRESH: Final = 0.5
"""Seconds for which all viewers share the events."""
_LEVELS: Final = ("info", "warning", "error")

LookState = Literal["live", "silent", "stopped", "absent", "damaged"]
"""The state of a log at one look.

- ``live``: an engine has answered
- ``silent``: a process holds the log, and does not answer
- ``stopped``: no engine runs; the picture is the disk's
- ``absent``: there is no log yet
- ``damaged``: no engine runs, and the log cannot be read
"""


@dataclass(frozen=True, slots=True)
class Look:
    """The state of a log at one moment.

    Attributes:
        status: the result of ``transporter status --json``; ``None`` if there is none to show.
        problem: the reason why there is no fresh status, if so.
        at: the wall time of ``status`` in seconds, which is earlier if the engine is silent.

    """

    state: LookState
    status: Mapping[str, Any] | None
    at: float
    problem: str = ""
    rates: Rates = field(default_factory=dict)


class LogSource:
    """One log, by its directory or by its pipeline file. Thread-safe."""

    def __init__(
        self,
        name: str,
        directory: Path,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open nothing yet. *file* is the pipeline file, if the log was named by it."""
        self.name, self.directory = name, directory
        self._file, self._clock = file, clock
        self._lock = threading.Lock()
        self._engine: EngineClient | None = None
        self._meter = RateMeter()
        self.memory = EngineMemory(self.ask, clock)
        self._looked_at = float("-inf")
        self._last: Look | None = None

    @property
    def is_named_by_file(self) -> bool:
        """Whether commands name the log by its pipeline file."""
        return self._file is not None

    @property
    def file(self) -> Path | None:
        """The pipeline file, or the one that has last run on the log, if that is known."""
        if self._file is not None:
            return self._file
        record = read_pipeline_record(RealFileSystem(), self.directory)
        return None if record is None else self.directory / record.file

    def look(self) -> Look:
        """Return the state of the log, at most :data:`FRESH` seconds old."""
        with self._lock:
            is_fresh = self._last is not None and self._clock() - self._looked_at <= FRESH
            if not is_fresh or self._last is None:
                self._last = self._look_afresh(self._last)
                self._looked_at = self._clock()
            found = self._last
        if found.state != "live":
            return found
        long = history_rates(self.memory.history(), time.time())
        return replace(found, rates=with_history(found.rates, long)) if long else found

    def ask(self, request: ReadRequest) -> dict[str, Any] | None:
        """Return the engine's answer to *request*, or ``None`` if none answers it.

        None answers now, or the one that runs is older and does not know the request.
        """
        with self._lock:
            try:
                return self._ask_engine(request)
            except ActionRefused:
                return None
            except (NoEngine, EngineEnded, EngineUnreachable):
                self._hang_up()
                return None

    def forget_look(self) -> None:
        """Look again for the next page, because something was changed."""
        with self._lock:
            self._looked_at = float("-inf")

    def close(self) -> None:
        """Close the conversation with the engine, if there is one."""
        with self._lock:
            self._hang_up()

    def _look_afresh(self, last: Look | None) -> Look:
        try:
            status = self._ask_engine(Status())
        except NoEngine:
            return self._look_at_disk(last)
        except (EngineUnreachable, EngineEnded) as error:
            self._hang_up()
            return self._look_at_disk(last, str(error))
        self._meter.add(self._clock(), status)
        return Look("live", status | {"live": True}, time.time(), rates=self._meter.rates())

    def _ask_engine(self, request: ReadRequest) -> dict[str, Any]:
        """Return the engine's answer. A conversation that has ended meanwhile is begun again."""
        if self._engine is not None:
            try:
                return self._engine.call(request)
            except EngineEnded:
                self._hang_up()
        self._engine = EngineClient(self.directory, ANSWER)
        return self._engine.call(request)

    def _look_at_disk(self, last: Look | None, problem: str = "") -> Look:
        self._hang_up()
        try:
            owner = owner_of(self.directory) if self.directory.is_dir() else None
            if owner is not None:
                return self._look_at_silent(last, owner, problem)
            if not self.directory.is_dir() or read_meta(RealFileSystem(), self.directory) is None:
                return Look("absent", None, time.time())
            return Look("stopped", read_status(self.directory) | {"live": False}, time.time())
        except TransporterError as error:
            return Look("damaged", None, time.time(), str(error))
        except OSError as error:
            return Look("damaged", None, time.time(), f"{self.directory}: {error.strerror}")

    def _look_at_silent(self, last: Look | None, owner: str, problem: str) -> Look:
        """Return the last picture of a log whose owner does not answer, or that of the disk."""
        text = problem or f"process {owner} holds the log and does not answer"
        if last is not None and last.status is not None:
            return replace(last, state="silent", problem=text)
        status = read_status(self.directory) | {"live": False}
        return Look("silent", status, time.time(), text)

    def _hang_up(self) -> None:
        if self._engine is not None:
            self._engine.__exit__()
            self._engine = None


class EngineMemory:
    """The newest events and the history of the engine on one log. Thread-safe.

    When the engine ends, both stay as they were last seen.
    """

    def __init__(
        self,
        ask: Callable[[ReadRequest], Mapping[str, Any] | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Fetch by *ask*, which returns ``None`` if no engine answers."""
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()
        self._cursor = EventCursor()
        self._events: deque[Mapping[str, Any]] = deque(maxlen=_KEPT_EVENTS)
        self._history: Mapping[str, Any] | None = None
        self._history_at = self._events_at = float("-inf")

    def events(self, level: str = "info", route: str = "") -> list[Mapping[str, Any]]:
        """Return the newest events of *level* or above, the oldest first, of *route* if given."""
        least = _LEVELS.index(level) if level in _LEVELS else 0
        with self._lock:
            if self._clock() - self._events_at >= EVENTS_FRESH:
                self._fetch_events()
                self._events_at = self._clock()
            return [
                each
                for each in self._events
                if _LEVELS.index(each["level"]) >= least
                and (not route or each.get("route") == route)
            ]

    def history(self) -> Mapping[str, Any] | None:
        """Return the last half hour of all readers and routes, ``None`` without any."""
        with self._lock:
            if self._clock() - self._history_at >= HISTORY_FRESH:
                self._history = self._ask(History()) or self._history
                self._history_at = self._clock()
            return self._history

    def _fetch_events(self) -> None:
        """Fetch the events that are new. Those of another run of the engine replace all others."""
        for page in self._cursor.read(self._ask):
            if page.is_restart:
                self._events.clear()
            self._events.extend(page.events)


def find_sources(targets: Iterable[Path], environ: Mapping[str, str]) -> dict[str, LogSource]:
    """Return the logs that *targets* (pipeline files or log directories) name, by their names.

    Raises:
        ConfigError: a pipeline file cannot be read.
        EnvironmentFault: a target does not exist.

    """
    found: dict[str, LogSource] = {}
    for target in targets:
        source = _find_source(target, environ)
        name, number = source.name, 2
        while name in found:
            name, number = f"{source.name}-{number}", number + 1
        source.name = name
        found[name] = source
    return found


def _find_source(target: Path, environ: Mapping[str, str]) -> LogSource:
    place = target.absolute()
    if place.is_dir():
        record = read_pipeline_record(RealFileSystem(), place)
        return LogSource(_path_name(record.name if record else place.name), place)
    if not place.exists():
        raise EnvironmentFault(f"{target}: there is no such pipeline file or log directory")
    directory = log_directory(target, environ)
    root = read(place, environ, only=lambda key: key == ("name",)).root
    name = (root or {}).get("name", target.stem)
    return LogSource(_path_name(str(name)), directory, place)


def _path_name(name: str) -> str:
    """Return *name* with everything that a URL would escape replaced."""
    kept = "".join(each if each.isascii() and each.isalnum() else "-" for each in name)
    return kept.strip("-") or "log"
