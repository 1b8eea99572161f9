"""Kinds of servers: their statements for a role that replicates, and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transporter.change_source import Service

_CREATE: Final = "CREATE ROLE {role} LOGIN PASSWORD {password}"
_ALTER: Final = "ALTER ROLE {role} WITH REPLICATION"


@dataclass(frozen=True, slots=True)
class ServiceVariant:
    """A kind of server.

    Attributes:
        settings: what to set there by other means than SQL, a line each.
        create: the statement that creates the role.
        replicate: the statement that lets an existing role replicate.
        is_created_replicating: whether the first of them does what the second does.

    """

    settings: tuple[str, ...]
    create: str = _CREATE
    replicate: str = _ALTER
    is_created_replicating: bool = False


_CAPACITY: Final = "max_replication_slots and max_wal_senders: one more of each for this reader"
VARIANTS: Final[dict[Service, ServiceVariant]] = {
    "plain": ServiceVariant(
        ("wal_level = logical, then a restart", _CAPACITY),
        create="CREATE ROLE {role} LOGIN REPLICATION PASSWORD {password}",
        is_created_replicating=True,
    ),
    "rds": ServiceVariant(
        (
            "rds.logical_replication = 1 in the parameter group (Aurora: of the cluster)",
            "a reboot, after which wal_level is logical",
            _CAPACITY,
        ),
        replicate="GRANT rds_replication TO {role}",
    ),
    "cloud-sql": ServiceVariant(
        ("the flag cloudsql.logical_decoding = on, then a restart; it sets wal_level", _CAPACITY),
        replicate="ALTER USER {role} WITH REPLICATION",
    ),
    "azure": ServiceVariant(
        ("the server parameter wal_level = logical, then a restart", _CAPACITY)
    ),
    "supabase": ServiceVariant(
        (
            "dsn: the direct connection, db.<project>.supabase.co:5432, not a pooler",
            "the IPv4 add-on, unless the engine's host has IPv6",
        )
    ),
    "neon": ServiceVariant(
        (
            "logical replication in the project's settings, which restarts all computes",
            "dsn: the direct connection, whose host name is without -pooler",
        )
    ),
}
