"""What the outbox reader needs of its session and of its sequence, noticed when it opens."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import psycopg
import pytest
from outbox_tools import Log, insert, read, readers
from pooler import pooler

from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.postgres import Database

pytestmark = pytest.mark.postgres


@pytest.fixture
def opened(postgres: Database) -> Iterator[Callable[..., Any]]:
    """Open readers on the database; all are closed at the end."""
    with readers(postgres, "mark") as opener:
        yield opener


@pytest.mark.parametrize("mode", ["transaction", "in turn"])
def test_a_pooler_of_transactions_is_refused_and_left_as_it_was(
    outbox: Database, opened: Callable[..., Any], mode: Literal["transaction", "in turn"]
) -> None:
    """Nothing is set in its sessions, which serve the application next."""
    with pooler(outbox, mode) as dsn:
        with pytest.raises(EnvironmentFault, match="pool_mode = transaction"):
            opened(dsn=dsn)
        with psycopg.connect(dsn) as application:
            found = application.execute(
                "SELECT current_setting('enable_seqscan'), current_setting('lock_timeout')"
            )
            assert found.fetchone() == ("on", "0")


def test_a_pooler_of_sessions_is_read_through(outbox: Database, opened: Callable[..., Any]) -> None:
    """Its numbers of processes are not the server's, but the session is ours."""
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
    """At each open, with the command that mends it; and then no more."""
    if made:
        outbox.execute(made)
    assert told(opened) == []
    outbox.execute(f"ALTER SEQUENCE {sequence} CACHE 20")
    ((event, details),) = told(opened)
    assert (event, details["table"]) == ("sequence-caches", "public.outbox")
    problem = str(details["problem"])
    assert f"takes 20 numbers at once from the sequence {sequence}" in problem
    outbox.execute(problem.partition("; run ")[2].partition(" (")[0])
    assert told(opened) == []


def told(opened: Callable[..., Any]) -> list[tuple[str, dict[str, object]]]:
    """Open a reader and return what it tells of the sequence."""
    log = Log()
    opened(log)
    return [each for each in log.told if each[0] == "sequence-caches"]


def test_whoever_is_in_the_way_of_a_term_is_ended_through_a_pooler_too(outbox: Database) -> None:
    """The process that waits is asked of the server: what a pooler calls it is made up."""
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
