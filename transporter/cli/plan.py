"""Command ``transporter plan``: the disk, memory and descriptors that a load needs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - Typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson  # noqa: TC001 - as above
from transporter.cli.output import align_columns, count_text, printable, write, write_json
from transporter.cli.pipeline_file import load_pipeline
from transporter.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.sizing import Load, Plan

T = TypeVar("T")

_MOST_SAMPLE: Final = 16 << 20
"""Bytes that are read of a sample."""
_MOST_DATA: Final = 8 << 20
"""Largest size of a message, for --size."""


def plan(  # noqa: PLR0913 - one argument an option
    pipeline: Annotated[
        Path | None,
        typer.Argument(
            help="Pipeline file, for its routes, compression and retention; else the defaults.",
            metavar="[PIPELINE]",
            show_default=False,
        ),
    ] = None,
    *,
    rate: Annotated[float, typer.Option(help="Messages in a second.", min=0.001, max=1e9)],
    size: Annotated[
        str | None, typer.Option(help="Size of a message's data, such as 400 or 2KiB.")
    ] = None,
    outage: Annotated[
        str, typer.Option(help="Longest time for which a sink may be down.", metavar="DURATION")
    ] = "24h",
    sample: Annotated[
        Path | None,
        typer.Option(
            help="File with the data of typical messages, one a line, in the place of --size.",
            metavar="FILE",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Messages that a reader logs at once; by default estimated.", min=1),
    ] = None,
    routes: Annotated[
        int, typer.Option(help="Number of routes, without a pipeline file.", min=1)
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Show the disk and memory that a load needs.

    It encodes messages as the log does, and measures them. How far lz4 compresses depends
    on the data: made-up JSON of --size is a guess, a --sample of your own is not. The
    outage is the time for which the log must hold what a sink has not taken.

    Examples:
        transporter plan --rate 2000 --size 400 --outage 24h
        transporter log show orders.yaml --last 1000 --raw > sample.jsonl
        transporter plan orders.yaml --rate 2000 --sample sample.jsonl
    """
    from transporter.sizing import Load, batch_of, made_up_data, make_plan  # noqa: PLC0415 - heavy
    from transporter.units import parse_duration, parse_size  # noqa: PLC0415 - the same

    if (size is None) == (sample is None):
        raise typer.BadParameter("give either --size or --sample")
    seconds = _parse(parse_duration, "--outage", outage)
    if sample is not None:
        data = _read_sample(sample)
    else:
        data = made_up_data(_check_size(_parse(parse_size, "--size", size)))
    load = Load(rate, batch or batch_of(rate), data)
    if sample is not None and len(data) < load.batch:
        messages = count_text(len(data), "message", "messages")
        note(
            f"warning: the sample has {messages}, fewer than are logged at once "
            f"({load.batch:,}), so the disk per message may be too high; give a longer one"
        )
    found = make_plan(load, seconds, None if pipeline is None else load_pipeline(pipeline), routes)
    if as_json:
        write_json(_as_json(found, load))
    else:
        _write_plan(found, load, outage)


def _parse(parse: Callable[[object], T], option: str, text: object) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text!r} {error}") from error


def _check_size(size: int) -> int:
    if not 0 < size <= _MOST_DATA:
        raise typer.BadParameter("--size must be from 1 byte to 8MiB, the limit of a message")
    return size


def _read_sample(file: Path) -> list[bytes]:
    try:
        with file.open("rb") as sample:
            lines = sample.read(_MOST_SAMPLE).splitlines()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    if not (found := [each for each in lines if each]):
        raise ConfigError(f"{file}: has no line; write the data of one message on each")
    return found


def _as_json(found: Plan, load: Load) -> dict[str, Any]:
    values = asdict(found)
    values["message"] = round(found.message, 1)
    values["memory"]["total"] = found.memory.total
    return values | {"rate": load.rate, "batch": load.batch}


def _write_plan(found: Plan, load: Load, outage: str) -> None:
    memory = found.memory
    workers = f"workers {_size(memory.workers)}"
    parts = f"engine {_size(memory.engine)}, Spark {_size(memory.spark)}, {workers}"
    rows = [
        ["disk per message", _size(round(found.message)), f"{load.batch} logged at once"],
        ["disk per hour", _size(found.hour), ""],
        [f"an outage of {outage}", _size(found.outage), "entries that wait for the sink"],
        ["retention adds", _limited(found.retention), "delivered entries, for replays"],
        ["log at most", _limited(found.log), _segments_text(found.segments)],
        ["log.max_bytes", _budget_text(found), "which leaves a fifth free"],
        ["file system", _size(found.disk), "for the log alone"],
        ["descriptors", str(found.descriptors), "of the engine's process"],
        ["memory", _size(memory.total), parts],
    ]
    for line in align_columns([[printable(cell) for cell in row] for row in rows]):
        write(line)


def _size(count: int) -> str:
    from transporter.units import display_size  # noqa: PLC0415 - imports pydantic

    return display_size(count)


def _limited(count: int | None) -> str:
    return "no limit" if count is None else _size(count)


def _segments_text(count: int | None) -> str:
    return "log.retention has no limit" if count is None else f"in {count:,} segments"


def _budget_text(found: Plan) -> str:
    from transporter.units import format_size  # noqa: PLC0415 - imports pydantic

    return format_size(found.max_bytes)
