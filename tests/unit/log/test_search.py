"""Searches by time, namespace and key, and from the end."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from log_tools import Disk, crash

from transporter.errors import EnvironmentFault, OffsetRefused
from transporter.log.commit_log import CommitLog
from transporter.log.index import index_path
from transporter.log.reader import LogReader
from transporter.log.search import (
    END,
    EntryFilter,
    first_offset_since,
    frames_with_retry,
    matching_entries,
    offsets_around,
    start_of_last,
    take_entries,
)
from transporter.log.segment import segment_bases, segment_name
from transporter.message import Entries, Message, messages_to_batch, with_offsets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from transporter.message import Entry

    Make = Callable[..., pa.RecordBatch]

NAMESPACES = ("orders.placed", "orders.paid", "audit")
KEYS = (b"a", b"b", b"\xff\x00", None)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Entry]]:
    """Write a log of sixty frames in many segments, some of them logged at the same time."""
    directory = tmp_path_factory.mktemp("log")
    chance, now = random.Random(5), [1_000_000]

    def clock() -> int:
        now[0] += chance.choice([0, 0, 10, 1000])
        return now[0]

    with CommitLog.open(directory, segment_bytes=4000, clock=clock) as log:
        for _ in range(60):
            messages = [
                Message(chance.choice(NAMESPACES), b"x", chance.choice(KEYS))
                for _ in range(chance.randrange(1, 9))
            ]
            log.append(messages_to_batch(messages), "r")
        last = log.durable
    with LogReader(directory) as reader:
        return directory, [entry for batch in reader.read(0, last) for entry in Entries(batch)]


def accepted(entry: Entry, prefix: str, key: bytes | None, since: int, until: int) -> bool:
    """Return whether a filter takes *entry*, one at a time instead of by column."""
    message = entry.message
    return (
        message.namespace.startswith(prefix)
        and (key is None or message.key == key)
        and since <= entry.logged_at <= until
    )


def offsets(batches: Any) -> list[int]:
    """Return the offsets of *batches*."""
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_filters_take_what_they_say(written: tuple[Path, list[Entry]]) -> None:
    """Namespace, key and times select the accepted entries, in order."""
    directory, entries = written
    chance = random.Random(6)
    with LogReader(directory) as reader:
        for _ in range(100):
            prefix, key = chance.choice(["", "orders", "audit", "no"]), chance.choice(KEYS)
            since, until = (chance.choice(entries).logged_at + chance.choice([-1, 0, 1]), END)
            if chance.random() < 0.5:
                until = chance.choice(entries).logged_at + chance.choice([-1, 0, 1])
            first, last = chance.randrange(len(entries)), chance.randrange(len(entries))
            if chance.random() < 0.3:
                prefix, key, since, until = "", None, 0, END
            wanted = EntryFilter(f"^{prefix}" if prefix else "", key, since, until)
            expected = [
                entry.offset
                for entry in entries[first : last + 1]
                if accepted(entry, prefix, key, since, until)
            ]
            assert offsets(matching_entries(reader, first, last, wanted)) == expected
            count = chance.randrange(1, 12)
            start = start_of_last(reader, first, last, count, wanted)
            assert offsets(matching_entries(reader, start, last, wanted)) == expected[-count:]
            ends: list[int] = []
            found = take_entries(matching_entries(reader, first, last, wanted), count, ends.append)
            assert offsets(found) == expected[:count]
            assert ends == expected[count - 1 : count]


def test_the_bounds_of_a_time_hold_all_that_was_logged_then(
    written: tuple[Path, list[Entry]],
) -> None:
    """Entries before the lower bound are older, later ones are not, and both are near."""
    directory, entries = written
    for time in {entry.logged_at + more for entry in entries for more in (-1, 0, 1)}:
        before, after = offsets_around(directory, time)
        assert all(entry.logged_at < time for entry in entries[:before])
        assert all(entry.logged_at >= time for entry in entries[min(after, END - 1) + 1 :])
        older = sum(entry.logged_at < time for entry in entries)
        assert before <= older <= before + 16
        assert after >= older
        assert after == END or after <= older + 16


def test_a_time_is_found_without_walking_the_log(tmp_path: Path, batch: Make) -> None:
    """Of a thousand frames in eight segments only one index stride is read."""
    now = [0]

    def clock() -> int:
        now[0] += 10
        return now[0]

    with CommitLog.open(tmp_path, segment_bytes=2 << 20, compression=None, clock=clock) as log:
        for _ in range(1000):
            log.append(batch(10, size=1500), "r")
    disk = Disk()
    assert offsets_around(tmp_path, 5000, disk) == (4970, 4989)
    assert len([call for call in disk.calls if call[0] == "pread"]) < 160
    for path in tmp_path.glob("*.index"):
        path.unlink()
    assert offsets_around(tmp_path, 5000, Disk()) == (4970, 4989)


def test_without_an_index_everything_is_found_as_well(tmp_path: Path, batch: Make) -> None:
    """A lost or damaged index changes no answer."""
    with CommitLog.open(tmp_path, segment_bytes=1500) as log:
        for _ in range(30):
            log.append(batch(3), "r")
        last = log.durable
    with LogReader(tmp_path) as reader:
        before = offsets(matching_entries(reader, 40, last, EntryFilter(key=b"k1")))
        start = start_of_last(reader, 0, last, 7, EntryFilter(key=b"k1"))
    for number, base in enumerate(segment_bases(Disk(), tmp_path)):
        index = index_path(tmp_path / segment_name(base))
        index.write_bytes(b"\xff" * 56) if number % 2 else index.unlink()
    with LogReader(tmp_path) as reader:
        assert offsets(matching_entries(reader, 40, last, EntryFilter(key=b"k1"))) == before
        assert start_of_last(reader, 0, last, 7, EntryFilter(key=b"k1")) == start


@pytest.mark.parametrize("pattern", ["(secret", "secret(?=x)", "[", r"\1secret"])
def test_a_pattern_that_re2_cannot_read_is_refused(pattern: str) -> None:
    """The reason is reported without the pattern, which may hold a secret."""
    with pytest.raises(ValueError, match="is not a regular expression that RE2 reads") as found:
        EntryFilter(pattern)
    assert "secret" not in str(found.value)


def test_reading_goes_on_through_a_segment_that_was_replaced(tmp_path: Path, batch: Make) -> None:
    """A segment whose file was replaced is opened again, and no entry is read twice."""
    log = CommitLog.open(tmp_path)
    log.append(batch(3), "r")
    with LogReader(tmp_path) as reader:
        assert offsets(matching_entries(reader, 0, 2, EntryFilter())) == [0, 1, 2]
        crash(log)
        # Recovery copies the frames above the floor, here all of them, into a file of this name.
        with CommitLog.open(tmp_path) as again:
            again.append(batch(3), "r")
            assert len(segment_bases(Disk(), tmp_path)) == 1
            assert offsets(matching_entries(reader, 3, 5, EntryFilter())) == [3, 4, 5]


def test_what_was_removed_while_it_was_read_is_said(tmp_path: Path, batch: Make) -> None:
    """When the next segment has been removed, the error names the first retained offset."""
    with CommitLog.open(tmp_path, segment_bytes=1) as log:
        for _ in range(6):
            log.append(batch(2), "r")
    with LogReader(tmp_path) as reader:
        found = frames_with_retry(reader, 0, 11)
        assert next(found).frame.last == 1
        for base in (0, 2, 4):
            (tmp_path / segment_name(base)).unlink()
        with pytest.raises(OffsetRefused, match=r"offset 2 is no longer in the log.* from 6"):
            next(found)
        # From the end the result is simply shorter.
        assert start_of_last(reader, 0, 11, 100, EntryFilter()) == 6


def test_segments_that_go_while_one_looks_from_the_end_are_not_missed(
    tmp_path: Path, batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backward search ends at the log's current start."""
    with CommitLog.open(tmp_path, segment_bytes=1) as log:
        for _ in range(6):
            log.append(batch(2), "r")
    with LogReader(tmp_path) as reader:
        reader.first_offset()
        backwards = reader.frames_backwards

        def removing(last: int) -> Any:
            for number, found in enumerate(backwards(last)):
                if number == 2:
                    for base in (0, 2, 4):
                        (tmp_path / segment_name(base)).unlink()
                yield found

        monkeypatch.setattr(reader, "frames_backwards", removing)
        assert start_of_last(reader, 0, 11, 100, EntryFilter()) == 6


def test_a_disk_that_cannot_be_read_is_no_removed_segment(tmp_path: Path, batch: Make) -> None:
    """A disk error is raised and not taken for a removed segment."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(2), "r")
    disk = Disk()
    with LogReader(tmp_path, disk) as reader:
        reader.first_offset()
        disk.failing["pread"] = OSError(5, "Input/output error")
        for look in (
            lambda: list(frames_with_retry(reader, 0, 1)),
            lambda: start_of_last(reader, 0, 1, 5, EntryFilter()),
            lambda: offsets_around(tmp_path, 5, disk),
        ):
            with pytest.raises(EnvironmentFault, match="Input/output error"):
                look()


def test_an_offset_is_found_by_its_time(tmp_path: Path) -> None:
    """The first entry logged at or after a time is found, and a time after all is refused."""
    times = iter([0, 100, 200, 300])
    with CommitLog.open(tmp_path, clock=lambda: next(times), segment_bytes=1) as log:
        for _ in range(3):
            log.append(messages_to_batch([Message("n", b"v")] * 10), "r")
    with LogReader(tmp_path) as reader:
        assert [first_offset_since(reader, time, 29) for time in (0, 100, 101, 200, 300)] == [
            0,
            0,
            10,
            10,
            20,
        ]
        with pytest.raises(OffsetRefused):
            first_offset_since(reader, 301, 29)
        with pytest.raises(OffsetRefused):
            first_offset_since(reader, 300, 19)


CONTENTS = [
    Message("n", b'{"customer":"ACME"}', b"k1"),
    Message("n", None, b"ACME-7"),
    Message("n", b"x", None, headers=[("customer", b"the ACME Corp"), ("n", None)]),
    Message("n", b"acme", b"acme", headers=[("ACME", b"only the name")]),
    Message("n", b"\xff\x00\xfe", b"\x00", headers=[("a", b"1"), ("b", b"\xff\x00")]),
    Message("n", None, None),
]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (b"ACME", [0, 1, 2]),
        (b"acme", [3]),
        (b"\xff\x00", [4]),
        (b".*", []),
        (b"only the name", [3]),
        (b"ACME Corp", [2]),
        (b"1", [0, 4]),
    ],
)
def test_contents_are_searched_in_data_key_and_header_values(
    wanted: bytes, expected: list[int]
) -> None:
    """The bytes may be anywhere in data, key or a header's value; they are no pattern."""
    batch = with_offsets(messages_to_batch(CONTENTS), 0, 1)
    found = EntryFilter(contains=wanted)
    assert not found.accepts_all
    assert found.apply(batch).column("offset").to_pylist() == expected
    for first in range(len(CONTENTS)):
        part = batch.slice(first, 3)
        shown = found.apply(part).column("offset").to_pylist()
        assert shown == [each for each in expected if first <= each < first + 3]
    assert EntryFilter("^x", contains=wanted).apply(batch).num_rows == 0


def test_the_last_entries_with_contents_are_found_from_the_end(tmp_path: Path) -> None:
    """The last N count those that have the contents, however many lie between them."""
    with CommitLog.open(tmp_path / "log") as log:
        for number in range(50):
            log.append(messages_to_batch([Message("n", b"%d" % (number % 10))] * 3), "r")
        last = log.durable
    with LogReader(tmp_path / "log") as reader:
        wanted = EntryFilter(contains=b"7")
        first = start_of_last(reader, 0, last, 4, wanted)
        found = [
            offset
            for batch in matching_entries(reader, first, last, wanted)
            for offset in batch.column("offset").to_pylist()
        ]
    assert found == [113, 141, 142, 143]
