"""Which log a command means: a pipeline file, or the log directory itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    Path, typer.Argument(help="A pipeline file, or its log directory.", metavar="PIPELINE|DIR")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def log_directory(target: Path) -> Path:
    """Return the log directory that *target* names."""
    if target.is_dir():
        return target.absolute()
    from transporter.pipeline import place  # noqa: PLC0415 - heavy; `--help` does without

    return place.log_directory(target, os.environ)


def offset_range(text: str) -> tuple[int, int]:
    """Read ``X..Y`` or ``X`` as the first and last offset."""
    first, _, last = text.partition("..")
    if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
        raise typer.BadParameter(f"{text!r} is no range of offsets; write 14 or 9..15")
    return int(first), int(last or first)
