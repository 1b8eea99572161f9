"""The interface of a step: its settings, and its effect on a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from transporter.pipeline.namespace_filter import EVERYTHING, Pattern
from transporter.pipeline.route_options import Model

if TYPE_CHECKING:
    import pyarrow as pa


class StepConfig(Model):
    """A step as the pipeline file has it: its name and its valid settings, as plain values."""

    name: str
    settings: dict[str, Any] | str = Field(repr=False)


class StepSettings(Model):
    """Settings that every step has."""

    namespace: Pattern = EVERYTHING


class Step(Protocol):
    """A change of a batch of entries into another one.

    Rows may vanish and multiply, offsets stay ascending, and the batch that was given stays as it
    is. Raises :class:`~transporter.errors.StepFailed` at the first entry that it cannot turn. Used
    by one thread.
    """

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch that *entries* become."""
        ...
