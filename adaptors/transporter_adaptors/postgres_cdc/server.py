"""The server: its identity, its settings, and whether changes can be read from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg.rows import class_row

from transporter.errors import EnvironmentFault, SourceUnavailable
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres.table import TableName
from transporter_adaptors.postgres_cdc.lsn import format_lsn, parse_lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.errors import TransporterError
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.position import Position

OLDEST: Final = 140000
"""The oldest version whose changes can be read."""
_FACTS: Final = """
SELECT current_setting('server_version_num')::int AS version,
       current_setting('wal_level') AS wal_level, pg_is_in_recovery() AS is_standby,
       (SELECT system_identifier::text FROM pg_control_system()) AS system_id,
       extract(epoch FROM pg_postmaster_start_time())::text AS started,
       current_user::text AS role,
       EXISTS (SELECT FROM pg_roles
               WHERE rolname = current_user AND (rolreplication OR rolsuper))
       OR EXISTS (SELECT FROM pg_roles WHERE rolname IN ('rds_replication', 'rds_superuser')
                  AND pg_has_role(oid, 'MEMBER')) AS may_replicate
"""


@dataclass(frozen=True, slots=True)
class Server:
    """What identifies a server, and what it can do."""

    version: int
    wal_level: str
    is_standby: bool
    system_id: str
    started: str
    """The start of its process: after a crash xids and LSNs may come again."""
    role: str
    may_replicate: bool


def read_server(connection: Connection) -> Server:
    """Return the server behind *connection*."""
    with connection.cursor(row_factory=class_row(Server)) as cursor:
        found = cursor.execute(_FACTS).fetchone()
    assert found is not None  # noqa: S101 - a SELECT without FROM has a row
    return found


def check_server(server: Server, host: str) -> None:
    """Check that changes can be read from *server* at *host*.

    Raises:
        EnvironmentFault: they cannot.
        SourceUnavailable: it is a standby, which may be promoted.

    """
    for problem in server_problems(server, host):
        raise problem


def server_problems(server: Server, host: str) -> Iterator[TransporterError]:
    """Yield every reason why changes cannot be read from *server* at *host*."""
    if server.version < OLDEST:
        yield EnvironmentFault(
            f"{host} is PostgreSQL {server.version // 10000}: 14 or newer is required"
        )
    if server.is_standby:
        yield SourceUnavailable(
            f"{host} is a standby: a copy needs the primary, so name that in dsn; "
            "trying again may help after a promotion"
        )
    if server.wal_level != "logical":
        yield EnvironmentFault(
            f"wal_level is {server.wal_level}: logical is needed; run ALTER SYSTEM SET wal_level = "
            "logical (RDS: set rds.logical_replication = 1; Cloud SQL: "
            "cloudsql.logical_decoding = on; Azure: wal_level), and restart the server"
        )
    if not server.may_replicate:
        role = TableName(server.role)  # quoted in the same way, where that is needed
        yield EnvironmentFault(
            f"role {server.role} may not replicate: run ALTER ROLE {role} REPLICATION "
            f"(RDS, Aurora: GRANT rds_replication TO {role})"
        )


@dataclass(frozen=True, slots=True)
class SystemPosition:
    """The answer to IDENTIFY_SYSTEM: a server's identity, timeline, and end of its WAL."""

    system_id: str
    timeline: int
    flushed: int


def identify_system(connection: Connection) -> SystemPosition:
    """Return the identity of the server of the replication session *connection*."""
    row = connection.execute("IDENTIFY_SYSTEM").fetchone()
    assert row is not None  # noqa: S101 - the command has an answer
    system_id, timeline, flushed, _ = row
    return SystemPosition(str(system_id), int(timeline), parse_lsn(str(flushed)))


def fork_of(connection: Connection, timeline: int, ours: int) -> int | None:
    """Return the LSN at which *timeline* left the timeline *ours*, or ``None`` if it never did."""
    row = connection.execute(f"TIMELINE_HISTORY {timeline}").fetchone()
    assert row is not None  # noqa: S101 - as above
    content = bytes(row[1]).decode() if isinstance(row[1], bytes | memoryview) else str(row[1])
    for line in content.splitlines():
        fields = line.split()
        if len(fields) > 1 and fields[0] == str(ours):
            return parse_lsn(fields[1])
    return None


def check_history(
    ours: tuple[str, int], reached: int, found: SystemPosition, fork: int | None
) -> None:
    """Check that a server *found* has all that was logged up to the LSN *reached*.

    *ours* is the system id and the timeline of the position. *fork* is where the found timeline
    left it, if it is another one.

    Raises:
        EnvironmentFault: it is another server, or one without some of the logged transactions.

    """
    system_id, timeline = ours
    if found.system_id != system_id:
        raise EnvironmentFault(
            f"this is another server: its system id is {found.system_id}, and the log follows "
            f"{system_id}; name that one in dsn, or accept this one by server: {found.system_id}"
        )
    limit = found.flushed
    if found.timeline < timeline:
        raise EnvironmentFault(
            f"the server is on timeline {found.timeline}, and the log follows {timeline}: it is "
            "the one from before a failover; name the present primary in dsn"
        )
    if found.timeline != timeline:
        if fork is None:
            raise EnvironmentFault(
                f"the server's timeline {found.timeline} does not descend from {timeline}, which "
                "the log follows; have every table copied again by copy_run"
            )
        limit = min(limit, fork)
    if limit < reached:
        raise EnvironmentFault(
            f"the server has lost {reached - limit} bytes of transactions that the log holds: it "
            f"has nothing beyond {format_lsn(limit)}, and the log reaches {format_lsn(reached)}; "
            "have every table copied again by copy_run"
        )


def end_of_log(queries: Connection) -> int:
    """Return an LSN behind everything that the session *queries* sees."""
    row = queries.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has a row
    return parse_lsn(row[0])


def identify(replication: Connection) -> SystemPosition:
    """Return the identity of the server of the session *replication*."""
    with translate_errors("cannot identify the server"):
        return identify_system(replication)


def check_same_server(server: Server, session: Connection) -> None:
    """Check that *session* is on *server*, too, in the same run of its process.

    Raises:
        SourceUnavailable: they are not, as while another server takes over.

    """
    with translate_errors("cannot look at the server"):
        other = read_server(session)
    if (other.system_id, other.started) != (server.system_id, server.started):
        raise SourceUnavailable(
            "the dsn leads to two servers, or the server was started again meanwhile; trying again "
            "may help"
        )


def check_position(
    replication: Connection, position: Position, config: CdcConfig
) -> SystemPosition:
    """Check that the server has all that is logged, and return its identity.

    Raises:
        EnvironmentFault: it is another server, or has lost some of that.

    """
    with translate_errors("cannot look at the server's history"):
        found = identify_system(replication)
        fork = None
        if found.timeline > position.timeline and found.system_id == position.system_id:
            fork = fork_of(replication, found.timeline, position.timeline)
    ours = (position.system_id, position.timeline)
    if config.server == found.system_id != position.system_id:
        # An accepted server has timelines of its own.
        ours = (found.system_id, found.timeline)
    check_history(ours, position.reached, found, fork)
    return found
