"""The lines at which the file writer begins the next file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from file_sink import LOG_TIME, Engine, held, line
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from transporter_adaptors.file.reader import FileReader
from transporter_adaptors.file.rolling import (
    Roll,
    RolledGroup,
    RolledPart,
    number_of,
    numbered_path,
)
from transporter_adaptors.file.writer import FileWriter

from transporter.message import Entries, Message, messages_to_batch, with_offsets
from transporter.testing import RecordingAck
from transporter.testing.contracts import joined, read_all

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3_600_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of files that do not exist yet."""
    return tmp_path / "out.jsonl"


def divided(
    roll: Roll, groups: list[RolledGroup], length: int = 0, period: int = 0
) -> list[list[int]]:
    """Return the offsets in each file, the existing file first."""
    files: list[list[int]] = [[]]
    for part in roll.divide(groups, length, period):
        if part.fresh:
            files.append([])
        files[-1] += part.offsets
    return files


def sized(*sizes: int) -> list[RolledGroup]:
    """Return one entry of each size."""
    return [RolledGroup(at, LOG_TIME, b"x" * size) for at, size in enumerate(sizes, 1)]


def timed(*times: int) -> list[RolledGroup]:
    """Return one entry logged at each of these hours."""
    return [RolledGroup(at, time * HOUR, b"x") for at, time in enumerate(times, 1)]


@pytest.mark.parametrize(
    ("sizes", "length", "files"),
    [
        ((4, 6, 1), 0, [[1, 2], [3]]),
        ((4, 7, 3), 0, [[1], [2, 3]]),
        ((4,), 6, [[1]]),
        ((5,), 6, [[], [1]]),
        ((99, 1), 0, [[1], [2]]),
        ((99,), 3, [[], [1]]),
        ((), 3, [[]]),
    ],
)
def test_no_file_is_larger_than_roll_bytes(
    sizes: tuple[int, ...], length: int, files: list[list[int]]
) -> None:
    """A line that does not fit begins the next file, and one that never fits has its own file."""
    assert divided(Roll(size=10), sized(*sizes), length) == files


@pytest.mark.parametrize(
    ("times", "length", "period", "files"),
    [
        ((5, 5, 6, 9, 9), 0, 0, [[1, 2], [3], [4, 5]]),
        ((5,), 7, 5, [[1]]),
        ((6,), 7, 5, [[], [1]]),
        ((3, 5, 6), 7, 5, [[1, 2], [3]]),
        ((6, 6), 0, 5, [[1, 2]]),
    ],
)
def test_a_later_period_begins_the_next_file(
    times: tuple[int, ...], length: int, period: int, files: list[list[int]]
) -> None:
    """Log time decides, and replayed entries of earlier periods stay in the current file."""
    assert divided(Roll(every=HOUR), timed(*times), length, period * HOUR) == files


def test_the_period_is_that_of_the_newest_entry() -> None:
    """A part carries the start of its file's period, which the next slice compares."""
    parts = list(Roll(every=HOUR).divide(timed(5, 6, 6), 0, 0))

    assert parts == [
        RolledPart(b"x", (1,), fresh=False, period=5 * HOUR),
        RolledPart(b"xx", (2, 3), fresh=True, period=6 * HOUR),
    ]


@given(
    sizes=st.lists(st.integers(1, 12), max_size=30),
    cuts=st.sets(st.integers(1, 29)),
    limit=st.integers(1, 30),
)
def test_slices_do_not_matter(sizes: list[int], cuts: set[int], limit: int) -> None:
    """The same lines are in the same files, however they are sliced."""
    groups, roll = sized(*sizes), Roll(size=limit)
    files: list[list[int]] = [[]]
    length = 0
    for first, last in zip([0, *sorted(cuts)], [*sorted(cuts), 30], strict=True):
        for part in roll.divide(groups[first:last], length, 0):
            length = len(part.text) + (0 if part.fresh else length)
            files += [[]] if part.fresh else []
            files[-1] += part.offsets

    assert files == divided(roll, groups)


def test_names_sort_as_their_numbers(path: Path) -> None:
    """Ten digits before the suffix sort in order, and other names have no number."""
    names = [numbered_path(path, number).name for number in (1, 9, 10, 99_999, 1_234_567_890)]

    assert names == sorted(names)
    assert names[0] == "out.0000000001.jsonl"
    assert [number_of(path, name) for name in names] == [1, 9, 10, 99_999, 1_234_567_890]
    assert number_of(path, "out.jsonl") is None
    assert number_of(path, "out.0000000001.jsonl.cut-1") is None


def deliver(writer: FileWriter, rows: list[tuple[int, int]]) -> None:
    """Write an entry for each offset and hour of log time."""
    batch = with_offsets(messages_to_batch([Message("n", line(n)) for n, _ in rows]), 1, 0)
    for name, cells in (
        ("offset", [n for n, _ in rows]),
        ("logged_at", [hour * HOUR for _, hour in rows]),
    ):
        at = batch.schema.get_field_index(name)
        field = batch.schema.field(at)
        batch = batch.set_column(at, field, with_type(cells, field.type))
    entries = Entries(batch, "log-1")
    ack = RecordingAck(entries)
    writer.write(entries, ack)
    assert ack.complete


def with_type(cells: list[int], kind: Any) -> Any:
    """Return *cells* as an Arrow array."""
    import pyarrow as pa  # noqa: PLC0415 - only here

    return pa.array(cells, pa.int64()).cast(kind)


def test_the_log_time_of_entries_begins_files(path: Path) -> None:
    """With roll_every each period of log time has a file, across slices and restarts."""
    engine = Engine(path, {"roll_every": 3600.0})
    for rows in ([(1, 5), (2, 5)], [(3, 5), (4, 6)], [(5, 6)], [(6, 9)]):
        engine.start()
        assert engine.writer is not None
        deliver(engine.writer, rows)
        engine.stop()

    texts = [text.split(b"\n")[:-1] for text in held(path.parent).values()]
    assert texts == [[line(1), line(2), line(3)], [line(4), line(5)], [line(6)]]


def test_outputs_of_one_entry_stay_together(path: Path) -> None:
    """The outputs of one entry are never divided, so that a file ends with a whole entry."""
    engine = Engine(path, {"roll_bytes": 8})
    engine.start()
    assert engine.writer is not None
    deliver(engine.writer, [(7, 1), (14, 1), (14, 1), (14, 1), (21, 1)])
    engine.stop()

    counts = [text.count(b"\n") for text in held(path.parent).values()]
    assert counts == [1, 3, 1]


def test_the_reader_reads_rolled_files_in_order(path: Path) -> None:
    """The file reader reads rolled files in order."""
    Engine(path, {"roll_bytes": 50}).finish()

    reader = FileReader(FileReader.Config(path=path.with_name("out.*.jsonl")))
    found = [message.data for message in joined(read_all(reader))]

    assert found == [line(n) for n in range(1, 41)]
    assert len(held(path.parent)) > 5


def test_a_number_is_never_used_twice(path: Path) -> None:
    """Numbers of removed files, or of files of other programs, are not used again."""
    engine = Engine(path, {"roll_bytes": 1}, total=4)
    engine.start()
    engine.deliver(2)
    for file in path.parent.glob("out.*.jsonl"):
        file.unlink()
    numbered_path(path, 7).write_bytes(b"theirs\n")
    engine.deliver(2)
    engine.stop()

    assert held(path.parent) == {
        "out.0000000007.jsonl": b"theirs\n",
        "out.0000000008.jsonl": line(3) + b"\n",
        "out.0000000009.jsonl": line(4) + b"\n",
    }


def test_numbers_may_be_switched_on_and_off(path: Path) -> None:
    """A route whose rolling is switched on or off goes on without repeating anything."""
    for total, settings in ((3, {}), (6, {"roll_bytes": 1000}), (9, {})):
        Engine(path, settings, total=total).finish()

    texts = {name: text.split(b"\n")[:-1] for name, text in held(path.parent).items()}
    assert texts == {
        "out.0000000001.jsonl": [line(4), line(5), line(6)],
        "out.jsonl": [line(1), line(2), line(3), line(7), line(8), line(9)],
    }


@pytest.mark.parametrize("settings", [{"roll_bytes": "1MiB"}, {"roll_every": "1h"}])
def test_standard_output_does_not_roll(settings: dict[str, str]) -> None:
    """Rolling standard output is refused when the configuration is read."""
    with pytest.raises(ValidationError, match="standard output cannot roll"):
        FileWriter.Config(path="-", **settings)
