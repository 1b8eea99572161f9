"""Pipelines inside another program: ``from transporter import Pipeline``.

It never touches signal handlers, logging handlers or standard output of its host,
and imports no Spark into this process.
"""

from __future__ import annotations

import logging
import os
import queue
import stat
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from transporter import __version__
from transporter.control.server import attach_control
from transporter.engine.engine import Engine
from transporter.engine.events import EngineStatus, level_of
from transporter.errors import EnvironmentFault
from transporter.log.lock import DirectoryLock
from transporter.observe.metrics_and_health import Monitor
from transporter.pipeline.config import Pipeline as Settings
from transporter.pipeline.config import build, load
from transporter.protocol.network import network_of
from transporter.spark.launch import SparkLauncher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from transporter.engine.events import Observer

TICK: Final = 0.25
"""Seconds between two checks of the engine: the longest delay of a change's report."""
METER: Final = 5.0
"""Seconds between two meter reads."""
BACKLOG: Final = 10_000
"""Events that may wait for slow callbacks. Further ones are dropped."""
_LOGGER: Final = "transporter"


@dataclass(frozen=True, slots=True)
class Booted:
    """The event when the log is open and everything was started."""

    log_id: str
    epoch: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class MeterRead:
    """The status of the engine, reported every few seconds and once before the exit."""

    status: EngineStatus


@dataclass(frozen=True, slots=True)
class RouteChanged:
    """A change of a route's state, with the reason as ``problem`` if there is one."""

    route: str
    state: str
    problem: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A warning or an error of the engine. ``about`` is the event's stable name."""

    about: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Exited:
    """The end of the engine. ``error`` is its failure, and ``halted`` waits for an operator."""

    halted: tuple[str, ...]
    error: BaseException | None


Event = Booted | MeterRead | RouteChanged | Problem | Exited


@contextmanager
def assemble_engine(
    settings: Settings,
    observe: Observer,
    environ: Mapping[str, str] | None = None,
    *,
    fail_fast: bool = False,
) -> Iterator[Engine]:
    """Assemble an engine with all its parts. The caller starts and stops it.

    When an operator reloads the pipeline file, variables come from *environ*, by
    default the environment. *fail_fast* is for :class:`Engine`.

    Raises:
        LogLocked: another engine runs on this log.
        EnvironmentFault: a resource that it needs is missing or in use.
        Corrupt: the log is damaged. Nothing was changed.

    """
    _refuse_second_engine(settings.log.dir)
    spark = settings.spark
    launcher = SparkLauncher(
        settings.log.dir,
        cache_directory(),
        spark.master,
        spark.config,
        network_of(spark),
        frames=any(route.on_frames for route in settings.routes),
        secrets=settings.secrets,
    )
    with Monitor(settings, observe, __version__) as monitor:
        engine = Engine(
            settings, launcher, monitor.observe, fail_fast=fail_fast, tracer=monitor.tracer
        )
        attach_control(engine, os.environ if environ is None else environ)
        monitor.start(engine)
        yield engine


def _refuse_second_engine(directory: Path) -> None:
    """Raise ``LogLocked`` if another engine has the log in *directory*.

    Its ports are in use, too, but its pid is more helpful. The lock is not kept, because no log
    may be created there before the ports are taken.
    """
    if os.path.isdir(directory):  # noqa: PTH112 - Path.is_dir() may raise
        DirectoryLock(directory).release()


def cache_directory() -> Path:
    """Return the folder for generated files of this user.

    Raises:
        EnvironmentFault: this user has no home, and the folder for such users is not theirs.

    """
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "transporter"
    try:
        return Path.home() / ".cache" / "transporter"
    except RuntimeError:
        # No HOME, and no passwd entry.
        return _fallback_directory()


def _fallback_directory() -> Path:
    """Return a private folder for the generated files of a user without a home."""
    path = Path(tempfile.gettempdir()) / f"transporter-{os.getuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise EnvironmentFault(
            f"{path} is not a folder that only this user can write to; set XDG_CACHE_HOME to one"
        )
    return path


class Pipeline:
    """One pipeline that runs in threads of this program. Thread-safe.

    It is used once: made, started, stopped. As a context manager it starts, and stops
    at the end. It also stops, draining as at any stop, when the program's main
    thread ends without having stopped it. Events of the engine go to the logger
    ``transporter``, which keeps the host's configuration.
    """

    def __init__(
        self,
        values: Mapping[str, Any] | Settings,
        folder: str | os.PathLike[str] = ".",
        *,
        meter: float = METER,
    ) -> None:
        """Validate a pipeline made in Python: the content of a pipeline file in *folder*.

        Variables are not replaced, because a program has its own ways to read them. *meter*
        is the time between two meter reads, in seconds.

        Raises:
            ConfigError: *values* are not valid.

        """
        settings = values if isinstance(values, Settings) else build(values, Path(folder))
        self._settings, self._meter = settings, meter
        self._environ: Mapping[str, str] = {}
        self._url: str | None = None
        self._states: dict[str, tuple[str, str]] = {}
        self._logger = logging.getLogger(_LOGGER)
        self._callbacks: list[Callable[[Event], object]] = []
        self._event_queue: queue.Queue[Event | None] = queue.Queue(BACKLOG)
        self._engine: Engine | None = None
        self._error: BaseException | None = None
        self._timeout: float | None = None
        self._booted, self._stopping, self._ended = (threading.Event() for _ in range(3))
        self._lock = threading.Lock()
        self._supervisor = threading.Thread(target=self._run, name=f"pipeline-{self.name}")
        self._notifier = threading.Thread(target=self._notify_callbacks, name=f"events-{self.name}")

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        *,
        meter: float = METER,
    ) -> Self:
        """Validate the pipeline file at *path*, with variables from *env* or the environment.

        Raises:
            ConfigError: the file cannot be read, or is not valid.

        """
        environ = os.environ if env is None else env
        made = cls(load(Path(path), environ), meter=meter)
        made._environ = environ
        return made

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self._settings.name

    @property
    def url(self) -> str | None:
        """The address of its metrics and health, if they are served and it has started."""
        return self._url

    @property
    def error(self) -> BaseException | None:
        """The failure that ended it, if any."""
        return self._error

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Have *callback* called with every event from now on, in order, on our own thread.

        Its exceptions are logged and not propagated. It may be slow: the engine
        does not wait for it, but events beyond :data:`BACKLOG` are dropped.
        """
        self._callbacks.append(callback)

    def start(self) -> None:
        """Start everything, and return once the log is open and readers and routes run.

        Raises:
            RuntimeError: it was already started.
            TransporterError: it could not start.

        """
        with self._lock:
            if self._supervisor.ident is not None:
                raise RuntimeError(f"pipeline {self.name} was already started; create a new one")
            self._notifier.start()
            self._supervisor.start()
        self._booted.wait()
        if self._engine is None and self._error is not None:
            self._join()
            raise self._error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until everything has ended, at most *timeout* seconds, and return whether it has.

        It ends after :meth:`stop`, after a failure, or when the sources have ended and all
        entries are delivered.
        """
        return self._ended.wait(timeout)

    def stop(self, timeout: float | None = None) -> None:
        """Drain for up to *timeout* seconds (default: ``shutdown_timeout``), and end.

        It returns when everything has ended and the callbacks were notified. Called from a
        callback, it only requests the stop.
        Calling it again changes nothing.

        Raises:
            TransporterError: the engine had failed.

        """
        if self._supervisor.ident is None:
            return
        self._timeout = timeout
        self._stopping.set()
        if self._engine is not None:
            self._engine.request_stop()
        if threading.current_thread() in (self._notifier, self._supervisor):
            return
        self._join()
        if self._error is not None:
            raise self._error

    def status(self) -> EngineStatus:
        """Return the current status of the engine.

        Raises:
            RuntimeError: it has not started.

        """
        if self._engine is None:
            raise RuntimeError(f"pipeline {self.name} has not started")
        return self._engine.status()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except BaseException:
            # The host's own error says more.
            if error is None:
                raise

    def _join(self) -> None:
        self._supervisor.join()
        self._notifier.join()

    def _run(self) -> None:
        """Own the engine from its first moment to its last."""
        halted: tuple[str, ...] = ()
        try:
            with assemble_engine(self._settings, self._observe, self._environ) as engine:
                try:
                    engine.start()
                    self._engine = engine
                    self._booted.set()
                    self._watch(engine)
                finally:
                    engine.stop(self._timeout)
                    halted = tuple(engine.halted)
                    self._report_status(engine)
        except BaseException as error:  # noqa: BLE001 - it is raised to the caller of start() or stop()
            self._error = error
        finally:
            self._ended.set()
            self._booted.set()
            # Callbacks are always notified of the end, even slow ones.
            self._event_queue.put(Exited(halted, self._error))
            self._event_queue.put(None)

    def _watch(self, engine: Engine) -> None:
        due = time.monotonic() + self._meter
        main = threading.main_thread()
        while not engine.wait(TICK) and main.is_alive() and not self._stopping.is_set():
            status = engine.status()
            self._report_changes(status)
            if time.monotonic() >= due:
                due += self._meter
                self._enqueue(MeterRead(status))

    def _report_status(self, engine: Engine) -> None:
        status = engine.status()
        self._report_changes(status)
        self._enqueue(MeterRead(status))

    def _report_changes(self, status: EngineStatus) -> None:
        for route in status.routes:
            now = (route.state.value, route.problem)
            if self._states.get(route.name) != now:
                self._states[route.name] = now
                self._enqueue(RouteChanged(route.name, *now))

    def _observe(self, event: str, **details: Any) -> None:  # noqa: ANN401 - plain values
        """Observe the engine: log the event, and queue it for the callbacks."""
        level = level_of(event)
        shown = " ".join(f"{name}={value!r}" for name, value in details.items())
        self._logger.log(
            logging.getLevelNamesMapping()[level.upper()],
            "%s %s",
            event,
            shown,
            extra={"event": event, "details": details, "pipeline": self.name},
        )
        if event == "endpoint-opened":
            self._url = details["url"]
        elif event == "engine-started":
            self._enqueue(Booted(details["log_id"], details["epoch"], details["last_offset"]))
        elif level != "info":
            self._enqueue(Problem(event, details))

    def _enqueue(self, event: Event) -> None:
        try:
            self._event_queue.put_nowait(event)
        except queue.Full:
            # The engine must not wait for a callback that does not return.
            self._logger.warning("an event was dropped: the callbacks are too slow")

    def _notify_callbacks(self) -> None:
        while (event := self._event_queue.get()) is not None:
            for callback in tuple(self._callbacks):
                try:
                    callback(event)
                except Exception as error:  # noqa: BLE001 - the host's own code
                    self._log_failure(event, error)

    def _log_failure(self, event: Event, error: Exception) -> None:
        problem = self._settings.secrets.hide(f"{type(error).__name__}: {error}")
        details = {"about": type(event).__name__, "problem": problem}
        self._logger.error(
            "callback-failed about=%r problem=%r",
            *details.values(),
            extra={"event": "callback-failed", "details": details, "pipeline": self.name},
            exc_info=error,
        )
