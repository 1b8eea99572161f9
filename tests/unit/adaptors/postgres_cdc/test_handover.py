"""Tests of the hand-over from the copy to the stream that need no history."""

from __future__ import annotations

from transporter_adaptors.postgres_cdc.handover import Handover, TableCopy
from transporter_adaptors.postgres_cdc.position import Inside, Position
from transporter_adaptors.postgres_cdc.snapshots import Snapshot

EPOCH = 1 << 32


def test_a_copy_begun_again_repeats_no_id() -> None:
    """The rows of a copy are counted on beyond a TRUNCATE: their numbers are in the ids."""
    handover = Handover()
    handover.begin([TableCopy(7, begun=10)])
    snapshot = Snapshot.parse("20:20:")
    copy = handover.add_chunk(handover.copies[7], snapshot, 100, ("3",), 3, is_last=False)
    assert (copy.rows, copy.boundary) == (3, ("3",))
    handover.truncate(7, xid=21)
    again = handover.copies[7]
    assert (again.rows, again.boundary, again.chunks) == (3, None, ())


def test_updates_may_lack_their_row_until_the_stream_has_come_to_its_end() -> None:
    """A row that was gone when its new key came has its end before an LSN, also for a restart."""
    handover = Handover(gone={7: 100})
    found = Position("1", 1, at=1, gone=(*handover.gone.items(),))
    for each in (handover, Position.parse(str(found)).handover([])):
        assert each.may_lack_row(7, commit_lsn=99)
        assert not each.may_lack_row(7, commit_lsn=100)
        assert not each.may_lack_row(8, commit_lsn=99)
        each.pass_chunks(99)
        assert each.gone == {7: 100}
        each.pass_chunks(100)
        assert each.gone == {}


def test_a_table_may_wait_for_its_copy_for_many_transactions() -> None:
    """A transaction's number is widened by a late one, not by the first of a table's wait."""
    handover = Handover()
    handover.begin([TableCopy(7, begun=10), TableCopy(8, begun=10)])
    late = 3 * EPOCH
    assert handover.accepts(handover.copies[7], Snapshot.parse(f"{late}:{late}:"))
    assert not handover.is_logged(8, rank=0, xid=5, commit_lsn=1)
    assert handover.passed == {late + 5}
    found = Position("1", 1, at=1, copies=(*handover.copies.values(),))
    assert found.handover([]).recent == 10, "without a chunk there is nothing later"
    handover.add_chunk(
        handover.copies[7], Snapshot.parse(f"{late}:{late}:"), 9, ("1",), 1, is_last=False
    )
    found = Position("1", 1, at=1, copies=(*handover.copies.values(),))
    assert Position.parse(str(found)).handover([]).recent == late


def test_a_copy_has_what_a_transaction_has_left_if_all_its_chunks_see_it() -> None:
    """The first chunk, which is not read yet, has to see it. Later ones cannot change what is read.

    A table that is not copied has nothing.
    """
    handover = Handover()
    assert not handover.has_all_of(7, xid=5)
    handover.begin([TableCopy(7, begun=10)])
    assert handover.has_all_of(7, xid=5)
    assert handover.passed == {5}
    handover.passed.clear()
    for seen, key in (("20:20:", "3"), ("30:30:", "6")):
        copy, snapshot = handover.copies[7], Snapshot.parse(seen)
        handover.add_chunk(copy, snapshot, 100, (key,), 3, is_last=False)
    assert handover.has_all_of(7, xid=19)
    assert not handover.has_all_of(7, xid=20)
    assert handover.passed == set()
    handover.pass_chunks(100)
    assert not handover.has_all_of(7, xid=19)


def test_a_server_must_have_the_commit_of_the_transaction_whose_part_is_logged() -> None:
    """A server flushed up to the beginning of a commit record has not the commit."""
    assert Position("1", 1, at=5, inside=Inside(90, 70, 1)).reached == 91
