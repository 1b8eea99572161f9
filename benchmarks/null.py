"""A writer that takes everything and does nothing, so that only the cost of a slice remains."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from transporter.adaptor import AdaptorConfig

if TYPE_CHECKING:
    from transporter.adaptor import Ack, Entries, StoredOffset, WriterContext


class NullWriter:
    """Writer that acks every slice at once."""

    Config: ClassVar[type[AdaptorConfig]] = AdaptorConfig

    def __init__(self, config: AdaptorConfig) -> None:
        """Take no settings."""

    def open(self, context: WriterContext) -> StoredOffset | None:  # noqa: ARG002 - the contract
        """Connect to nothing."""
        return None

    def write(self, batch: Entries, ack: Ack) -> None:  # noqa: ARG002 - the contract
        """Take *batch*."""
        ack.all()

    def close(self) -> None:
        """Do nothing: no resource is open."""
