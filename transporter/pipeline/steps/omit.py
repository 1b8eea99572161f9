"""``omit``: the step that leaves fields out of JSON documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.steps.documents import DocumentStep
from transporter.pipeline.steps.json_rewrite import Rewriter
from transporter.pipeline.steps.paths import FieldPaths  # noqa: TC001 - pydantic reads it
from transporter.pipeline.steps.step import StepSettings

if TYPE_CHECKING:
    from pathlib import Path


class OmitSettings(StepSettings):
    """The fields to leave out."""

    fields: FieldPaths


def omit(settings: OmitSettings, folder: Path) -> DocumentStep:  # noqa: ARG001 - as every step
    """Return the step that leaves out the fields of *settings*."""
    rewriter = Rewriter(dict.fromkeys(settings.fields))
    return DocumentStep("omit", NamespaceFilter(settings.namespace), rewriter, thorough=False)
