"""The watch: looks for what would make a gap, and measures what the slot keeps."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Final

import psycopg

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc import slot as slots
from transporter_adaptors.postgres_cdc.lsn import parse_lsn
from transporter_adaptors.postgres_cdc.plan import find_published
from transporter_adaptors.postgres_cdc.table_states import check_state, moved_tables
from transporter_adaptors.postgres_cdc.tables import PARTS, find_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from transporter.adaptor import Resume
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.handover import Handover
    from transporter_adaptors.postgres_cdc.plan import Names
    from transporter_adaptors.postgres_cdc.state import TablesState
    from transporter_adaptors.postgres_cdc.tables import FoundTable


_EXISTING: Final = "SELECT oid::bigint FROM pg_class WHERE oid = ANY(%s)"
_ESTIMATES: Final = f"""
SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::float8 {PARTS} WHERE c.relkind = 'r'
"""
"""The rows of tables, as the server's statistics have them."""
_RETRY: Final = 60.0
"""Seconds after which tables that were left out are looked at again: what was missing may be in any
part of the catalog."""
_LOOKS: Final = 1000
"""Looks that are kept to measure the lag."""
_LAG_SECONDS: Final = 1.0
"""Seconds between two measurements of a lag that lasts."""


class Watch:
    """Looks at slot, publications and tables now and then. Belongs to one thread."""

    def __init__(
        self, queries: Connection, config: CdcConfig, names: Names, version: int, resume: Resume
    ) -> None:
        """Look by the session *queries* of a server of this *version*."""
        self._queries, self._config, self._names = queries, config, names
        self._version, self._resume = version, resume
        self._next, self._in_danger = monotonic(), False
        self._next_retry = monotonic() + _RETRY
        self._ends: deque[tuple[float, int]] = deque()
        self._next_lag = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the next look is due."""
        return monotonic() >= self._next

    def look(
        self, state: TablesState, left_out: Mapping[int, FoundTable], handover: Handover, at: int
    ) -> bool:
        """Look at everything, and measure it. The stream has come to the LSN *at*.

        Tables *left_out* count again once something about them is different, and now and then.

        Returns:
            Whether other tables than those of *state* are there to be read.

        Raises:
            EnvironmentFault: changes may be missing from now on.

        """
        self._next = monotonic() + self._config.watch
        with translate_errors("cannot look at the slot and the publications"):
            slot = slots.find_slot(self._queries, self._names.slot, self._version)
            if slot is None:
                raise EnvironmentFault(f"slot {self._names.slot} is gone; {state.remedy}")
            self._measure(slot, at)
            tables = find_tables(self._queries)
            try:
                published = find_published(self._queries, self._names, self._version, state)
            except psycopg.errors.LockNotAvailable:
                # The server's view reads each table's columns under a lock. A migration that has
                # one for itself lasts, and the stream goes on until the next look.
                self._next = monotonic() + self._config.watch
                return False
        if gone := self._names.kinds.keys() - published.publications.keys():
            raise EnvironmentFault(
                f"publication {min(gone)} is gone: changes since then were never sent; "
                f"{state.remedy}"
            )
        for name, publish in self._names.kinds.items():
            # Roots of partitioned tables are looked at when a table is taken up.
            found = published.publications[name]
            pub.check_publication(found, publish, has_partitioned=False)
        check_state(state, self._names, published)
        self._check_absent(state, state.tables.keys() - published.members.keys())
        self._measure_copy(state, handover)
        wanted = {
            table.oid: table.full_name
            for table in tables
            if (item := self._config.item_of(table.full_name)) is not None
            and not (item.is_pattern and (table.problem or table.is_partition))
            and left_out.get(table.oid) != table
        }
        if left_out and monotonic() >= self._next_retry:
            self._next_retry = monotonic() + _RETRY
            return True
        known = {oid: table.full_name for oid, table in state.tables.items()}
        return wanted != known or bool(moved_tables(self._queries, state))

    def _check_absent(self, state: TablesState, oids: AbstractSet[int]) -> None:
        """Check that tables outside of the publications are gone, and have not just left them."""
        if not oids:
            return
        with translate_errors("cannot look at the tables"):
            rows = self._queries.execute(_EXISTING, [sorted(oids)]).fetchall()
        for (oid,) in rows:
            table = state.tables[oid]
            raise EnvironmentFault(
                f"table {table.full_name} has left the publication "
                f"{self._names.publication_of(insert_only=table.insert_only)}, so its changes are "
                f"missing from now on; add it again, and {state.remedy}; or leave it out of tables"
            )

    def _measure(self, slot: slots.Slot, at: int) -> None:
        endangered = slot.status == "unreserved" or (slot.safe is not None and slot.safe <= 0)
        if endangered and not self._in_danger:
            self._resume.report(
                "slot-in-danger", slot=slot.name, retained=slot.retained, status=slot.status
            )
        self._in_danger = endangered
        self._ends.append((monotonic(), parse_lsn(slot.end)))
        if len(self._ends) > _LOOKS:
            del self._ends[1]
        self._measure_lag(at)
        self._resume.measure("retained_bytes", slot.retained)
        self._resume.measure("safe_bytes", slot.safe)
        self._resume.measure("spilled_bytes", slot.spilled)
        self._resume.measure("catalog_xmin_age", slot.catalog_age)

    def follow(self, at: int) -> None:
        """Measure the lag between two looks, when the stream has come to the LSN *at*.

        At once when the end of the last look is reached, each second until then.
        """
        if self._ends and (self._ends[-1][1] <= at or monotonic() >= self._next_lag):
            self._measure_lag(at)

    def _measure_lag(self, at: int) -> None:
        now, end = monotonic(), self._ends[-1][1]
        # The oldest look at whose end the stream has not come: it is behind since then.
        while self._ends and self._ends[0][1] <= at:
            self._ends.popleft()
        self._resume.measure("lag_seconds", now - self._ends[0][0] if self._ends else 0.0)
        self._resume.measure("lag_bytes", max(0, end - at))
        self._next_lag = now + _LAG_SECONDS

    def _measure_copy(self, state: TablesState, handover: Handover) -> None:
        copies = [copy for copy in handover.copies.values() if not copy.is_complete]
        begun = [copy for copy in copies if copy.boundary is not None]
        self._resume.measure("tables_waiting", len(copies) - len(begun))
        self._resume.measure("tables_copying", len(begun))
        self._resume.measure("tables_in_sync", len(state.tables) - len(handover.copies))
        left = 0.0
        with translate_errors("cannot look at the tables"):
            if copies:
                row = self._queries.execute(_ESTIMATES, [[copy.oid for copy in copies]]).fetchone()
                left = max(0.0, (row[0] if row else 0.0) - sum(copy.rows for copy in copies))
        self._resume.measure("copy_rows_left", left)
