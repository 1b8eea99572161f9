"""What a running engine shows: a live table on a terminal, structured lines otherwise."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import structlog
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from transporter.cli.output import printable
from transporter.cli.status import held, patience, source_lag
from transporter.engine.events import EngineStatus, ReaderStatus, RouteStatus, State, level_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRESS: Final = 10.0
"""Seconds between two looks at the progress where there is no live table."""
UNCHANGED: Final = 60.0
"""Seconds after which progress that has not changed is written again."""
_LEVELS: Final = ("debug", "info", "warning", "error")
_PLAIN: Final = (bool, int, float, type(None))
_COLOURS: Final = {
    State.RUNNING: "green",
    State.ENDED: "blue",
    State.STARTING: "cyan",
    State.RETRYING: "yellow",
    State.WAITING: "yellow",
    State.PAUSED: "magenta",
    State.CANDIDATE: "cyan",
    State.STOPPED: "red",
}


class Rates:
    """Turns growing counts into rates over the last few seconds. Pure but for its memory."""

    def __init__(self, window: float = 3.0) -> None:
        """Look back *window* seconds."""
        self._window = window
        self._seen: dict[str, list[tuple[float, int]]] = {}

    def rate(self, name: str, count: int, now: float) -> float:
        """Take note that *name* stands at *count* at the time *now*; return counts a second."""
        seen = self._seen.setdefault(name, [])
        seen.append((now, count))
        while len(seen) > 2 and now - seen[1][0] >= self._window:  # noqa: PLR2004 - two points make a rate
            seen.pop(0)
        start, before = seen[0]
        return (count - before) / (now - start) if now > start else 0.0


class Lines:
    """Writes events to stderr, one line each; an ``engine.events.Observer``.

    The level ``debug`` has no events of its own: it adds progress that has not changed.
    """

    def __init__(
        self,
        log_format: str,
        *,
        colours: bool,
        level: str = "info",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write ``text`` or ``json``, and nothing below *level*."""
        renderer: Any = (
            structlog.processors.JSONRenderer()
            if log_format == "json"
            else structlog.dev.ConsoleRenderer(colors=colours, pad_event_to=22)
        )
        self._chain = [structlog.processors.TimeStamper(fmt="iso", utc=True), renderer]
        self._level, self._clock = _LEVELS.index(level), clock
        self._due = clock() + PROGRESS
        self._written: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}

    def __call__(self, event: str, **details: Any) -> None:  # noqa: ANN401 - plain values
        """Write one line."""
        level = level_of(event)
        if _LEVELS.index(level) < self._level:
            return
        shown = {
            name: value if isinstance(value, _PLAIN) else printable(value)
            for name, value in details.items()
        }
        line: Any = {"event": event, "level": level, **shown}
        for step in self._chain:
            line = step(None, level, line)
        self.emit(line)

    def emit(self, line: str) -> None:
        """Put the finished *line* out."""
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def show(self, status: EngineStatus, doing: str = "") -> None:
        """Write a line of progress for each reader and route whose progress is due."""
        now = self._clock()
        if now < self._due and not doing:
            return
        self._due = now + PROGRESS
        for event, details in _progress(status):
            self._write_progress(event, details, now, always=bool(doing))

    def _write_progress(
        self, event: str, details: dict[str, Any], now: float, *, always: bool
    ) -> None:
        """Write a line if it differs from the last of its kind, or that is a minute old."""
        name = next(iter(details.values()))
        written, before = self._written.get((event, name), (now, None))
        every = always or _LEVELS[self._level] == "debug"
        if every or details != before or now - written >= UNCHANGED:
            self._written[event, name] = now, details
            self(event, **details)


def _progress(status: EngineStatus) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the event and the details of each line of progress; a name comes first in them."""
    for reader in status.readers:
        details = {"reader": reader.name, "state": reader.state.value, "logged": reader.logged}
        yield "reader-progress", details
    for route in status.routes:
        counts = ("delivered", "skipped", "parked", "watermark", "lag")
        details = {"route": route.name, "state": route.state.value}
        yield "route-progress", details | {name: getattr(route, name) for name in counts}


class LiveTable(Lines):
    """The same lines, above a table that shows every reader and route as they are now."""

    def __init__(self, live: Live, log_format: str, hints: str, level: str) -> None:
        """Draw into *live*."""
        super().__init__(log_format, colours=not live.console.no_color, level=level)
        self._live, self._hints = live, hints
        self._rates = Rates()

    def emit(self, line: str) -> None:
        """Print *line* above the table."""
        self._live.console.print(Text.from_ansi(line))

    def show(self, status: EngineStatus, doing: str = "") -> None:
        """Draw *status*."""
        now = time.monotonic()
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column in ("", "adaptor", "state"):
            table.add_column(column)
        for column in ("total", "per second", "skipped", "parked", "lag"):
            table.add_column(column, justify="right")
        for reader in status.readers:
            table.add_row(*self._reader(reader, now))
        for route in status.routes:
            table.add_row(*self._route(route, now))
        footer = self._footer(status, doing)
        self._live.update(Group(table, *self._problems(status), footer), refresh=True)

    def _reader(self, reader: ReaderStatus, now: float) -> list[Text | str]:
        rate = self._rates.rate(f"reader {reader.name}", reader.logged, now)
        count, speed = f"{reader.logged:,}", f"{rate:,.0f}"
        return [
            f"reader {reader.name}",
            reader.adaptor,
            _state(reader.state),
            count,
            speed,
            "",
            "",
            source_lag(reader.measured),
        ]

    def _route(self, route: RouteStatus, now: float) -> list[Text | str]:
        rate = self._rates.rate(f"route {route.name}", route.delivered, now)
        return [
            f"route {route.name}",
            route.adaptor,
            _state(route.state),
            f"{route.delivered:,}",
            f"{rate:,.0f}",
            f"{route.skipped:,}",
            f"{route.parked:,}",
            f"{route.lag:,}",
        ]

    def _problems(self, status: EngineStatus) -> list[Text]:
        told = [(each.name, each.problem) for each in status.readers]
        told += [(each.name, _patient(each)) for each in status.routes]
        return [Text(f"{name}: {printable(text)}", style="yellow") for name, text in told if text]

    def _footer(self, status: EngineStatus, doing: str) -> Text:
        size = f"{status.size / (1 << 20):,.0f} MiB"
        parts = [f"log {printable(status.directory)}", f"last offset {status.last:,}", size]
        parts += [doing] if doing else [] if status.spark else ["Spark is starting"]
        text = " · ".join(parts)
        return Text(f"{text}\n{self._hints}", style="dim")


def _patient(route: RouteStatus) -> str:
    """Return the problem of *route*, and when it tries again."""
    if route.patience is None:
        return route.problem or (held(route.limited) if route.limited else "")
    return f"{route.problem} ({patience(route.patience.since, route.patience.left)})"


def _state(state: State) -> Text:
    return Text(state.value, style=_COLOURS[state])


class _PrintableOutput:
    """Standard output that escapes whatever could move a terminal's cursor.

    Writers print what came from messages, and in their worker they see no terminal.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def write(self, text: str) -> int:
        lines = text.split("\n")
        return self._terminal.write("\n".join(map(_tabbed, lines)))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else a stream can do
        return getattr(self._terminal, name)


def _tabbed(line: str) -> str:
    return "\t".join(map(printable, line.split("\t")))


@contextmanager
def printable_output() -> Iterator[None]:
    """Keep escape sequences that writers print from the terminal; files and pipes get all bytes."""
    former = sys.stdout
    if not former.isatty():
        yield
        return
    sys.stdout = cast("TextIO", _PrintableOutput(former))
    try:
        yield
    finally:
        sys.stdout = former


class _LastingErrors:
    """Standard error that may be gone or full: what cannot be told holds up no delivery."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else a stream can do
        return getattr(self._stream, name)


@contextmanager
def lasting_errors() -> Iterator[None]:
    """Let nothing fail because standard error does: its pipe is closed, its disk is full."""
    former = sys.stderr
    sys.stderr = cast("TextIO", _LastingErrors(former))
    try:
        yield
    finally:
        sys.stderr = former
        try:
            former.flush()
        except OSError:
            # Else the interpreter fails at its end, for what is left in the stream's buffer.
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), former.fileno())


@contextmanager
def reporter(
    log_format: str | None, *, live: bool | None, hints: str, level: str = "info"
) -> Iterator[Lines]:
    """Return what tells of a running engine, fitting to where stderr goes.

    Without *log_format* lines are text on a terminal, and JSON elsewhere. Events below *level*
    have no line.
    *hints* are shown below a live table only: a log file has nobody to try them.
    """
    console = Console(stderr=True)
    log_format = log_format or ("text" if console.is_terminal else "json")
    if not (console.is_terminal if live is None else live):
        yield Lines(log_format, colours=False, level=level)
        return
    # What writers print to the same terminal belongs above the table, not into it.
    shared = sys.stdout.isatty()
    with Live(console=console, auto_refresh=False, redirect_stdout=shared) as drawn:
        yield LiveTable(drawn, log_format, hints, level)
