"""``transporter top``: how everything is, live."""

from __future__ import annotations

import codecs
import json
import os
import select
import sys
import termios
import time
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.output import write
from transporter.cli.status import headline
from transporter.cli.target import AsJson, Target, log_directory
from transporter.control.requests import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Group

    from transporter.cli.status_table import Row
    from transporter.cli.top_view import TopView
    from transporter.control.client import Engine


def top(
    target: Target,
    *,
    every: Annotated[
        float, typer.Option("--every", help="Seconds between two looks.", min=0.1)
    ] = 1.0,
    times: Annotated[
        int, typer.Option("--times", help="End after so many looks; 0: never.", min=0)
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Show every reader and route, live, until q or Ctrl-C. With --json a line a look.

    Keys: s sorts, p pauses, / filters by name (enter keeps it, esc clears it), q quits.

    Example: transporter top pipeline.yaml
    """
    looks = _Looks(log_directory(target))
    if as_json:
        for count in _counted(times):
            write(json.dumps({"ok": True, "result": looks.look()}))
            sys.stdout.flush()
            if count != times:
                time.sleep(every)
        return
    _draw(looks, every, times)


def _counted(times: int) -> Iterator[int]:
    """Count to *times*, or without end."""
    count = 0
    while not times or count < times:
        count += 1
        yield count


class _Looks:
    """Looks at a log again and again, through one conversation while an engine runs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._engine: Engine | None = None

    def look(self) -> dict[str, Any]:
        """Return the status as it is now."""
        from transporter.control.client import Engine, NoEngine, perform  # noqa: PLC0415
        from transporter.errors import EnvironmentFault  # noqa: PLC0415

        try:
            self._engine = self._engine or Engine(self._directory)
            return self._engine.ask(Status())
        except (NoEngine, EnvironmentFault):
            # It has ended, or begins anew.
            self._engine = None
            return perform(self._directory, Status())


def _draw(looks: _Looks, every: float, times: int) -> None:
    from rich.console import Console  # noqa: PLC0415 - only to draw
    from rich.live import Live  # noqa: PLC0415

    from transporter.cli.status_table import Rates, rows_of  # noqa: PLC0415
    from transporter.cli.top_view import TopView  # noqa: PLC0415

    view, rates, console = TopView(), Rates(), Console(file=sys.stdout)
    with (
        _keys() as pressed,
        Live(console=console, auto_refresh=False, screen=console.is_terminal) as drawn,
    ):
        for count in _counted(times):
            found = looks.look()
            rows = rows_of(found, rates)

            def show(line: str = headline(found), rows: Sequence[Row] = rows) -> None:
                drawn.update(_picture(line, rows, view, *console.size), refresh=True)

            show()
            if count != times:
                _attend(pressed, view, show, every)
            if view.ended:
                return


def _attend(
    pressed: Callable[[float], str], view: TopView, show: Callable[[], None], seconds: float
) -> None:
    """Do what keys say for some *seconds*, and for as long as the picture is paused."""
    deadline = time.monotonic() + seconds
    while not view.ended and (view.paused or time.monotonic() < deadline):
        left = seconds if view.paused else deadline - time.monotonic()
        if keys := pressed(max(0.0, left)):
            view.press(keys)
            show()


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Give what waits so many seconds for keys, and returns those that were pressed.

    Where nobody sits at a terminal there are none.
    """
    if not sys.stdin.isatty():

        def wait(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield wait
        return
    keyboard = sys.stdin.fileno()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")

    def pressed(seconds: float) -> str:
        if not select.select([keyboard], [], [], seconds)[0]:
            return ""
        # Not by sys.stdin: what that holds back, select() does not see.
        typed = os.read(keyboard, 1024)
        return decoder.decode(typed) if typed else "q"

    former = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield pressed
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, former)


def _picture(line: str, rows: Sequence[Row], view: TopView, width: int, height: int) -> Group:
    """Return the table of *rows* as *view* has them, between the headline and the keys."""
    from rich.console import Group  # noqa: PLC0415 - only to draw
    from rich.text import Text  # noqa: PLC0415 - as text, cells hold no markup

    from transporter.cli.status_table import status_table  # noqa: PLC0415

    head = Text(line)
    foot = Text(view.footer, style="dim")
    lines = sum(-(-len(each.plain) // width) for each in (head, foot))
    return Group(head, *status_table(view.arranged(rows), width, height - lines), foot)
