"""Log of a command, named by its pipeline file or by its directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from transporter.errors import ConfigError

Target = Annotated[
    Path, typer.Argument(help="Pipeline file, or its log directory.", metavar="PIPELINE|DIR")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def log_directory(target: Path) -> Path:
    """Return the log directory that *target* names."""
    if target.is_dir():
        return target.absolute()
    from transporter.pipeline import log_location  # noqa: PLC0415 - heavy; `--help` does without

    try:
        return log_location.log_directory(target, os.environ)
    except ConfigError:
        if target.exists():
            from transporter.cli.entry_output import note  # noqa: PLC0415 - only here

            note("commands for its log work while it is broken, too: name the log's directory")
        raise


def offset_range(text: str) -> tuple[int, int]:
    """Parse ``X..Y`` or ``X`` into the first and the last offset."""
    from transporter.control.request_arguments import parse_offset_range  # noqa: PLC0415 - as above

    try:
        return parse_offset_range(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
