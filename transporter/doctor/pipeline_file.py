"""Checks of a pipeline's file, paths and secret files on this host."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from transporter.adaptor import Finding
from transporter.pipeline.path_checks import path_problems
from transporter.pipeline.secret_files import is_readable_by_all, secret_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.pipeline.config import Pipeline
    from transporter.pipeline.yaml_document import Document


def check_file(pipeline: Pipeline, document: Document) -> Iterator[Finding]:
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
