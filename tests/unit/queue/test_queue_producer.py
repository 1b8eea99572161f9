"""A producer whose client fails for good, without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from transporter.queue import settings_of
from transporter.queue.failures import QueueFault, QueueUnavailable
from transporter.queue.producer import QueueProducer

if TYPE_CHECKING:
    from collections.abc import Callable

LOST = SystemError("<poll> returned NULL without setting an exception")
DENIED = KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no", fatal=True))


class _Client:
    """A client that takes messages and raises *error* in the calls named *where*."""

    def __init__(self, error: Exception, *where: str) -> None:
        self.error, self.where = error, where

    def produce(self, *_: object) -> None:
        """Take a message."""
        self._act("produce")

    def poll(self, _: float) -> int:
        """Serve no callback."""
        return self._act("poll")

    def flush(self, _: float) -> int:
        """Send nothing."""
        return self._act("flush")

    def purge(self) -> None:
        """Take everything back."""

    def close(self) -> None:
        """Disconnect."""
        self._act("close")

    def _act(self, name: str) -> int:
        if name in self.where:
            raise self.error
        return 0


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., QueueProducer]:
    """Return a function that makes a producer whose client fails as told."""

    def make(*failing: Any) -> QueueProducer:
        monkeypatch.setattr(
            "transporter.queue.clients.producer", lambda *_, **__: _Client(*failing)
        )
        monkeypatch.setattr("transporter.queue.clients.count_partitions", lambda *_: [1])
        return QueueProducer(settings_of(bootstrap_servers="127.0.0.1:9"))

    return make


@pytest.mark.parametrize(
    ("error", "kind"), [(LOST, QueueUnavailable), (DENIED, QueueFault)], ids=["lost", "denied"]
)
@pytest.mark.parametrize("where", ["produce", "poll", "flush"])
def test_whatever_call_fails_for_good_raises_our_errors(
    make: Callable[..., QueueProducer], error: Exception, kind: type[Exception], where: str
) -> None:
    """A client may raise a fatal error in each call that serves callbacks."""
    with pytest.raises(kind):
        make(error, where).send("jobs", b"x")
    with pytest.raises(kind):
        make(error, where).send_many("jobs", [b"x"])


def test_a_disconnect_raises_no_error(make: Callable[..., QueueProducer]) -> None:
    """A fatal error that was not raised before is of no use when the producer is dropped."""
    for error in (LOST, DENIED):
        make(error, "close").drop()


def test_an_error_of_ours_is_not_hidden(make: Callable[..., QueueProducer]) -> None:
    """A SystemError of something else is raised as it is."""
    with pytest.raises(SystemError, match="odd"):
        make(SystemError("odd"), "poll").post("jobs", b"x")
