"""Tests of transactions whose client does not return."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from transporter.queue import clients, settings_of, transactions
from transporter.queue.failures import QueueUnavailable
from transporter.queue.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Sequence


class Client:
    """A client that hangs while it sends offsets, as long as it is held."""

    def __init__(self, held: threading.Event | None) -> None:
        self.held = held
        self.done: list[str] = []

    def begin_transaction(self) -> None:
        self.done.append("begin")

    def send_offsets_to_transaction(self, *_: object) -> None:
        if self.held is not None:
            self.held.wait(60)
        self.done.append("offsets")

    def commit_transaction(self, timeout: float) -> None:
        self.done.append("commit")

    def poll(self, timeout: float) -> int:
        return 0

    def purge(self) -> None:
        self.done.append("purge")

    def close(self) -> None:
        self.done.append("close")


class Group:
    """A consumer, as far as a transaction needs it."""

    def consumer_group_metadata(self) -> None:
        return None


def impatient(monkeypatch: pytest.MonkeyPatch, made: Sequence[Client]) -> Transactions:
    """Return transactions that use the clients *made* one by one, without waiting for them."""
    left = list(made)
    monkeypatch.setattr(transactions, "_GRACE", 0.0)
    monkeypatch.setattr(clients, "transactional_producer", lambda *_: left.pop(0))
    monkeypatch.setattr(transactions, "blocked_partitions", lambda *_: [])
    monkeypatch.setattr(transactions, "blocked_offsets", lambda *_: {})
    settings = settings_of(bootstrap_servers="x").model_copy(update={"transaction_timeout": 0.01})
    return Transactions(settings, "role")


def test_a_client_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging client is an outage after the time-out, and the next transaction gets a new one."""
    held = threading.Event()
    made = [Client(held), Client(None)]
    found, group = impatient(monkeypatch, made), Group()
    run: Any = found.run
    with pytest.raises(QueueUnavailable, match="hangs in a transaction"):
        run([], group, [])
    monkeypatch.setattr(transactions, "_GRACE", 60.0)
    run([], group, [])
    assert made[1].done == ["begin", "offsets", "commit"]
    assert made[0].done == ["begin"]
    held.set()


class Lingering(Client):
    """A client that hangs while it disconnects, as long as it is held."""

    def close(self) -> None:
        if self.held is not None:
            self.held.wait(60)
        super().close()


def test_a_client_that_does_not_disconnect_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close ends within the time-out, and the next transaction gets a new client."""
    held = threading.Event()
    made = [Lingering(held), Lingering(None)]
    found = impatient(monkeypatch, made)
    first: Any = found.open()
    found.close()
    assert (first, first.done) == (made[0], ["purge"])
    second: Any = found.open()
    assert second is made[1]
    monkeypatch.setattr(transactions, "_GRACE", 60.0)
    found.close()
    assert second.done == ["purge", "close"]
    held.set()
