"""Message queues whose only broker is killed right behind a commit, and loses its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from queue_tools import PATIENCE, fresh, process, until

from transporter.queue import QueueConsumer, QueueProducer, Tracker

if TYPE_CHECKING:
    from services.kafka import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]
ROUNDS = 6

RECEIVES_ONE = """
import signal, sys
from transporter.queue import QueueConsumer, QueueSettings

with QueueConsumer(QueueSettings.model_validate_json(sys.argv[1]), "q") as consumer:
    print(consumer.receive(60).value.decode(), flush=True)
    signal.pause()
"""


def test_who_outlives_its_broker_goes_on(
    own_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Consumer and tracker repair the lost transactions, and each message comes once."""
    settings = fresh(own_broker, transactional=True, redeliver_after=30.0)
    with QueueProducer(settings) as producer, Tracker(settings) as tracker:
        with QueueConsumer(settings, "q") as consumer:
            for number in range(ROUNDS):
                producer.send("q", b"%d" % number)
                message = consumer.receive(PATIENCE)
                own_broker.kill()
                assert message is not None
                assert (message.value, message.redeliveries) == (b"%d" % number, 0)
                own_broker.start()
                consumer.ack(message)
            consumer.flush(PATIENCE)
            assert consumer.receive(3.0) is None
        until(lambda: tracker.metrics().partitions == 2, "the tracker has its partitions again")
        until(lambda: tracker.metrics().in_progress == 0, "the tracker has seen every ack")
    print(f"\nended: {caplog.text.count('ended a transaction that blocked')}")  # noqa: T201


def test_who_dies_with_its_broker_holds_nothing_up(
    own_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """A tracker ends the dead process's transaction, and its message goes to another.

    While the broker is away the tracker retries now and then, not all the time.
    """
    patience = {"transaction_timeout": 2.0, "session_timeout": 6.0}
    settings = fresh(own_broker, transactional=True, redeliver_after=1.0, **patience)
    with QueueProducer(settings) as producer, Tracker(settings) as tracker:
        for number in range(ROUNDS):
            with process(RECEIVES_ONE, settings) as child:
                assert child.stdout is not None
                until(lambda: tracker.metrics().in_progress == 0, "nothing is left")
                producer.send("q", b"%d" % number)
                assert child.stdout.readline().strip() == str(number)
                own_broker.kill()
                child.kill()
            own_broker.start()
            with QueueConsumer(settings, "q") as other:
                message = other.receive(PATIENCE)
                assert message is not None
                assert (message.value, message.redeliveries) == (b"%d" % number, 1)
                other.ack(message)
    assert caplog.text.count("Failed to get offsets") < 15 * ROUNDS
    print(f"\nended for the dead: {caplog.text.count('is gone')}")  # noqa: T201
