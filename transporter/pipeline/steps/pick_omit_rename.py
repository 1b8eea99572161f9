"""``pick``, ``omit`` and ``rename``: the steps that change the fields of JSON documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.route_options import NotEmpty
from transporter.pipeline.steps.documents import DocumentStep
from transporter.pipeline.steps.json_rewrite import Picker, Rewriter
from transporter.pipeline.steps.paths import (
    FieldName,
    FieldPath,
    FieldPaths,
    OneWay,
    Path,
    path_text,
)
from transporter.pipeline.steps.step import StepSettings

if TYPE_CHECKING:
    import pathlib


class PickSettings(StepSettings):
    """The fields to keep."""

    fields: FieldPaths


def pick(settings: PickSettings, folder: pathlib.Path) -> DocumentStep:  # noqa: ARG001 - as every step
    """Return the step that keeps the fields of *settings*, and leaves out all others."""
    return DocumentStep("pick", NamespaceFilter(settings.namespace), Picker(settings.fields))


class OmitSettings(StepSettings):
    """The fields to leave out."""

    fields: FieldPaths


def omit(settings: OmitSettings, folder: pathlib.Path) -> DocumentStep:  # noqa: ARG001 - as every step
    """Return the step that leaves out the fields of *settings*."""
    rewriter = Rewriter(dict.fromkeys(settings.fields))
    return DocumentStep("omit", NamespaceFilter(settings.namespace), rewriter, thorough=False)


def _check_distinct(fields: dict[Path, str]) -> dict[Path, str]:
    taken: dict[Path, Path] = {}
    for path, new in fields.items():
        if not isinstance(path[-1], str):
            raise ValueError(f"ends at an item of an array, which has no name: {path_text(path)!r}")  # noqa: TRY004 - pydantic reports ValueError
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
    """Return the step that renames the fields of *settings*, in their place."""
    rewriter = Rewriter(settings.fields)
    return DocumentStep("rename", NamespaceFilter(settings.namespace), rewriter, thorough=False)
