"""``transporter init``: a first pipeline file, and a first adaptor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transporter.cli.groups import group
from transporter.cli.output import printable, write, write_json
from transporter.cli.target import AsJson  # noqa: TC001 - Typer reads the annotations
from transporter.errors import ConfigError


def build() -> typer.Typer:
    """Put the group together."""
    return group("Begin a pipeline file, or an adaptor.", pipeline=pipeline, adaptor=adaptor)


def pipeline(
    source: Annotated[
        str, typer.Argument(help="A reader that `adaptors list` shows, or module:Class.")
    ],
    sink: Annotated[
        str, typer.Argument(help="A writer that `adaptors list` shows, or module:Class.")
    ],
    file: Annotated[
        Path, typer.Argument(help="The file to write; it must not be there yet.")
    ] = Path("pipeline.yaml"),
    *,
    as_json: AsJson = False,
) -> None:
    """Write a pipeline file from a source to a sink, with every setting of both explained.

    What is named as module:Class is a class in a module beside the file.

    Example: transporter init pipeline file kafka orders.yaml
    """
    from transporter.starting.pipelines import first_pipeline  # noqa: PLC0415 - imports adaptors

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
    write(printable(f"next: fill in what it asks for, then 'transporter check {file}'"))


def adaptor(
    name: Annotated[str, typer.Argument(help="What a pipeline file will call it: my-sink.")],
    *,
    reader: Annotated[bool, typer.Option("--reader", help="Make a reader.")] = False,
    writer: Annotated[
        bool, typer.Option("--writer", help="Make a writer, as without any option.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a folder with an adaptor that works, its contract tests and a pipeline that uses it.

    Example: transporter init adaptor my-sink

    Example: transporter init adaptor my-source --reader
    """
    from transporter.starting import adaptors  # noqa: PLC0415 - as above

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
