"""Tests of the outcomes of messages that are sent together."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from transporter.queue.failures import MessageRefused, QueueFault, QueueTimeout, QueueUnavailable
from transporter.queue.ordered_sender import Outgoing, Sending, Sent

PURGED = KafkaError._PURGE_QUEUE


class Client:
    """A client that keeps its messages until the test reports their outcomes."""

    def __init__(self, *refusals: Exception) -> None:
        self.reports: list[Any] = []
        self.purged: list[dict[str, bool]] = []
        self.refusals = list(refusals)

    def produce(self, *record: Any) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.reports.append(record[4])

    def poll(self, timeout: float) -> None:
        pass

    def flush(self, timeout: float) -> int:
        return 0

    def purge(self, **what: bool) -> None:
        self.purged.append(what)


def sending(count: int, client: Client, seconds: float = 60.0) -> Sending:
    """Return *count* messages passed to *client*."""
    made = Sending(client, "queue", "queue topic queue", time.monotonic() + seconds)
    for _ in range(count):
        made.send(Outgoing("jobs", b"x"), None)
    return made


def settle(client: Client, outcomes: dict[int, int | None]) -> None:
    """Report each message of *outcomes* as arrived, or as failed with its code."""
    for index, code in outcomes.items():
        client.reports[index](None if code is None else KafkaError(code), None)


@pytest.mark.parametrize(
    ("outcomes", "arrived", "kind", "blamed"),
    [
        ({0: None, 1: None, 2: None}, 3, None, None),
        ({2: None, 0: None, 1: KafkaError.MSG_SIZE_TOO_LARGE}, 1, MessageRefused, 1),
        (
            {0: None, 1: KafkaError.MSG_SIZE_TOO_LARGE, 2: KafkaError.MSG_SIZE_TOO_LARGE},
            1,
            MessageRefused,
            None,
        ),
        ({0: PURGED, 1: KafkaError.TOPIC_AUTHORIZATION_FAILED, 2: PURGED}, 0, QueueFault, None),
        ({0: None, 1: PURGED, 2: None}, 1, QueueTimeout, None),
        ({0: None, 1: KafkaError._MSG_TIMED_OUT, 2: PURGED}, 1, QueueUnavailable, None),
        ({0: None}, 1, QueueTimeout, None),
        ({}, 0, QueueTimeout, None),
    ],
)
def test_what_arrived_counts_up_to_the_first_that_did_not(
    outcomes: dict[int, int | None],
    arrived: int,
    kind: type[Exception] | None,
    blamed: int | None,
) -> None:
    """The reason is that of the first message that failed by itself, blamed if it is alone."""
    client = Client()
    made = sending(3, client)
    settle(client, outcomes)
    made.finish()
    found = made.result()
    assert (found.arrived, found.blamed, found.fatal) == (arrived, blamed, False)
    assert type(found.error) is (kind or type(None))


def test_after_the_first_failure_nothing_more_is_handed_over() -> None:
    """Invariant 9: waiting messages are purged, once, and those in flight are not."""
    client = Client()
    made = sending(3, client)
    settle(client, {1: KafkaError.INVALID_RECORD, 2: PURGED})
    assert client.purged == [{"in_queue": True, "in_flight": False, "blocking": False}]
    assert not made.send(Outgoing("jobs", b"x"), None)


def test_a_message_that_the_client_does_not_take_is_blamed() -> None:
    """A message that the client refuses is blamed if those before it have arrived."""
    client = Client()
    made = sending(2, client)
    client.refusals.append(KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)))
    assert not made.send(Outgoing("jobs", b"x"), None)
    settle(client, {0: None, 1: None})
    assert (made.result().arrived, made.result().blamed) == (2, 2)
    assert type(made.result().error) is MessageRefused


def test_a_message_that_was_not_even_handed_over_is_blamed() -> None:
    """A refused message is blamed when all before it have arrived, and not earlier."""
    client, refusal = Client(), MessageRefused("too large")
    made = sending(2, client)
    made.refuse(refusal)
    settle(client, {0: None})
    assert made.result().blamed is None
    settle(client, {1: None})
    assert made.result() == Sent(2, refusal, 2)


def test_a_client_that_can_never_send_again_is_told() -> None:
    """A fatal error is an outage that needs a new client, even from within a callback."""
    fatal = KafkaError(KafkaError._FATAL, "out of order", fatal=True)
    wrapped = SystemError("a callback")
    wrapped.__cause__ = KafkaException(fatal)
    lost = SystemError("<method 'poll'> returned NULL without setting an exception")
    for raised in (KafkaException(fatal), wrapped, lost):
        client = Client()
        made = sending(1, client)
        client.refusals.append(raised)
        assert not made.send(Outgoing("jobs", b"x"), None)
        assert made.result().fatal
        assert type(made.result().error) is QueueUnavailable


def test_rights_that_are_missing_are_no_outage() -> None:
    """Missing rights are a fault and not an outage, even if the client fails for good."""
    fatal = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no rights", fatal=True)
    made = sending(0, Client(KafkaException(fatal)))
    made.send(Outgoing("jobs", b"x"), None)
    assert made.result().fatal
    assert type(made.result().error) is QueueFault


def test_an_error_of_ours_is_not_hidden() -> None:
    """An error that is not the client's is raised."""
    made = sending(0, Client(SystemError("odd")))
    with pytest.raises(SystemError, match="odd"):
        made.send(Outgoing("jobs", b"x"), None)


def test_a_full_client_is_waited_for_until_the_deadline() -> None:
    """A full client is retried until the deadline, and nothing is sent behind the message."""
    client = Client(BufferError("full"), BufferError("full"))
    made = sending(0, client)
    assert made.send(Outgoing("jobs", b"x"), None)
    settle(client, {0: None})
    assert made.result() == Sent(1)
    late = sending(0, Client(BufferError("full")), seconds=0.0)
    assert not late.send(Outgoing("jobs", b"x"), None)
    assert type(late.result().error) is QueueTimeout
