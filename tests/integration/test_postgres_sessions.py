"""The outbox reader's demands on its session and sequence, checked when it opens."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import psycopg
import pytest
from outbox_tools import Log, insert, read, readers, remaining
from pooler import pooler

from transporter.cli import app
from transporter.errors import EnvironmentFault
from transporter.outbox import outbox_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.postgres import Database

pytestmark = pytest.mark.postgres


@pytest.fixture
def opened(postgres: Database) -> Iterator[Callable[..., Any]]:
    """Open readers on the database, and close all at the end."""
    with readers(postgres, "mark") as opener:
        yield opener


@pytest.mark.parametrize("mode", ["transaction", "in turn"])
def test_a_pooler_of_transactions_is_refused_and_left_as_it_was(
    outbox: Database, opened: Callable[..., Any], mode: Literal["transaction", "in turn"]
) -> None:
    """The reader sets nothing in the pooler's sessions, which serve the application next."""
    with pooler(outbox, mode) as dsn:
        with pytest.raises(EnvironmentFault, match="pool_mode = transaction"):
            opened(dsn=dsn)
        with psycopg.connect(dsn) as application:
            found = application.execute(
                "SELECT current_setting('enable_seqscan'), current_setting('lock_timeout')"
            )
            assert found.fetchone() == ("on", "0")


def test_a_pooler_of_sessions_is_read_through(outbox: Database, opened: Callable[..., Any]) -> None:
    """The pooler's process ids differ from the server's, but the session is exclusive."""
    number = insert(outbox)
    with pooler(outbox, "session") as dsn:
        reader = opened(dsn=dsn, poll_interval=60)
        assert read(reader) == [number]
        reader.close()


IDENTITY = "ALTER TABLE outbox ALTER id DROP DEFAULT, ALTER id ADD GENERATED ALWAYS AS IDENTITY"
NAMED = (
    "CREATE SEQUENCE numbers; DROP SEQUENCE outbox_id_seq CASCADE;"
    " ALTER TABLE outbox ALTER id SET DEFAULT nextval('numbers')"
)


@pytest.mark.parametrize(
    ("made", "sequence"),
    [("", "outbox_id_seq"), (IDENTITY, "outbox_id_seq1"), (NAMED, "numbers")],
)
def test_a_sequence_that_sessions_cache_is_told_of(
    outbox: Database, opened: Callable[..., Any], made: str, sequence: str
) -> None:
    """A caching sequence is reported at each open, with the remedy, until it is fixed."""
    if made:
        outbox.execute(made)
    assert told(opened, "sequence-caches") == []
    outbox.execute(f"ALTER SEQUENCE {sequence} CACHE 20")
    (details,) = told(opened, "sequence-caches")
    assert details["table"] == "public.outbox"
    problem = str(details["problem"])
    assert f"takes 20 numbers at once from the sequence {sequence}" in problem
    outbox.execute(problem.partition("; run ")[2].partition(" (")[0])
    assert told(opened, "sequence-caches") == []


def told(opened: Callable[..., Any], event: str, **settings: Any) -> list[dict[str, object]]:
    """Open a reader and return the details of each *event* that it reports."""
    log = Log()
    opened(log, **settings)
    return [details for name, details in log.told if name == event]


QUIET = "ALTER TABLE outbox DISABLE TRIGGER ALL"
NOT_OURS = outbox_sql(channel="others")
COMPUTED = """
CREATE OR REPLACE FUNCTION outbox_notify() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('out' || 'box', ''); RETURN NULL; END $$
"""


@pytest.mark.parametrize("made", [QUIET, NOT_OURS, "DROP TRIGGER outbox_notify ON outbox"])
def test_a_missing_trigger_is_reported_at_open(
    outbox: Database, opened: Callable[..., Any], made: str
) -> None:
    """A missing trigger is reported with the command that installs it, until it is there."""
    assert told(opened, "outbox-polled") == []
    outbox.execute(made)
    (details,) = told(opened, "outbox-polled", poll_interval=7)
    assert details["table"] == "public.outbox"
    problem = str(details["problem"])
    assert "no trigger of public.outbox notifies the channel outbox of new rows" in problem
    assert "up to 7 s (poll_interval)" in problem
    assert "'transporter outbox init PIPELINE --run' installs the trigger" in problem
    if made == QUIET:
        outbox.execute("DROP TRIGGER outbox_notify ON outbox")
    assert app.execute(["outbox", "init", "--run", "--dsn", outbox.dsn]) == 0
    assert told(opened, "outbox-polled") == []


def test_a_channel_that_its_function_computes_is_believed(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """Only a function that spells another channel counts as not notifying ours."""
    outbox.execute(COMPUTED)
    assert told(opened, "outbox-polled") == []
    outbox.execute(outbox_sql(channel="it's \\ ours"))
    assert told(opened, "outbox-polled", notify_channel="it's \\ ours") == []


@pytest.mark.parametrize("claim", ["mark", "take"])
@pytest.mark.parametrize("noticed", [False, True])
def test_rows_that_nothing_announces_do_not_wait_for_the_interval(
    outbox: Database, opened: Callable[..., Any], claim: str, *, noticed: bool
) -> None:
    """Without a trigger no row waits, and after the loss of one only the first row does."""
    if not noticed:
        outbox.execute(QUIET)
    reader = opened(poll_interval=1 if noticed else 60, claim=claim)
    if noticed:
        insert(outbox)
        assert read(reader) == [1]
        outbox.execute(QUIET)
        insert(outbox)
        assert read(reader) == [2]
        reader._pace.interval = 60
    for _ in range(3):
        assert read(reader, 0.3) == []
        number = insert(outbox)
        assert read(reader, 30) == [number]
    assert remaining(outbox) == []


def test_an_idle_reader_is_polled_by_reads_alone(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """No look of a polled outbox takes a transaction number, or writes."""
    outbox.execute(QUIET)
    reader = opened()
    assert read(reader, 0.5) == []
    number = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
    before = outbox.execute(number)
    assert read(reader, 2) == []
    assert outbox.execute(number) == before


@pytest.mark.exhaustive
def test_whoever_is_in_the_way_of_a_term_is_ended_through_a_pooler_too(outbox: Database) -> None:
    """The waiting process id comes from the server, because a pooler's id is made up."""
    with pooler(outbox, "session") as dsn, readers(outbox, "mark") as opened:
        opened().close()
        with outbox.connect(autocommit=False) as stopped:
            stopped.execute("SELECT FROM transporter_term FOR UPDATE")
            reader = opened(dsn=dsn, elector={"kind": "postgres", "term": "4s", "dsn": outbox.dsn})
            insert(outbox)
            deadline = monotonic() + 30
            while not read(reader, 0.2):
                assert monotonic() < deadline
            with pytest.raises(psycopg.OperationalError, match="terminating connection"):
                stopped.execute("SELECT 1")
