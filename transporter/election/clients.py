"""Kafka clients of an elector, with the client settings that its guarantees rely on."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Producer, TopicPartition

from transporter.errors import EnvironmentFault
from transporter.kafka.clients import ClientLog, trust_defaults

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import KafkaError

    from transporter.election.config import KafkaElection

_CLOSE_SECONDS: Final = 5.0
_FLUSH_SECONDS: Final = 1.0
_OBSERVER: Final = {
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 1024,  # Invariant 17
}


class Clients:
    """The three clients of an elector: the group's member, the reader and the writer."""

    def __init__(self, config: KafkaElection, on_error: Callable[[KafkaError], None]) -> None:
        self._topic = config.topic
        common = _common_settings(config) | {"error_cb": on_error}
        reading = common | {
            "allow.auto.create.topics": False,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "group.id": config.group or config.topic,
        }
        self.member = _create_client(config, Consumer, reading | _member_settings(config))
        self.observer = _create_client(config, Consumer, reading | _OBSERVER)
        self.producer = _create_client(config, Producer, common | _producer_settings(config))

    def join(self, on_assign: Callable[..., None], on_revoke: Callable[..., None]) -> None:
        """Join the group. The callbacks run in ``member.poll``."""
        self.member.subscribe(
            [self._topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke
        )

    def read_from_end(self) -> None:
        """Start reading the partition at its end."""
        self.observer.assign([TopicPartition(self._topic, 0, OFFSET_END)])

    def produce(self, value: bytes) -> bool:
        """Write *value* to the partition and return whether the client had room for it."""
        try:
            self.producer.produce(self._topic, value, partition=0)
        except (BufferError, KafkaException):
            return False
        return True

    def close(self) -> None:
        """Send pending records and leave the group. A client that hangs is dropped."""
        until = time.monotonic() + _CLOSE_SECONDS
        self.producer.flush(_FLUSH_SECONDS)
        for thread in self.abandon():
            # The client has been observed to hang here for ever. It is left to a daemon thread,
            # which ends with this process. The group then removes its member after the session
            # time-out.
            thread.join(max(0.0, until - time.monotonic()))

    def abandon(self) -> list[threading.Thread]:
        """Start to close all clients without waiting, and return the closing threads."""
        self.producer.purge()
        closers = {"member": self.member.close, "observer": self.observer.close}
        threads = [
            threading.Thread(target=closer, name=f"elector-{name}", daemon=True)
            for name, closer in closers.items()
        ]
        for thread in threads:
            thread.start()
        return threads


def _common_settings(config: KafkaElection) -> dict[str, Any]:
    return {
        "topic.metadata.refresh.interval.ms": 30_000,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 2,
        **trust_defaults(config.client),
        **config.client,
        "bootstrap.servers": config.bootstrap_servers,
        "socket.timeout.ms": _milliseconds(config.term, 2.0, 60.0),
        "logger": ClientLog(__name__, config.redact_secrets),
    }


def _member_settings(config: KafkaElection) -> dict[str, Any]:
    session_ms = _milliseconds(config.session_seconds, 1.0, 3600.0)
    return {
        # A new candidate must not depose the leader.
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": min(3000, session_ms // 10),
        # A candidate without pulses counts as gone, even while the client sends heartbeats.
        "max.poll.interval.ms": session_ms,
    }


def _producer_settings(config: KafkaElection) -> dict[str, Any]:
    return {
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 0,
        "message.timeout.ms": _milliseconds(config.term, 1.0, 3600.0),
        "request.timeout.ms": _milliseconds(config.term, 1.0, 30.0),
    }


def _create_client(config: KafkaElection, kind: Callable[..., Any], values: dict[str, Any]) -> Any:  # noqa: ANN401 - no types there
    try:
        return kind(values)
    except KafkaException as error:
        text = config.redact_values(error.args[0].str())
        place = f"the elector's topic {config.topic} at {config.bootstrap_servers}"
        raise EnvironmentFault(f"{place}: {text}; check the client settings") from None


def _milliseconds(seconds: float, least: float, most: float) -> int:
    return round(min(max(seconds, least), most) * 1000)
