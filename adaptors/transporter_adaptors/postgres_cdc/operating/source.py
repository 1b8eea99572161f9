"""The source of one reader, as ``transporter cdc`` operates it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter_adaptors.postgres_cdc.operating import (
    findings,
    progress,
    removal,
    setup,
    setup_sql,
)
from transporter_adaptors.postgres_cdc.operating.logged import LoggedState
from transporter_adaptors.postgres_cdc.operating.table_entries import describe_tables

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
    from transporter.message import Message
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
        return setup.set_up(self._config, self._logged(), service, dsn)

    def check(self) -> Iterator[Finding]:
        """Yield findings about all that an open needs."""
        return findings.check_source(self._config, self._logged())

    def table_entries(self) -> Iterator[Message]:
        """Yield the entries by which the reader would describe its tables now."""
        return describe_tables(self._config)

    def status(self) -> SourceStatus:
        """Return the present state."""
        return progress.read_status(self._config, self._logged())

    def find_removable(self) -> Removable:
        """Return what :meth:`drop` would remove."""
        return removal.find_removable(self._config, self._logged())

    def drop(self) -> None:
        """Drop slot and publication."""
        removal.drop_objects(self._config, self._logged())

    def _logged(self) -> LoggedState:
        return LoggedState.parse(self._config, self._reader)
