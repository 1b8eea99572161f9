"""Command ``transporter doctor``: whether this host is fit to run an engine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.log_target import AsJson  # noqa: TC001 - Typer reads the annotations at run time
from transporter.cli.output import count_text, problem_text, write, write_json
from transporter.cli.pipeline_file import load_pipeline_with_lines
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.doctor import Diagnosis

_WIDTHS = (7, 11)


def doctor(
    target: Annotated[
        Path | None,
        typer.Argument(
            help="Pipeline file, or a log directory; by default the current directory.",
            metavar="[PIPELINE|DIR]",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> int:
    """Check whether this host can run an engine.

    It measures the time of a sync on the log's disk, and checks rights, free space, the
    kind of file system, clock, limits, memory, Java, loopback, Python and its packages.
    With a pipeline file it also checks the paths and secret files of that pipeline. Each
    finding is one line: fine, warning or problem, with the next action. The measurement
    writes 400 KiB, which it removes. The exit code is 3 if there is a problem.

    Examples:
        transporter doctor pipeline.yaml
        transporter doctor /var/lib/transporter --json
    """
    found = []
    for each in _diagnoses(target):
        found.append(each)
        if not as_json:
            write(_line(each))
    problems = sum(each.level == "problem" for each in found)
    if as_json:
        write_json({"findings": [asdict(each) for each in found]}, ok=not problems)
    else:
        warnings = sum(each.level == "warning" for each in found)
        write(f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}")
    return EnvironmentFault.exit_code if problems else 0


def _diagnoses(target: Path | None) -> Iterator[Diagnosis]:
    from transporter.doctor import examine  # noqa: PLC0415 - heavy; `--help` does without

    if target is None or target.is_dir():
        return examine((target or Path()).absolute())

    pipeline, document = load_pipeline_with_lines(target)
    return examine(pipeline.log.dir, pipeline, document)


def _line(each: Diagnosis) -> str:
    level, subject = each.level.ljust(_WIDTHS[0]), each.subject.ljust(_WIDTHS[1])
    return f"{level}  {subject}  {problem_text(each.text)}"


def _count(number: int, word: str) -> str:
    return count_text(number, word, f"{word}s")
