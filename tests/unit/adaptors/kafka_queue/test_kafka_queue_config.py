"""Accepted settings of the kafka-queue adaptors, and those of the queue library."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from transporter_adaptors.kafka_queue import config as config_module
from transporter_adaptors.kafka_queue.config import (
    KafkaQueueConnection,
    KafkaQueueReaderConfig,
    KafkaQueueWriterConfig,
)

README = Path(config_module.__file__).with_name("README.md")


def reader(**settings: Any) -> KafkaQueueReaderConfig:
    """Return a reader's settings: *settings*, a broker and a queue."""
    return KafkaQueueReaderConfig.model_validate(
        {"bootstrap_servers": "127.0.0.1:9092", "queue": "jobs", **settings}
    )


def writer(**settings: Any) -> KafkaQueueWriterConfig:
    """Return a writer's settings: *settings* and a broker."""
    return KafkaQueueWriterConfig.model_validate(
        {"bootstrap_servers": "127.0.0.1:9092", **settings}
    )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"queue": "a/b"}, "not a queue name"),
        ({"queue": ""}, "not a queue name"),
        ({"queue_topic": "queue-markers"}, "must differ"),
        ({"markers_topic": "a b"}, "markers_topic"),
        ({"namespace": "{topic}"}, "{queue} and no other"),
        ({"namespace": "{queue!r}"}, "{queue} and no other"),
        ({"namespace": "{queue"}, "namespace"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"redeliver_after": 0}, "redeliver_after"),
        ({"hold": "1h"}, "hold"),
        ({"client": {"group.id": "x"}}, "may not contain group.id"),
        ({"client": {"isolation.level": "read_uncommitted"}}, "may not contain isolation.level"),
        ({"username": "ada"}, "username and password go together"),
    ],
)
def test_what_a_reader_cannot_be_told_is_refused(settings: dict[str, Any], text: str) -> None:
    """The error names the setting, or the mistake in it."""
    with pytest.raises(ValidationError, match=re.escape(text)):
        reader(**settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"queue": "{key}"}, "{namespace} and no other"),
        ({"queue": "{namespace:>9}"}, "{namespace} and no other"),
        ({"queue": "a b.{namespace}"}, "not a queue name"),
        ({"queue": ""}, "queue"),
        ({"max_message_bytes": 10}, "max_message_bytes"),
        ({"client": {"enable.idempotence": False}}, "may not contain enable.idempotence"),
        ({"client": {"acks": "0"}}, "may not contain acks"),
        ({"markers_topic": "m"}, "markers_topic"),
    ],
)
def test_what_a_writer_cannot_be_told_is_refused(settings: dict[str, Any], text: str) -> None:
    """Settings that the guarantees depend on, and invalid queue names, are refused."""
    with pytest.raises(ValidationError, match=re.escape(text)):
        writer(**settings)


def test_a_source_that_others_share_waits_for_delivery() -> None:
    """The reader needs delivery, because ``release: logged`` would lose messages with the disk."""
    assert reader().needs_delivery
    assert not reader().shared


def test_the_library_is_told_what_the_reader_is() -> None:
    """Messages are held for ever, one batch is fetched ahead, and other settings are passed on."""
    told = reader(
        queue_topic="q",
        markers_topic="m",
        redeliver_after=5,
        leave_after=7,
        transactional=True,
        instance="one",
        session_timeout=8,
        timeout=9,
        batch_rows=11,
        max_message_bytes="2MB",
    ).settings
    assert (told.queue_topic, told.markers_topic, told.instance) == ("q", "m", "one")
    assert (told.redeliver_after, told.leave_after, told.session_timeout) == (5, 7, 8)
    assert (told.timeout, told.ahead, told.max_message_bytes) == (9, 11, 2_000_000)
    assert told.transactional
    assert told.hold == math.inf
    assert told.in_flight == 1_000_000


def test_the_library_is_told_what_the_writer_is() -> None:
    """The slice's deadline is the timeout of a message."""
    told = writer(queue_topic="q", max_message_bytes=5000).settings(12.5)
    assert (told.queue_topic, told.max_message_bytes, told.timeout) == ("q", 5000, 12.5)


@pytest.mark.parametrize("make", [reader, writer])
def test_tls_and_sasl_reach_the_client_and_no_text(make: Any) -> None:
    """A secret is in the client's settings and nowhere else (Invariant 20)."""
    made: KafkaQueueConnection = make(
        security_protocol="sasl_ssl",
        sasl_mechanism="PLAIN",
        username="ada",
        password="hunter2",
        client={"client.id": "x"},
    )
    told = made.settings if make is reader else made.settings(1.0)  # type: ignore[attr-defined,operator]
    assert told.client == {
        "log_level": 2,
        "client.id": "x",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ada",
        "sasl.password": "hunter2",
    }
    assert "hunter2" not in f"{made!r} {told!r}"


def test_the_client_is_quiet_unless_it_is_asked() -> None:
    """The client logs little by default, and its log level is a setting like others."""
    assert reader().settings.client == {"log_level": 2}
    assert reader(client={"log_level": 6}).settings.client == {"log_level": 6}


def test_a_refused_client_setting_does_not_tell_its_value() -> None:
    """The error names the key only (Invariant 20)."""
    with pytest.raises(ValidationError) as caught:
        reader(client={"password": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("heading", "model"),
    [("## Reader", KafkaQueueReaderConfig), ("## Writer", KafkaQueueWriterConfig)],
)
def test_every_setting_is_on_the_page(heading: str, model: type[KafkaQueueConnection]) -> None:
    """The tables of the README name each setting with its default, and no others."""
    part = README.read_text(encoding="utf-8").split(heading)[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    inherited = set(config_module.KafkaConnection.model_fields)
    assert named == set(model.model_fields) - inherited
