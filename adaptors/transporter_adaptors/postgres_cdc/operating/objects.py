"""The objects of a reader at its source (role, rights, publication, slot): creation and removal."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from transporter.change_source import Removable, SourceObject
from transporter.errors import ActionRefused, ConfigError, TransporterError
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc import rights
from transporter_adaptors.postgres_cdc import server as servers
from transporter_adaptors.postgres_cdc import slot as slots
from transporter_adaptors.postgres_cdc.item_changes import find_item_changes
from transporter_adaptors.postgres_cdc.operating import facts
from transporter_adaptors.postgres_cdc.operating.logged import COPIED_AGAIN
from transporter_adaptors.postgres_cdc.operating.services import VARIANTS
from transporter_adaptors.postgres_cdc.operating.setup_sql import (
    SetupTarget,
    grants,
    quote,
    slot_statement,
    target_of,
)
from transporter_adaptors.postgres_cdc.plan import Plan, find_plan, find_published, table_problems
from transporter_adaptors.postgres_cdc.publishing import item_problem
from transporter_adaptors.postgres_cdc.session import COMMAND_PATIENCE, connect_queries
from transporter_adaptors.postgres_cdc.slot_creation import find_running

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from transporter.change_source import Service
    from transporter_adaptors.postgres.session import BoundedConnection, Connection
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.operating.logged import LoggedState

_SLOT_SECONDS: Final = 50.0
"""Seconds for a slot, which waits for transactions that have written something."""
_STATEMENT: Final = "SELECT set_config('statement_timeout', %s, false)"
_HIDDEN: Final = "'…'"
_ROLE: Final = """
SELECT r.rolreplication OR r.rolsuper OR EXISTS (
  SELECT FROM pg_roles g WHERE g.rolname IN ('rds_replication', 'rds_superuser')
  AND pg_has_role(r.oid, g.oid, 'MEMBER')) FROM pg_roles r WHERE r.rolname = %s
"""
_PREFIX: Final = "transporter_"
_SLOTS: Final = """
SELECT slot_name::text FROM pg_replication_slots
WHERE database = current_database() AND starts_with(slot_name, %s) ORDER BY 1
"""
_PUBLICATIONS: Final = """
SELECT pubname::text FROM pg_publication WHERE starts_with(pubname, %s) ORDER BY 1
"""


def set_up(
    config: CdcConfig, logged: LoggedState, service: Service, dsn: str | None
) -> Iterator[SourceObject]:
    """Create what is missing, and yield each object or right.

    Raises:
        ConfigError: *dsn* leads to another database than the reader's.
        EnvironmentFault: the server is too old.
        SourceUnavailable: it cannot be reached, or is a standby.

    """
    chosen = config.dsn if dsn is None else SecretStr(dsn)
    with closing(connect_queries(chosen, COMMAND_PATIENCE)) as session:
        with translate_errors("cannot look at the database"):
            server = servers.read_server(session)
            for problem in servers.server_problems(server, session.info.host):
                # Whether we may replicate does not matter if we are the DBA.
                if server.version < servers.OLDEST or server.is_standby:
                    raise problem
            plan = find_plan(session, config, server)
        database = session.info.dbname
        target = target_of(config, server.version)
        if dsn is None:
            target = SetupTarget(server.role, database, server.version)
        elif target.database != database:
            raise ConfigError(
                f"--dsn leads to the database {database}, and the reader's to {target.database}; "
                "name that one"
            )
        yield from _Setup(session, config, logged, plan, target).run(service)


class _Setup:
    """One run of the setup, in one session."""

    def __init__(
        self,
        session: BoundedConnection,
        config: CdcConfig,
        logged: LoggedState,
        plan: Plan,
        target: SetupTarget,
    ) -> None:
        self._session, self._config, self._logged = session, config, logged
        self._plan, self._target = plan, target

    def run(self, service: Service) -> Iterator[SourceObject]:
        """Yield all objects."""
        with translate_errors("cannot look at the role and its rights"):
            yield from (role := list(self._ensure_role(service)))
            if not any(each.outcome == "problem" for each in role):
                yield from self._ensure_rights()
        problems = list(table_problems(self._config, self._plan))
        yield from (SourceObject("tables", "problem", each) for each in problems)
        if problems:
            # A table without an identity must not be published: its updates would fail.
            return
        with translate_errors("cannot look at the publication and the slot"):
            published = list(self._ensure_publications())
            yield from published
            if not any(each.outcome == "problem" for each in published):
                yield self._ensure_slot()

    def _ensure_role(self, service: Service) -> Iterator[SourceObject]:
        role, variant = self._target.role, VARIANTS[service]
        name = f"role {role}"
        found = self._session.execute(_ROLE, [role]).fetchone()
        replicate = variant.replicate.format(role=quote(role))
        if found is None:
            yield self._run(
                name,
                variant.create.format(role=quote(role), password=self._password(role)),
                shown=variant.create.format(role=quote(role), password=_HIDDEN),
            )
            if not variant.is_created_replicating:
                yield self._run(f"{name}: replication", replicate)
        elif not found[0]:
            yield self._run(f"{name}: replication", replicate)
        else:
            yield SourceObject(name, "exists")

    def _password(self, role: str) -> str:
        """Return the password of the reader's dsn as a literal, as the server stores it."""
        given = conninfo_to_dict(self._config.dsn.get_secret_value()).get("password")
        if given is None:
            return "NULL"
        encrypted = self._session.pgconn.encrypt_password(str(given).encode(), role.encode())
        return sql.Literal(encrypted.decode()).as_string(self._session)

    def _ensure_rights(self) -> Iterator[SourceObject]:
        """Run the GRANT of each right that is missing."""
        role, wanted = self._target.role, self._plan.wanted
        found = rights.table_rights(self._session, wanted, role)
        has: dict[object, bool] = {
            wanted[each.oid].name: each.may_select
            or rights.may_select_columns(self._session, each.oid, wanted[each.oid].columns, role)
            for each in found
        }
        has |= {each.schema: each.may_use_schema for each in found}
        has[None] = facts.database_rights(self._session, role).may_connect
        for on, statement in grants(self._config, self._target, wanted.values()):
            name = statement.removeprefix("GRANT ").rpartition(" TO ")[0]
            yield SourceObject(name, "exists") if has[on] else self._run(name, statement)

    def _ensure_publications(self) -> Iterator[SourceObject]:
        names, version = self._logged.names, self._plan.server.version
        published = find_published(self._session, names, version, self._logged.state)
        gaps, _ = self._logged.find_gaps(self._config, self._plan, published)
        if gaps:
            yield from (SourceObject("publication", "problem", each) for each in gaps)
            return
        for name, publish in names.kinds.items():
            found, wanted = published.publications.get(name), self._plan.wanted_in(names, name)
            missing = [table for oid, table in wanted.items() if oid not in published.members]
            shown = f"publication {name}"
            if found is None:
                statement = pub.create_statement(name, missing, publish)
                yield self._run(shown, statement.as_string(self._session))
                continue
            partitioned = self._plan.has_partitioned(wanted)
            problems = [*pub.publication_problems(found, publish, has_partitioned=partitioned)]
            if problems:
                yield from (SourceObject(shown, "problem", each) for each in problems)
                continue
            changed = list(self._ensure_items(name, wanted, published.members))
            yield from changed
            if not missing and not changed:
                yield SourceObject(shown, "exists")
            for table in missing:
                statement = pub.add_statement(name, [table])
                yield self._run(f"{shown}: {table.name}", statement.as_string(self._session))

    def _ensure_items(
        self, name: str, wanted: Iterable[int], members: Mapping[int, pub.Member]
    ) -> Iterator[SourceObject]:
        """Publish tables once more whose items ask for something else, if they are copied next."""
        copied = self._logged.tables_to_copy(self._config, self._plan)
        present = sorted({*wanted} & members.keys())
        found = find_item_changes(self._plan, name, members, present, self._logged.state)
        config = self._config.model_copy(update={"manage": "all"})
        for oid, change in found.items():
            table = self._plan.wanted[oid]
            shown = f"publication {name}: {table.name}"
            if problem := item_problem(config, name, self._plan, members, oid, change, copied):
                yield SourceObject(shown, "problem", problem)
            elif change.is_published:
                statement = pub.replace_statement(name, [table])
                yield self._run(shown, statement.as_string(self._session))

    def _ensure_slot(self) -> SourceObject:
        name, version = self._logged.slot, self._plan.server.version
        if not name:
            return SourceObject(
                "slot", "later", "named after the log, which the first start creates"
            )
        found, shown = slots.find_slot(self._session, name, version), f"slot {name}"
        is_begun_again = self._logged.is_begun_again(self._config, self._plan)
        if found is None and self._logged.position is None:
            return self._create_slot(shown, slot_statement(self._config, name, version))
        if found is not None and found.is_active and not is_begun_again:
            return SourceObject(shown, "exists", f"active for PID {found.pid}")
        at = None if self._logged.position is None else self._logged.position.at
        try:
            if not is_begun_again:
                slots.check_slot(found, name, at, self._logged.remedy)
            elif found is not None:
                slots.check_kind(found, name)
        except TransporterError as error:
            return SourceObject(shown, "problem", str(error))
        if is_begun_again:
            return SourceObject(shown, "later", COPIED_AGAIN)
        return SourceObject(shown, "exists")

    def _create_slot(self, name: str, statement: str) -> SourceObject:
        """Create the slot, which may take longer than any other object."""
        session = self._session
        session.patience = _SLOT_SECONDS + COMMAND_PATIENCE
        session.execute(_STATEMENT, [f"{_SLOT_SECONDS:g}s"])
        try:
            return self._run(name, statement)
        finally:
            session.patience = COMMAND_PATIENCE

    def _run(self, name: str, statement: str, shown: str | None = None) -> SourceObject:
        """Run *statement*, which creates *name*. A problem quotes it as *shown*."""
        try:
            # As bytes, because a per cent sign is literal without parameters.
            self._session.execute(statement.encode())
        except psycopg.errors.QueryCanceled:
            running = find_running(self._session) or "they have ended just now"
            return SourceObject(
                name,
                "problem",
                f"the server waits until transactions have ended that began before: {running}; "
                f"end them if they hang, or have a DBA run {shown or statement}",
            )
        except psycopg.Error as error:
            text = (error.diag.message_primary or str(error)).strip()
            return SourceObject(name, "problem", f"{text}; have a DBA run {shown or statement}")
        return SourceObject(name, "created")


@dataclass(frozen=True, slots=True)
class _FoundObjects:
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
        found = _find_objects(session, config, logged)
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
            found = _find_objects(session, config, logged)
            if found.slot:
                session.execute("SELECT pg_drop_replication_slot(%s)", [found.slot])
        with translate_errors("cannot drop the publication, but the slot is dropped"):
            for name in found.publications:
                session.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)))


def _find_objects(session: Connection, config: CdcConfig, logged: LoggedState) -> _FoundObjects:
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
    return _FoundObjects(
        None if slot is None else slot.name, tuple(dropped), tuple(kept), tuple(others)
    )


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
