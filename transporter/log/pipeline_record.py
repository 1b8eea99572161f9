"""The small file ``pipeline``: the last pipeline that ran on a log, for the next start.

It is a hint, not a promise. An unreadable record counts as absent.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from transporter.log.filesystem import open_file, replace_durably

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.filesystem import FileSystem

PIPELINE: Final = "pipeline"
_MOST: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class PipelineRecord:
    """A pipeline's name, and the absolute path of its file."""

    name: str
    file: str


def read_pipeline_record(files: FileSystem, directory: Path) -> PipelineRecord | None:
    """Return the last pipeline that ran on the log in *directory*, if that is known."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        with open_file(files, directory / PIPELINE) as file:
            found = PipelineRecord(**json.loads(file.pread(_MOST, 0)))
        if isinstance(found.name, str) and isinstance(found.file, str):
            return found
    return None


def write_pipeline_record(files: FileSystem, directory: Path, record: PipelineRecord) -> None:
    """Replace the record durably."""
    replace_durably(files, directory / PIPELINE, [json.dumps(asdict(record)).encode() + b"\n"])
