"""``pick``: the step that keeps fields of JSON documents, and leaves out all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.steps.documents import DocumentStep
from transporter.pipeline.steps.json_rewrite import Picker
from transporter.pipeline.steps.paths import FieldPaths  # noqa: TC001 - pydantic reads it
from transporter.pipeline.steps.step import StepSettings

if TYPE_CHECKING:
    from pathlib import Path


class PickSettings(StepSettings):
    """The fields to keep."""

    fields: FieldPaths


def pick(settings: PickSettings, folder: Path) -> DocumentStep:  # noqa: ARG001 - as every step
    """Return the step that keeps the fields of *settings*."""
    return DocumentStep("pick", NamespaceFilter(settings.namespace), Picker(settings.fields))
