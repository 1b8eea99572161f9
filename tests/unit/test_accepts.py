"""Tests of a writer that accepts or refuses single messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from engine_tools import make_pipeline, offsets, run_to_end

from transporter.accepts import apply_accepts
from transporter.adaptor import WriterContext
from transporter.errors import Rejected, SinkError, SinkUnavailable
from transporter.message import Message
from transporter.offsets.offset_log import route_folder
from transporter.offsets.parked import ParkedStore
from transporter.testing import ListWriter, RecordingAck, entries

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.adaptor import Ack, Entries


class Choosy(ListWriter):
    """A writer that refuses the data ``no``, ``why`` with a reason, and fails on ``odd``."""

    def accepts(self, message: Message) -> bool:
        if message.data == b"why":
            raise Rejected("it has no customer")
        if message.data == b"odd":
            raise ValueError("what is this?")
        return message.data != b"no"


def batch(*data: str) -> Entries:
    """Return entries from offset 1 on with these *data*."""
    return entries([Message("orders", each.encode()) for each in data])


def write(writer: ListWriter, given: Entries) -> RecordingAck:
    """Write *given* like the engine, and return its ack."""
    ack = RecordingAck(given)
    apply_accepts(writer).write(given, ack)
    return ack


def written(writer: ListWriter) -> list[int]:
    """Return the offsets that *writer* received."""
    return [entry.offset for entry in writer.entries]


def test_a_writer_without_the_hook_is_left_alone() -> None:
    """A writer without the hook is not wrapped."""
    writer = ListWriter(ListWriter.Config())
    assert apply_accepts(writer) is writer


def test_what_is_accepted_is_written_as_one_batch() -> None:
    """A batch of accepted entries reaches the writer whole."""
    writer = Choosy(ListWriter.Config())
    assert write(writer, batch("a", "b", "c")).complete
    assert written(writer) == [1, 2, 3]


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        ("no", Rejected, "Choosy does not accept this message"),
        ("why", Rejected, "it has no customer"),
        ("odd", ValueError, "what is this?"),
    ],
)
def test_the_first_that_is_not_accepted_is_named(
    data: str, kind: type[Exception], text: str
) -> None:
    """Entries before the refused one are written and acked, and none behind it is written."""
    writer = Choosy(ListWriter.Config())
    ack = write(writer, batch("a", "b", data, "c", "no"))
    assert written(writer) == ack.prefix == [1, 2]
    ((error, offset),) = ack.failures
    assert (type(error), str(error), offset) == (kind, text, 3)


def test_the_first_of_a_batch_reaches_no_writer() -> None:
    """A writer is not called for a batch that begins with a refused entry."""
    writer = Choosy(ListWriter.Config())
    ack = write(writer, batch("no", "a"))
    assert (written(writer), ack.prefix, len(ack.failures)) == ([], [], 1)


def test_rows_of_one_entry_are_refused_together() -> None:
    """No row of an entry with two rows is written if the second is refused."""
    given = batch("a", "b", "no")
    column = pa.array([1, 2, 2], given.batch.schema.field("offset").type)
    given = replace(given, batch=given.batch.set_column(0, given.batch.schema.field(0), column))
    writer = Choosy(ListWriter.Config())
    ack = RecordingAck(given)
    apply_accepts(writer).write(given, ack)
    assert written(writer) == ack.prefix == [1]
    assert ack.failures[0][1] == 2


def test_a_failure_before_it_is_the_one_that_counts() -> None:
    """A sink's failure before the refused entry is the one reported to the engine."""
    failing = Choosy(ListWriter.Config(failures={2: ("unavailable",)}))
    ack = write(failing, batch("a", "b", "no"))
    assert [(type(error), offset) for error, offset in ack.failures] == [(SinkUnavailable, None)]
    assert ack.prefix == [1]

    class Raising(Choosy):
        def write(self, batch: Entries, ack: Ack) -> None:
            raise SinkUnavailable("away")

    with pytest.raises(SinkError, match="away"):
        write(Raising(ListWriter.Config()), batch("a", "no"))


def test_it_is_opened_and_closed_as_it_would_be_alone() -> None:
    """The context, the stored offset and the close are passed through the wrapper."""
    closed: list[bool] = []

    class Storing(Choosy):
        def open(self, context: WriterContext) -> object:  # type: ignore[override]
            return super().open(context) or context.stored(0, 7)

        def close(self) -> None:
            closed.append(True)

    context = WriterContext("log-1", "route", 3)
    writer = Storing(ListWriter.Config())
    guarded = apply_accepts(writer)
    assert guarded.open(context) == context.stored(0, 7)
    guarded.close()
    assert (writer.contexts, closed) == ([context], [True])


def test_a_route_parks_what_its_writer_does_not_accept(tmp_path: Path) -> None:
    """Each refused entry is parked by on_error with its reason, and all others arrive."""
    lines = ["a ok", "b no", "c ok", "d why", "e ok"]
    sink = {"adaptor": "choosy_sink:ChoosyWriter"}
    pipeline = make_pipeline(tmp_path, lines, out={"on_error": "park", "writer": sink})
    run_to_end(pipeline)
    assert offsets(tmp_path / "out.jsonl") == [0, 2, 4]
    folder = route_folder(tmp_path / "log", "out")
    reasons = {offset: ParkedStore.read_entry(folder, offset).reason.error for offset in (1, 3)}
    assert reasons == {
        1: "ChoosyWriter does not accept this message",
        3: "this one has no customer",
    }
