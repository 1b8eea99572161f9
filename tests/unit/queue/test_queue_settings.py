"""Tests of the settings of a queue."""

from __future__ import annotations

import pytest

from transporter.errors import ConfigError
from transporter.queue import settings_of
from transporter.queue.settings import check_queue_name

SERVERS = {"bootstrap_servers": "127.0.0.1:9092"}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "bootstrap_servers: Field required"),
        ({**SERVERS, "redeliver_after": 0}, "redeliver_after"),
        ({**SERVERS, "redeliver": 1}, "redeliver: Extra inputs"),
        ({**SERVERS, "queue_topic": "a/b"}, "queue_topic"),
        ({**SERVERS, "markers_topic": "queue"}, "must differ"),
        ({**SERVERS, "client": {"group.id": "x"}}, "may not contain group.id"),
        ({**SERVERS, "client": {"transactional.id": "x"}}, "may not contain transactional.id"),
        (
            {**SERVERS, "client": {"enable.idempotence": False}},
            "may not contain enable.idempotence",
        ),
        ({**SERVERS, "in_flight": 0}, "in_flight"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values: dict[str, object], text: str) -> None:
    """An invalid setting, or one that the guarantees rest on, is refused by name."""
    with pytest.raises(ConfigError, match=text):
        settings_of(**values)


def test_security_and_compression_can_be_chosen() -> None:
    """Settings of the connection can be chosen, and are kept out of reprs (Invariant 20)."""
    client = {
        "security.protocol": "SASL_SSL",
        "sasl.password": "hunter22",
        "compression.type": "zstd",
    }
    settings = settings_of(**SERVERS, client=client)
    assert settings.client == client
    assert "hunter22" not in repr(settings)


def test_a_refused_setting_does_not_tell_its_value() -> None:
    """An error names the key only (Invariant 20)."""
    with pytest.raises(ConfigError) as caught:
        settings_of(**SERVERS, client={"password": "hunter22"})
    assert "hunter22" not in str(caught.value)


def test_no_queue_has_the_trackers_group() -> None:
    """Groups differ by construction, for any names of topics and queues."""
    settings = settings_of(**SERVERS, queue_topic="a", markers_topic="b")
    assert settings.consumer_group("b") == "a/b"
    assert settings.tracker_group == "b//tracker"
    with pytest.raises(ConfigError, match="not a queue name"):
        check_queue_name("/tracker")
