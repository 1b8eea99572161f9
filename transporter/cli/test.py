"""Command ``transporter test``: test cases for the filters and steps of routes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson  # noqa: TC001 - Typer reads the annotations
from transporter.cli.output import others_print_to_stderr, printable, write, write_json
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

    results = []
    with others_print_to_stderr(when=as_json), trial_spark() as spark:
        for file in files:
            for result in run_cases(file, os.environ, spark):
                results.append(result)
                if not as_json:
                    _write_result(result)
    code = _exit_code(results)
    if as_json:
        write_json([_result_json(each) for each in results], ok=code == 0)
    else:
        _write_totals(results)
    return code


def _exit_code(results: list[CaseResult]) -> int:
    if any(each.problems for each in results):
        return 1
    return EnvironmentFault.exit_code if any(each.not_run for each in results) else 0


def _write_totals(results: list[CaseResult]) -> None:
    failed = sum(bool(each.problems) for each in results)
    not_run = sum(bool(each.not_run) for each in results)
    passed = len(results) - failed - not_run
    write(f"{passed} passed, {failed} failed" + (f", {not_run} not run" if not_run else ""))
    for reason in dict.fromkeys(each.not_run for each in results if each.not_run):
        note(f"error: {reason}")


def _write_result(result: CaseResult) -> None:
    if result.ok:
        write(printable(f"passed  {result.case}"))
        return
    word = "NOT RUN" if result.not_run else "FAILED "
    write(printable(f"{word} {result.case}  ({result.file}:{result.line})"))
    for line in result.problems:
        write(f"        {_colour_diff(printable(line))}")


def _colour_diff(line: str) -> str:
    colours = {"-": typer.colors.RED, "+": typer.colors.GREEN}
    if line[:1] not in colours or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return line
    return typer.style(line, fg=colours[line[0]])


def _result_json(result: CaseResult) -> dict[str, object]:
    return {
        "case": result.case,
        "file": result.file,
        "line": result.line,
        "passed": result.ok,
        "problems": list(result.problems),
        "not_run": result.not_run or None,
    }
