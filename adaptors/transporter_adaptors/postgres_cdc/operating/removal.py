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
from transporter_adaptors.postgres_cdc import slot as slots
from transporter_adaptors.postgres_cdc.operating import facts
from transporter_adaptors.postgres_cdc.session import connect_queries

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
    publication: str | None
    kept: tuple[str, ...]
    leftovers: tuple[str, ...]


def find_removable(config: CdcConfig, logged: LoggedState) -> Removable:
    """Return what :func:`drop_objects` would drop.

    Raises:
        ActionRefused: a session reads from the slot.

    """
    with (
        closing(connect_queries(config.dsn)) as session,
        translate_errors("cannot look up the slot and the publication"),
    ):
        found = _find(session, config, logged)
    names = {"slot": found.slot, "publication": found.publication}
    objects = tuple(f"{kind} {name}" for kind, name in names.items() if name)
    return Removable(objects, found.kept, found.leftovers)


def drop_objects(config: CdcConfig, logged: LoggedState) -> None:
    """Drop the slot, then the publication that it needs.

    Raises:
        ActionRefused: a session reads from the slot. Nothing was dropped.

    """
    with closing(connect_queries(config.dsn)) as session:
        with translate_errors("cannot drop the slot; nothing was dropped"):
            found = _find(session, config, logged)
            if found.slot:
                session.execute("SELECT pg_drop_replication_slot(%s)", [found.slot])
        with translate_errors("cannot drop the publication, but the slot is dropped"):
            if found.publication:
                name = sql.Identifier(found.publication)
                session.execute(sql.SQL("DROP PUBLICATION {}").format(name))


def _find(session: Connection, config: CdcConfig, logged: LoggedState) -> _Found:
    version, kept = session.info.server_version, list[str]()
    slot = slots.find_slot(session, logged.slot, version) if logged.slot else None
    publication = pub.find_publication(session, logged.publication)
    names = [name for (name,) in session.execute(_SLOTS, [_PREFIX]).fetchall()]
    others = [f"slot {name}" for name in names if name != logged.slot]
    publications = [name for (name,) in session.execute(_PUBLICATIONS, [_PREFIX]).fetchall()]
    others += [f"publication {name}" for name in publications if name != logged.publication]
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
    if publication is not None and (
        reason := _reason_to_keep(session, config, publication, (names, logged.slot))
    ):
        kept.append(f"publication {publication.name}: {reason}")
        publication = None
    return _Found(
        None if slot is None else slot.name,
        None if publication is None else publication.name,
        tuple(kept),
        tuple(others),
    )


def _reason_to_keep(
    session: Connection,
    config: CdcConfig,
    publication: pub.Publication,
    slot_names: tuple[list[str], str],
) -> str:
    """Return why *publication* stays, or an empty text.

    *slot_names* are those of the slots in this database, and that of the reader's own.
    """
    if config.manage != "all":
        return f"manage is {config.manage}"
    names, own = slot_names
    # Logs of readers with the same name share the publication, whose name has no log's id.
    pattern = re.compile(re.escape(publication.name) + "_[0-9a-f]{8}")
    for name in names:
        if name != own and pattern.fullmatch(name):
            return f"slot {name}, of another log, may need it; drop that one first"
    if not facts.owns_publication(session, publication.oid):
        statement = sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(publication.name))
        return f"only its owner may drop it; have the owner run {statement.as_string(session)}"
    return ""
