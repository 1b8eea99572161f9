"""Items of ``tables`` that change: the publication, the state and the entries go with them."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from cdc_tools import LOG_ID, MemoryLog, broken, clean_slots, short, started
from engine_tools import until
from transporter_adaptors.postgres_cdc.config import CdcConfig
from transporter_adaptors.postgres_cdc.reader import CdcReader

from transporter.adaptor import state_name
from transporter.errors import EnvironmentFault
from transporter.testing import FixedResume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

pytestmark = pytest.mark.postgres

PUBLISHED = """
SELECT attnames::text[], rowfilter FROM pg_publication_tables
WHERE pubname = 'transporter_reader' AND tablename = 'customers'
"""


@pytest.fixture
def crm(postgres: Database) -> Iterator[Database]:
    """Yield a database with customers and another table."""
    postgres.execute(
        "CREATE TABLE customers (id int PRIMARY KEY, mail text NOT NULL, ssn text);"
        "CREATE TABLE other (id int PRIMARY KEY);"
        "INSERT INTO customers VALUES (1, 'a', '1-1'), (2, 'b', '2-2')"
    )
    with clean_slots(postgres):
        yield postgres


def items(**item: Any) -> list[Any]:
    """Return ``tables`` with an item for the customers."""
    return [{"table": "public.customers", **item}, "public.other"]


def rows(log: MemoryLog) -> list[Any]:
    """Return the data of all rows of the customers, in their order."""
    return [
        (each.key, json.loads(each.data or b"{}"))
        for each in log.messages
        if each.namespace == "public.customers" and each.key
    ]


def copies(log: MemoryLog) -> list[object]:
    """Return the tables whose copies were completed."""
    return [told["table"] for name, told in log.told if name == "copy-complete"]


def forget_items(log: MemoryLog) -> None:
    """Let the log have the state that an older version would have written."""
    fields = json.loads(log.states[log.position_fields["st"]])
    del fields["asked"]
    text = json.dumps(fields, separators=(",", ":"))
    log.states[state_name(text)] = text
    log.change_position(st=state_name(text))


def refused(database: Database, **settings: Any) -> str:
    """Return the error of a reader that is opened for the first time."""
    config = CdcConfig.model_validate({"dsn": database.dsn, **settings})
    with closing(CdcReader(config)) as reader, pytest.raises(EnvironmentFault) as found:
        reader.open(FixedResume(None, LOG_ID))
    return str(found.value)


@pytest.mark.parametrize("is_old", [False, True], ids=["its own state", "an older state"])
def test_other_columns_take_effect_with_a_copy(crm: Database, *, is_old: bool) -> None:
    """Until then the reader is refused, because it would go on publishing what was taken out."""
    log = started(crm, tables=items())
    log.kill()
    if is_old:
        forget_items(log)
    log.settings["tables"] = items(columns=["id", "mail"])
    text = broken(crm, log)
    assert text.startswith(
        "public.customers: the publication transporter_reader has all columns, and the item of "
        "tables asks for the columns id, mail"
    )
    assert "raise copy_run to 2 in its item" in text
    log.settings["tables"] = items(columns=["mail", "id"], copy_run=2)
    log.drain(crm)
    crm.execute("INSERT INTO customers VALUES (3, 'c', '3-3')")
    log.drain(crm)
    log.kill()
    log.drain(crm)
    log.kill()
    assert [data.keys() for _, data in rows(log)[2:]] == [{"id", "mail"}] * 3
    assert crm.execute(PUBLISHED) == [(["id", "mail"], None)]
    assert copies(log) == ["public.customers", "public.other", "public.customers"]


def test_columns_that_are_asked_for_no_more_are_published_again(crm: Database) -> None:
    """Without a list all columns are published."""
    log = started(crm, tables=items(columns=["id", "mail"]))
    log.kill()
    log.settings["tables"] = items()
    assert "has the columns id, mail, and the item of tables asks for all" in broken(crm, log)
    log.settings["tables"] = items(copy_run=2)
    log.drain(crm)
    log.kill()
    assert [data["ssn"] for _, data in rows(log)[2:]] == ["1-1", "2-2"]


@pytest.mark.parametrize("is_alone", [False, True], ids=["one of two", "every table"])
def test_another_row_filter_takes_effect_with_a_copy(crm: Database, *, is_alone: bool) -> None:
    """Its text is compared with the one of before, because the server has it in another form."""

    def tables(**item: Any) -> list[Any]:
        return items(**item)[: 1 if is_alone else 2]

    log = started(crm, tables=tables(where="id < 2"))
    log.kill()
    log.drain(crm)
    log.kill()
    for where in ("id > 1", ""):
        log.settings["tables"] = tables(where=where)
        assert "public.customers: where has changed" in broken(crm, log)
    log.settings["tables"] = tables(where="id > 1", copy_run=2)
    log.drain(crm)
    crm.execute("INSERT INTO customers VALUES (0, 'c', ''), (3, 'd', '')")
    log.drain(crm)
    log.kill()
    log.drain(crm)
    log.kill()
    assert [key for key, _ in rows(log)] == [b"1", b"2", b"3"]


def test_a_row_filter_that_was_never_published_is_refused(crm: Database) -> None:
    """An older state has no text to compare, and a filter where there is one counts as the same."""
    log = started(crm, tables=items(where="id < 2"))
    log.kill()
    forget_items(log)
    log.settings["tables"] = items(where="id < 3")
    log.drain(crm)
    log.kill()
    log.settings["tables"] = items(where="id < 4")
    assert "public.customers: where has changed" in broken(crm, log)
    crm.execute("CREATE PUBLICATION plain FOR TABLE customers, other")
    given = {"publication": "plain", "manage": "slot"}
    text = refused(crm, tables=items(where="id < 2"), **given)
    assert "the publication plain has no row filter, and the item of tables has a where" in text
    assert text.endswith(
        'ALTER PUBLICATION "plain" DROP TABLE "public"."customers"; ALTER PUBLICATION "plain" ADD '
        'TABLE "public"."customers" WHERE (id < 2)'
    )


def test_another_key_takes_effect_with_a_copy(crm: Database) -> None:
    """Entries under two keys would be two rows of a sink."""
    crm.execute("ALTER TABLE customers REPLICA IDENTITY FULL")
    log = started(crm, tables=items())
    log.kill()
    log.settings["tables"] = items(key=["mail"])
    text = broken(crm, log)
    assert (
        "public.customers: its entries have the key id, and the item of tables asks for mail"
        in text
    )
    log.settings["tables"] = items(key=["mail"], copy_run=2)
    log.drain(crm)
    log.kill()
    assert [key for key, _ in rows(log)] == [b"1", b"2", b"a", b"b"]
    log.settings["tables"] = items(copy_run=2)
    assert "have the key mail, and the item of tables asks for id" in broken(crm, log)


def test_a_publication_without_the_list_is_refused(crm: Database) -> None:
    """The owner of the tables has to mend it, and then its changes of before are missing."""
    crm.execute("CREATE PUBLICATION transporter_reader FOR TABLE customers, other")
    asked = {"columns": ["id", "mail"]}
    text = refused(crm, tables=items(**asked), manage="slot")
    assert (
        "has all columns, and the item of tables asks for the columns id, mail; manage is slot"
        in text
    )
    crm.execute(text.partition("have the tables' owner run ")[2])
    log = started(crm, tables=items(**asked), manage="slot")
    log.kill()
    log.settings["tables"] = items(columns=["id", "mail", "ssn"])
    text = broken(crm, log)
    assert "raise copy_run to 2 in its item of tables, and have the tables' owner run" in text
    crm.execute(text.partition("have the tables' owner run ")[2].partition("; or")[0])
    assert "left the publication transporter_reader and came back" in broken(crm, log)
    log.settings["tables"] = items(columns=["id", "mail", "ssn"], copy_run=2)
    log.drain(crm)
    log.kill()
    assert [data.keys() for _, data in rows(log)[2:]] == [{"id", "mail", "ssn"}] * 2


def test_a_list_of_the_owner_counts_for_an_item_without_one(crm: Database) -> None:
    """Whoever manages the publication may publish less than all columns and rows."""
    crm.execute(
        "CREATE PUBLICATION transporter_reader FOR TABLE customers (id, mail) WHERE (id < 2), other"
        " WITH (publish_via_partition_root = true)"
    )
    log = started(crm, tables=items())
    log.kill()
    log.drain(crm)
    log.kill()
    assert rows(log) == [(b"1", {"id": 1, "mail": "a"})]


def test_a_listed_column_that_is_renamed_is_followed(crm: Database) -> None:
    """Across restarts, with its old name in the pipeline file or with the new one."""
    crm.execute("CREATE UNIQUE INDEX by_mail ON customers (mail)")
    crm.execute("ALTER TABLE customers REPLICA IDENTITY USING INDEX by_mail")
    log = started(crm, tables=items(columns=["id", "mail", "ssn"], key=["mail"]))
    crm.execute("ALTER TABLE customers RENAME COLUMN ssn TO number")
    log.kill()
    log.drain(crm)
    log.kill()
    crm.execute("ALTER TABLE customers RENAME COLUMN mail TO address")
    crm.execute("INSERT INTO customers VALUES (3, 'c', '3-3')")
    log.settings["tables"] = items(columns=["id", "address", "number"], key=["address"])
    log.drain(crm)
    log.kill()
    log.drain(crm)
    log.kill()
    assert rows(log)[2:] == [(b"c", {"id": 3, "address": "c", "number": "3-3"})]
    assert copies(log) == ["public.customers", "public.other"]


def test_a_table_whose_new_name_falls_under_another_item_goes_on(crm: Database) -> None:
    """An application that renames a table does not end the reader."""
    asked = {"table": "public.cust*", "columns": ["id", "mail"], "where": "id < 9"}
    log = started(crm, tables=["public.*", asked], watch="1s")
    crm.execute("ALTER TABLE customers RENAME TO clients")
    crm.execute("INSERT INTO clients VALUES (3, 'c', '3-3')")
    log.kill()
    log.drain(crm)
    log.kill()
    log.drain(crm)
    log.kill()
    assert short(log.messages)[-1][2:] == ("3", {"id": 3, "mail": "c"})


IDENTITIES = {
    "another key": "ALTER TABLE customers REPLICA IDENTITY FULL",
    "a new column": "ALTER TABLE customers DROP id; ALTER TABLE customers ADD code serial NOT NULL;"
    "ALTER TABLE customers ADD PRIMARY KEY (code)",
}


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "beside others"])
@pytest.mark.parametrize("change", IDENTITIES)
def test_changes_from_before_the_key_are_in_the_copy(
    crm: Database, change: str, *, is_alone: bool
) -> None:
    """They lack the key of now, by which the table is copied again: no entry could be made."""
    others = ["public.other"] if not is_alone else []
    log = started(crm, tables=["public.customers", *others])
    log.kill()
    crm.execute("DELETE FROM customers WHERE id = 1; INSERT INTO customers VALUES (3, 'c', '3-3')")
    crm.execute(f"{IDENTITIES[change]}; UPDATE customers SET ssn = '4-4' WHERE mail = 'c'")
    key = "mail" if change == "another key" else "code"
    if key == "mail":
        crm.execute("CREATE UNIQUE INDEX ON customers (mail)")
    begun = len(log.messages)
    log.settings["tables"] = [
        {"table": "public.customers", "key": [key], "copy_run": 2, "copy": "all"}, *others
    ]  # fmt: skip
    log.drain(crm)
    crm.execute("INSERT INTO customers (mail, ssn) VALUES ('d', '5-5')" if key == "code" else
                "INSERT INTO customers VALUES (4, 'd', '5-5')")  # fmt: skip
    log.drain(crm)
    log.kill()
    log.messages = log.messages[begun:]
    assert {found.decode(): (data["mail"], data["ssn"]) for found, data in rows(log)} == {
        str(code): (mail, ssn)
        for code, mail, ssn in crm.execute(f"SELECT {key}, mail, ssn FROM customers")
    }


def test_a_key_that_takes_effect_behind_the_end_of_another_table(crm: Database) -> None:
    """The wait for changes of a table that is gone ends in the same session."""
    crm.execute("ALTER TABLE customers REPLICA IDENTITY FULL")
    crm.execute("CREATE UNIQUE INDEX ON customers (mail); CREATE TABLE third (id int PRIMARY KEY)")
    log = started(crm, tables=["public.*"], watch="1s")
    log.kill()
    crm.execute("UPDATE customers SET ssn = '3-3'; INSERT INTO other VALUES (1); DROP TABLE other")
    item = {"table": "public.customers", "key": ["mail"], "copy_run": 2}
    log.settings["tables"] = ["public.*", item]
    until(lambda: log.poll(0.1) and len(copies(log)) == 4)
    log.drain(crm)
    crm.execute("UPDATE customers SET ssn = '5-5' WHERE id = 1; DELETE FROM customers WHERE id = 2")
    log.drain(crm)
    log.kill()
    assert [key for key, _ in rows(log)[-2:]] == [b"a", b"b"]


def test_a_publication_of_all_tables_has_no_list(crm: Database) -> None:
    """Nothing takes columns out of one, so it is refused, also where this reader manages it."""
    crm.execute(
        "CREATE PUBLICATION transporter_reader FOR ALL TABLES"
        " WITH (publish_via_partition_root = true)"
    )
    text = refused(crm, tables=items(columns=["id", "mail"]))
    assert "it is not published by name; a publication of whole schemas, or of all tables" in text
    log = started(crm, tables=items())
    log.kill()
    log.drain(crm)
    log.kill()


def test_a_new_table_that_is_published_otherwise_is_left_out(crm: Database) -> None:
    """Whoever creates and publishes a table does not end the reader of the others."""
    crm.execute(
        "CREATE PUBLICATION transporter_reader FOR TABLE other"
        " WITH (publish_via_partition_root = true)"
    )
    asked = {"table": "public.late_*", "columns": ["id"]}
    log = started(crm, tables=["public.other", asked], manage="slot", watch="1s")
    crm.execute(
        "CREATE TABLE late_1 (id int PRIMARY KEY, ssn text); INSERT INTO late_1 VALUES (1, '1-1');"
        "ALTER PUBLICATION transporter_reader ADD TABLE late_1"
    )
    until(lambda: log.poll(0.1) and any(name == "table-left-out" for name, _ in log.told))
    crm.execute("INSERT INTO late_1 VALUES (2, '2-2'); INSERT INTO other VALUES (7)")
    log.drain(crm)
    log.kill()
    assert [each[2] for each in short(log.messages) if each[0] == "insert"] == ["7"]
    (problem,) = {str(told["problem"]) for name, told in log.told if name == "table-left-out"}
    assert "asks for the columns id; manage is slot; have the tables' owner run" in problem
    crm.execute(problem.partition("owner run ")[2])
    log.drain(crm)
    log.kill()
    inserted = [each[3] for each in short(log.messages) if each[0] == "insert"]
    assert inserted == [{"id": 7}, {"id": 1}, {"id": 2}]
