"""Records as bytes: the end of a read, and the bytes that it rejects."""

from __future__ import annotations

import json
import random

import pytest
from crc32c import crc32c

from transporter.errors import UnknownFormat
from transporter.offsets import record as records
from transporter.offsets import state as states
from transporter.offsets.record import Record, decode_records
from transporter.offsets.state import Range, RouteState, begin_replay, settle


def turn(number: int, count: int, first: int = 0) -> list[Record]:
    """Return *count* records of one turn."""
    return [
        Record(number, sequence, states.settled_event(Range(sequence, sequence), {}))
        for sequence in range(first, first + count)
    ]


def joined(*parts: Record | bytes) -> bytes:
    """Return records one behind the other."""
    return b"".join(part.encode() if isinstance(part, Record) else part for part in parts)


def read(data: bytes) -> list[Record]:
    """Return the records that are found at the start of *data*."""
    return list(decode_records(data, "f"))


def test_the_bytes_of_a_record_are_those_of_version_1() -> None:
    """A change of a record's bytes makes another format version (Invariant 19)."""
    record = Record(3, 7, states.settled_event(Range(1, 5), {"é": 4}))
    assert record.encode() == bytes.fromhex(
        "4f524543 0100 0000 3e000000 0300000000000000"  # magic, version, nothing, length, turn
        "0700000000000000 a6075dbe"  # sequence number, checksum, then the event as JSON
        "7b2274797065223a22736574746c6564222c2272616e6765223a5b312c352c2261636b6564225d2c"
        "226e616d65737061636573223a7b22c3a9223a347d7d 0000"
    )


def test_records_come_back_as_they_were() -> None:
    """Whatever text and numbers an event holds, each record is found again in its place."""
    written = [*turn(5, 3), Record(5, 3, {"type": "settled", "x": '"\\\n é☃', "n": 2**62})]
    data = joined(*written)
    assert len(data) % records.ALIGNMENT == 0
    assert read(data) == written
    assert read(data + bytes(4096)) == written


def test_nothing_is_read_from_nothing() -> None:
    """An empty file, or one of zeros, holds no record."""
    assert read(b"") == []
    assert read(bytes(1 << 16)) == []
    assert read(b"OREC" + bytes(100)) == []


def test_a_torn_record_ends_the_reading() -> None:
    """However much of the last record is missing, those before it are read."""
    whole = turn(1, 3)
    data = joined(*whole)
    keep = len(joined(*whole[:2]))
    # The last bytes are padding, which is not missed.
    for cut in range(keep, len(joined(*whole[:2])) + 28 + 40):
        assert read(data[:cut]) == whole[:2]
        assert read(data[:cut] + bytes(len(data) - cut)) in (whole[:2], whole)


def test_a_flipped_bit_ends_the_reading_there() -> None:
    """A record with any flipped bit, and everything behind it, is rejected."""
    whole = turn(1, 3)
    data = joined(*whole)
    length = len(whole[0].encode())
    body = json.dumps(whole[1].event, separators=(",", ":"))
    for bit in range(8 * (32 + len(body))):
        changed = bytearray(data)
        changed[length + bit // 8] ^= 1 << bit % 8
        assert read(bytes(changed)) == whole[:1]


def test_what_an_earlier_turn_left_is_not_read() -> None:
    """Records of the file's earlier turn behind the newest record are not read."""
    old, new = turn(3, 6), turn(5, 2)
    stale = joined(*old)
    data = joined(*new)
    assert read(data + stale[len(data) :]) == new


@pytest.mark.parametrize("sequence", [0, 1, 3])
def test_a_record_that_does_not_follow_ends_the_reading(sequence: int) -> None:
    """Sequence numbers count up by one, and a gap or a repetition ends the reading."""
    begun = turn(5, 2)
    assert read(joined(*begun, *turn(5, 1, first=sequence))) == begun


def test_a_length_that_cannot_be_is_not_believed() -> None:
    """A record's length is checked before its body is read (Invariant 17)."""
    data = bytearray(turn(1, 1)[0].encode())
    data[8:12] = (records.MAX_RECORD + 1).to_bytes(4, "little")
    assert read(bytes(data) + bytes(records.MAX_RECORD + 100)) == []


def test_an_intact_record_of_another_version_is_refused_as_such() -> None:
    """An unknown version is named and not taken for a torn record (Invariant 19)."""
    data = bytearray(turn(1, 1)[0].encode())
    data[4:6] = (9).to_bytes(2, "little")
    size = int.from_bytes(data[8:12], "little")
    start = 32
    body = bytes(data[start : start + size])
    data[start - 4 : start] = crc32c(body, crc32c(bytes(data[: start - 4]))).to_bytes(4, "little")
    with pytest.raises(UnknownFormat, match="version 9"):
        read(bytes(data))


def test_events_mean_what_the_state_says() -> None:
    """Folding events gives the same state as the same steps."""
    state = RouteState()
    for event in (
        states.settled_event(Range(0, 9), {"a": 9}),
        states.settled_event(Range(12, 12, "operator"), {}),
        states.replay_begun_event(2, 5),
        states.replay_advanced_event(3, 1),
    ):
        state = states.apply_event(state, json.loads(json.dumps(event)))
    expected = settle(settle(RouteState(), Range(0, 9), {"a": 9}), Range(12, 12, "operator"))
    expected = begin_replay(expected, 2, 5)
    assert state == states.apply_event(expected, states.replay_advanced_event(3, 1))
    assert states.apply_event(state, states.replay_cancelled_event()).replay is None


def test_a_snapshot_says_all_of_a_state() -> None:
    """A state read from its snapshot is the same state, whatever came before."""
    state = begin_replay(settle(RouteState(), Range(3, 4, "operator"), {"a": 3}), 0, 1)
    event = json.loads(json.dumps(states.snapshot_event(state)))
    assert states.apply_event(RouteState(watermark=77), event) == state


def test_an_event_of_an_unknown_type_is_refused() -> None:
    """An event of a later version's type is never ignored (Invariant 19)."""
    with pytest.raises(UnknownFormat, match="dance"):
        states.apply_event(RouteState(), {"type": "dance"})


def test_a_snapshot_gives_namespaces_only_so_many_bytes() -> None:
    """A snapshot holds the newest namespaces that have room (Invariant 17)."""
    name = "n" * 1000
    state = settle(
        RouteState(), Range(0, 999), {f"{name}{number}": number for number in range(1000)}
    )
    kept = states.snapshot_event(state)["namespaces"]
    assert sum(len(each) for each in kept) <= states.NAMESPACE_BYTES
    assert set(kept.values()) == set(range(1000 - len(kept), 1000))


def test_folding_many_events_is_applying_each() -> None:
    """Settled events in a row are folded as one, to the same state."""
    chance = random.Random(6)
    for _ in range(200):
        events, first = [], 0
        for _ in range(chance.randrange(30)):
            last = first + chance.randrange(3)
            kind = chance.choice(("acked", "acked", "acked", "skipped", "operator"))
            names = {f"n{chance.randrange(4)}": last}
            events.append(states.settled_event(Range(first, last, kind), names))
            if chance.random() < 0.2:
                events.append(states.replay_begun_event(0, first))
                events.append(states.replay_advanced_event(first, chance.randrange(3)))
            first = max(0, last + chance.choice((1, 1, 1, 1, 3, -1)))
        one_by_one = RouteState()
        for event in events:
            one_by_one = states.apply_event(one_by_one, event)
        assert states.fold_events(RouteState(), events) == one_by_one
