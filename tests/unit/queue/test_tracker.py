"""Tests of the end of a tracker, without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from transporter.queue import settings_of
from transporter.queue import tracker as module
from transporter.queue.tracker import Tracker

if TYPE_CHECKING:
    import pytest


class Client:
    """A stand-in for each of its clients. *failing* is raised at the close."""

    def __init__(self, failing: Exception | None = None) -> None:
        self.failing, self.closed = failing, False

    def close(self) -> None:
        self.closed = True
        if self.failing is not None:
            raise self.failing


def test_partitions_that_come_while_it_closes_end_it_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tracker ends in order even if its client raises an error of a callback at the close."""
    gone = KafkaException(KafkaError(KafkaError._DESTROY, "terminating"))
    consumer, asking, transactions = Client(gone), Client(), Client()
    monkeypatch.setattr(module.clients, "consumer", lambda *_, **__: consumer)
    monkeypatch.setattr(module.clients, "standalone_consumer", lambda *_, **__: asking)
    monkeypatch.setattr(module, "Transactions", lambda *_: transactions)
    tracker: Any = Tracker(settings_of(bootstrap_servers="127.0.0.1:9"))
    for name in ("_commit", "_update_metrics"):
        monkeypatch.setattr(tracker, name, lambda *_: None)
    monkeypatch.setattr(tracker, "_subscribe", tracker.stop)
    tracker.run()
    assert consumer.closed
    assert asking.closed
    assert transactions.closed
