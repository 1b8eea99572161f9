"""Command ``transporter top``: the live state of readers and routes."""

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
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import write
from transporter.cli.status import headline
from transporter.control.requests import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Group

    from transporter.cli.status_table import StatusRow
    from transporter.control.client import EngineClient


ORDERS: Final = ("file", "name", "state", "lag", "per second", "parked")
"""Orders that `s` cycles through: the file's, texts ascending, numbers descending."""
_ENTER: Final = ("\r", "\n")
_ERASE: Final = ("\x7f", "\x08")
_ESCAPE: Final = "\x1b"
_UNLIMITED: Final = 1 << 20
"""Lines of a table that goes into a file."""


class TopView:
    """Order and filter of rows, and the pause."""

    def __init__(self) -> None:
        """Show all rows in the order of the pipeline file, live."""
        self.paused = False
        self.ended = False
        self._order = 0
        self._filter = ""
        self._is_typing = False

    def press(self, keys: str) -> None:
        """Handle *keys* that came at once. An arrow or a function key is ignored."""
        if len(keys) > 1 and keys.startswith(_ESCAPE):
            return
        for key in keys:
            (self._edit_filter if self._is_typing else self._run_command)(key)

    def _run_command(self, key: str) -> None:
        match key.lower():
            case "q":
                self.ended = True
            case "p" | " ":
                self.paused = not self.paused
            case "s":
                self._order = (self._order + 1) % len(ORDERS)
            case "/":
                self._is_typing = True
            case "\x1b":
                self._filter = ""

    def _edit_filter(self, key: str) -> None:
        if key in _ENTER:
            self._is_typing = False
        elif key == _ESCAPE:
            self._is_typing, self._filter = False, ""
        elif key in _ERASE:
            self._filter = self._filter[:-1]
        elif key.isprintable():
            self._filter += key

    def arrange(self, rows: Iterable[StatusRow]) -> Sequence[StatusRow]:
        """Return the *rows* that match the filter, in order."""
        wanted = self._filter.casefold()
        shown = [row for row in rows if wanted in row.name.casefold()]
        order = ORDERS[self._order]
        if order == "file":
            return shown
        if order in ("name", "state"):
            column = "" if order == "name" else order
            return sorted(shown, key=lambda row: row.cells[column])
        return sorted(shown, key=lambda row: -row.numbers.get(order, 0.0))

    @property
    def footer(self) -> str:
        """The keys, with their present effect."""
        cursor = "_" if self._is_typing else ""
        wanted = f": {self._filter}{cursor}" if self._filter or self._is_typing else ""
        pause = "p resume (paused)" if self.paused else "p pause"
        ends = "enter keep · esc clear" if self._is_typing else "q quit"
        return f"{ends} · s sort: {ORDERS[self._order]} · {pause} · / filter{wanted}"


def top(
    target: Target,
    *,
    every: Annotated[
        float, typer.Option("--every", help="Seconds between two updates.", min=0.1)
    ] = 1.0,
    times: Annotated[
        int, typer.Option("--times", help="Number of updates before the end; 0: no limit.", min=0)
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Show readers and routes live.

    It runs until q or Ctrl-C. With --json it prints one line for each update, and into a
    file or another command one table. Keys: s
    sorts, p pauses, / filters by name (enter keeps the filter, esc clears it), q quits.

    Example:
        transporter top pipeline.yaml
    """
    poller = _StatusPoller(log_directory(target))
    if as_json:
        for count in _count_updates(times):
            write(json.dumps({"ok": True, "result": poller.poll()}))
            sys.stdout.flush()
            if count != times:
                time.sleep(every)
        return
    _draw_updates(poller, every, times)


def _count_updates(times: int) -> Iterator[int]:
    """Count to *times*, or without end if it is 0."""
    count = 0
    while not times or count < times:
        count += 1
        yield count


class _StatusPoller:
    """Repeated reader of a log's status, over one connection while an engine runs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._engine: EngineClient | None = None

    def poll(self) -> dict[str, Any]:
        """Return the present status."""
        from transporter.control.client import EngineClient, NoEngine, perform  # noqa: PLC0415
        from transporter.errors import EnvironmentFault  # noqa: PLC0415

        try:
            self._engine = self._engine or EngineClient(self._directory)
            return self._engine.call(Status())
        except (NoEngine, EnvironmentFault):
            # The engine has ended or is restarting.
            self._engine = None
            return perform(self._directory, Status())


def _draw_updates(poller: _StatusPoller, every: float, times: int) -> None:
    from rich.console import Console  # noqa: PLC0415 - only to draw
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415 - as text, cells hold no markup

    from transporter.cli.status_table import Rates, live_rows, status_table  # noqa: PLC0415

    view, rates, console = TopView(), Rates(), Console(file=sys.stdout)
    if not console.is_terminal:
        for count in _count_updates(times):
            found = poller.poll()
            console.print(Text(headline(found)), soft_wrap=True)
            console.print(*status_table(live_rows(found, rates), console.width, _UNLIMITED))
            sys.stdout.flush()
            if count != times:
                time.sleep(every)
        return
    with (
        _open_keyboard() as read_keys,
        Live(console=console, auto_refresh=False, screen=True) as drawn,
    ):
        for count in _count_updates(times):
            found = poller.poll()
            rows = live_rows(found, rates)

            def show(line: str = headline(found), rows: Sequence[StatusRow] = rows) -> None:
                drawn.update(_layout(line, rows, view, *console.size), refresh=True)

            show()
            if count != times:
                _handle_keys(read_keys, view, show, every)
            if view.ended:
                return


def _handle_keys(
    read_keys: Callable[[float], str], view: TopView, show: Callable[[], None], seconds: float
) -> None:
    """Handle keys for some *seconds*, and for as long as the view is paused."""
    deadline = time.monotonic() + seconds
    while not view.ended and (view.paused or time.monotonic() < deadline):
        left = seconds if view.paused else deadline - time.monotonic()
        if keys := read_keys(max(0.0, left)):
            view.press(keys)
            show()


@contextmanager
def _open_keyboard() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits some seconds for keys and returns those pressed.

    Without a terminal it returns none.
    """
    if not sys.stdin.isatty():

        def wait(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield wait
        return
    keyboard = sys.stdin.fileno()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")

    def read_keys(seconds: float) -> str:
        if not select.select([keyboard], [], [], seconds)[0]:
            return ""
        # Not by sys.stdin, whose buffer select() does not see.
        typed = os.read(keyboard, 1024)
        return decoder.decode(typed) if typed else "q"

    former = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield read_keys
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, former)


def _layout(line: str, rows: Sequence[StatusRow], view: TopView, width: int, height: int) -> Group:
    """Return the table of *rows* as *view* arranges them, between the headline and the keys."""
    from rich.console import Group  # noqa: PLC0415 - only to draw
    from rich.text import Text  # noqa: PLC0415 - as text, cells hold no markup

    from transporter.cli.status_table import status_table  # noqa: PLC0415

    head = Text(line)
    foot = Text(view.footer, style="dim")
    lines = sum(-(-len(each.plain) // width) for each in (head, foot))
    return Group(head, *status_table(view.arrange(rows), width, height - lines), foot)
