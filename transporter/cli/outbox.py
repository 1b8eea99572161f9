"""``transporter outbox``: create an outbox table, fill one, clear stale marks, and drop it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.groups import group
from transporter.cli.log_entries import note
from transporter.cli.outbox_place import (
    ChannelName,
    ColumnNames,
    Dsn,
    PipelineFile,
    ReaderName,
    TableName,
    outbox_of,
)
from transporter.cli.output import confirm, printable, write, write_json
from transporter.cli.target import AsJson  # noqa: TC001 - Typer reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.cli.outbox_place import Place
    from transporter.outbox.pump import Load, Reading
    from transporter.outbox.removal import Removable
    from transporter.outbox.reset import LastTerm, Marks

MOST_KEYS = 1_000_000
"""A count for each key is held (Invariant 17)."""
MOST_ROWS = 10_000
LARGEST = 7_000_000
"""Bytes of a value; a record has a bound, which is a little higher."""
MOST_BYTES = 64 * 1024**2
"""Bytes of one transaction: its records are held, too."""


def build() -> typer.Typer:
    """Put the group together."""
    return group(
        "Create an outbox table, fill it for a trial, clear stale marks, and drop it.",
        init=init,
        pump=pump,
        reset=reset,
        drop=drop,
    )


def init(  # noqa: PLR0913 - one argument an option
    pipeline: PipelineFile = None,
    reader: ReaderName = None,
    *,
    dsn: Dsn = None,
    table: TableName = None,
    column: ColumnNames = None,
    channel: ChannelName = None,
    run: Annotated[bool, typer.Option("--run", help="Run the SQL instead of printing it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the SQL that creates an outbox table, each piece explained, or run it.

    Running it again changes nothing. Printing needs no database. A table that is
    there gets the trigger that wakes the reader, that of an event router nothing else.

    Example: transporter outbox init orders.yaml --run
    """
    if dsn is not None and not run:
        raise typer.BadParameter("--dsn is for --run; printing needs no database")
    place = outbox_of(pipeline, reader, dsn, table, column, channel, connecting=run, routed=True)
    if run:
        _create(place, as_json=as_json)
        return
    from transporter.outbox.table import outbox_sql, trigger_sql  # noqa: PLC0415 - as `create`

    text = (
        trigger_sql(place.table, place.channel)
        if place.routed
        else outbox_sql(place.table, place.channel, place.columns)
    )
    if as_json:
        write_json({"table": place.table, "channel": place.channel, "sql": text})
    else:
        sys.stdout.write(text)


def _create(place: Place, *, as_json: bool) -> None:
    from transporter.outbox.creation import create, create_trigger  # noqa: PLC0415 - imports psycopg
    from transporter.outbox.database import connect  # noqa: PLC0415

    with connect(place.dsn) as connection:
        if place.routed:
            name, created = create_trigger(connection, place.table, place.channel), False
        else:
            name, created = create(connection, place.table, place.channel, place.columns)
    if as_json:
        write_json({"table": name, "created": created, "channel": place.channel})
        return
    done = "created" if created else "was there already; its trigger is in place"
    write(printable(f"{name}: {done}"))


def pump(  # noqa: PLR0913 - one argument an option
    pipeline: PipelineFile = None,
    reader: ReaderName = None,
    *,
    keys: Annotated[int, typer.Option("--keys", help="Different keys.", min=1, max=MOST_KEYS)] = 10,
    records: Annotated[int, typer.Option("--records", help="Rows in all.", min=1)] = 1000,
    rows: Annotated[
        int, typer.Option("--rows", help="Rows of a transaction.", min=1, max=MOST_ROWS)
    ] = 20,
    rate: Annotated[
        float, typer.Option("--rate", help="Rows a second; 0: as fast as it goes.", min=0)
    ] = 0.0,
    value_bytes: Annotated[
        int, typer.Option("--value-bytes", help="Bytes of a value, at least.", min=0, max=LARGEST)
    ] = 200,
    topic: Annotated[
        str, typer.Option("--topic", help="Topic, so namespace, of all rows.")
    ] = "pump",
    dsn: Dsn = None,
    table: TableName = None,
    column: ColumnNames = None,
    as_json: AsJson = False,
) -> None:
    """Insert made-up rows into an outbox, to see a pipeline at work or to measure it.

    The header seq counts the rows of each key, so order and loss can be checked at
    the other end; the header run tells one run from another. Real sinks get these
    rows, too, where a route takes the topic. A line tells the rate every 5 seconds.

    Example: transporter outbox pump orders.yaml --keys 100 --records 50000 --rate 2000
    """
    if not isfinite(rate):
        raise typer.BadParameter(f"--rate {rate}: write a number; 0 is as fast as it goes")
    if rows * value_bytes > MOST_BYTES:
        raise typer.BadParameter(f"{rows} rows of {value_bytes} bytes exceed {MOST_BYTES} in all")
    from random import Random  # noqa: PLC0415 - only for this command
    from uuid import uuid4  # noqa: PLC0415

    from transporter.outbox.database import connect  # noqa: PLC0415 - imports psycopg
    from transporter.outbox.pump import Load, Pump  # noqa: PLC0415

    place = outbox_of(pipeline, reader, dsn, table, column)
    load = Load(uuid4().hex[:12], keys, records, rows, rate, value_bytes, _topic(topic))
    with connect(place.dsn) as connection, _meter(records) as (told, metered):
        machine = Pump(connection, place.table, told, metered, columns=place.columns)
        try:
            total = machine.run(load, Random(load.run))  # noqa: S311 - made-up rows
        except KeyboardInterrupt:
            note(f"interrupted: {machine.rows:,} rows are committed; run {load.run}")
            raise
    _tell_pumped(place.table, load, total, as_json=as_json)


def _topic(topic: str) -> str:
    from transporter.outbox.record import Record  # noqa: PLC0415 - with its package

    try:
        return Record(topic, "", "").topic
    except ValueError as error:
        raise typer.BadParameter(f"--topic: {error}") from error


def _tell_pumped(table: str, load: Load, total: Reading, *, as_json: bool) -> None:
    if as_json:
        facts = {"table": table, "seconds": total.seconds, "rows_per_second": total.mean}
        write_json({**asdict(load), **facts})
        return
    write(
        printable(
            f"{table}: {total.rows:,} rows of {load.keys:,} keys in {total.seconds:.1f} s, "
            f"{total.mean:,.0f} rows/s; topic {load.topic}, run {load.run}"
        )
    )


@contextmanager
def _meter(records: int) -> Iterator[tuple[Callable[[int], object], Callable[[Reading], object]]]:
    """Give what is told each commit (a bar on a terminal) and each reading (a line), on stderr."""
    if not sys.stderr.isatty():
        yield lambda _: None, lambda reading: note(_line(reading, records))
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("pump", total=records)
        yield (
            lambda rows: bar.update(task, completed=rows),
            lambda reading: bar.console.print(_line(reading, records), markup=False),
        )


def _line(reading: Reading, records: int) -> str:
    return (
        f"{reading.rows:,} of {records:,} rows after {reading.seconds:.0f} s: "
        f"{reading.rate:,.0f} rows/s now, {reading.mean:,.0f} in all"
    )


def reset(  # noqa: PLR0913 - one argument an option
    pipeline: PipelineFile = None,
    reader: ReaderName = None,
    *,
    end_term: Annotated[
        bool,
        typer.Option(
            "--end-term",
            help="End the last leader's term first, and reset its rows, too; "
            "an engine that still reads the outbox stops.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dsn: Dsn = None,
    table: TableName = None,
    column: ColumnNames = None,
    as_json: AsJson = False,
) -> None:
    """Clear the marks of rows whose leaders' terms are over (leader_id becomes NULL).

    An engine needs no such help: it marks again what others have marked. Rows that
    the leader of the last term has marked stay as they are, for it may be alive.

    Example: transporter outbox reset orders.yaml
    """
    from transporter.outbox import reset as resetting  # noqa: PLC0415 - imports psycopg
    from transporter.outbox.database import connect  # noqa: PLC0415

    place = outbox_of(pipeline, reader, dsn, table, column)
    with connect(place.dsn) as connection:
        found = resetting.marks(connection, place.table, place.columns)
        rows = sum(found.rows_of_ended_leaders.values()) + (found.kept_rows if end_term else 0)
        ending = end_term and found.last is not None
        if (rows or ending) and not yes:
            confirm(_question(found, rows, ending=ending))
        leaders = [*found.rows_of_ended_leaders]
        if ending and found.last is not None:
            resetting.end_term(connection, found)
            leaders.append(found.last.leader)
        done = resetting.reset(connection, found.table, leaders, place.columns) if leaders else 0
    _tell_reset(found, done, ended=ending, as_json=as_json)


def _question(found: Marks, rows: int, *, ending: bool) -> str:
    what = f"Reset {rows:,} rows of {found.table.name}"
    if found.last is None:
        text = f"{what}? No engine of ours ever read it: stop what has marked them first. Go on?"
    elif ending:
        text = f"{what}, and end {_term(found.last)}? An engine that still reads it stops. Go on?"
    else:
        text = f"{what}, marked in terms that are over?"
    return printable(text)


def _term(last: LastTerm) -> str:
    return f"term {last.number}, begun {last.since:%Y-%m-%d %H:%M:%S %Z}"


def _tell_reset(found: Marks, done: int, *, ended: bool, as_json: bool) -> None:
    kept = 0 if ended else found.kept_rows
    last = found.last
    if as_json:
        facts: dict[str, Any] = {"table": found.table.name, "reset": done, "kept": kept}
        write_json({**facts, "term": last.number if last else None, "ended": ended})
        return
    write(printable(f"{found.table.name}: {done:,} rows reset"))
    if kept and last:
        note(
            f"{kept:,} rows are marked by the leader of {_term(last)}, which may be at work; "
            "if its engine is gone for good, --end-term resets them, too"
        )


def drop(  # noqa: PLR0913 - one argument an option
    pipeline: PipelineFile = None,
    reader: ReaderName = None,
    *,
    keep_table: Annotated[
        bool,
        typer.Option("--keep-table", help="Drop the trigger and its function, and no table."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Drop a table with rows, which are lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dsn: Dsn = None,
    table: TableName = None,
    column: ColumnNames = None,
    as_json: AsJson = False,
) -> None:
    """Drop what init has created: trigger, function and table. Stop the engine first.

    A table that holds rows is refused, for they are not delivered yet. That of an
    event router keeps all but the trigger. The table transporter_term stays.

    Example: transporter outbox drop orders.yaml
    """
    from transporter.outbox import removal  # noqa: PLC0415 - imports psycopg
    from transporter.outbox.database import connect  # noqa: PLC0415

    place = outbox_of(pipeline, reader, dsn, table, column, routed=True)
    whole = not (keep_table or place.routed)
    with connect(place.dsn) as connection:
        found = removal.find_removable(
            connection, place.table, None if place.routed else place.columns
        )
        if whole:
            removal.refuse_rows(found.table.name, found.rows, force=force)
        parts = _parts(found, whole=whole)
        if parts and not yes:
            lost = f", and lose its {found.rows:,} rows" if whole and found.rows else ""
            question = f"Drop {_listed(parts)} of {found.table.name}{lost}?"
            confirm(question)
        rows = removal.drop(connection, found, table=whole, force=force) if parts else 0
    if as_json:
        write_json({"table": found.table.name, "dropped": parts, "rows": rows})
        return
    lost = f"; {rows:,} rows are lost" if rows else ""
    done = (
        f"{_listed(parts)} dropped{lost}" if parts else "has no trigger of init's; nothing to drop"
    )
    write(printable(f"{found.table.name}: {done}"))


def _parts(found: Removable, *, whole: bool) -> list[str]:
    there = {"trigger": found.trigger, "function": found.function, "table": whole}
    return [part for part, is_there in there.items() if is_there]


def _listed(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
