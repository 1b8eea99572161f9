"""``rename``: the step that gives fields of JSON documents another name, in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.route_options import NotEmpty
from transporter.pipeline.steps.documents import DocumentStep
from transporter.pipeline.steps.json_rewrite import Rewriter
from transporter.pipeline.steps.paths import FieldName, FieldPath, OneWay, Path, path_text
from transporter.pipeline.steps.step import StepSettings

if TYPE_CHECKING:
    import pathlib


def _check_distinct(fields: dict[Path, str]) -> dict[Path, str]:
    taken: dict[Path, Path] = {}
    for path, new in fields.items():
        if not isinstance(path[-1], str):
            raise ValueError(f"ends at an item of an array, which has no name: {path_text(path)!r}")  # noqa: TRY004 - as above
        place = (*path[:-1], new)
        if place == path:
            raise ValueError(f"renames {new!r} to its own name")
        if place in taken:
            raise ValueError(f"gives {taken[place][-1]!r} and {path[-1]!r} the same name {new!r}")
        taken[place] = path
    return fields


class RenameSettings(StepSettings):
    """The new names of fields."""

    fields: Annotated[dict[FieldPath, FieldName], NotEmpty, OneWay, AfterValidator(_check_distinct)]


def rename(settings: RenameSettings, folder: pathlib.Path) -> DocumentStep:  # noqa: ARG001 - as every step
    """Return the step that renames the fields of *settings*."""
    rewriter = Rewriter(settings.fields)
    return DocumentStep("rename", NamespaceFilter(settings.namespace), rewriter, thorough=False)
