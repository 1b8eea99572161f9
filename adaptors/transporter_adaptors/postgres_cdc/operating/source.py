"""The source of one reader, as ``transporter cdc`` operates it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from transporter.message import Message
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc.columns import SCHEMA_TYPE, schema_document
from transporter_adaptors.postgres_cdc.operating import findings, objects, progress, setup_sql
from transporter_adaptors.postgres_cdc.operating.logged import LoggedState
from transporter_adaptors.postgres_cdc.plan import find_plan, key_of
from transporter_adaptors.postgres_cdc.publication import published_columns
from transporter_adaptors.postgres_cdc.server import read_server
from transporter_adaptors.postgres_cdc.session import COMMAND_PATIENCE, connect_queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.adaptor import Finding
    from transporter.change_source import (
        LoggedReader,
        Removable,
        Service,
        SetupScript,
        SourceObject,
        SourceStatus,
    )
    from transporter_adaptors.postgres_cdc.config import CdcConfig


class PostgresSource:
    """Implements :class:`transporter.change_source.ChangeSource`."""

    def __init__(self, config: CdcConfig, logged: LoggedReader) -> None:
        """Keep both, without any I/O."""
        self._config, self._reader = config, logged

    def setup_script(self, service: Service) -> SetupScript:
        """Return the SQL for all objects."""
        return setup_sql.make_script(self._config, self._logged(), service)

    def set_up(self, service: Service, dsn: str | None) -> Iterator[SourceObject]:
        """Create what is missing, and yield each object."""
        return objects.set_up(self._config, self._logged(), service, dsn)

    def check(self) -> Iterator[Finding]:
        """Yield findings about all that an open needs."""
        return findings.check_source(self._config, self._logged())

    def table_entries(self) -> Iterator[Message]:
        """Yield the entries by which the reader would describe its tables now."""
        return _describe_tables(self._config)

    def status(self) -> SourceStatus:
        """Return the present state."""
        return progress.read_status(self._config, self._logged())

    def find_removable(self) -> Removable:
        """Return what :meth:`drop` would remove."""
        return objects.find_removable(self._config, self._logged())

    def drop(self) -> None:
        """Drop slot and publication."""
        objects.drop_objects(self._config, self._logged())

    def _logged(self) -> LoggedState:
        return LoggedState.parse(self._config, self._reader)


def _describe_tables(config: CdcConfig) -> Iterator[Message]:
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
