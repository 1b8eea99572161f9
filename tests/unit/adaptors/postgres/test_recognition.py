"""Recognition: logged batches whose rows may still be in the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from transporter_adaptors.postgres.position import Position
from transporter_adaptors.postgres.recognition import logged_ids, match_rows, unpurged_batches
from transporter_adaptors.postgres.rows import OutboxRow, to_batch

from transporter.errors import SourceError
from transporter.message import Entries, with_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW = OutboxRow(1, 5, b"orders", b"k", b"v", [b"h"], [b"x"])


def entries(*rows: OutboxRow, table: str = "outbox") -> Entries:
    """Return *rows* as they are in the log."""
    return Entries(with_offsets(to_batch(rows, table), 100, 0))


class Frames:
    """The frames of the log, given newest first."""

    position = None

    def __init__(self, *frames: tuple[Position | None, Entries]) -> None:
        self.frames = frames
        self.read = 0

    def recent(self) -> Iterator[tuple[str | None, Entries]]:
        for position, logged in self.frames:
            self.read += 1
            yield (str(position) if position else None), logged


def batch(number: int) -> Entries:
    """Return a logged batch with *number* as the id of its row."""
    return entries(ROW._replace(id=number))


def test_batches_above_the_purge_marker_are_unpurged() -> None:
    """Loading ends at the first batch that had left the table when the newest was read."""
    one, two, three, four = map(batch, range(1, 5))
    frames = Frames(
        (Position(4, purged=2), four),
        (Position(3, purged=2), three),
        (Position(2, purged=0), two),
        (Position(1, purged=0), one),
    )
    assert list(unpurged_batches(frames)) == [four, three]
    assert frames.read == 3


def test_every_frame_of_a_batch_counts() -> None:
    """Frames without a position belong to the batch of the newer frame that has one."""
    parts = [batch(number) for number in range(4)]
    frames = Frames(
        (Position(2, purged=1), parts[3]),
        (None, parts[2]),
        (Position(1, purged=0), parts[1]),
        (None, parts[0]),
    )
    assert list(unpurged_batches(frames)) == [parts[3], parts[2]]


def test_frames_of_an_unfinished_batch_count() -> None:
    """Frames without a position, left by a crash inside a batch, count as unpurged."""
    half, done = batch(2), batch(1)
    assert list(unpurged_batches(Frames((None, half), (Position(1, purged=1), done)))) == [half]
    assert list(unpurged_batches(Frames((None, half)))) == [half]


def test_equal_rows_are_the_same() -> None:
    """A row equals the entry that was made from it."""
    rows = [ROW, ROW._replace(id=2, value=None), ROW._replace(id=3, header_keys=[b"a", b"b"])]
    assert match_rows(entries(*rows), to_batch(rows, "outbox")) == [True, True, True]


@pytest.mark.parametrize(
    "change",
    [
        {"id": 2},
        {"create_time": 6},
        {"topic": b"other"},
        {"key": b"other"},
        {"value": None},
        {"value": b"other"},
        {"header_keys": [b"other"]},
        {"header_values": [None]},
    ],
)
def test_a_row_that_differs_is_another_one(change: dict[str, object]) -> None:
    """A difference in one column makes a row a new one."""
    other = ROW._replace(**change)  # type: ignore[arg-type] # names of columns
    assert match_rows(entries(ROW), to_batch([other], "outbox")) == [False]


def test_only_rows_of_the_table_are_named() -> None:
    """Entries of another table match no row of this one."""
    assert logged_ids(entries(ROW, ROW._replace(id=9)), "outbox") == [1, 9]
    assert logged_ids(entries(ROW, table="outbox2"), "outbox") == []
    assert logged_ids(entries(ROW), "shop.outbox") == []


def test_positions_survive_the_log() -> None:
    """A position reads back unchanged, and later versions may add to it."""
    assert Position.parse(str(Position(4, 2))) == Position(4, 2)
    assert Position.parse('{"batch": 4, "purged": 2, "term": 1}') == Position(4, 2)


@pytest.mark.parametrize("text", ["", "17", "{}", '{"batch": "x", "purged": 1}'])
def test_a_foreign_position_is_refused(text: str) -> None:
    """A position of another adaptor is an error, not a fresh start."""
    with pytest.raises(SourceError, match="another name"):
        Position.parse(text)
