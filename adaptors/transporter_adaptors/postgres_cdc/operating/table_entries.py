"""The entries that would describe the tables of a source, for a look at its sinks in advance."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from transporter.message import Message
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc.columns import SCHEMA_TYPE, schema_document
from transporter_adaptors.postgres_cdc.plan import find_plan, key_of
from transporter_adaptors.postgres_cdc.publication import published_columns
from transporter_adaptors.postgres_cdc.server import read_server
from transporter_adaptors.postgres_cdc.session import COMMAND_PATIENCE, connect_queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter_adaptors.postgres_cdc.config import CdcConfig


def describe_tables(config: CdcConfig) -> Iterator[Message]:
    """Yield an entry for each table that *config* selects, as ``schema: entries`` would log it.

    Raises:
        SourceUnavailable: the server does not answer.
        EnvironmentFault: it refuses.

    """
    if config.schema_entries != "entries":
        return
    with (
        closing(connect_queries(config.dsn, COMMAND_PATIENCE)) as queries,
        translate_errors("cannot look at the tables"),
    ):
        tables = find_plan(queries, config, read_server(queries)).tables.values()
    for table, item, definition in tables:
        columns = [
            (column.name, column.full_type, column.not_null)
            for column in published_columns(definition.columns, item.columns or None)
        ]
        key = key_of(item, definition)
        document = schema_document(columns, key, table.schema, table.name)
        yield Message(
            config.namespace_of(table.full_name),
            document,
            None,
            "command",
            content_type=SCHEMA_TYPE,
        )
