"""The section ``log`` of a pipeline file: retention, compaction and budget."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from transporter.pipeline.route_options import Model, PositiveDuration
from transporter.units import Duration, Size, format_duration, format_size

SEGMENTS: Final = 4
"""Segments that a budget must have room for: one is written, one is read, one may go."""


SHORTEST_ROLL: Final = 10.0
"""Seconds: the log is not looked at more often, so shorter segments would only cost files."""
WEEK: Final = 7 * 86400.0
"""Seconds that delivered entries stay by default, and after which compaction may drop some."""


def _parse_off(value: Any) -> Any:  # noqa: ANN401 - whatever the file holds
    return None if value == "off" else value


class CompactionConfig(Model):
    """The settings of compaction, which is off while ``after`` is ``None``.

    It drops history, so it is off until a file sets ``after`` or ``keep``.
    """

    after: Annotated[Duration | None, BeforeValidator(_parse_off)] = None
    keep: Literal["namespace", "key"] = "namespace"
    tombstones: Duration = 86400.0
    rate: Annotated[Size, Field(ge=64 * 1024)] = 16 * 1024**2

    @model_validator(mode="before")
    @classmethod
    def _enable_by_keep(cls, values: Any) -> Any:  # noqa: ANN401 - whatever the file holds
        asked = isinstance(values, dict) and "keep" in values and "after" not in values
        return {**values, "after": format_duration(WEEK)} if asked else values

    @property
    def manual_after(self) -> float | None:
        """The ``after`` of ``log compact``, which also runs while the engine's compaction is off.

        ``None`` if the file sets neither ``after`` nor ``keep``.
        """
        return WEEK if self.after is None and "keep" in self.model_fields_set else self.after


class RetentionConfig(Model):
    """The age at which entries are removed after every route has passed them. ``None`` is never."""

    bytes: Annotated[Size, Field(ge=1)] | None = None
    # With compaction, the default is None: see Retention.
    age: Annotated[PositiveDuration | None, BeforeValidator(_parse_off)] = WEEK


def history_text(
    compaction: CompactionConfig, retention: RetentionConfig, max_bytes: int | None
) -> str:
    """Return a text about the time that delivered entries stay, and the effect of compaction."""
    stay = "for ever" if retention.age is None else format_duration(retention.age)
    limits = []
    if retention.bytes is not None:
        limits.append(f"takes more than {format_size(retention.bytes)}")
    if max_bytes is not None:
        limits.append(f"nears max_bytes ({format_size(max_bytes)})")
    if limits:
        stay += f", less once the log {' or '.join(limits)}"
    dropped = "no compaction"
    if compaction.after is not None:
        after = format_duration(compaction.after)
        dropped = f"after {after} compaction keeps the last one of each {compaction.keep} only"
    return f"delivered entries stay {stay}; {dropped}"


def _require_four_segments(value: int | None, info: ValidationInfo) -> int | None:
    segment = info.data.get("segment_bytes")
    if value is not None and segment is not None and value < SEGMENTS * segment:
        least = format_size(SEGMENTS * segment)
        raise ValueError(f"must be at least four times segment_bytes, {least}")
    return value


def _require_budget(value: str, info: ValidationInfo) -> str:
    if "max_bytes" in info.data and info.data["max_bytes"] is None:
        raise ValueError("needs max_bytes beside it")
    return value


def _keep_if_compacted(value: RetentionConfig, info: ValidationInfo) -> RetentionConfig:
    """Keep compacted entries without limit, unless the file sets an age: the last by key."""
    compaction = info.data.get("compaction")
    asked = compaction is not None and compaction.manual_after is not None
    if not asked or "age" in value.model_fields_set:
        return value
    return RetentionConfig(bytes=value.bytes, age=None)


Retention = Annotated[
    RetentionConfig, AfterValidator(_keep_if_compacted), Field(validate_default=True)
]
MaxBytes = Annotated[Size | None, AfterValidator(_require_four_segments)]
OnFull = Annotated[Literal["wait", "stop-route"], AfterValidator(_require_budget)]
