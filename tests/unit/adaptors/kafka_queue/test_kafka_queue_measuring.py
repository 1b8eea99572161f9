"""The age of the oldest message that a queue holds for an engine."""

from __future__ import annotations

import pytest
from transporter_adaptors.kafka_queue import measuring
from transporter_adaptors.kafka_queue.measuring import _oldest_age, _QueueContents


@pytest.mark.parametrize(
    ("held", "taken", "age"),
    [
        (_QueueContents(0, None, unknown=False), None, 0.0),
        (_QueueContents(2, 70.0, unknown=False), None, 30.0),
        (_QueueContents(2, 70.0, unknown=False), 60.0, 40.0),
        (_QueueContents(2, None, unknown=False), 60.0, 40.0),
        (_QueueContents(2, 120.0, unknown=False), None, 0.0),
        (_QueueContents(2, None, unknown=False), None, 0.0),
        (_QueueContents(2, None, unknown=True), None, None),
        (_QueueContents(2, None, unknown=True), 60.0, 40.0),
    ],
)
def test_the_age_is_that_of_the_oldest_of_all(
    held: _QueueContents, taken: float | None, age: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The age is 0 when every counted message is acked, and unknown when its time is."""
    monkeypatch.setattr(measuring.time, "time", lambda: 100.0)
    assert _oldest_age(held, taken) == age
