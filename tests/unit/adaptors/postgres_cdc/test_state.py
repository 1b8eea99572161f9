"""The state of followed tables, as kept beside the log."""

from __future__ import annotations

import json

from transporter_adaptors.postgres.table import TableName
from transporter_adaptors.postgres_cdc.columns import LoggedColumn
from transporter_adaptors.postgres_cdc.state import AskedItem, FollowedTable, TablesState

OLD = (
    '{"v":1,"publications":{"p":5},"versions":{"p":9},"tables":[{"oid":7,"schema":"public",'
    '"name":"items","membership":11,"key":["id"],"copy_key":["id"],"begun":3,"run":2,'
    '"is_repeated":false,"insert_only":false,"columns":[["id",23,-1]],"files":1,"partitions":0,'
    '"is_described":true}],"queue":[7]}'
)
"""A state of version 0.2."""


def test_a_state_of_an_older_version_is_read_and_written_as_it_was() -> None:
    """Its name is a hash of its text, so an open without a change logs no other."""
    state = TablesState.parse(OLD)
    assert str(state) == OLD
    assert state.tables[7].asked is None
    assert state.tables[7].asked_run == 2


def test_what_is_new_is_beside_what_an_older_version_reads() -> None:
    """That one refuses unknown fields of a table, and passes over others."""
    columns = (LoggedColumn("id", 23, -1),)
    table = FollowedTable(
        7, "public", "items", 11, ("id",), ("id",), 3, 2,
        columns=columns, files=1, is_described=True, asked=AskedItem(1, ("id",), "id > 0", ("id",)),
    )  # fmt: skip
    left = {TableName("gone", "public"): 6}
    state = TablesState({"p": 5}, {7: table}, (7,), {"p": 9}, left)
    assert TablesState.parse(str(state)) == state
    fields, old = json.loads(str(state)), json.loads(OLD)
    assert {name: fields[name] for name in old} == old
