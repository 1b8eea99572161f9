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
    source: Annotated[str, typer.Argument(help="A reader that `adaptors list` shows.")],
    sink: Annotated[str, typer.Argument(help="A writer that `adaptors list` shows.")],
    file: Annotated[
        Path, typer.Argument(help="The file to write; it must not be there yet.")
    ] = Path("pipeline.yaml"),
    *,
    as_json: AsJson = False,
) -> None:
    """Write a pipeline file from a source to a sink, with every setting of both explained.

    Example: transporter init pipeline file kafka orders.yaml
    """
    from transporter.starting.pipelines import first_pipeline  # noqa: PLC0415 - imports adaptors

    text = first_pipeline(source, sink)
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
    as_json: AsJson = False,
) -> None:
    """Make a folder with a writer that works, its contract tests and a pipeline that uses it.

    Example: transporter init adaptor my-sink
    """
    from transporter.starting.adaptors import adaptor_package, write_all  # noqa: PLC0415 - as above

    contents = adaptor_package(name)
    write_all(Path(name), contents)
    if as_json:
        write_json({"files": [Path(name) / each for each in contents]})
        return
    for each in contents:
        write(printable(f"written: {name}/{each}"))
    write(f"next: cd {name} && pytest && transporter run pipeline.yaml")
