"""The ``accepts`` hook of a writer: entries that it refuses before it is given them."""

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


def apply_accepts(writer: Any) -> Any:  # noqa: ANN401 - a Writer or a FrameWriter
    """Return a writer that gives *writer* only what it accepts; itself if it has no such hook."""
    return _Accepting(writer) if isinstance(writer, AcceptingWriter) else writer


class _Accepting:
    """Gives a writer the entries before the first that it refuses, and fails that one."""

    def __init__(self, writer: AcceptingWriter) -> None:
        self._writer = writer

    def open(self, context: WriterContext) -> StoredOffset | None:
        return self._writer.open(context)

    def write(self, batch: Entries, ack: Ack) -> None:
        for row, entry in enumerate(batch):
            refusal = self._refusal(entry.message)
            if refusal is not None:
                before = replace(batch, batch=batch.batch.slice(0, batch.whole(row)))
                if self._write(before, ack):
                    ack.fail(refusal, entry.offset)
                return
        self._writer.write(batch, ack)

    def close(self) -> None:
        self._writer.close()

    def _refusal(self, message: Message) -> Any:  # noqa: ANN401 - what the hook raises, or None
        """Return why the writer does not accept *message*; ``None`` if it does."""
        try:
            if self._writer.accepts(message):
                return None
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - as with whatever write() raises
            return error
        return Rejected(f"{type(self._writer).__name__} does not accept it")

    def _write(self, before: Entries, ack: Ack) -> bool:
        """Deliver what is *before* a refused entry; return whether none of it was failed."""
        if not len(before):
            return True
        part = _PartAck(ack, before.offsets)
        self._writer.write(before, part)
        return not part.failed


class _PartAck:
    """The ack of a batch, for a writer that is given the beginning of it only."""

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
