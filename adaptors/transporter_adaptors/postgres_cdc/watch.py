"""The watch: looks for what would make a gap, and measures what the slot keeps."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc import slot as slots
from transporter_adaptors.postgres_cdc.opening import REMEDY, check_state

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from transporter.adaptor import Resume
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.opening import Names
    from transporter_adaptors.postgres_cdc.state import TablesState


_EXISTING: Final = "SELECT oid::bigint FROM pg_class WHERE oid = ANY(%s)"


class Watch:
    """Looks at slot, publication and tables now and then. Belongs to one thread."""

    def __init__(
        self,
        queries: Connection,
        names: Names,
        version: int,
        interval: float,
        resume: Resume,
        state: TablesState,
    ) -> None:
        """Look each *interval* seconds by the session *queries*."""
        self._queries, self._names, self._version = queries, names, version
        self._interval, self._resume, self._state = interval, resume, state
        self._next, self._in_danger = monotonic() + interval, False

    def look(self) -> None:
        """Look if that is due.

        Raises:
            EnvironmentFault: changes may be missing from now on.

        """
        if monotonic() < self._next:
            return
        self._next = monotonic() + self._interval
        with translate_errors("cannot look at the slot and the publication"):
            slot = slots.find_slot(self._queries, self._names.slot, self._version)
            publication = pub.find_publication(self._queries, self._names.publication)
            members = pub.find_members(self._queries, self._names.publication, self._version)
        if slot is None:
            raise EnvironmentFault(f"slot {self._names.slot} is gone; {REMEDY}")
        if publication is None:
            raise EnvironmentFault(
                f"publication {self._names.publication} is gone: changes since then were never "
                f"sent; {REMEDY}"
            )
        found = {member.oid: member for member in members}
        check_state(self._state, publication, found)
        self._check_absent(self._state.tables.keys() - found.keys())
        self._measure(slot)

    def _check_absent(self, oids: AbstractSet[int]) -> None:
        """Check that tables outside of the publication are gone, and have not just left it."""
        if not oids:
            return
        with translate_errors("cannot look at the tables"):
            rows = self._queries.execute(_EXISTING, [sorted(oids)]).fetchall()
        for (oid,) in rows:
            raise EnvironmentFault(
                f"table {self._state.tables[oid].full_name} has left the publication "
                f"{self._names.publication}, so its changes are missing from now on; add it again, "
                f"and {REMEDY}; or leave it out of tables"
            )

    def _measure(self, slot: slots.Slot) -> None:
        endangered = slot.status == "unreserved" or (slot.safe is not None and slot.safe <= 0)
        if endangered and not self._in_danger:
            self._resume.tell(
                "slot-in-danger", slot=slot.name, retained=slot.retained, status=slot.status
            )
        self._in_danger = endangered
