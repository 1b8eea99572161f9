"""Commands ``transporter init``: a first pipeline file, and a first adaptor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transporter.cli.command_group import command_group
from transporter.cli.log_target import AsJson  # noqa: TC001 - Typer reads the annotations
from transporter.cli.output import printable, write, write_json
from transporter.errors import ConfigError


def build() -> typer.Typer:
    """Build the group."""
    return command_group(
        "Create a pipeline file or an adaptor.", pipeline=pipeline, adaptor=adaptor
    )


def pipeline(
    source: Annotated[
        str,
        typer.Argument(help="Reader from `adaptors list`, or module:Class.", metavar="SOURCE"),
    ],
    sink: Annotated[
        str, typer.Argument(help="Writer from `adaptors list`, or module:Class.", metavar="SINK")
    ],
    file: Annotated[
        Path, typer.Argument(help="File to create; it must not exist.", metavar="FILE")
    ] = Path("pipeline.yaml"),
    *,
    as_json: AsJson = False,
) -> None:
    """Create a pipeline file from two adaptors.

    It connects a source with a sink. It has all settings of both, with comments that
    explain them. docs/configuration.md has those of the log, of routes and of Spark. A
    name module:Class stands for a class in a module beside the file.

    Example:
        transporter init pipeline file kafka orders.yaml
    """
    from transporter.scaffold.pipelines import first_pipeline  # noqa: PLC0415 - imports adaptors

    text = first_pipeline(source, sink, file.absolute().parent)
    try:
        with file.open("x") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{file} exists already; name another file") from error
    if as_json:
        write_json({"files": [file]})
        return
    write(printable(f"written: {file}"))
    write(printable(f"next: fill in the required settings, then 'transporter check {file}'"))


def adaptor(
    name: Annotated[str, typer.Argument(help="Adaptor's name, such as my-sink.", metavar="NAME")],
    *,
    reader: Annotated[bool, typer.Option("--reader", help="Create a reader.")] = False,
    writer: Annotated[
        bool, typer.Option("--writer", help="Create a writer (the default).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a working adaptor with its tests.

    The folder holds the adaptor, its contract tests and a pipeline that uses it.

    Examples:
        transporter init adaptor my-sink
        transporter init adaptor my-source --reader
    """
    from transporter.scaffold import adaptors  # noqa: PLC0415 - as above

    kinds = tuple(kind for kind, wanted in (("reader", reader), ("writer", writer)) if wanted)
    kinds = kinds or ("writer",)
    contents = adaptors.adaptor_package(name, kinds)
    adaptors.write_all(Path(name), contents)
    if as_json:
        write_json({"files": [Path(name) / each for each in contents]})
        return
    for each in contents:
        write(printable(f"written: {name}/{each}"))
    write(f"next: {adaptors.next_steps(name, kinds)}")
