"""``transporter test``: whether routes make of messages what files of cases say."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.output import printable, write, write_json
from transporter.cli.target import AsJson  # noqa: TC001 - Typer reads the annotations

if TYPE_CHECKING:
    from transporter.trial.cases import Verdict

Files = Annotated[
    list[Path], typer.Argument(help="Files of cases, in YAML; each names its pipeline.")
]


def test(files: Files, *, as_json: AsJson = False) -> int:  # noqa: PT028 - a command
    """Run cases: messages that go through a route's filter and steps, and what must come out.

    Needs neither sinks nor their secrets, no log and no Spark. Exit code 1 when
    a case fails.

    Example: transporter test orders.test.yaml
    """
    from transporter.trial.cases import judged  # noqa: PLC0415 - imports pyarrow

    verdicts = []
    for file in files:
        for verdict in judged(file, os.environ):
            verdicts.append(verdict)
            if not as_json:
                _show(verdict)
    failed = sum(not each.passed for each in verdicts)
    if as_json:
        write_json([_as_json(each) for each in verdicts])
    else:
        write(f"{len(verdicts) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _show(verdict: Verdict) -> None:
    if verdict.passed:
        write(printable(f"passed  {verdict.case}"))
        return
    write(printable(f"FAILED  {verdict.case}  ({verdict.file}:{verdict.line})"))
    for line in verdict.problems:
        write(f"        {_coloured(printable(line))}")


def _coloured(line: str) -> str:
    colours = {"-": typer.colors.RED, "+": typer.colors.GREEN}
    if line[:1] not in colours or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return line
    return typer.style(line, fg=colours[line[0]])


def _as_json(verdict: Verdict) -> dict[str, object]:
    return {
        "case": verdict.case,
        "file": verdict.file,
        "line": verdict.line,
        "passed": verdict.passed,
        "problems": list(verdict.problems),
    }
