"""Shared tools for tests of the outbox reader: a log that is a list, rows, and readers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from transporter_adaptors.postgres.config import OutboxConfig
from transporter_adaptors.postgres.reader import OutboxReader

from transporter.message import Entries, Message, with_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import psycopg
    from services.postgres import Database

    from transporter.adaptor import Batch


class Log:
    """A list instead of a log: appended messages, newest last, with positions."""

    def __init__(self, log_id: str | None = None) -> None:
        self.log_id = log_id or uuid4().hex
        self.frames: list[tuple[str | None, Entries]] = []
        self.told: list[tuple[str, dict[str, object]]] = []
        self.measured: dict[str, float | None] = {}
        self.superseded = 0

    def supersede(self) -> None:
        self.superseded += 1

    def undelivered(self) -> Iterator[tuple[str | None, Entries]]:
        return iter(())

    def reopen(self, batches: Iterable[tuple[str, Sequence[int]]]) -> None:
        assert not list(batches), "nothing is undelivered here"

    def report(self, event: str, **details: object) -> None:
        self.told.append((event, details))

    def measure(self, gauge: str, value: float | None) -> None:
        self.measured[gauge] = value

    @property
    def position(self) -> str | None:
        return next((text for text, _ in reversed(self.frames) if text is not None), None)

    def recent(self) -> Iterator[tuple[str | None, Entries]]:
        return iter(self.frames[::-1])

    def append(self, batch: Batch, *, position: bool = True) -> None:
        """Log *batch*. Without its *position* it is the first frame of several."""
        entries = Entries(with_offsets(batch.messages, len(self), 0))
        self.frames.append((batch.position if position else None, entries))

    def __len__(self) -> int:
        return sum(len(entries) for _, entries in self.frames)

    @property
    def messages(self) -> list[Message]:
        return [entry.message for _, entries in self.frames for entry in entries]


def messages(batch: Batch) -> list[Message]:
    """Return the messages of *batch*, none when it is empty."""
    if batch.position is None:
        assert len(batch.messages) == 0
        return []
    return [entry.message for entry in Entries(with_offsets(batch.messages, 0, 0))]


def ids(batch: Batch) -> list[int]:
    """Return the row ids of *batch*."""
    return [int((message.source_id or "").rpartition("/")[2]) for message in messages(batch)]


def read(reader: OutboxReader, seconds: float = 5) -> list[int]:
    """Poll, commit the result, and return its ids."""
    batch = reader.poll(seconds)
    if batch.position is not None:
        reader.commit(batch.position)
    return ids(batch)


@contextmanager
def readers(postgres: Database, claim: str) -> Iterator[Callable[..., OutboxReader]]:
    """Open readers on the database. All are closed at the end."""
    found: list[OutboxReader] = []

    def opener(log: Log | None = None, dsn: str | None = None, **settings: Any) -> OutboxReader:
        given = {"dsn": dsn or postgres.dsn, "claim": claim, **settings}
        found.append(OutboxReader(OutboxConfig.model_validate(given)))
        found[-1].open(Log() if log is None else log)
        return found[-1]

    yield opener
    for reader in found:
        reader.close()


def kill_readers(database: Database) -> None:
    """End the sessions of all readers, as an administrator or a failing server would."""
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'transporter' AND datname = current_database()"
    )


def insert(
    at: Database | psycopg.Connection[Any],
    key: str = "k",
    value: str | None = "v",
    topic: str = "orders",
    keys: list[str | None] | None = None,
    values: list[str | None] | None = None,
) -> int:
    """Insert one row and return its id."""
    found = at.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys,"
        " kafka_header_values) VALUES (%s, %s, %s, %s::text[], %s::text[]) RETURNING id",
        [topic, key, value, keys or [], values or []],
    )
    rows = found if isinstance(found, list) else found.fetchall()
    return int(rows[0][0])


def remaining(database: Database) -> list[int]:
    """Return the ids that are still in the table."""
    return [row[0] for row in database.execute("SELECT id FROM outbox ORDER BY id")]
