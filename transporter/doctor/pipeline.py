"""Checks of a pipeline's file, with its paths and secret files, and of its log."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from transporter.adaptor import Finding
from transporter.errors import TransporterError
from transporter.log.clocks import AHEAD
from transporter.log.commit_log import wall_clock
from transporter.log.filesystem import RealFileSystem
from transporter.log.inspection import inspect
from transporter.log.overview import describe_segments
from transporter.log.reserve import RESERVE
from transporter.log.segment import stray_files
from transporter.pipeline.path_checks import path_problems
from transporter.pipeline.secret_files import is_readable_by_all, secret_files
from transporter.units import display_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.log.inspection import LogInfo
    from transporter.pipeline.config import Pipeline
    from transporter.pipeline.yaml_document import Document

_SECOND: Final = 1_000_000


def check_pipeline_file(pipeline: Pipeline, document: Document) -> Iterator[Finding]:
    """Yield findings about the file of *pipeline*, whose source is *document*."""
    findings = [Finding(str(each), "problem") for each in path_problems(pipeline, document)]
    findings += [
        Finding(f"every user of this host may read {file}: chmod 600 {file}", "warning")
        for file in secret_files(pipeline, document)
        if is_readable_by_all(file)
    ]
    if _is_writable_by_others(pipeline.file):
        findings.append(
            Finding(
                f"other users may write {pipeline.file}, and an engine runs the code that it "
                f"names: chmod go-w {pipeline.file}",
                "warning",
            )
        )
    yield from findings or [Finding(f"{pipeline.file} is valid, and its paths can be used")]


def _is_writable_by_others(file: Path) -> bool:
    with suppress(OSError):
        return bool(os.stat(file).st_mode & (stat.S_IWGRP | stat.S_IWOTH))  # noqa: PTH116
    return False


def check_log(directory: Path) -> Iterator[Finding]:
    """Yield findings about the log in *directory*, if there is one, without its lock."""
    try:
        os.stat(directory / "meta")  # noqa: PTH116 - a Path's own tests hide errors, or not, by version
    except (FileNotFoundError, NotADirectoryError):
        yield Finding(f"there is no log in {directory} yet")
        return
    except OSError as error:
        yield Finding(f"{directory} cannot be looked into: {error.strerror}", "problem")
        return
    try:
        found = inspect(directory)
        yield Finding(_log_text(found))
        yield from _check_time(found)
    except (TransporterError, OSError) as error:
        yield Finding(f"{error}: 'transporter log verify' shows all that is damaged", "problem")
        return
    if found.owner is None and not (directory / RESERVE).exists():
        yield Finding(
            "the reserve is missing, without which a start on a full disk may need room: the next "
            "start makes it if the disk has room",
            "warning",
        )
    for stray in stray_files(RealFileSystem(), directory):
        yield Finding(f"{stray.name}: {stray.problem}", "warning")


def _log_text(found: LogInfo) -> str:
    engine = f"engine {found.owner} runs on it" if found.owner else "no engine runs on it"
    entries = f"offsets {found.first}..{found.last}" if found.last >= found.first else "no entries"
    return f"{entries}, {display_size(found.size)}; {engine}"


def _check_time(found: LogInfo) -> Iterator[Finding]:
    bases = [each.base for each in found.segments[-1:]]
    newest = [each.newest for each in describe_segments(found.directory, bases, found.last)]
    ahead = (max((each for each in newest if each is not None), default=0) - wall_clock()) / _SECOND
    if ahead > AHEAD:
        yield Finding(
            f"log time is {ahead:.0f} s ahead of the wall clock, so times of entries mean nothing "
            "until the clock has caught up: check the clock; see docs/log.md, Log time",
            "warning",
        )
