"""Commands ``transporter adaptors``: installed readers and writers, with their settings."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.command_group import command_group
from transporter.cli.log_target import AsJson  # noqa: TC001 - Typer reads the annotations
from transporter.cli.output import (
    others_print_to_stderr,
    printable,
    problem_text,
    write,
    write_json,
    write_table,
)
from transporter.errors import ConfigError

if TYPE_CHECKING:
    from transporter.pipeline.adaptor_description import AdaptorInfo, Setting


def build() -> typer.Typer:
    """Build the group."""
    return command_group(
        "List and describe readers and writers.",
        list=list_adaptors,
        show=show_adaptor,
    )


def list_adaptors(*, as_json: AsJson = False) -> None:
    """List the installed readers and writers."""
    from transporter.pipeline.adaptor_description import installed_adaptors  # noqa: PLC0415 - imports all of them

    with others_print_to_stderr():
        found = installed_adaptors()
    if as_json:
        write_json([asdict(each) for each in found])
        return
    write_table(
        ["name", "kind", "description"],
        [(each.name, each.kind, each.problem or _headline(each)) for each in found],
    )


def show_adaptor(
    name: Annotated[
        str,
        typer.Argument(
            help="Name from `adaptors list`, or module:Class of this folder.", metavar="NAME"
        ),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Show an adaptor's settings and an example.

    The example is a part of a pipeline file, to start from.

    Examples:
        transporter adaptors show kafka
        transporter adaptors show my_sink:MySinkWriter
    """
    with others_print_to_stderr():
        found = _find_adaptors(name)
    if as_json:
        write_json([asdict(each) for each in found])
        return
    for each in found:
        _write_adaptor(each)


def _find_adaptors(name: str) -> list[AdaptorInfo]:
    from transporter.pipeline.adaptor_description import describe_adaptor, installed_adaptors  # noqa: PLC0415 - imports all
    from transporter.pipeline.problems import suggestion  # noqa: PLC0415

    if ":" in name:
        return [describe_adaptor(name, Path.cwd())]
    everything = installed_adaptors()
    found = [each for each in everything if each.name == name]
    if not found:
        names = {each.name for each in everything}
        raise ConfigError(f"there is no adaptor {name!r}{suggestion(name, names, 'installed')}")
    return found


def _headline(adaptor: AdaptorInfo) -> str:
    return adaptor.doc.partition("\n")[0]


def _write_adaptor(adaptor: AdaptorInfo) -> None:
    where = "" if adaptor.name == adaptor.reference else f", {adaptor.reference}"
    write(printable(f"{adaptor.name} ({adaptor.kind}{where})"))
    write()
    if adaptor.problem:
        write(f"It cannot be used: {problem_text(adaptor.problem)}")
        return
    for line in adaptor.doc.splitlines():
        write(printable(line))
    write()
    if adaptor.settings:
        rows = [(each.name, each.type, _default_text(each), each.doc) for each in adaptor.settings]
        write_table(["setting", "type", "default", "effect"], rows)
        write()
    for line in example_lines(adaptor):
        write(printable(line))


def _default_text(setting: Setting) -> str:
    return "(required)" if setting.required else setting.default or ""


def example_lines(adaptor: AdaptorInfo) -> list[str]:
    """Return lines of a pipeline file that use *adaptor* with its required settings."""
    from transporter.scaffold.pipelines import quote_name, variable_line  # noqa: PLC0415 - imports adaptors

    required = [
        variable_line(adaptor.short_name, each) for each in adaptor.settings if each.required
    ]
    if adaptor.kind == "reader":
        return [
            "readers:",
            f"  - name: my-{adaptor.short_name}",
            f"    adaptor: {quote_name(adaptor.name)}",
            *(f"    {line}" for line in required),
        ]
    return [
        "routes:",
        f"  - name: to-{adaptor.short_name}",
        "    writer:",
        f"      adaptor: {quote_name(adaptor.name)}",
        *(f"      {line}" for line in required),
    ]
