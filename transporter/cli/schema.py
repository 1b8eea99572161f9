"""Command ``transporter schema``: the JSON Schema of the files that transporter reads."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from transporter.cli.log_target import AsJson  # noqa: TC001 - Typer reads the annotations
from transporter.cli.output import others_print_to_stderr, write, write_json


class SchemaKind(StrEnum):
    """Kind of file that a schema describes."""

    PIPELINE = "pipeline"
    CASES = "cases"


def schema(
    kind: Annotated[
        SchemaKind,
        typer.Argument(help="Pipeline files, or cases for 'transporter test'.", metavar="KIND"),
    ] = SchemaKind.PIPELINE,
    *,
    as_json: AsJson = False,
) -> None:
    """Print the JSON Schema of a kind of file.

    Editors use it for completion and checks. It includes the adaptors and steps that are
    installed here.

    Example:
        transporter schema > pipeline.schema.json
    """
    with others_print_to_stderr():
        found = _build_schema(kind)
    if as_json:
        write_json(found)
    else:
        write(json.dumps(found, indent=2, ensure_ascii=False))


def _build_schema(kind: SchemaKind) -> dict[str, object]:
    if kind is SchemaKind.CASES:
        from transporter.dry_run.cases import cases_schema  # noqa: PLC0415 - imports pyarrow

        return cases_schema()
    from transporter.pipeline.json_schema import pipeline_schema  # noqa: PLC0415 - imports adaptors

    return pipeline_schema()
