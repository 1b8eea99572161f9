"""The progress that a transactional writer commits to its group, and its settings."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from transporter_adaptors.kafka.config import KafkaWriterConfig
from transporter_adaptors.kafka.progress import GroupProgress

from transporter.adaptor import StoredOffset

STORED = StoredOffset("log-1", "bestellungen-ä", 3, 2, 1, 4, 10)


def test_what_was_stored_is_read_back() -> None:
    """Every part reads back, and the whole is far below the 4096 bytes that brokers keep."""
    progress = GroupProgress(STORED, "a-1")

    assert GroupProgress.decode(progress.encode()) == progress
    assert len(progress.encode()) < 1000


@pytest.mark.parametrize("text", [None, "", "x", "1", "{}", '{"v": 2}', '{"v": 1, "mark": "a"}'])
def test_what_another_program_has_committed_says_nothing(text: str | None) -> None:
    """Metadata of another program is not read as progress."""
    assert GroupProgress.decode(text) is None


@pytest.mark.parametrize("offset", [-1, 0, 7])
def test_the_committed_offset_is_never_negative(offset: int) -> None:
    """The offset is never negative, because the client would omit it and its metadata."""
    stored = StoredOffset("log-1", "route", 1, -1, 0, 1, offset)

    assert GroupProgress(stored, "a-1").place("orders").offset == max(0, offset)


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"topic": "orders"}, "orders"),
        ({"topic": "orders", "progress_topic": "progress"}, "progress"),
        ({"topic": "shop.{namespace}", "progress_topic": "progress"}, "progress"),
    ],
)
def test_the_progress_has_a_topic(settings: dict[str, object], place: str) -> None:
    """The progress is in the topic that is named, or else in the fixed topic."""
    config = {"bootstrap_servers": "127.0.0.1:9092", "transactional": True, **settings}

    assert KafkaWriterConfig.model_validate(config).progress_place == place


@pytest.mark.parametrize(
    "settings",
    [
        {"transactional": True},
        {"transactional": True, "topic": "shop.{namespace}"},
        {"topic": "orders", "progress_topic": "progress"},
        {"transactional": True, "topic": "orders", "progress_topic": "a b"},
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object]) -> None:
    """A template needs a progress topic, and a progress topic needs transactions."""
    with pytest.raises(ValidationError, match="progress_topic"):
        KafkaWriterConfig.model_validate({"bootstrap_servers": "127.0.0.1:9092", **settings})
