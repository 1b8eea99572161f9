"""Interface to a tracer of single entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from transporter.pipeline.config import RouteConfig
    from transporter.protocol.messages import Outcome, Slice


class Tracer(Protocol):
    """Follows single entries. Called from any thread, returns at once and never raises."""

    def record_logged(self, reader: str, messages: pa.RecordBatch, first: int) -> None:
        """Take note that *messages* of *reader* are durable, at offsets from *first* on."""

    def record_settled(self, route: RouteConfig, slice_: Slice, outcome: Outcome) -> None:
        """Take note of the *outcome*, partial or not, of a slice that is new to *route*."""
