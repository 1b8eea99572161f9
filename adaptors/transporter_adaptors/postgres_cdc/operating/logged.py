"""The reader as its log has it, parsed, with the names of its objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres_cdc import opening
from transporter_adaptors.postgres_cdc.position import Position
from transporter_adaptors.postgres_cdc.state import TablesState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.change_source import LoggedReader
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.publication import Member, Publication


@dataclass(frozen=True, slots=True)
class LoggedState:
    """Names of publication and slot, and position and state once there are some.

    The slot's name is empty until the log exists from whose id it is made.
    """

    reader: str
    publication: str
    slot: str
    position: Position | None = None
    state: TablesState | None = None

    @classmethod
    def parse(cls, config: CdcConfig, logged: LoggedReader) -> LoggedState:
        """Read what the log has of the reader.

        Raises:
            EnvironmentFault: another version or another adaptor wrote it.
            Corrupt: the state is damaged.

        """
        names = opening.names_of(config, logged.name, logged.log_id)
        slot = names.slot if config.slot or logged.log_id else ""
        if logged.position is None:
            return cls(logged.name, names.publication, slot)
        position = Position.parse(logged.position)
        state = TablesState.parse(logged.read_state(position.state))
        return cls(logged.name, names.publication, slot, position, state)

    def is_begun_again(self, config: CdcConfig, plan: opening.Plan) -> bool:
        """Return whether the next open copies every table again, by a new slot."""
        if self.state is None:
            return False
        changes = opening.compare_tables(config, plan, self.state)
        return bool(changes.repeated) and plan.tables.keys() <= changes.to_copy

    def find_gaps(
        self,
        config: CdcConfig,
        plan: opening.Plan,
        found: Publication | None,
        members: Mapping[int, Member],
    ) -> tuple[list[str], set[int]]:
        """Compare publication and *members* with the state.

        Returns:
            The reasons why changes are missing from the log, and the numbers of the tables that are
            not published any more. Publishing them again would hide that.

        """
        state, name = self.state, self.publication
        if state is None or self.is_begun_again(config, plan):
            return [], set()
        if found is None:
            gone = f"publication {name} is gone: changes since then were never sent"
            return [f"{gone}; {opening.REMEDY}"], {*plan.tables}
        repeated = opening.compare_tables(config, plan, state).repeated
        left = (plan.tables.keys() & state.tables.keys()) - members.keys() - repeated
        problems = [
            f"table {state.tables[oid].full_name} has left the publication {name}: changes since "
            f"then were never sent; {opening.REMEDY}"
            for oid in sorted(left)
        ]
        ours = {oid: member for oid, member in members.items() if oid in plan.tables}
        try:
            opening.check_state(state, found, ours, repeated)
        except EnvironmentFault as error:
            problems.append(str(error))
        return problems, left
