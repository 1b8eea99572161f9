"""The reader as its log has it, parsed, with the names of its objects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres_cdc.plan import Names, Plan, Published, names_of
from transporter_adaptors.postgres_cdc.position import Position
from transporter_adaptors.postgres_cdc.state import TablesState
from transporter_adaptors.postgres_cdc.table_states import check_state, compare_tables

if TYPE_CHECKING:
    from transporter.change_source import LoggedReader
    from transporter_adaptors.postgres_cdc.config import CdcConfig

COPIED_AGAIN: Final = "every table is copied again, by a new slot where this one is of no use"


@dataclass(frozen=True, slots=True)
class LoggedState:
    """Names of publications and slot, and position and state once there are some.

    The slot's name is empty until the log exists from whose id it is made.
    """

    reader: str
    names: Names
    position: Position | None = None
    state: TablesState | None = None

    @classmethod
    def parse(cls, config: CdcConfig, logged: LoggedReader) -> LoggedState:
        """Read what the log has of the reader.

        Raises:
            EnvironmentFault: another version or another adaptor wrote it.
            Corrupt: the state is damaged.

        """
        names = names_of(config, logged.name, logged.log_id)
        if not config.slot and not logged.log_id:
            names = replace(names, slot="")
        if logged.position is None:
            return cls(logged.name, names)
        position = Position.parse(logged.position)
        state = TablesState.parse(logged.read_state(position.state))
        return cls(logged.name, names, position, state)

    @property
    def publications(self) -> tuple[str, ...]:
        """The names of the publications."""
        return tuple(self.names.kinds)

    @property
    def slot(self) -> str:
        """The name of the slot, or an empty text."""
        return self.names.slot

    @property
    def remedy(self) -> str:
        """Advice that has every table copied again, where there is a log."""
        return "" if self.state is None else self.state.remedy

    def is_begun_again(self, config: CdcConfig, plan: Plan) -> bool:
        """Return whether the next open copies every table again, and no gap counts."""
        return self.state is not None and compare_tables(config, plan, self.state).copies_all(plan)

    def tables_to_copy(self, config: CdcConfig, plan: Plan) -> frozenset[int]:
        """Return the tables that the next open copies, for the first time or once more."""
        if self.state is None:
            return frozenset(plan.tables)
        return compare_tables(config, plan, self.state).to_copy

    def find_gaps(
        self,
        config: CdcConfig,
        plan: Plan,
        published: Published,
    ) -> tuple[list[str], set[int]]:
        """Compare what is *published* with the state.

        Returns:
            The reasons why changes are missing from the log, and the numbers of the tables that are
            not published any more. Publishing them again would hide that.

        """
        state = self.state
        if state is None or self.is_begun_again(config, plan):
            return [], set()
        gone = [name for name in state.publications if name not in published.publications]
        problems = [
            f"publication {name} is gone: changes since then were never sent; {state.remedy}"
            for name in gone
        ]
        copied = self.tables_to_copy(config, plan)
        left = (plan.tables.keys() & state.tables.keys()) - published.members.keys() - copied
        for oid in sorted(left):
            table = state.tables[oid]
            name = self.names.publication_of(insert_only=table.insert_only)
            if name not in gone:
                problems.append(
                    f"table {table.full_name} has left the publication {name}: changes since then "
                    f"were never sent; {state.remedy}"
                )
        ours = {oid: each for oid, each in published.members.items() if oid in plan.tables}
        try:
            there = Published(published.publications, ours)
            check_state(state, self.names, there, copied)
        except EnvironmentFault as error:
            problems.append(str(error))
        return problems, left
