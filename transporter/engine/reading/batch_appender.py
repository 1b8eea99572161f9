"""Appends of a reader's batches to the log, with the wait for room while it is full."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from transporter.adaptor import state_name
from transporter.engine.meters import LATENCY_BOUNDS, Timings, add_source_latency
from transporter.errors import LogFull, MessageTooLarge
from transporter.log.commit_log import MAX_APPEND, split_for_append, wall_clock
from transporter.message import (
    ERROR_HEADER,
    JSON,
    MESSAGE_SCHEMA,
    batch_bytes,
    headers_of,
    messages_to_batch,
    position_message,
)
from transporter.pipeline.namespace_filter import without_noops

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from transporter.adaptor import Batch
    from transporter.engine.reading.acknowledgement import SourceAcknowledgement
    from transporter.engine.reading.reader_condition import ActionGate, ReaderCondition
    from transporter.engine.reading.reader_resume import LogResume
    from transporter.engine.tracer import Tracer
    from transporter.log.commit_log import CommitLog


class BatchAppender:
    """Appends whole batches. Belongs to the reader's thread; any thread may read."""

    def __init__(  # noqa: PLR0913 - each is another part of the feed
        self,
        log: CommitLog,
        resume: LogResume,
        acknowledgement: SourceAcknowledgement,
        condition: ReaderCondition,
        gate: ActionGate,
        stopping: threading.Event,
        run_due_work: Callable[[], None],
        *,
        wait_interval: float,
        tracer: Tracer | None,
    ) -> None:
        """Append to *log* while *gate* admits it, until *stopping* is set.

        While the log is full, *run_due_work* is called each *wait_interval* seconds.
        """
        self._log, self._resume, self._acknowledgement = log, resume, acknowledgement
        self._reader = resume.reader
        self._condition, self._gate, self._stopping = condition, gate, stopping
        self._run_due_work, self._wait_interval = run_due_work, wait_interval
        self._tracer = tracer
        self.logged = self.size = 0
        """Messages, and their bytes, that were appended."""
        self.latency = Timings(LATENCY_BOUNDS)
        """The time from the source to the log."""

    def append(self, batch: Batch) -> None:
        """Append all of *batch*, then acknowledge it at once or keep it open."""
        self._acknowledgement.begin_batch()
        messages = self._loggable(batch)
        if messages is None:
            return
        parts = split_to_loggable(messages)
        logged = self._append_all(parts, batch)
        if batch.position is not None and logged:
            whole = len(logged) == len(parts)
            self._acknowledgement.add(batch.position, logged, whole=whole)

    def _loggable(self, batch: Batch) -> pa.RecordBatch | None:
        """Return the messages to append for *batch*: for a new position alone, one of our own."""
        messages = batch.messages
        if not isinstance(messages, pa.RecordBatch):
            messages = messages_to_batch(messages)
        if messages.num_rows:
            return messages
        if batch.position is None or batch.position == self._resume.position:
            return None
        return messages_to_batch([position_message(self._reader)])

    def _append_all(self, parts: list[pa.RecordBatch], batch: Batch) -> list[tuple[int, int]]:
        """Return the offsets of the parts, or of the first ones if the stop came first.

        Empty if they were superseded meanwhile.
        """
        logged = list[tuple[int, int]]()
        for part in parts:
            # The position goes with the last part: a crash in between repeats, never loses.
            position = batch.position if part is parts[-1] else None
            begun = logged[0][0] if logged else None
            found = self._append_part(part, position, batch, begun)
            if found is None:
                break
            logged.append(found)
            if position is not None and batch.state is not None:
                self._resume.states.drop_others(state_name(batch.state))
        return [] if self._acknowledgement.is_stale else logged

    def _append_part(
        self, messages: pa.RecordBatch, position: str | None, batch: Batch, begun: int | None
    ) -> tuple[int, int] | None:
        """Append, waiting while the disk is full (Invariant 14).

        ``None`` if the stop came first, or the batch was superseded meanwhile. The part of the
        batch that is logged already begins at *begun*.
        """
        while True:
            # At least so far back, because other readers may append first. Again after each wait,
            # because a waiting reader must not hold entries that they logged meanwhile.
            self._acknowledgement.hold_from(self._log.durable + 1 if begun is None else begun)
            try:
                with self._gate.lock:
                    if self._gate.is_closed:
                        return None
                    if position is not None and batch.state is not None:
                        self._resume.states.keep(state_name(batch.state), batch.state)
                    found = self._log.append(messages, self._reader, position, batch.term)
            except LogFull as error:
                self._wait_for_room(self._condition.note_full(error))
                if self._stopping.is_set():
                    return None
                if self._acknowledgement.is_stale:
                    # Nothing waits for room any more.
                    self._condition.note_running()
                    return None
            else:
                time.sleep(0)  # The routes that wait for it go first. What follows can wait.
                self._condition.note_running()
                self._condition.note_success()
                self._count(messages, found)
                return found

    def _count(self, messages: pa.RecordBatch, offsets: tuple[int, int]) -> None:
        first, self._resume.last = offsets
        self.logged += without_noops(messages).num_rows
        self.size += batch_bytes(messages)
        add_source_latency(self.latency, messages.column("timestamp"), wall_clock())
        if self._tracer is not None:
            self._tracer.record_logged(self._reader, messages, first)

    def _wait_for_room(self, seconds: float) -> None:
        """Wait until the next try, a stop, or until nothing is to be appended any more."""
        ends = time.monotonic() + seconds
        while not self._acknowledgement.is_stale and (left := ends - time.monotonic()) > 0:
            if self._stopping.wait(min(left, self._wait_interval)):
                return
            # A route may wait for it that alone can make room.
            self._run_due_work()


MAX_KEY: Final = 64 * 1024
"""Bytes of a key that a stand-in keeps, so that later entries of the key wait behind it."""

_SIZED_COLUMNS: Final = ("key", "data")


def split_to_loggable(messages: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Cut *messages* into batches for one append each, with as many rows in all.

    A message that is too large on its own is replaced by one without its data, whose
    ``transporter-error`` header names where the original is and how large it is: every
    route that accepts it parks it, and the reader goes on.

    Raises:
        MessageTooLarge: even the rest of a message is too large.

    """
    try:
        return list(split_for_append(messages))
    except MessageTooLarge:
        if messages.num_rows == 1:
            return list(split_for_append(_create_stand_in(messages)))
    half = messages.num_rows // 2
    return [*split_to_loggable(messages.slice(0, half)), *split_to_loggable(messages.slice(half))]


def _create_stand_in(message: pa.RecordBatch) -> pa.RecordBatch:
    sizes = {name: _byte_length(message.column(name)[0]) for name in _SIZED_COLUMNS}
    (headers,) = headers_of(message.column("headers"))
    sizes["headers"] = sum(len(name.encode()) + len(value or b"") for name, value in headers)
    origin = message.column("source_id")[0].as_py()
    place = f"its source id is {origin}" if origin is not None else "it has no source id"
    reason = (
        f"the message is too large: {batch_bytes(message)} bytes, and one append to the log takes "
        f"at most {MAX_APPEND} bytes; its data and headers are not in the log ({place}): "
        "deliver it by other means"
    )
    made = {name: message.column(name) for name in MESSAGE_SCHEMA.names}
    if sizes["key"] > MAX_KEY:
        made["key"] = _single_value("key", None)
    made["data"] = _single_value("data", json.dumps({"source_id": origin, "bytes": sizes}).encode())
    made["content_type"] = _single_value("content_type", JSON)
    made["headers"] = _single_value("headers", [(ERROR_HEADER, reason.encode())])
    return pa.RecordBatch.from_arrays(
        [column.cast(MESSAGE_SCHEMA.field(name).type) for name, column in made.items()],
        schema=MESSAGE_SCHEMA,
    )


def _byte_length(cell: pa.Scalar) -> int:
    return cell.as_buffer().size if cell.is_valid else 0


def _single_value(column: str, value: object) -> pa.Array:
    return pa.array([value], MESSAGE_SCHEMA.field(column).type)
