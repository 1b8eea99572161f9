"""The backlog measured by readers at their sources: a real outbox, real topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kafka_reading import Bench
from outbox_tools import Log, insert
from transporter_adaptors.postgres import backlog
from transporter_adaptors.postgres.config import OutboxConfig
from transporter_adaptors.postgres.reader import OutboxReader

from transporter.outbox import outbox_sql
from transporter.testing.doubles import FixedResume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.kafka import Broker
    from services.postgres import Database


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every measurement due."""
    monkeypatch.setattr(backlog, "EVERY", 0.0)
    monkeypatch.setattr(backlog, "_SOON", 0.0)
    monkeypatch.setattr(backlog, "_RARELY", 0.0)
    # On a busy host the real limit can be missed by a query that is quick.
    monkeypatch.setattr(backlog, "_LIMIT", "20s")


@pytest.fixture
def log() -> Log:
    """Return an empty log."""
    return Log()


@pytest.fixture
def make_reader(postgres: Database, log: Log) -> Iterator[Any]:
    """Return a function that opens a reader, and close all readers at the end."""
    postgres.execute(outbox_sql("outbox"))
    opened: list[OutboxReader] = []

    def make(**settings: Any) -> OutboxReader:
        config = OutboxConfig.model_validate({"dsn": postgres.dsn, **settings})
        opened.append(OutboxReader(config))
        opened[-1].open(log)
        return opened[-1]

    yield make
    for reader in opened:
        reader.close()


@pytest.mark.postgres
@pytest.mark.usefixtures("always")
def test_rows_of_an_outbox_and_the_age_of_the_oldest(
    postgres: Database, make_reader: Any, log: Log
) -> None:
    """A few rows are counted exactly, and the age is never negative."""
    reader = make_reader()
    reader.keep_alive()
    assert log.measured == {"backlog_messages": 0, "lag_seconds": 0.0}
    for _ in range(3):
        insert(postgres)
    postgres.execute("UPDATE outbox SET create_time = now() - interval '1 hour' WHERE id = 1")
    reader.keep_alive()
    assert log.measured["backlog_messages"] == 3
    assert 3600 <= (log.measured["lag_seconds"] or 0) < 3700
    postgres.execute("UPDATE outbox SET create_time = now() + interval '1 hour'")
    reader.keep_alive()
    assert log.measured["lag_seconds"] == 0.0


@pytest.mark.postgres
@pytest.mark.usefixtures("always")
def test_a_large_outbox_is_not_counted(
    postgres: Database, make_reader: Any, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate of the server's statistics is used, or without one the limited count."""
    monkeypatch.setattr(backlog, "COUNTED", 10)
    reader = make_reader()
    postgres.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
        " SELECT 't', 'k', '{}' FROM generate_series(1, 500)"
    )
    postgres.execute("ANALYZE outbox")
    reader.keep_alive()
    assert 11 <= (log.measured["backlog_messages"] or 0) <= 600
    postgres.execute("SELECT pg_stat_force_next_flush()")
    postgres.execute("SELECT pg_stat_clear_snapshot()")
    reader.keep_alive()
    assert 400 <= (log.measured["backlog_messages"] or 0) <= 600


@pytest.mark.postgres
@pytest.mark.usefixtures("always")
def test_a_question_that_takes_too_long_is_given_up(
    postgres: Database, make_reader: Any, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No value is reported then, and the reader continues."""
    reader = make_reader()
    insert(postgres)
    monkeypatch.setattr(backlog, "_ASK", "SELECT %s, 1 FROM pg_sleep(30)")
    monkeypatch.setattr(backlog, "_LIMIT", "50ms")
    reader.keep_alive()
    assert log.measured == {"backlog_messages": None, "lag_seconds": None}
    assert len(reader.poll(5).messages) == 1


@pytest.mark.postgres
@pytest.mark.usefixtures("always")
def test_an_open_transaction_is_left_alone(postgres: Database, make_reader: Any, log: Log) -> None:
    """With ``claim: take`` the session is in a transaction while rows are logged."""
    reader = make_reader(claim="take")
    insert(postgres)
    batch = reader.poll(5)
    log.measured.clear()
    reader._measure()
    assert log.measured == {}
    log.append(batch)
    reader.commit(batch.position)
    reader.keep_alive()
    assert log.measured["backlog_messages"] == 0


@pytest.mark.kafka
def test_records_of_topics(kafka_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records not yet delivered to the engine count, over all partitions."""
    monkeypatch.setattr("transporter_adaptors.kafka.reader._MEASURE", 0.0)
    kafka_broker.start()
    with Bench(kafka_broker) as bench:
        topic = bench.topic(partitions=2)
        bench.produce_numbers(topic, 40, size=1000)
        reader = bench.reader(topic, batch_rows=10)
        resume = reader._resume
        assert isinstance(resume, FixedResume)
        found = 0
        while found < 40:
            found += len(reader.poll(10).messages)
            left = resume.measured.get("backlog_messages")
            assert left is None or left <= 40
        reader.poll(0.1)
        assert resume.measured["backlog_messages"] == 0
        bench.produce_numbers(topic, 6, first=40)
        for _ in range(50):
            if reader.poll(0.1).messages:
                break
        assert resume.measured["backlog_messages"] is not None


@pytest.mark.kafka
def test_records_that_come_while_nobody_polls(
    kafka_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records count at ``max_in_flight`` or with a full log, and nothing shows without brokers."""
    monkeypatch.setattr("transporter_adaptors.kafka.survey.EVERY", 0.1)
    monkeypatch.setattr("transporter_adaptors.kafka.survey.LATE", 1.0)
    monkeypatch.setattr("transporter_adaptors.kafka.reader._UNPOLLED", 0.0)
    kafka_broker.start()
    with Bench(kafka_broker) as bench:
        topic = bench.topic(partitions=2)
        bench.produce_numbers(topic, 10)
        reader = bench.reader(topic)
        resume = reader._resume
        assert isinstance(resume, FixedResume)
        bench.messages(reader, 10)

        def shows(wanted: float | None) -> None:
            resume.measured.clear()
            bench.until(
                lambda: reader.keep_alive() or resume.measured.get("backlog_messages", -1) == wanted
            )

        shows(0)
        bench.produce_numbers(topic, 30, first=10)
        shows(30)
        kafka_broker.pause()
        try:
            shows(None)
        finally:
            kafka_broker.resume()
        shows(30)
        bench.messages(reader, 30)
        shows(0)
