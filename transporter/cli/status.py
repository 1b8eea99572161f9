"""Command ``transporter status``: the present state of readers and routes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from transporter.cli.action_options import perform_request
from transporter.cli.log_target import AsJson, Target  # noqa: TC001 - Typer reads the annotations at run time
from transporter.cli.output import (
    align_columns,
    printable,
    problem_text,
    write,
    write_json,
    write_table,
)
from transporter.control.requests import Status
from transporter.control.status_texts import activity, size_text, source_lag

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = ("", "state", "watermark", "lag", "parked", "doing")


def status(target: Target, *, as_json: AsJson = False) -> None:
    """Show the state of each reader and route.

    It includes their progress, and the reason if one waits. The running engine answers,
    or without one the command reads the disk.

    Example:
        transporter status pipeline.yaml
    """
    found = perform_request(target, Status())
    if as_json:
        write_json(found)
        return
    write(headline(found))
    write_table(COLUMNS, status_rows(found))
    for line in problem_lines(found):
        write(line)
    named = shlex.quote(str(target))
    if found["running"] or not found["pid"]:  # Else the engine first has to answer, or to end.
        for line in next_lines(found, named, "FILE" if target.is_dir() else named):
            write(line)


def headline(found: dict[str, Any]) -> str:
    """Return a line about the log and its engine."""
    silent = f"engine {found['pid']} does not answer" if found["pid"] else "no engine runs"
    engine = f"engine {found['pid']} runs" if found["running"] else silent
    if found.get("stopping"):
        engine = f"engine {found['pid']} is stopping: it delivers what is logged, and ends"
    elif found["running"] and not found["spark"]:
        engine += ", Spark is starting"
    place, size = printable(found["directory"]), size_text(found["size"])
    return f"{engine} · log {place} · last offset {found['last']:,} · {size}"


def status_rows(found: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each reader and route."""
    for reader in found["readers"]:
        yield (
            f"reader {reader['name']}",
            reader["state"],
            "",
            source_lag(reader.get("measured", {})),
            "",
            f"{reader['logged']:,} logged",
        )
    for route in found["routes"]:
        yield (
            f"route {route['name']}",
            route["state"],
            f"{route['watermark']:,}",
            f"{route['lag']:,}",
            f"{route['parked']:,}",
            activity(route),
        )


def next_lines(found: dict[str, Any], target: str, file: str) -> Iterator[str]:
    """Yield the commands for each reader and route that waits for an operator.

    *target* is the log, and *file* the pipeline file, as one writes them in a shell.
    """
    for reader in found["readers"]:
        if reader["state"] == "stopped":
            name = shlex.quote(printable(reader["name"]))
            yield f"next for reader {name}, once the cause is removed:"
            yield f"  transporter reader restart {target} {name}"
    for route in found["routes"]:
        if route["state"] == "stopped":
            name, offset = shlex.quote(printable(route["name"])), route["next"]
            yield f"next for route {name}, which stands before entry {offset}:"
            again = f"route resume {target} {name}" if found["running"] else f"run {file}"
            commands = [(again, "try again, once the cause is removed")]
            if route["problem"].startswith(f"offset {offset}: "):  # The entry is the cause.
                commands = [
                    (f"log show {target} {offset}", "look at the entry"),
                    *commands,
                    (f"ack {target} {name} {offset} --reason …", "or go on without this entry"),
                ]
            yield from (
                f"  {line}"
                for line in align_columns(
                    [[f"transporter {words}", f"# {what}"] for words, what in commands]
                )
            )


def problem_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each problem."""
    for each in (*found["readers"], *found["routes"]):
        if each.get("problem"):
            yield problem_text(f"{each['name']}: {each['problem']}")
