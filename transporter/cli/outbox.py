"""Commands ``transporter outbox``: create, fill, reset and drop an outbox table."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.command_group import command_group
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson  # noqa: TC001 - Typer reads the annotations
from transporter.cli.outbox_target import (
    ChannelName,
    ColumnNames,
    Dsn,
    PipelineFile,
    ReaderName,
    TableName,
    resolve_outbox,
)
from transporter.cli.output import confirm, count_text, printable, write, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.cli.outbox_target import OutboxLocation
    from transporter.outbox.pump import Load, Reading
    from transporter.outbox.removal import Removable
    from transporter.outbox.reset import LastTerm, Marks

MOST_KEYS = 1_000_000
"""Maximum number of keys, because each has a counter in memory (Invariant 17)."""
MOST_ROWS = 10_000
LARGEST = 7_000_000
"""Maximum bytes of a value, a little below the limit of a record."""
MOST_BYTES = 64 * 1024**2
"""Maximum bytes of one transaction, whose records are in memory too."""


def build() -> typer.Typer:
    """Build the group."""
    return command_group(
        "Create, fill, reset or drop an outbox.",
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
    """Print or run the SQL for an outbox table.

    The printed SQL has comments and needs no database. You can run it repeatedly. An
    existing table gets the trigger that wakes the reader. An event router's table gets
    nothing else.

    Examples:
        transporter outbox init orders.yaml | psql
        transporter outbox init orders.yaml --run
    """
    if dsn is not None and not run:
        raise typer.BadParameter("--dsn requires --run; printing needs no database")
    place = resolve_outbox(
        pipeline, reader, dsn, table, column, channel, needs_dsn=run, routed=True
    )
    if run:
        _create(place, as_json=as_json)
        return
    from transporter.outbox.table import outbox_sql, trigger_sql  # noqa: PLC0415 - as in `_create`

    text = (
        trigger_sql(place.table, place.channel)
        if place.routed
        else outbox_sql(place.table, place.channel, place.columns)
    )
    if as_json:
        write_json({"table": place.table, "channel": place.channel, "sql": text})
    else:
        sys.stdout.write(text)


def _create(place: OutboxLocation, *, as_json: bool) -> None:
    from transporter.outbox.creation import create_table, create_trigger  # noqa: PLC0415 - imports psycopg
    from transporter.outbox.database import connect  # noqa: PLC0415

    with connect(place.dsn) as connection:
        if place.routed:
            name, created = create_trigger(connection, place.table, place.channel), False
        else:
            name, created = create_table(connection, place.table, place.channel, place.columns)
    if as_json:
        write_json({"table": name, "created": created, "channel": place.channel})
        return
    done = "created" if created else "existed already; its trigger is in place"
    write(printable(f"{name}: {done}"))


def pump(  # noqa: PLR0913 - one argument an option
    pipeline: PipelineFile = None,
    reader: ReaderName = None,
    *,
    keys: Annotated[int, typer.Option("--keys", help="Number of keys.", min=1, max=MOST_KEYS)] = 10,
    records: Annotated[int, typer.Option("--records", help="Total number of rows.", min=1)] = 1000,
    rows: Annotated[
        int, typer.Option("--rows", help="Rows in each transaction.", min=1, max=MOST_ROWS)
    ] = 20,
    rate: Annotated[
        float, typer.Option("--rate", help="Rows per second; 0: as fast as possible.", min=0)
    ] = 0.0,
    value_bytes: Annotated[
        int, typer.Option("--value-bytes", help="Minimum bytes of a value.", min=0, max=LARGEST)
    ] = 200,
    topic: Annotated[
        str, typer.Option("--topic", help="Topic of all rows, which is their namespace.")
    ] = "pump",
    dsn: Dsn = None,
    table: TableName = None,
    column: ColumnNames = None,
    as_json: AsJson = False,
) -> None:
    """Insert test rows into an outbox.

    Use it to watch a pipeline at work, or to measure it. The header seq counts the rows
    of each key, so you can check order and completeness at the sink. The header run
    identifies the run. Every route that accepts the topic delivers these rows to its real
    sink. Every 5 seconds a line on stderr reports the rate.

    Example:
        transporter outbox pump orders.yaml --records 50000 --rate 2000
    """
    if not isfinite(rate):
        raise typer.BadParameter(f"--rate {rate}: use a finite number; 0 is as fast as possible")
    if rows * value_bytes > MOST_BYTES:
        raise typer.BadParameter(
            f"{rows} rows of {value_bytes} bytes exceed {MOST_BYTES} bytes in all"
        )
    from random import Random  # noqa: PLC0415 - only for this command
    from uuid import uuid4  # noqa: PLC0415

    from transporter.outbox.database import connect  # noqa: PLC0415 - imports psycopg
    from transporter.outbox.pump import Load, Pump  # noqa: PLC0415

    place = resolve_outbox(pipeline, reader, dsn, table, column)
    load = Load(uuid4().hex[:12], keys, records, rows, rate, value_bytes, _check_topic(topic))
    with connect(place.dsn) as connection, _progress(records) as (on_commit, on_reading):
        machine = Pump(connection, place.table, on_commit, on_reading, columns=place.columns)
        try:
            total = machine.run(load, Random(load.run))  # noqa: S311 - made-up rows
        except KeyboardInterrupt:
            committed = count_text(machine.rows, "row is", "rows are")
            note(f"interrupted: {committed} committed; run {load.run}")
            raise
    _report_pump(place.table, load, total, as_json=as_json)


def _check_topic(topic: str) -> str:
    from transporter.outbox.record import Record  # noqa: PLC0415 - with its package

    try:
        return Record(topic, "", "").topic
    except ValueError as error:
        raise typer.BadParameter(f"--topic: {error}") from error


def _report_pump(table: str, load: Load, total: Reading, *, as_json: bool) -> None:
    if as_json:
        facts = {"table": table, "seconds": total.seconds, "rows_per_second": total.mean}
        write_json({**asdict(load), **facts})
        return
    rows, keys = count_text(total.rows, "row", "rows"), count_text(load.keys, "key", "keys")
    write(
        printable(
            f"{table}: {rows} of {keys} in {total.seconds:.1f} s, "
            f"{total.mean:,.0f} rows/s; topic {load.topic}, run {load.run}"
        )
    )


@contextmanager
def _progress(
    records: int,
) -> Iterator[tuple[Callable[[int], object], Callable[[Reading], object]]]:
    """Show progress on stderr: a bar on a terminal, and a line for each reading.

    Yields the function to call after each commit, and the one to call with each reading.
    """
    if not sys.stderr.isatty():
        yield lambda _: None, lambda reading: note(_rate_text(reading, records))
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("pump", total=records)
        yield (
            lambda rows: bar.update(task, completed=rows),
            lambda reading: bar.console.print(_rate_text(reading, records), markup=False),
        )


def _rate_text(reading: Reading, records: int) -> str:
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
            help="End the last leader's term first, and reset its rows too. "
            "An engine that still reads the outbox stops.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    dsn: Dsn = None,
    table: TableName = None,
    column: ColumnNames = None,
    as_json: AsJson = False,
) -> None:
    """Clear the row marks of former leaders.

    It sets leader_id to NULL in rows whose leaders' terms are over. An engine does not
    need this, because it marks such rows again. Rows of the last term's leader stay
    marked, because that leader may be alive.

    Example:
        transporter outbox reset orders.yaml
    """
    from transporter.outbox import reset as resetting  # noqa: PLC0415 - imports psycopg
    from transporter.outbox.database import connect  # noqa: PLC0415

    place = resolve_outbox(pipeline, reader, dsn, table, column)
    with connect(place.dsn) as connection:
        found = resetting.read_marks(connection, place.table, place.columns)
        rows = sum(found.rows_of_ended_leaders.values()) + (found.kept_rows if end_term else 0)
        ending = end_term and found.last is not None
        if (rows or ending) and not yes:
            confirm(_reset_question(found, rows, ending=ending))
        leaders = [*found.rows_of_ended_leaders]
        if ending and found.last is not None:
            resetting.end_term(connection, found)
            leaders.append(found.last.leader)
        done = (
            resetting.clear_marks(connection, found.table, leaders, place.columns) if leaders else 0
        )
    _report_reset(found, done, ended=ending, as_json=as_json)


def _reset_question(found: Marks, rows: int, *, ending: bool) -> str:
    what = f"Reset {count_text(rows, 'row', 'rows')} of {found.table.name}"
    if found.last is None:
        text = (
            f"{what}? No transporter engine ever read it: first stop the process that has "
            "marked them. Continue?"
        )
    elif ending:
        text = (
            f"{what}, and end {_term_text(found.last)}? "
            "An engine that still reads it stops. Continue?"
        )
    else:
        text = f"{what}, marked in terms that are over?"
    return printable(text)


def _term_text(last: LastTerm) -> str:
    return f"term {last.number}, begun {last.since:%Y-%m-%d %H:%M:%S %Z}"


def _report_reset(found: Marks, done: int, *, ended: bool, as_json: bool) -> None:
    kept = 0 if ended else found.kept_rows
    last = found.last
    if as_json:
        facts: dict[str, Any] = {"table": found.table.name, "reset": done, "kept": kept}
        write_json({**facts, "term": last.number if last else None, "ended": ended})
        return
    write(printable(f"{found.table.name}: {count_text(done, 'row', 'rows')} reset"))
    if kept and last:
        note(
            f"{count_text(kept, 'row is', 'rows are')} marked by the leader of {_term_text(last)}, "
            "which may be active; if its engine is gone for good, --end-term resets "
            f"{'it' if kept == 1 else 'them'} too"
        )


def drop(  # noqa: PLR0913 - one argument an option
    pipeline: PipelineFile = None,
    reader: ReaderName = None,
    *,
    keep_table: Annotated[
        bool,
        typer.Option("--keep-table", help="Drop only the trigger and its function."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Drop the table even with rows, which are lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    dsn: Dsn = None,
    table: TableName = None,
    column: ColumnNames = None,
    as_json: AsJson = False,
) -> None:
    """Drop an outbox's trigger and table.

    It drops the trigger, the function and the table that init has created. Stop the
    engine first. A table with rows is refused, because they are not delivered yet. An
    event router's table loses only the trigger. The table transporter_term stays.

    Example:
        transporter outbox drop orders.yaml
    """
    from transporter.outbox import removal  # noqa: PLC0415 - imports psycopg
    from transporter.outbox.database import connect  # noqa: PLC0415

    place = resolve_outbox(pipeline, reader, dsn, table, column, routed=True)
    whole = not (keep_table or place.routed)
    with connect(place.dsn) as connection:
        found = removal.find_removable(
            connection, place.table, None if place.routed else place.columns
        )
        if whole:
            removal.refuse_rows(found.table.name, found.rows, force=force)
        parts = _removable_parts(found, whole=whole)
        if parts and not yes:
            rows_text = count_text(found.rows, "row", "rows")
            lost = f", and lose its {rows_text}" if whole and found.rows else ""
            question = f"Drop {_join_parts(parts)} of {found.table.name}{lost}?"
            confirm(question)
        rows = removal.drop_objects(connection, found, table=whole, force=force) if parts else 0
    if as_json:
        write_json({"table": found.table.name, "dropped": parts, "rows": rows})
        return
    lost = f"; {count_text(rows, 'row is', 'rows are')} lost" if rows else ""
    done = (
        f"{_join_parts(parts)} dropped{lost}"
        if parts
        else "has no trigger from init; nothing to drop"
    )
    write(printable(f"{found.table.name}: {done}"))


def _removable_parts(found: Removable, *, whole: bool) -> list[str]:
    there = {"trigger": found.trigger, "function": found.function, "table": whole}
    return [part for part, is_there in there.items() if is_there]


def _join_parts(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
