"""Each line once and in order, wherever the file writer is killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from file_sink import MOMENTS, EndingDisk, Engine, Killed, Moment, aside, held, line, run
from hypothesis import given
from hypothesis import strategies as st
from transporter_adaptors.file.disk import Disk
from transporter_adaptors.file.writer import FileWriter

from transporter.adaptor import StoredOffset, WriterContext
from transporter.errors import RouteFault, SinkUnavailable

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS: list[dict[str, Any]] = [{}, {"roll_bytes": 100}]
SLICES = (1, 9, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file that does not exist yet."""
    return tmp_path / "sink" / "out.jsonl"


def undisturbed(path: Path, **settings: Any) -> dict[str, bytes]:
    """Return the files of a run without any kill, in slices of another size."""
    engine = Engine(path.with_name("undisturbed") / path.name, settings)
    engine.finish(size=11)
    return held(engine.path.parent)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_any_call_leaves_each_line_once(
    path: Path, moment: Moment, settings: dict[str, Any]
) -> None:
    """After a kill at any system call and a restart, the same bytes are in the same files."""
    expected = undisturbed(path, **settings)
    at = 0
    ended = False
    while not ended:
        at += 1
        engine = Engine(path.with_name(f"{at}") / path.name, settings)
        ended = run(engine, SLICES, EndingDisk(at=at, moment=moment))
        engine.finish()
        assert held(engine.path.parent) == expected, at
        if moment != "within":
            assert not aside(engine.path.parent), at
    assert at > len(SLICES) * 4


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_kill_while_a_kill_is_mended_leaves_each_line_once(
    path: Path, settings: dict[str, Any]
) -> None:
    """Nothing is lost by a kill within any append and another at any call of the next start."""
    expected = undisturbed(path, **settings)
    for first in range(1, 31):
        for second in range(1, 13):
            engine = Engine(path.with_name(f"{first}-{second}") / path.name, settings)
            run(engine, SLICES, EndingDisk(at=first, moment="within"))
            run(engine, SLICES, EndingDisk(at=second, moment="before"))
            engine.finish()
            assert held(engine.path.parent) == expected, (first, second)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_full_disk_at_any_call_is_waited_out(path: Path, settings: dict[str, Any]) -> None:
    """A full disk at any call makes the sink unavailable, and a retry leaves each line once."""
    expected = undisturbed(path, **settings)
    for at in range(1, 40):
        engine = Engine(path.with_name(f"{at}") / path.name, settings)
        disk = EndingDisk(at=at, moment="full")
        try:
            engine.start(disk)
        except SinkUnavailable:
            engine.stop()
            engine.start()
        for size in SLICES:
            while not engine.deliver(size):
                assert isinstance(engine.failures[-1], SinkUnavailable)
        engine.stop()
        engine.finish()
        assert held(engine.path.parent) == expected, at
        assert not aside(engine.path.parent), at


def test_a_slice_that_does_not_fit_is_taken_back(path: Path) -> None:
    """A disk that is full in the middle of a line leaves the file at the slice before."""
    engine = Engine(path)
    disk = EndingDisk()
    engine.start(disk)
    engine.deliver(2)
    disk.at, disk.moment = disk.calls + 2, "full"

    assert not engine.deliver(2)

    assert path.read_bytes() == engine.expected() != b""
    engine.stop()


class Uncut(EndingDisk):
    """A disk that never truncates a file."""

    def truncate(self, descriptor: int, length: int) -> None:
        """Do nothing."""


def test_without_the_cut_a_kill_does_harm(path: Path) -> None:
    """Without the truncation of unacknowledged lines the kill tests would find lines repeated."""
    engine = Engine(path)
    disk = EndingDisk()
    engine.start(disk)
    disk.at, disk.moment = disk.calls + 2, "after"
    with pytest.raises(Killed):
        engine.deliver(3)
    engine.stop()
    engine.start(Uncut())
    engine.deliver(3)
    engine.stop()

    assert path.read_bytes() == engine.expected() * 2


WORK = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from pathlib import Path
from dataclasses import replace
from transporter_adaptors.file.disk import Disk
from file_sink import Engine
engine = Engine(Path(sys.argv[2]), {"roll_bytes": 3_000_000}, total=10**9)
engine.next = int(sys.argv[3])
engine.start(Disk())
import file_sink
file_sink.line = lambda n: b"%d-" % n + b"x" * 40_000
print(engine.next - 1, flush=True)
while engine.deliver(30):
    print(engine.next - 1, flush=True)
"""


def test_a_real_kill_leaves_each_line_once(path: Path) -> None:
    """Workers that are killed with SIGKILL while they write leave each line once, in order."""
    chance = random.Random(3)
    settled = 0
    for _ in range(6):
        command = [sys.executable, "-c", WORK, ":".join(sys.path), str(path), str(settled + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            for _ in range(chance.randint(2, 12)):
                settled = int(worker.stdout.readline())
            worker.send_signal(signal.SIGKILL)
            settled = int((worker.stdout.read().splitlines() or [settled])[-1])
    engine = Engine(path, {"roll_bytes": 3_000_000}, next=settled + 1, total=10**9)
    engine.start(Disk())  # A disk of tests would report another boot.
    engine.stop()

    lines = b"".join(held(path.parent).values()).splitlines()
    assert [int(one.partition(b"-")[0]) for one in lines] == list(range(1, engine.next))
    assert engine.next > 100


Step = tuple[str, int, int, Moment]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["deliver", "kill", "full", "replay"]),
        st.integers(1, 12),
        st.integers(1, 25),
        st.sampled_from(MOMENTS),
    ),
    max_size=12,
)


@hypothesis.settings(deadline=None)
@given(steps=STEPS, roll=st.sampled_from([None, 1, 60, 200]))
def test_any_history_leaves_what_was_delivered(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], roll: int | None
) -> None:
    """After any slices, kills, restarts, full disks and replays each delivery is there once."""
    path = tmp_path_factory.mktemp("history") / "out.jsonl"
    engine = Engine(path, {"roll_bytes": roll}, total=10_000)
    engine.start()
    for step in steps:
        follow(engine, step)
    engine.stop()
    engine.start()
    engine.stop()

    files = held(path.parent)
    assert b"".join(files.values()) == engine.expected()
    if roll is not None:
        assert all(len(text) <= roll or text.count(b"\n") == 1 for text in files.values())


def follow(engine: Engine, step: Step) -> None:
    """Run *step* on *engine*, and leave it running."""
    what, size, at, moment = step
    if what == "replay" and engine.next > 1:
        go_on = engine.next
        engine.replay(max(1, go_on - size), go_on - 1)
        attempt(engine, size // 2 + 1, EndingDisk(at=at, moment=moment))
        while engine.next <= engine.end:
            assert engine.deliver(size)
        engine.end_replay(go_on)
    elif what == "full":
        attempt(engine, size, EndingDisk(at=at, moment="full"))
    elif what == "kill":
        attempt(engine, size, EndingDisk(at=at, moment=moment))
    else:
        assert engine.deliver(size)


def attempt(engine: Engine, size: int, disk: EndingDisk) -> None:
    """Restart with *disk*, deliver, and go on with a sound disk."""
    engine.stop()
    try:
        engine.start(disk)
        engine.deliver(size)
    except (Killed, SinkUnavailable):
        pass
    engine.stop()
    engine.start()


def test_the_stored_offset_is_that_of_the_newest_slice(path: Path) -> None:
    """The stored offset names the last writer, its newest offset and its generation."""
    engine = Engine(path, context=WriterContext("log-1", "route", 4, 3))
    engine.start()
    engine.deliver(5)
    engine.stop()

    writer = FileWriter(FileWriter.Config(path=path))
    stored = writer.open(WriterContext("log-1", "route", 9, 3))
    other = writer.open(WriterContext("log-2", "route", 9, 3))
    writer.close()

    assert stored == StoredOffset("log-1", "route", 5, 3, 0, 1, 5)
    assert other is None


def test_a_replay_is_appended_again(path: Path) -> None:
    """Replayed entries are appended a second time, and a kill within the replay repeats nothing."""
    engine = Engine(path)
    engine.start()
    engine.deliver(6)
    engine.replay(2, 5)
    engine.deliver(2)
    engine.stop()
    engine.finish(size=2)

    assert engine.delivered == [1, 2, 3, 4, 5, 6, 2, 3, 4, 5]
    assert path.read_bytes() == engine.expected()


def test_routes_that_share_a_file_know_their_own_offsets(path: Path) -> None:
    """Two routes in one file each find their own offset, and neither cuts the other's lines."""
    first = Engine(path, total=4)
    second = Engine(path, context=WriterContext("log-1", "other", 0), total=4)
    first.start()
    second.start()
    for engine in (first, second, first, second):
        engine.deliver(2)
    first.stop()
    second.stop()
    for engine in (first, second):
        engine.next, engine.delivered = 1, []
        engine.start()
        engine.stop()
        assert engine.next == 5

    assert path.read_bytes() == b"".join(line(n) + b"\n" for n in (1, 2, 1, 2, 3, 4, 3, 4))


def test_a_kill_of_one_route_does_not_harm_the_other(path: Path) -> None:
    """The unfinished lines of a killed route are cut off before another route writes."""
    first = Engine(path, total=4)
    second = Engine(path, context=WriterContext("log-1", "other", 0), total=4)
    second.start()
    disk = EndingDisk()
    first.start(disk)
    disk.at, disk.moment = disk.calls + 2, "after"
    with pytest.raises(Killed):
        first.deliver(4)
    first.stop()
    second.deliver(4)
    second.stop()
    first.finish()

    assert path.read_bytes() == second.expected() + first.expected()


def test_each_shard_has_its_own_file(path: Path) -> None:
    """Two workers of one route write two files, each with its own offset."""
    shards = [
        Engine(path, settings, WriterContext("log-1", "route", 0, shard=n, shards=2), total=n + 1)
        for n, settings in enumerate([{}, {"roll_bytes": 1000}])
    ]
    for engine in shards:
        engine.start()
    for engine in shards:
        engine.deliver(9)
        engine.stop()

    assert held(path.parent) == {
        "out.shard-0.jsonl": shards[0].expected(),
        "out.shard-1.0000000001.jsonl": shards[1].expected(),
    }


def test_an_older_epoch_writes_nothing(path: Path) -> None:
    """A writer of an engine that was replaced is refused, and the file stays as it is."""
    old, new = Engine(path), Engine(path, context=WriterContext("log-1", "route", 5))
    old.start()
    new.start()
    new.deliver(3)

    assert not old.deliver(3)

    assert isinstance(old.failures[0], RouteFault)
    assert path.read_bytes() == new.expected()
    old.stop()
    new.stop()


def test_many_routes_fit_beside_one_file(path: Path) -> None:
    """A full progress file drops the writer that wrote longest ago."""
    engines = [
        Engine(path, context=WriterContext("log-1", f"route-{n:090}", 0), total=1)
        for n in range(60)
    ]
    for engine in engines:
        engine.finish()
    known = []
    for engine in engines:
        engine.next = 1
        engine.start()
        engine.stop()
        known.append(engine.next == 2)

    assert known == sorted(known)
    assert known[-1]
    assert not known[0]
    assert any(not a and b for a, b in pairwise(known))


def test_a_shard_that_is_asked_for_differently_keeps_its_context(path: Path) -> None:
    """The stored offset includes the number of shards, which the engine compares."""
    context = WriterContext("log-1", "route", 0, shard=1, shards=3)
    engine = Engine(path, context=context)
    engine.finish()
    writer = FileWriter(FileWriter.Config(path=path))

    stored = writer.open(replace(context, epoch=9))
    writer.close()

    assert stored == StoredOffset("log-1", "route", 1, 0, 1, 3, 40)
