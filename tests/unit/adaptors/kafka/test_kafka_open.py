"""The reason why a writer cannot be opened."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from transporter_adaptors.kafka.client import ProducerFactory
from transporter_adaptors.kafka.config import KafkaWriterConfig
from transporter_adaptors.kafka.writer import _PlainDelivery

from transporter.errors import RouteFault, SinkUnavailable


class _Producer:
    """A producer that gets no answer and may have failed for good."""

    def __init__(self, fatal: KafkaError | None) -> None:
        self.fatal = fatal

    def list_topics(self, *_: object, **__: object) -> None:
        """Get no answer."""
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no answer"))

    def poll(self, _: float) -> None:
        """Raise the fatal error."""
        if self.fatal is not None:
            raise KafkaException(self.fatal)


@pytest.mark.parametrize(
    ("fatal", "kind", "reason"),
    [
        (None, SinkUnavailable, "no answer"),
        (
            KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no right", fatal=True),
            RouteFault,
            "no right",
        ),
    ],
)
def test_a_fatal_error_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, fatal: Any, kind: type[Exception], reason: str
) -> None:
    """A fatal error that waits in the client counts more than the request that it made fail."""
    config = KafkaWriterConfig(bootstrap_servers="127.0.0.1:9", topic="t")
    client = ProducerFactory(config, 10.0)
    monkeypatch.setattr(client, "producer", lambda: _Producer(fatal))
    with pytest.raises(kind, match=reason):
        _PlainDelivery(client).open()
