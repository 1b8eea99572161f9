"""The outbox reader on a real PostgreSQL."""

from __future__ import annotations

import json
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from outbox_tools import Log, ids, insert, kill_readers, messages, read, readers, remaining
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from services.postgres import PASSWORD, free_port, fresh_database
from transporter_adaptors.postgres import pacing
from transporter_adaptors.postgres.gaps import HIGHEST, LOWEST, MOST_GAPS
from transporter_adaptors.postgres.outbox import Outbox
from transporter_adaptors.postgres.position import Position
from transporter_adaptors.postgres.session import StatementTooSlow
from transporter_adaptors.postgres.table import TableName, term_ddl

from transporter.errors import EnvironmentFault, SourceError, SourceUnavailable
from transporter.message import Message
from transporter.outbox import outbox_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.postgres import Database, PostgresService
    from transporter_adaptors.postgres.reader import OutboxReader

pytestmark = pytest.mark.postgres


@pytest.fixture(params=["mark", "take"])
def claim(request: pytest.FixtureRequest) -> str:
    """Return the way to claim rows: each test must pass with either, unless it names one."""
    return str(request.param)


@pytest.fixture
def opened(postgres: Database, claim: str) -> Iterator[Callable[..., Any]]:
    """Open readers on the database, and close all at the end."""
    with readers(postgres, claim) as opener:
        yield opener


# --- reading


def test_rows_come_in_order_as_messages(outbox: Database, opened: Callable[..., Any]) -> None:
    """Every column arrives unchanged, in id order, in one batch."""
    insert(outbox, "k1", '{"n": 12345678901234567890}', "orders", ["a", "a"], ["1", None])
    insert(outbox, "schlüssel-鍵", "žluťoučký 🐎", "zákazníci")
    insert(outbox, "k1", None)
    created = outbox.execute(
        "SELECT (extract(epoch FROM create_time) * 1000000)::bigint FROM outbox ORDER BY id"
    )
    found = messages(opened().poll(5))
    assert found == [
        Message(
            "orders",
            b'{"n": 12345678901234567890}',
            b"k1",
            timestamp=created[0][0],
            source_id="outbox/1",
            headers=(("a", b"1"), ("a", None)),
        ),
        Message(
            "zákazníci",
            "žluťoučký 🐎".encode(),
            "schlüssel-鍵".encode(),
            timestamp=created[1][0],
            source_id="outbox/2",
        ),
        Message("orders", None, b"k1", "delete", timestamp=created[2][0], source_id="outbox/3"),
    ]


def test_an_empty_table_gives_an_empty_batch_in_time(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A poll without rows returns when its time is over, without a position."""
    reader = opened(poll_interval=0.05)
    began = monotonic()
    batch = reader.poll(0.3)
    assert (len(batch.messages), batch.position) == (0, None)
    assert 0.25 < monotonic() - began < 3


def test_large_values_are_bounded_by_bytes(outbox: Database, opened: Callable[..., Any]) -> None:
    """A batch ends before it exceeds its bytes, but takes a larger row alone."""
    for letter in "abcde":
        insert(outbox, value=letter * 1_000_000)
    reader = opened(batch_bytes=2_500_000)
    assert [read(reader) for _ in range(2)] == [[1, 2, 3], [4, 5]]
    assert read(reader, 0) == []
    insert(outbox, value="x" * 3_000_000)
    insert(outbox, value="y")
    assert [read(reader) for _ in range(2)] == [[6], [7]]


def test_header_arrays_count_as_bytes(outbox: Database, opened: Callable[..., Any]) -> None:
    """Large headers are bounded like large values, however well they compress in the table."""
    for _ in range(3):
        insert(outbox, keys=["h"], values=["x" * 500_000])
    reader = opened(batch_bytes=600_000)
    assert [read(reader) for _ in range(2)] == [[1, 2], [3]]


def test_batches_are_bounded_by_rows(outbox: Database, opened: Callable[..., Any]) -> None:
    """A backlog comes in batches of batch_rows, without a pause between them."""
    outbox.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't', 'k' FROM generate_series(1, 25)"
    )
    reader = opened(batch_rows=10, poll_interval=60)
    assert [len(read(reader)) for _ in range(3)] == [10, 10, 5]


def test_another_table_and_channel(postgres: Database, opened: Callable[..., Any]) -> None:
    """A table with an awkward name in its own schema works, and so does its channel."""
    table = TableName.parse('"My 5% Shop"."Out""box;%s"')
    postgres.execute('CREATE SCHEMA "My 5% Shop"')
    postgres.execute(outbox_sql(str(table), "Chan nel"))
    reader = opened(table=str(table), notify_channel="Chan nel", poll_interval=60)
    assert read(reader, 0) == []
    row = f"INSERT INTO {table} (kafka_topic, kafka_key) VALUES ('t', 'k')"
    timer = Timer(0.3, postgres.execute, [row])
    timer.start()
    batch = reader.poll(20)
    timer.join()
    assert [message.source_id for message in messages(batch)] == [f"{table}/1"]
    reader.commit(batch.position)
    assert postgres.execute(f"SELECT count(*) FROM {table}") == [(0,)]
    terms = 'SELECT outbox, term FROM "My 5% Shop".transporter_term'
    assert postgres.execute(terms) == [(str(table), 1)]


# --- gaps (Invariant 8)


def test_a_late_commit_with_a_lower_id_is_found(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A row that commits after a higher id was read comes with the next look, not a sweep."""
    reader = opened(poll_interval=60)
    with outbox.connect(autocommit=False) as slow:
        late = insert(slow, key="slow")
        insert(outbox, key="fast")
        assert read(reader) == [2]
        slow.commit()
        then = insert(outbox, key="slow")
        assert read(reader) == [late, then]
    assert read(reader, 0) == []


def test_a_row_in_flight_at_open_is_not_overtaken(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """Ids below the first row seen are waited for as well."""
    with outbox.connect(autocommit=False) as slow:
        late = insert(slow, key="slow")
        insert(outbox, key="fast")
        reader = opened(poll_interval=60)
        assert read(reader) == [2]
        reader._pace.record_sweep(monotonic(), monotonic() + 60)  # exclude the sweep
        slow.commit()
        then = insert(outbox, key="slow")
        assert read(reader) == [late, then]


@pytest.fixture
def settles_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the interval of settling looks to a tenth of a second."""
    monkeypatch.setattr(pacing, "SETTLING_INTERVAL", 0.1)


@pytest.mark.usefixtures("settles_soon")
def test_transactions_that_have_ended_out_of_order_are_waited_for(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A transaction numbered above all ended ones is not in the look's snapshot."""
    reader = opened(poll_interval=0.02)
    assert read(reader, 0) == []
    with (
        outbox.connect(autocommit=False) as first,
        outbox.connect(autocommit=False) as other,
        outbox.connect(autocommit=False) as late,
    ):
        for each in (first, other, late):
            each.execute("SELECT pg_current_xact_id()")
        assert (insert(late), insert(first)) == (1, 2)
        first.commit()
        assert read(reader) == [2]
        other.commit()
        settle(reader)
        late.commit()
    insert(outbox)
    reader._pace._sweep_at = monotonic() + 60
    assert read(reader) == [1, 3]


@pytest.mark.usefixtures("settles_soon")
def test_a_long_transaction_costs_no_look_anything(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """Gaps that only it can fill are read once its end is visible, before later rows."""
    reader = opened(poll_interval=0.02, batch_rows=500)
    assert read(reader, 0) == []
    with outbox.connect(autocommit=False) as long:
        late = insert(long)
        for _ in range(4):
            outbox.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
                " SELECT 't', 'k', nextval('outbox_id_seq') FROM generate_series(1, 1500)"
            )
            while read(reader, 0.1):
                pass
        settle(reader)
        bounds = reader._gaps.bounds
        assert 0 < len(bounds.gaps) <= MOST_GAPS
        assert all(until < HIGHEST for _, _, until in bounds.gaps), "part of each look"
        long.commit()
    newest = insert(outbox)
    reader._pace._sweep_at = monotonic() + 60
    assert read(reader) == [late, newest]
    settle(reader)
    assert reader._gaps.ranges == []


def test_a_sweep_that_takes_too_long_stops_nobody(
    outbox: Database, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead rows of a long transaction make a sweep slow, and fewer rows would not help."""
    log = Log()
    reader = opened(log, poll_interval=0.02)
    insert(outbox)
    assert read(reader) == [1]
    run = Outbox._run

    def slow(outbox: Outbox, statement: bytes, **arguments: Any) -> Any:
        if arguments.get("low") == LOWEST:
            raise StatementTooSlow("canceling statement due to statement timeout")
        return run(outbox, statement, **arguments)

    monkeypatch.setattr(Outbox, "_run", slow)
    for number in (2, 3):
        insert(outbox)
        reader._pace._sweep_at = float("-inf")
        assert read(reader) == [number]
    assert [event for event, _ in log.told] == ["leader-acquired"]


def settle(reader: OutboxReader) -> None:
    """Poll until existing gaps have been settled twice."""
    deadline = monotonic() + 0.8
    while monotonic() < deadline:
        assert read(reader, 0.1) == []


def test_gaps_of_rolled_back_rows_close(outbox: Database, opened: Callable[..., Any]) -> None:
    """Ids that will never come are dropped after a while."""
    reader = opened(poll_interval=0.05)
    with outbox.connect(autocommit=False) as connection:
        for _ in range(3):
            insert(connection)
        connection.rollback()
        insert(outbox)
        assert read(reader) == [4]
        assert reader._gaps.ranges
        deadline = monotonic() + 30
        while reader._gaps.ranges and monotonic() < deadline:
            outbox.execute("SELECT pg_current_xact_id()")
            assert read(reader, 0.1) == []
    assert reader._gaps.ranges == []


def test_a_row_far_below_is_swept_up(outbox: Database, opened: Callable[..., Any]) -> None:
    """A row whose id lies in no open gap is found by the sweep."""
    reader = opened(poll_interval=0.05)
    insert(outbox)
    assert read(reader) == [1]
    reader._gaps._gaps.clear()  # as after a long time
    outbox.execute("INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (-5, 't', 'k')")
    assert read(reader, 10) == [-5]


# --- purging (Invariant 7)


def test_commit_purges_exactly_the_logged_rows(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A late row between the ids of a batch survives the batch's purge and is read next."""
    reader = opened()
    with outbox.connect(autocommit=False) as slow:
        insert(outbox)
        late = insert(slow)
        insert(outbox)
        batch = reader.poll(5)
        assert ids(batch) == [1, 3]
        slow.commit()
        assert remaining(outbox) == [1, late, 3]
        reader.commit(batch.position)
    assert remaining(outbox) == [late]
    assert read(reader) == [late]


@pytest.mark.parametrize("claim", ["mark"])
def test_rows_are_there_until_they_are_committed(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """Further polls do not purge rows that the log has not confirmed (Invariant 1)."""
    reader = opened(batch_rows=1)
    insert(outbox)
    insert(outbox)
    first, second = reader.poll(5), reader.poll(5)
    assert remaining(outbox) == [1, 2]
    reader.commit(first.position)
    assert remaining(outbox) == [2]
    reader.commit(second.position)
    assert remaining(outbox) == []


@pytest.mark.parametrize("claim", ["mark"])
def test_a_commit_covers_the_batches_before_it(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A position means everything up to it."""
    reader = opened(batch_rows=1)
    insert(outbox)
    insert(outbox)
    reader.poll(5)
    reader.commit(reader.poll(5).position)
    assert remaining(outbox) == []


def test_an_idle_reader_writes_no_wal(outbox: Database, opened: Callable[..., Any]) -> None:
    """Looks at an empty table take no transaction number.

    The numbers are those of the whole server, whose autovacuum takes some now and then.
    """
    reader = opened(poll_interval=0.01)
    reader.poll(0.1)
    with outbox.connect() as connection:
        query = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"

        def taken() -> int:
            ((before,),) = connection.execute(query).fetchall()
            for _ in range(20):
                assert read(reader, 0.02) == []
            ((after,),) = connection.execute(query).fetchall()
            return int(after - before)

        assert min(taken() for _ in range(5)) == 0


# --- recognition


@pytest.mark.parametrize("claim", ["mark"])
def test_rows_logged_before_a_crash_are_not_read_again(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """Several batches that were appended but not purged leave the table at open."""
    log = Log()
    for number in range(6):
        insert(outbox, value=str(number))
    reader = opened(log, batch_rows=2)
    first = reader.poll(5)
    log.append(first)
    reader.commit(first.position)
    for _ in range(2):
        log.append(reader.poll(5))
    reader.close()
    assert remaining(outbox) == [3, 4, 5, 6]
    again = opened(log)
    assert remaining(outbox) == []
    assert read(again, 0) == []
    insert(outbox, value="new")
    after = again.poll(5)
    position = Position.parse(after.position)
    assert (position.batch, position.purged) == (4, 3)


def test_a_half_logged_batch_is_recognised(outbox: Database, opened: Callable[..., Any]) -> None:
    """Rows in the first frames of a batch whose last frame was lost are not read again."""
    log = Log()
    insert(outbox, value="1")
    reader = opened(log)
    log.append(reader.poll(5), position=False)
    insert(outbox, value="2")
    reader.poll(5)
    reader.close()
    assert ids(opened(log).poll(5)) == [2]


def test_marked_but_unlogged_rows_are_read_again(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """Rows that a crash lost before the append are marked again by the next term, in order."""
    insert(outbox)
    insert(outbox)
    reader = opened(batch_rows=1)
    assert ids(reader.poll(5)) == [1]
    reader.close()
    assert ids(opened().poll(5)) == [1, 2]


def test_a_reused_id_is_not_mistaken_for_a_logged_row(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A row that only shares its id with a logged one is read, not purged."""
    log = Log()
    insert(outbox, value="old")
    reader = opened(log)
    log.append(reader.poll(5))
    reader.close()
    outbox.execute("TRUNCATE outbox RESTART IDENTITY")
    insert(outbox, value="new")
    assert [message.data for message in messages(opened(log).poll(5))] == [b"new"]


def test_recognised_bad_rows_are_purged_too(outbox: Database, opened: Callable[..., Any]) -> None:
    """A row that became an error entry is recognised like any other."""
    log = Log()
    insert(outbox, keys=["a"], values=[])
    reader = opened(log)
    log.append(reader.poll(5))
    reader.close()
    assert ids(opened(log).poll(0)) == []
    assert remaining(outbox) == []


def test_a_failed_purge_is_made_good(outbox: Database, opened: Callable[..., Any]) -> None:
    """A purge that failed in the database is repeated before the next mark."""
    reader = opened()
    insert(outbox)
    batch = reader.poll(5)
    with outbox.connect(autocommit=False) as blocker:
        blocker.execute("SELECT FROM outbox FOR UPDATE")
        reader._connection.execute("SET lock_timeout = '50ms'")
        with pytest.raises(SourceUnavailable, match="lock timeout"):
            reader.commit(batch.position)
    assert remaining(outbox) == [1]
    insert(outbox)
    assert ids(reader.poll(5)) == [2]
    assert remaining(outbox) == [2]


def test_a_lost_connection_is_retriable(outbox: Database, opened: Callable[..., Any]) -> None:
    """Poll and commit raise retriable errors, and the log recognises the rows afterwards."""
    log = Log()
    reader = opened(log)
    insert(outbox)
    batch = reader.poll(5)
    log.append(batch)
    kill_readers(outbox)
    with pytest.raises(SourceUnavailable):
        reader.commit(batch.position)
    with pytest.raises(SourceUnavailable):
        reader.poll(1)
    reader.close()
    reader.open(log)
    assert remaining(outbox) == []
    insert(outbox)
    assert read(reader) == [2]


def test_a_connection_lost_while_waiting_ends_the_wait(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A reader that waits for a notification notices the lost connection at once."""
    reader = opened(poll_interval=60)
    reader.poll(0)
    timer = Timer(0.2, kill_readers, [outbox])
    timer.start()
    began = monotonic()
    with pytest.raises(SourceUnavailable, match="lost the connection"):
        reader.poll(30)
    timer.join()
    assert monotonic() - began < 10


# --- terms (Invariant 10)


def test_an_older_term_has_no_effect(outbox: Database, opened: Callable[..., Any]) -> None:
    """After a second open the first reader neither marks nor purges, and names the new term."""
    insert(outbox)
    old = opened(poll_interval=0.01)
    batch = old.poll(5)
    new = opened()
    taken = new.poll(5)
    assert ids(taken) == [1]
    with pytest.raises(SourceError, match=r"fenced: term 1 .* has held term 2 since") as fenced:
        old.commit(batch.position)
    assert not fenced.value.retriable
    assert remaining(outbox) == [1]
    insert(outbox)
    with pytest.raises(SourceError, match="fenced"):
        old.poll(1)
    new.commit(taken.position)
    assert remaining(outbox) == [2]
    assert read(new) == [2]


def test_an_idle_reader_notices_that_it_is_fenced(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """Even without rows a reader whose term has ended stops."""
    old = opened(poll_interval=0.01)
    old.poll(0.05)
    opened()
    with pytest.raises(SourceError, match="fenced"):
        old.poll(5)


@pytest.mark.parametrize("claim", ["mark"])
def test_a_mark_that_waits_for_a_new_term_does_nothing(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A mark that began before the bump and reads the term after it marks no row."""
    reader = opened()
    insert(outbox)
    with outbox.connect(autocommit=False) as rival:
        rival.execute("UPDATE transporter_term SET term = term + 1")
        timer = Timer(0.3, rival.commit)
        timer.start()
        with pytest.raises(SourceError, match="fenced"):
            reader.poll(5)
        timer.join()
    assert outbox.execute("SELECT leader_id FROM outbox") == [(None,)]


# --- waiting


@pytest.mark.parametrize("rows", [1, 3])
def test_a_notification_wakes_the_reader(
    outbox: Database, opened: Callable[..., Any], rows: int
) -> None:
    """With the trigger a row is read long before the next look is due."""
    reader = opened(poll_interval=60)
    assert read(reader, 0) == []
    for number in range(rows):
        timer = Timer(0.2, insert, [outbox])
        timer.start()
        began = monotonic()
        assert read(reader, 30) == [number + 1]
        timer.join()
        assert monotonic() - began < 10


def test_a_notification_during_a_statement_is_kept(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A row that commits during a mark or a purge does not wait for the next interval."""
    reader = opened(poll_interval=60)
    assert read(reader, 0) == []
    insert(outbox)
    reader._connection.execute("SELECT pg_sleep(0.3)")
    assert reader._pace.has_known_rows, "the notification came with the statement's answer"
    assert read(reader, 0) == [1]


def test_polling_suffices_without_a_trigger(outbox: Database, opened: Callable[..., Any]) -> None:
    """Without notifications a row is found when the next look is due."""
    outbox.execute("DROP TRIGGER outbox_notify ON outbox")
    reader = opened(poll_interval=0.2)
    assert read(reader, 0) == []
    insert(outbox)
    assert read(reader, 10) == [1]


# --- bad rows


def test_bad_rows_do_not_stop_the_others(outbox: Database, opened: Callable[..., Any]) -> None:
    """Rows that are not valid messages are published as errors, between their neighbours."""
    outbox.execute("ALTER TABLE outbox ALTER create_time DROP NOT NULL")
    insert(outbox)
    insert(outbox, keys=["a", "b"], values=["1"])
    insert(outbox, keys=[None], values=["1"])
    outbox.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, create_time)"
        " VALUES ('t', 'k', 'infinity'), ('t', 'k', NULL)"
    )
    outbox.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)"
        " VALUES ('t', 'k', '{{a,b}}', '{{c,d}}')"
    )
    insert(outbox)
    reader = opened()
    batch = reader.poll(5)
    marked = [[name for name, _ in message.headers] for message in messages(batch)]
    assert marked == [[], *[["transporter-error"]] * 5, []]
    assert json.loads(messages(batch)[1].data or b"")["kafka_header_keys"] == ["a", "b"]
    reader.commit(batch.position)
    assert remaining(outbox) == []


# --- faults


def test_of_several_hosts_the_one_that_takes_writes_is_read(
    outbox: Database,
    read_only_server: PostgresService,
    opened: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A standby, even one that lacks the table, is skipped.

    The DSN, or libpq's environment variable, may allow it.
    """
    standby = conninfo_to_dict(read_only_server.dsn)
    primary = conninfo_to_dict(outbox.dsn)
    hosts = {name: f"{standby[name]},{primary[name]}" for name in ("host", "port")}
    dsn = make_conninfo(outbox.dsn, **hosts)
    insert(outbox)
    with fresh_database(read_only_server, outbox.name):
        assert read(opened(dsn=dsn)) == [1]
        with pytest.raises(SourceUnavailable, match="no outbox table"):
            opened(dsn=make_conninfo(dsn, target_session_attrs="any"))
        monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
        with pytest.raises(SourceUnavailable, match="no outbox table"):
            opened(dsn=dsn)


def test_a_view_that_cannot_be_changed_is_refused_at_open(
    outbox: Database, opened: Callable[..., Any], claim: str
) -> None:
    """A retry would change nothing, so the reader stops with the remedy."""
    ((names,),) = outbox.execute(
        "SELECT string_agg(attname, ', ') FROM pg_attribute WHERE attrelid = 'outbox'::regclass"
        " AND attnum > 0 AND NOT attisdropped AND attname <> 'leader_id'"
    )
    outbox.execute("CREATE VIEW plain AS SELECT * FROM outbox")
    outbox.execute("CREATE VIEW rows_of_it AS SELECT DISTINCT ON (id) * FROM outbox")
    outbox.execute(f"CREATE VIEW marks AS SELECT {names}, NULL::uuid AS leader_id FROM outbox")
    insert(outbox)
    with pytest.raises(EnvironmentFault, match=r"rows_of_it cannot be changed.*INSTEAD OF"):
        opened(table="rows_of_it")
    if claim == "mark":
        with pytest.raises(EnvironmentFault, match=r"leader_id of .*marks cannot be updated"):
            opened(table="marks")
    assert read(opened(table="plain")) == [1]


def test_a_wrong_password_is_told_without_the_password(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """The server's refusal is quoted, without the attempted password (Invariant 20)."""
    opened(dsn=outbox.tcp_dsn(PASSWORD)).close()
    with pytest.raises(SourceUnavailable, match="password authentication failed") as caught:
        opened(dsn=outbox.tcp_dsn("hunter2"))
    assert "hunter2" not in str(caught.value) + repr(caught.value.__cause__)
    assert caught.value.exit_code == 3


def test_an_unreachable_server_is_retriable(postgres: Database, opened: Callable[..., Any]) -> None:
    """A port without a listener is a retriable fault of the environment."""
    dsn = make_conninfo(host="127.0.0.1", port=free_port(), dbname="x", user="x")
    with pytest.raises(SourceUnavailable, match="refused") as caught:
        opened(dsn=dsn)
    assert (caught.value.exit_code, caught.value.retriable) == (3, True)


def test_a_missing_database_is_named(postgres: Database, opened: Callable[..., Any]) -> None:
    """The error contains the name of the missing database."""
    with pytest.raises(SourceUnavailable, match='database "nowhere" does not exist'):
        opened(dsn=make_conninfo(postgres.dsn, dbname="nowhere"))


def test_a_missing_table_comes_with_the_command_that_makes_it(
    postgres: Database, opened: Callable[..., Any]
) -> None:
    """The error names the command, and the SQL that it prints works."""
    with pytest.raises(
        SourceUnavailable, match=r"no outbox table events .*transporter outbox init"
    ):
        opened(table="events")
    postgres.execute(outbox_sql("events"))
    postgres.execute(outbox_sql("events"))
    opened(table="events")


def test_missing_and_wrong_columns_are_named(outbox: Database, opened: Callable[..., Any]) -> None:
    """A table that is not an outbox is refused with the columns at fault."""
    outbox.execute(
        "ALTER TABLE outbox DROP COLUMN leader_id, ALTER COLUMN kafka_value TYPE json USING NULL"
    )
    with pytest.raises(EnvironmentFault) as caught:
        opened()
    assert "leader_id is missing" in str(caught.value)
    assert "kafka_value is json, not text or varchar" in str(caught.value)


@pytest.fixture
def reader_role(outbox: Database) -> Iterator[str]:
    """Create a role without rights."""
    role = f"reader_{outbox.name}"
    outbox.execute(f"CREATE ROLE {role} LOGIN")
    yield role
    outbox.execute(f"DROP OWNED BY {role}")
    outbox.execute(f"DROP ROLE {role}")


def test_missing_rights_are_named(
    outbox: Database, opened: Callable[..., Any], reader_role: str, claim: str
) -> None:
    """Each error names the next grant, and after all grants the reader works."""
    # The default of PostgreSQL from version 15 on.
    outbox.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    dsn = outbox.dsn_as(reader_role)
    rights = {"mark": "SELECT, UPDATE, DELETE", "take": "SELECT, DELETE"}[claim]
    with pytest.raises(EnvironmentFault, match=f"lacks {rights} on"):
        opened(dsn=dsn)
    outbox.execute(f"GRANT {rights} ON outbox TO {reader_role}")
    with pytest.raises(EnvironmentFault, match="CREATE on schema public") as caught:
        opened(dsn=dsn)
    _, _, ddl = str(caught.value).partition("run\n")
    outbox.execute(ddl.partition("and grant")[0])
    with pytest.raises(EnvironmentFault, match="transporter_term"):
        opened(dsn=dsn)
    outbox.execute(f"GRANT SELECT, INSERT, UPDATE ON transporter_term TO {reader_role}")
    insert(outbox)
    reader = opened(dsn=dsn)
    batch = reader.poll(5)
    reader.commit(batch.position)
    assert remaining(outbox) == []


def test_readers_that_start_together_agree_on_the_terms(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """Concurrent openings create the table of terms only once."""
    with outbox.connect(autocommit=False) as rival:
        rival.execute(term_ddl(TableName("transporter_term", "public")))
        timer = Timer(0.3, rival.commit)
        timer.start()
        opened()
        timer.join()
    assert outbox.execute("SELECT outbox, term FROM transporter_term") == [("public.outbox", 1)]
