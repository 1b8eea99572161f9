"""Command ``transporter test``: test cases for the filters and steps of routes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson  # noqa: TC001 - Typer reads the annotations
from transporter.cli.output import printable, write, write_json
from transporter.cli.spark_process import trial_spark
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from transporter.dry_run.cases import CaseResult

Files = Annotated[
    list[Path],
    typer.Argument(help="YAML files of cases; each names its pipeline.", metavar="FILE"),
]


def test(files: Files, *, as_json: AsJson = False) -> int:  # noqa: PT028 - a command
    """Run test cases of routes.

    A case sends messages through a route's filter and steps, and compares the output with
    the expected one. It needs no sinks, no secrets of theirs and no log. Spark starts
    only for `sql` steps. The exit code is 1 if a case fails, and 3 if one cannot be run.

    Example:
        transporter test orders.test.yaml
    """
    from transporter.dry_run.cases import run_cases  # noqa: PLC0415 - imports pyarrow

    verdicts = []
    with trial_spark() as spark:
        for file in files:
            for verdict in run_cases(file, os.environ, spark):
                verdicts.append(verdict)
                if not as_json:
                    _write_result(verdict)
    if as_json:
        ok = not any(each.not_run for each in verdicts)
        write_json([_as_json(each) for each in verdicts], ok=ok)
    else:
        _sum_up(verdicts)
    return _exit_code(verdicts)


def _exit_code(verdicts: list[CaseResult]) -> int:
    if any(each.problems for each in verdicts):
        return 1
    return EnvironmentFault.exit_code if any(each.not_run for each in verdicts) else 0


def _sum_up(verdicts: list[CaseResult]) -> None:
    failed = sum(bool(each.problems) for each in verdicts)
    not_run = sum(bool(each.not_run) for each in verdicts)
    passed = len(verdicts) - failed - not_run
    write(f"{passed} passed, {failed} failed" + (f", {not_run} not run" if not_run else ""))
    for reason in dict.fromkeys(each.not_run for each in verdicts if each.not_run):
        note(f"error: {reason}")


def _write_result(verdict: CaseResult) -> None:
    if verdict.ok:
        write(printable(f"passed  {verdict.case}"))
        return
    word = "NOT RUN" if verdict.not_run else "FAILED "
    write(printable(f"{word} {verdict.case}  ({verdict.file}:{verdict.line})"))
    for line in verdict.problems:
        write(f"        {_colour_diff(printable(line))}")


def _colour_diff(line: str) -> str:
    colours = {"-": typer.colors.RED, "+": typer.colors.GREEN}
    if line[:1] not in colours or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return line
    return typer.style(line, fg=colours[line[0]])


def _as_json(verdict: CaseResult) -> dict[str, object]:
    return {
        "case": verdict.case,
        "file": verdict.file,
        "line": verdict.line,
        "passed": verdict.ok,
        "problems": list(verdict.problems),
        "not_run": verdict.not_run or None,
    }
