"""Which Kafka settings are taken, and which are refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from adaptors.kafka.config import OWNED, KafkaWriterConfig


def config(**settings: object) -> KafkaWriterConfig:
    """Return a configuration with *settings* and a broker."""
    return KafkaWriterConfig.model_validate({"bootstrap_servers": "127.0.0.1:9092", **settings})


@pytest.mark.parametrize("name", sorted(OWNED))
def test_a_setting_that_the_promises_rest_on_is_refused(name: str) -> None:
    """Each setting that the writer owns is refused by name, with the reason."""
    with pytest.raises(ValidationError) as failure:
        config(client={name: "1", "linger.ms": 1})

    assert f"{name}: {OWNED[name]}" in str(failure.value)


def test_no_value_is_shown_in_an_error_or_in_the_text_of_a_configuration() -> None:
    """Neither a refused nor an accepted configuration shows a client setting's value."""
    with pytest.raises(ValidationError) as failure:
        config(client={"acks": "1", "sasl.password": "hunter2"})

    assert "hunter2" not in str(failure.value)
    assert "hunter2" not in repr(config(client={"sasl.password": "hunter2"}))


@pytest.mark.parametrize("topic", ["orders", "{namespace}", "a.{namespace}.b", "A-1_x.y"])
def test_topics_with_the_namespace_or_without_are_taken(topic: str) -> None:
    """A topic is fixed unless it holds the namespace."""
    assert config(topic=topic).fixed_topic == (None if "{" in topic else topic)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "{key}",
        "{}",
        "{namespace!r}",
        "{namespace:>9}",
        "a b",
        "é",
        "{{x}}",
        ".",
        "{",
        "x" * 250,
    ],
)
def test_topics_that_cannot_be_are_refused(topic: str) -> None:
    """A topic with another field, or with characters that Kafka does not allow, is refused."""
    with pytest.raises(ValidationError):
        config(topic=topic)


def test_the_defaults_are_one_topic_a_namespace_and_large_messages() -> None:
    """Without settings the namespace is the topic, and the topic's own size limit decides."""
    assert config().topic == "{namespace}"
    assert config().max_message_bytes == 16 * 1024**2
    assert config(max_message_bytes="2MiB").max_message_bytes == 2 * 1024**2
