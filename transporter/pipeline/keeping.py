"""What a pipeline file may say about how long the log keeps entries, and how much of them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from transporter.pipeline.options import Model, PositiveDuration
from transporter.units import Duration, Size, size_text

SEGMENTS: Final = 4
"""Segments that a budget must have room for: one is written, one is read, one may go."""


SHORTEST_ROLL: Final = 10.0
"""Seconds: the log is not looked at more often, so shorter segments would only cost files."""


def _off(value: Any) -> Any:  # noqa: ANN401 - whatever the file holds
    return None if value == "off" else value


class CompactionConfig(Model):
    """What compaction leaves of sealed segments; ``after`` of ``None``: it is off."""

    after: Annotated[Duration | None, BeforeValidator(_off)] = 7 * 86400.0
    keep: Literal["namespace", "key"] = "namespace"
    tombstones: Duration = 86400.0
    rate: Annotated[Size, Field(ge=64 * 1024)] = 16 * 1024**2


class RetentionConfig(Model):
    """What is removed once every route is done with it; ``None``: no limit."""

    bytes: Annotated[Size, Field(ge=1)] | None = None
    age: PositiveDuration | None = None


def _four_segments(value: int | None, info: ValidationInfo) -> int | None:
    segment = info.data.get("segment_bytes")
    if value is not None and segment is not None and value < SEGMENTS * segment:
        least = size_text(SEGMENTS * segment)
        raise ValueError(f"must be at least four times segment_bytes, {least}")
    return value


def _only_with_a_budget(value: str, info: ValidationInfo) -> str:
    if "max_bytes" in info.data and info.data["max_bytes"] is None:
        raise ValueError("needs max_bytes beside it")
    return value


MaxBytes = Annotated[Size | None, AfterValidator(_four_segments)]
OnFull = Annotated[Literal["wait", "stop-route"], AfterValidator(_only_with_a_budget)]
