"""Pipeline files, whose adaptors and functions are imported. Their output is not a result."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from transporter.cli.output import others_print_to_stderr

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.pipeline.config import Pipeline
    from transporter.pipeline.yaml_document import Document


def load_pipeline(file: Path) -> Pipeline:
    """Return the pipeline in *file*, with the variables of this process.

    Raises:
        ConfigError: it has errors.

    """
    return load_pipeline_with_lines(file)[0]


def load_pipeline_with_lines(file: Path) -> tuple[Pipeline, Document]:
    """Return the pipeline in *file*, as :func:`load_pipeline` does, and where its keys are."""
    from transporter.pipeline.config import load_with_lines  # noqa: PLC0415 - heavy; `--help` does without

    with others_print_to_stderr():
        return load_with_lines(file, os.environ)
