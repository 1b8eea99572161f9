"""Outbox of a command: that of a pipeline file's reader, or a connection string and a table."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from transporter.errors import ConfigError

if TYPE_CHECKING:
    from transporter.outbox import Columns

VARIABLE: Final = "TRANSPORTER_OUTBOX_DSN"
_READER: Final = "postgres-outbox"

PipelineFile = Annotated[
    Path | None,
    typer.Argument(help="Pipeline file that reads the outbox.", metavar="PIPELINE"),
]
ReaderName = Annotated[
    str | None, typer.Argument(help="Reader's name, if several read an outbox.", metavar="READER")
]
Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="Connection string, instead of a pipeline file. Other users can see a command "
        f"line, so put the password into {VARIABLE}, PGPASSWORD or ~/.pgpass.",
    ),
]
TableName = Annotated[str | None, typer.Option("--table", help="Outbox table.  [default: outbox]")]
ColumnNames = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        help="Name of a column that differs from the default, such as id=event_id; repeatable. "
        "Columns: id, created, topic, key, value, header_keys, header_values, leader.",
        metavar="COLUMN=NAME",
    ),
]
ChannelName = Annotated[
    str | None,
    typer.Option("--channel", help="Channel of the table's notifications.  [default: outbox]"),
]


@dataclass(frozen=True, slots=True)
class OutboxLocation:
    """An outbox: its database (empty if not needed) and its names.

    A *routed* one is the table of an event router, which has its own columns.
    """

    dsn: str = field(repr=False)
    table: str
    columns: Columns
    channel: str
    routed: bool = False


def resolve_outbox(  # noqa: PLR0913 - one argument an option
    pipeline: Path | None,
    reader: str | None,
    dsn: str | None,
    table: str | None,
    columns: list[str] | None,
    channel: str | None = None,
    *,
    needs_dsn: bool = True,
    routed: bool = False,
) -> OutboxLocation:
    """Return the outbox that a command line names.

    Without *needs_dsn* the connection string is neither needed nor read. Only with
    *routed* may it be the table of an event router.

    Raises:
        ConfigError: the command line names no outbox, or two.

    """
    if pipeline is not None:
        if (dsn, table, channel) != (None, None, None) or columns:
            raise ConfigError(f"{pipeline} names database and table; leave out the options")
        place = _reader_outbox(pipeline, reader, needs_dsn=needs_dsn)
        if place.routed and not routed:
            raise ConfigError(
                f"{pipeline} reads the table of an event router, which 'transporter outbox' "
                "neither fills nor resets; 'transporter outbox init' prints its trigger, and "
                "'transporter run' reports missing parts of that table"
            )
        return place
    from transporter.outbox.table import DEFAULT, outbox_sql  # noqa: PLC0415 - `--help` does without

    where = _resolve_dsn(dsn) if needs_dsn else ""
    try:
        place = OutboxLocation(
            where, table or DEFAULT, _parse_columns(columns or []), channel or DEFAULT
        )
        outbox_sql(place.table, place.channel)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return place


def _parse_columns(given: list[str]) -> Columns:
    from transporter.outbox.table import Columns  # noqa: PLC0415 - as above
    from transporter.pipeline.problems import suggestion  # noqa: PLC0415 - imports pydantic

    named = dict(each.partition("=")[::2] for each in given)
    known = Columns().quoted_names()
    for what, name in named.items():
        if what not in known:
            hint = suggestion(what, known, "columns")
            raise ValueError(f"--column {what}={name}: there is no {what!r}{hint}")
    return Columns(**named)


def _resolve_dsn(given: str | None) -> str:
    dsn = os.environ.get(VARIABLE) if given is None else given
    if dsn is None:
        raise ConfigError(
            f"name the database: by a pipeline file, {VARIABLE}, or --dsn "
            "('dbname=shop' leaves the rest to PGHOST, PGUSER, PGPASSWORD, ~/.pgpass)"
        )
    return dsn


def _reader_outbox(file: Path, name: str | None, *, needs_dsn: bool) -> OutboxLocation:
    from transporter.cli.reader_section import load_reader  # noqa: PLC0415 - imports pydantic
    from transporter.outbox.table import Columns  # noqa: PLC0415 - `--help` does without

    found = load_reader(file, _READER, name, "readers of an outbox", needs_dsn=needs_dsn)
    config = found.config
    columns = Columns(**dict(config.columns)) if config.router is None else Columns()
    return OutboxLocation(
        config.dsn.get_secret_value(),
        config.table,
        columns,
        config.notify_channel,
        routed=config.router is not None,
    )
