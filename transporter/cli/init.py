"""Commands ``transporter init``: a first pipeline file, and a first adaptor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from transporter.cli.command_group import command_group
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson  # noqa: TC001 - Typer reads the annotations
from transporter.cli.output import others_print_to_stderr, printable, write, write_json
from transporter.errors import ConfigError

_FILE: Final = Path("pipeline.yaml")


def build() -> typer.Typer:
    """Build the group."""
    return command_group(
        "Create a pipeline file or an adaptor.", pipeline=pipeline, adaptor=adaptor
    )


def pipeline(
    source: Annotated[
        str | None,
        typer.Argument(help="Reader from `adaptors list`, or module:Class.", metavar="SOURCE"),
    ] = None,
    sink: Annotated[
        str | None,
        typer.Argument(help="Writer from `adaptors list`, or module:Class.", metavar="SINK"),
    ] = None,
    file: Annotated[
        Path, typer.Argument(help="File to create; it must not exist.", metavar="FILE")
    ] = _FILE,
    *,
    convert: Annotated[
        Path | None,
        typer.Option("--from", help="Convert this file instead of SOURCE and SINK.", metavar="OLD"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a pipeline file.

    It connects a source with a sink. It has all settings of both, with comments that
    explain them. docs/configuration.md has those of the log, of routes and of Spark. A
    name module:Class stands for a class in a module beside the file.

    With --from, it is converted from the YAML file of goharvest or the pipeline.js of
    compose/transporter. Passwords become variables. What cannot be converted becomes
    a comment, and a warning on stderr.

    Examples:
        transporter init pipeline file kafka orders.yaml
        transporter init pipeline --from reaper.yaml orders.yaml
    """
    if convert is not None:
        if sink is not None:
            raise ConfigError("--from takes the place of SOURCE and SINK; name only FILE beside it")
        _convert(convert, Path(source) if source else _FILE, as_json=as_json)
        return
    if source is None or sink is None:
        raise ConfigError(
            "name a SOURCE and a SINK, such as 'file kafka'; 'transporter adaptors list' has all"
        )
    from transporter.scaffold.pipelines import first_pipeline  # noqa: PLC0415 - imports adaptors

    with others_print_to_stderr(when=as_json):
        text = first_pipeline(source, sink, file.absolute().parent)
    _create(file, text)
    if as_json:
        write_json({"files": [file]})
        return
    write(printable(f"written: {file}"))
    write(printable(f"next: fill in the required settings, then 'transporter check {file}'"))


def _convert(old: Path, file: Path, *, as_json: bool) -> None:
    from transporter.scaffold.conversion import convert_file  # noqa: PLC0415 - as above

    found = convert_file(old)
    _create(file, found.text)
    if as_json:
        write_json({"files": [file], "warnings": found.warnings})
        return
    for each in found.warnings:
        note(printable(each))
    write(printable(f"written: {file}"))
    write(printable(f"next: decide about each TODO in it, then 'transporter check {file}'"))


def _create(file: Path, text: str) -> None:
    try:
        with file.open("x") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{file} exists already; name another file") from error


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
