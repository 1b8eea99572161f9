"""Output of a running engine: a live table on a terminal, otherwise structured lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import structlog
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from transporter.cli.output import printable, problem_text
from transporter.cli.status_table import Rates, live_rows, status_table
from transporter.control.status_texts import size_text
from transporter.engine.events import level_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRESS: Final = 10.0
"""Seconds between two checks of the progress without a live table."""
UNCHANGED: Final = 60.0
"""Seconds after which unchanged progress is written again."""
_LEVELS: Final = ("debug", "info", "warning", "error")
_LOG_LINES: Final = 4
"""Lines of the terminal that stay free for events above the table."""
_PLAIN: Final = (bool, int, float, type(None))


class EventPrinter:
    """An ``engine.events.Observer`` that writes each event as a line to stderr.

    The level ``debug`` has no events of its own. It adds unchanged progress.
    """

    def __init__(
        self,
        log_format: str,
        *,
        colours: bool,
        level: str = "info",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write ``text`` or ``json``, without events below *level*."""
        self._is_json = log_format == "json"
        renderer: Any = (
            structlog.processors.JSONRenderer()
            if self._is_json
            else structlog.dev.ConsoleRenderer(colors=colours, pad_event_to=22)
        )
        self._processors = [structlog.processors.TimeStamper(fmt="iso", utc=True), renderer]
        self._level, self._clock = _LEVELS.index(level), clock
        self._next_progress = clock() + PROGRESS
        self._last_lines: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}

    def __call__(self, event: str, **details: Any) -> None:  # noqa: ANN401 - plain values
        """Write one event."""
        level = level_of(event)
        if _LEVELS.index(level) < self._level:
            return
        shown = {name: self._shown(_plain_value(value)) for name, value in details.items()}
        line: Any = {"event": event, "level": level, **shown}
        for step in self._processors:
            line = step(None, level, line)
        self.write_line(line)

    def _shown(self, value: object) -> object:
        """Return a plain *value* as the format has it: lists are text for people."""
        if self._is_json or not isinstance(value, list | dict):
            return value
        if isinstance(value, dict):
            return ", ".join(f"{name}={self._shown(each)}" for name, each in value.items())
        return ", ".join(str(self._shown(each)) for each in value)

    def write_line(self, line: str) -> None:
        """Write the formatted *line*."""
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def show_status(self, status: Mapping[str, Any], doing: str = "") -> None:
        """Write a line of progress for each reader and route whose progress is due."""
        now = self._clock()
        if now < self._next_progress and not doing:
            return
        self._next_progress = now + PROGRESS
        for event, details in _progress_events(status):
            self._write_progress(event, details, now, always=bool(doing))

    def _write_progress(
        self, event: str, details: dict[str, Any], now: float, *, always: bool
    ) -> None:
        """Write a line if it differs from the last of its kind, or if that one is a minute old."""
        name = next(iter(details.values()))
        written, before = self._last_lines.get((event, name), (now, None))
        every = always or _LEVELS[self._level] == "debug"
        if every or details != before or now - written >= UNCHANGED:
            self._last_lines[event, name] = now, details
            self(event, **details)


def _plain_value(value: object) -> object:
    """Return a detail of an event as a plain value, with each text on one line."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return {printable(name): _plain_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain_value(each) for each in value]
    return problem_text(value)


def _progress_events(status: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the event and the details of each progress line. The name is the first detail."""
    for reader in status["readers"]:
        yield (
            "reader-progress",
            {"reader": reader["name"], **_pick_fields(reader, "state", "logged")},
        )
    for route in status["routes"]:
        counts = _pick_fields(route, "state", "delivered", "skipped", "parked", "watermark", "lag")
        yield "route-progress", {"route": route["name"], **counts}


def _pick_fields(part: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: part[name] for name in names}


class LiveTable(EventPrinter):
    """An :class:`EventPrinter` above a live table of readers and routes."""

    def __init__(self, live: Live, log_format: str, hints: str, level: str) -> None:
        """Draw into *live*."""
        super().__init__(log_format, colours=not live.console.no_color, level=level)
        self._live, self._hints = live, hints
        self._rates = Rates()

    def write_line(self, line: str) -> None:
        """Print *line* above the table."""
        self._live.console.print(Text.from_ansi(line))

    def show_status(self, status: Mapping[str, Any], doing: str = "") -> None:
        """Draw *status*."""
        footer = self._footer(status, doing)
        width, height = self._live.console.size
        rows = live_rows(status, self._rates)
        lines = footer.plain.count("\n") + 1
        drawn = status_table(rows, width, height - lines - _LOG_LINES)
        self._live.update(Group(*drawn, footer), refresh=True)

    def _footer(self, status: Mapping[str, Any], doing: str) -> Text:
        parts = [
            f"log {printable(status['directory'])}",
            f"last offset {status['last']:,}",
            size_text(status["size"]),
        ]
        parts += [doing] if doing else [] if status["spark"] else ["Spark is starting"]
        text = " · ".join(parts)
        return Text(f"{text}\n{self._hints}", style="dim")


class _PrintableOutput:
    """Standard output that escapes all characters that could move a terminal's cursor.

    Writers print data of messages, and their worker has no terminal to check for.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def write(self, text: str) -> int:
        lines = text.split("\n")
        return self._terminal.write("\n".join(map(_escape_line, lines)))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a stream
        return getattr(self._terminal, name)


def _escape_line(line: str) -> str:
    return "\t".join(map(printable, line.split("\t")))


@contextmanager
def printable_output() -> Iterator[None]:
    """Keep writers' escape sequences from the terminal. Files and pipes get all bytes."""
    former = sys.stdout
    if not former.isatty():
        yield
        return
    sys.stdout = cast("TextIO", _PrintableOutput(former))
    try:
        yield
    finally:
        sys.stdout = former


class _UnfailingStderr:
    """Standard error that ignores failures, so that a lost message never blocks a delivery."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a stream
        return getattr(self._stream, name)


@contextmanager
def unfailing_stderr() -> Iterator[None]:
    """Ignore failures of standard error, such as a closed pipe or a full disk."""
    former = sys.stderr
    sys.stderr = cast("TextIO", _UnfailingStderr(former))
    try:
        yield
    finally:
        sys.stderr = former
        try:
            former.flush()
        except OSError:
            # Otherwise the interpreter fails at its end, when it flushes the stream's buffer.
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), former.fileno())


@contextmanager
def engine_reporter(
    log_format: str | None, *, live: bool | None, hints: str, level: str = "info"
) -> Iterator[EventPrinter]:
    """Yield the printer of a running engine's events that suits stderr.

    Without *log_format* lines are text on a terminal and JSON elsewhere. Events below
    *level* are left out. *hints* appear below a live table only.
    """
    console = Console(stderr=True)
    log_format = log_format or ("text" if console.is_terminal else "json")
    if not (console.is_terminal if live is None else live):
        yield EventPrinter(log_format, colours=False, level=level)
        return
    # Output of writers to the same terminal belongs above the table, not into it.
    shared = sys.stdout.isatty()
    with Live(console=console, auto_refresh=False, redirect_stdout=shared) as drawn:
        yield LiveTable(drawn, log_format, hints, level)
