"""``transporter top``: how everything is, live."""

from __future__ import annotations

import json
import select
import sys
import termios
import time
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.output import printable, write
from transporter.cli.status import COLUMNS, headline, problems, rows
from transporter.cli.target import AsJson, Target, log_directory
from transporter.control.requests import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rich.console import Group

    from transporter.cli.live import Rates
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
    """Show every reader and route, live; q or Ctrl-C ends it. With --json a line a look.

    Example: transporter top pipeline.yaml
    """
    looks = _Looks(log_directory(target))
    if as_json:
        _each(looks, lambda found: write(json.dumps({"ok": True, "result": found})), every, times)
        return
    from rich.console import Console  # noqa: PLC0415 - only to draw
    from rich.live import Live  # noqa: PLC0415

    from transporter.cli.live import Rates  # noqa: PLC0415

    rates = Rates()
    console = Console(file=sys.stdout)
    with _keys(), Live(console=console, auto_refresh=False, screen=console.is_terminal) as drawn:
        _each(looks, lambda found: drawn.update(picture(found, rates), refresh=True), every, times)


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


def _each(
    looks: _Looks, show: Callable[[dict[str, Any]], object], every: float, times: int
) -> None:
    count = 0
    while True:
        show(looks.look())
        sys.stdout.flush()
        count += 1
        if count == times or _quit_within(every):
            return


def _quit_within(seconds: float) -> bool:
    """Wait, unless somebody presses q."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return False
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0] and sys.stdin.read(1) in ("q", "Q", ""):
            return True
    return False


@contextmanager
def _keys() -> Iterator[None]:
    """Get each key as it is pressed, where somebody sits at the terminal."""
    if not sys.stdin.isatty():
        yield
        return
    former = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin.fileno())
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, former)


def picture(found: dict[str, Any], rates: Rates) -> Group:
    """Return *found* drawn as a table between what else there is to say."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - only to draw
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415 - as text, cells hold no markup

    now = time.monotonic()
    counts = [each.get("logged", each.get("delivered", 0)) for each in _all(found)]
    drawn = Table(*COLUMNS, "per second", box=SIMPLE_HEAD, pad_edge=False)
    for row, count in zip(rows(found), counts, strict=True):
        speed = f"{rates.rate(str(row[0]), count, now):,.0f}"
        drawn.add_row(*(Text(printable(cell)) for cell in (*row, speed)))
    told = [Text(line, style="yellow") for line in problems(found)]
    return Group(Text(headline(found)), drawn, *told, Text("q ends this", style="dim"))


def _all(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [*found["readers"], *found["routes"]]
