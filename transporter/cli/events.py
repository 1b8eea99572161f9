"""Command ``transporter events``: the newest events of a running engine, and new ones."""

from __future__ import annotations

import json
import sys
from collections import deque
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.action_options import perform_request
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import (
    ignore_closed_stdout,
    problem_text,
    reader_left_within,
    value_text,
    write,
    write_json,
)
from transporter.control.event_cursor import EventCursor
from transporter.control.requests import Events
from transporter.errors import EngineUnreachable, EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.control.client import EngineClient

POLL: Final = 0.5
"""Seconds between two requests to the engine."""
_HEAD: Final = ("number", "timestamp", "event", "level")


class Level(StrEnum):
    """Lowest level of events."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def events(
    target: Target,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new events until Ctrl-C.")
    ] = False,
    last: Annotated[
        int, typer.Option("--last", help="Number of events to show, the newest; 0: all.", min=0)
    ] = 50,
    level: Annotated[Level, typer.Option(help="Lowest level of events.")] = Level.INFO,
    route: Annotated[
        str, typer.Option("--route", help="Only events of this route.", metavar="ROUTE")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show the newest events of the engine.

    A running engine keeps its newest 1,000 events, without progress lines. A note
    counts those that made room for others before they could be shown. With -f the
    command also shows new events until Ctrl-C, and continues when the engine was
    restarted. With -f and --json each line is one object.

    Examples:
        transporter events pipeline.yaml --level warning
        transporter events pipeline.yaml -f --route events
    """
    wanted = Events(level=level.value, route=route)
    if follow:
        with ignore_closed_stdout():
            _Follower(log_directory(target), wanted, as_json=as_json).follow(last)
        return
    found = _read_all(target, wanted)
    found["events"] = found["events"][-last:] if last else found["events"]
    if as_json:
        write_json(found)
        return
    _note_dropped(found["dropped"], "older events are not kept any more")
    for event in found["events"]:
        write(event_line(event))


def event_line(event: dict[str, Any]) -> str:
    """Return *event* as one line for people, without what is empty."""
    details = " ".join(
        f"{name}={_quoted(problem_text(value_text(value)))}"
        for name, value in event.items()
        if name not in _HEAD and value not in ("", None)
    )
    head = f"{event['timestamp']} {event['level']:<7} {event['event']}"
    return f"{head} {details}".rstrip()


def _quoted(text: str) -> str:
    """Return *text* so that its end can be seen."""
    quoted = text.replace('"', '\\"')
    return f'"{quoted}"' if {*text} & {*' "='} else text


def _read_all(target: Path, wanted: Events) -> dict[str, Any]:
    """Return all events that the engine keeps, in one answer."""
    found: dict[str, Any] = {}
    for page in EventCursor(wanted).read(partial(perform_request, target)):
        if page.is_restart or not found:
            found = {"run": page.run, "events": [], "dropped": page.dropped}
        found["events"] += page.events
        found |= {"newest": page.newest, "next": page.next}
    return found


def _note_dropped(count: int, text: str) -> None:
    if count:
        note(f"{count} {text}")


class _Follower:
    """Prints the events of whichever engine runs on a log, each once."""

    def __init__(self, directory: Path, wanted: Events, *, as_json: bool) -> None:
        """Print events that match *wanted*, as lines or as JSON objects."""
        self._directory, self._as_json = directory, as_json
        self._cursor = EventCursor(wanted)
        self._has_read = self._absent = False

    def follow(self, last: int) -> None:
        """Print the newest *last* events (0: all), then new ones until stdout is closed."""
        newest = deque(self._poll(), maxlen=last or None)
        self._write(newest)
        while not reader_left_within(POLL):
            self._write(self._poll())

    def _poll(self) -> Iterator[dict[str, Any]]:
        """Yield the events since the last poll, and remarks between them."""
        from transporter.control import client  # noqa: PLC0415 - `--help` does without

        try:
            with client.EngineClient(self._directory) as engine:
                yield from self._read(engine)
        except (client.NoEngine, client.EngineEnded, EngineUnreachable) as error:
            if isinstance(error.__cause__, PermissionError):
                raise EnvironmentFault(
                    f"{self._directory}: this user may not reach an engine here; use the engine's "
                    "user, or a member of the directory's group"
                ) from error
            if not self._absent:
                self._absent = True
                yield {"remark": "no engine runs here; waiting for one", "engine": None}

    def _read(self, engine: EngineClient) -> Iterator[dict[str, Any]]:
        for page in self._cursor.read(engine.call):
            if page.is_restart:
                yield {"remark": f"the engine was restarted, as {engine.pid}", "engine": engine.pid}
            if page.dropped and self._has_read:
                yield {"remark": f"{page.dropped} events were dropped", "dropped": page.dropped}
            self._has_read, self._absent = True, False
            yield from page.events

    def _write(self, found: Iterator[dict[str, Any]] | deque[dict[str, Any]]) -> None:
        for each in found:
            if self._as_json:
                write(json.dumps(each))
            elif "remark" in each:
                note(each["remark"])
            else:
                write(event_line(each))
        sys.stdout.flush()
