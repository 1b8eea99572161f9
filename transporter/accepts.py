"""The ``accepts`` hook of a writer: refusal of entries before ``write`` gets them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from transporter.adaptor import AcceptingWriter
from transporter.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter.adaptor import Ack, Entries, StoredOffset, WriterContext
    from transporter.errors import SinkError
    from transporter.message import Message


def apply_accepts(writer: Any) -> Any:  # noqa: ANN401 - a Writer or a DataFrameWriter
    """Return *writer* limited to entries that it accepts, or itself if it has no such hook."""
    return _CheckedWriter(writer) if isinstance(writer, AcceptingWriter) else writer


class _CheckedWriter:
    """A wrapper that passes on the entries before the first refused one, and fails that one."""

    def __init__(self, writer: AcceptingWriter) -> None:
        self._writer = writer

    def open(self, context: WriterContext) -> StoredOffset | None:
        return self._writer.open(context)

    def write(self, batch: Entries, ack: Ack) -> None:
        for row, entry in enumerate(batch):
            refusal = self._refusal(entry.message)
            if refusal is not None:
                before = replace(batch, batch=batch.batch.slice(0, batch.whole(row)))
                if self._write_accepted(before, ack):
                    ack.fail(refusal, entry.offset)
                return
        self._writer.write(batch, ack)

    def close(self) -> None:
        self._writer.close()

    def _refusal(self, message: Message) -> Any:  # noqa: ANN401 - the hook's exception, or None
        """Return the reason for refusing *message*, or ``None`` if the writer accepts it."""
        try:
            if self._writer.accepts(message):
                return None
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - as for write()
            return error
        return Rejected(f"{type(self._writer).__name__} does not accept this message")

    def _write_accepted(self, before: Entries, ack: Ack) -> bool:
        """Deliver the entries *before* a refused one, and return whether none of them failed."""
        if not len(before):
            return True
        part = _PartAck(ack, before.offsets)
        self._writer.write(before, part)
        return not part.failed


class _PartAck:
    """The ack of a batch for a writer that gets only the beginning of it."""

    def __init__(self, ack: Ack, offsets: list[int]) -> None:
        self._ack, self._offsets = ack, offsets
        self.failed = False

    def __call__(self, offsets: Iterable[int]) -> None:
        self._ack(offsets)

    def all(self) -> None:
        self._ack(self._offsets)

    def fail(self, error: SinkError, offset: int | None = None) -> None:
        self.failed = True
        self._ack.fail(error, offset)
