"""Removal of a reader's slot and publication."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql

from transporter.change_source import Removable
from transporter.errors import ActionRefused
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc import rights
from transporter_adaptors.postgres_cdc import slot as slots
from transporter_adaptors.postgres_cdc.session import COMMAND_PATIENCE, connect_queries

if TYPE_CHECKING:
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.operating.logged import LoggedState

_PREFIX: Final = "transporter_"
_SLOTS: Final = """
SELECT slot_name::text FROM pg_replication_slots
WHERE database = current_database() AND starts_with(slot_name, %s) ORDER BY 1
"""
_PUBLICATIONS: Final = """
SELECT pubname::text FROM pg_publication WHERE starts_with(pubname, %s) ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class _Found:
    """What there is of the reader, and the names of others' objects."""

    slot: str | None
    publications: tuple[str, ...]
    kept: tuple[str, ...]
    leftovers: tuple[str, ...]


def find_removable(config: CdcConfig, logged: LoggedState) -> Removable:
    """Return what :func:`drop_objects` would drop.

    Raises:
        ActionRefused: a session reads from the slot.

    """
    with (
        closing(connect_queries(config.dsn, COMMAND_PATIENCE)) as session,
        translate_errors("cannot look up the slot and the publication"),
    ):
        found = _find(session, config, logged)
    objects: tuple[str, ...] = (f"slot {found.slot}",) if found.slot else ()
    objects += tuple(f"publication {name}" for name in found.publications)
    return Removable(objects, found.kept, found.leftovers)


def drop_objects(config: CdcConfig, logged: LoggedState) -> None:
    """Drop the slot, then the publications that it needs.

    Raises:
        ActionRefused: a session reads from the slot. Nothing was dropped.

    """
    with closing(connect_queries(config.dsn, COMMAND_PATIENCE)) as session:
        with translate_errors("cannot drop the slot; nothing was dropped"):
            found = _find(session, config, logged)
            if found.slot:
                session.execute("SELECT pg_drop_replication_slot(%s)", [found.slot])
        with translate_errors("cannot drop the publication, but the slot is dropped"):
            for name in found.publications:
                session.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)))


def _find(session: Connection, config: CdcConfig, logged: LoggedState) -> _Found:
    version, kept = session.info.server_version, list[str]()
    slot = slots.find_slot(session, logged.slot, version) if logged.slot else None
    names = [name for (name,) in session.execute(_SLOTS, [_PREFIX]).fetchall()]
    others = [f"slot {name}" for name in names if name != logged.slot]
    publications = [name for (name,) in session.execute(_PUBLICATIONS, [_PREFIX]).fetchall()]
    others += [f"publication {name}" for name in publications if name not in logged.publications]
    if not logged.slot:
        kept.append("the slot: its name is made of the log's id, and there is no log yet")
    if slot is not None and slot.is_active:
        raise ActionRefused(
            f"slot {slot.name} is active for PID {slot.pid} ({slot.application or 'unknown'} from "
            f"{slot.client or 'this host'}); stop that engine first, and nothing was dropped"
        )
    if slot is not None and config.manage == "nothing":
        kept.append(f"slot {slot.name}: manage is nothing")
        slot = None
    dropped = []
    for name in logged.publications:
        publication = pub.find_publication(session, name)
        if publication is None:
            continue
        if reason := _reason_to_keep(session, config, publication, logged, names):
            kept.append(f"publication {name}: {reason}")
        else:
            dropped.append(name)
    return _Found(None if slot is None else slot.name, tuple(dropped), tuple(kept), tuple(others))


def _reason_to_keep(
    session: Connection,
    config: CdcConfig,
    publication: pub.Publication,
    logged: LoggedState,
    slot_names: list[str],
) -> str:
    """Return why *publication* stays, or an empty text.

    *slot_names* are those of the slots in this database.
    """
    if config.manage != "all":
        return f"manage is {config.manage}"
    # Logs of readers with the same name share the publication, whose name has no log's id.
    pattern = re.compile(re.escape(logged.names.publication) + "_[0-9a-f]{8}")
    for name in slot_names:
        if name != logged.slot and pattern.fullmatch(name):
            return f"slot {name}, of another log, may need it; drop that one first"
    if not rights.owns_publication(session, publication.oid):
        statement = sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(publication.name))
        return f"only its owner may drop it; have the owner run {statement.as_string(session)}"
    return ""
