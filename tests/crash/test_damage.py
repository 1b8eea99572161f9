"""Every bit flip and every truncation gives an exact prefix or a refusal.

With ``--exhaustive`` every possible damage is tried, otherwise a seeded sample.
"""

from __future__ import annotations

import json
import random
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import damage_judges as judges
import pytest
from damage_routes import leave_parked, leave_route
from damage_tools import (
    MAX_READ,
    ROUTE,
    Damage,
    Kind,
    Left,
    Place,
    describe,
    every_damage,
    leave,
    sweep,
)
from log_tools import crash, small

from transporter.audit import AUDIT
from transporter.cli import app
from transporter.errors import Corrupt, TransporterError
from transporter.log import format as layout
from transporter.log.commit_log import CommitLog
from transporter.log.inspection import inspect
from transporter.log.meta import DURABLE, META
from transporter.log.reader import LogReader
from transporter.log.segment import Segment
from transporter.offsets import record as records
from transporter.offsets.offset_log import OffsetLog, route_folder
from transporter.offsets.parked import ParkedStore

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED: Final = 5
SAMPLE: Final = 600
"""Damages of last segments in a sample."""
WHOLE: Final = Kind("whole", frames=10, size=40, fill=16 << 10)
"""The log whose last segment, of 16 KiB, is damaged in every place by ``--exhaustive``."""
OTHERS: Final = (
    Kind("closed", end="closed", compression="lz4", size=4200, frames=10),
    Kind("proved", compression="lz4", size=4200, settled=4, frames=10, zeros=500),
    Kind("loose", loose=4, stride=900, size=40, frames=10),
    Kind("rolled", before="rolled", settled=8, stride=900, size=40, frames=10),
    Kind("recovered", before="recovered", zeros=64, size=40, frames=9),
    Kind("sealed", end="sealed", rows=2, size=40, frames=10),
    Kind("all-proved", settled=19, rows=2, size=40, frames=10, stride=3000),
)
EVERY: Final = 1 << 62
pytestmark = pytest.mark.timeout(1800)  # enough for --exhaustive on a busy machine


@pytest.fixture
def fast() -> Iterator[Path]:
    """Yield a folder in memory, if possible, because nothing here outlives the test."""
    memory = Path("/dev/shm")  # noqa: S108 - a private folder is made below it
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def chosen(data: bytes, count: int, seed: int = SEED) -> list[Damage]:
    """Return *count* damages to *data*, the same ones each time, or all if there are no more."""
    every = every_damage(data)
    return every if count >= len(every) else random.Random(seed).sample(every, count)


def sweep_last_segment(kind: Kind, folder: str, count: int, part: int, parts: int) -> list[str]:
    """Damage the last segment of a log of *kind*: the share *part* of *parts* of *count*."""
    with TemporaryDirectory(dir=folder) as below:
        left = leave(Path(below) / "left", kind)
        place = Place(Path(below) / "log", left.content)
        damages = chosen(left.content[left.segment], count)[part::parts]
        with small(kind.stride):
            judge = partial(judges.judge_last_segment, left)
            return sweep(place, judge, ((left.segment, damage) for damage in damages))


def in_two(folder: Path, shares: list[tuple[Kind, int]]) -> list[str]:
    """Sweep last segments in two processes, one a core of small machines. Return all complaints."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        asked = [
            pool.submit(sweep_last_segment, kind, str(folder), count, part, 2)
            for kind, count in shares
            for part in range(2)
        ]
        return [f"{words}" for one in asked for words in one.result()]


@pytest.mark.parametrize("kind", [WHOLE, *OTHERS], ids=lambda kind: kind.name)
def test_the_logs_are_what_the_sweep_is_to_be_over(fast: Path, kind: Kind) -> None:
    """Each last segment has ten frames or more, at most 16 KiB, and is read back whole."""
    left = leave(fast / "left", kind)
    assert len(left.tail) >= 10
    assert len(left.content[left.segment]) <= 16 << 10
    if kind is WHOLE:
        assert 14_000 < left.tail[-1].frame.end < len(left.content[left.segment]) == 16 << 10
    if kind.compression:
        assert max(kept.frame.entries_bytes for kept in left.tail) > kind.size
    assert sum(kept.frame.count for kept in left.tail) >= kind.rows * kind.frames
    place = Place(fast / "log", left.content)
    with LogReader(place.directory) as reader:
        assert judges.read_in_order(reader, list(left.frames)) == len(left.frames)


def test_a_damaged_last_segment_is_an_exact_prefix_or_refused(fast: Path, exhaustive: bool) -> None:
    """Invariants 2, 3 and 4: entries above the floor are cut, those below are there or refused."""
    share = SAMPLE // (len(OTHERS) + 1)
    counts = (EVERY, 2 * SAMPLE // len(OTHERS)) if exhaustive else (share, share)
    assert in_two(fast, [(WHOLE, counts[0]), *((kind, counts[1]) for kind in OTHERS)]) == []


@pytest.mark.parametrize("end", ["killed", "closed"])
def test_a_damaged_sealed_segment_never_gives_an_altered_entry(
    fast: Path, exhaustive: bool, end: str
) -> None:
    """Invariant 2: entries of a sealed segment are exact or refused. Other segments are whole."""
    left = leave(fast / "left", Kind("two", end=end, before="rolled", frames=3, size=40))
    place = Place(fast / "log", left.content)
    sealed = sorted(name for name in left.content if name.endswith(".log"))[:-1]
    assert sealed
    with small():
        for name in sealed:
            damages = chosen(left.content[name], EVERY if exhaustive else 120)
            judge = partial(judges.judge_sealed_segment, left)
            assert sweep(place, judge, ((name, damage) for damage in damages)) == []


@pytest.mark.parametrize("name", ["loose", "rolled"])
def test_a_damaged_index_costs_nothing(fast: Path, exhaustive: bool, name: str) -> None:
    """An index is a hint: without it, every entry is still there and the log goes on."""
    kind = next(kind for kind in OTHERS if kind.name == name)
    left = leave(fast / "left", kind)
    place = Place(fast / "log", left.content)
    damages = [
        (index, damage)
        for index, data in left.content.items()
        if index.endswith(".index")
        for damage in chosen(data, EVERY if exhaustive else 60)
    ]
    assert len(damages) >= 60
    with small(kind.stride):
        assert sweep(place, partial(judges.judge_index, left), damages) == []


@pytest.mark.parametrize("end", ["killed", "closed"])
def test_a_damaged_meta_is_refused(fast: Path, end: str) -> None:
    """Every bit and every byte of meta is guarded, and a refusal leaves all as it was."""
    left = leave(fast / "left", Kind("meta", end=end, frames=4))
    place = Place(fast / "log", left.content)
    damages = ((META, damage) for damage in every_damage(left.content[META]))
    with small():
        assert sweep(place, partial(judges.judge_meta, left), damages) == []


def test_a_damaged_durable_mark_misleads_nobody(fast: Path) -> None:
    """Beside a running engine a damaged mark shows exact entries, none beyond the written ones."""
    left = leave(fast / "left", Kind("durable", end="closed", frames=4))
    place = Place(fast / "log", left.content)
    with small(), CommitLog.open(place.directory, compression=None) as log:
        log.append(judges.NEW, "new", "1")
        known = (place.directory / DURABLE).read_bytes()
        for damage in every_damage(known):
            (place.directory / DURABLE).write_bytes(damage.of(known))
            found = inspect(place.directory)
            assert (found.owner is not None, found.last) == (True, log.durable)
            with LogReader(place.directory) as reader:
                assert judges.read_in_order(reader, list(left.frames)) == len(left.frames)
        (place.directory / DURABLE).write_bytes(known)


@pytest.mark.parametrize(("events", "closed"), [(5, False), (33, False), (40, True)])
def test_a_damaged_offset_log_gives_an_earlier_state_or_is_refused(
    fast: Path, exhaustive: bool, events: int, closed: bool
) -> None:
    """Invariant 5: the state is the one before the first damaged record, and never mixed."""
    route = leave_route(fast / "left", events, closed=closed)
    place = Place(fast / "log", route.content)
    with small():
        for name in route.known:
            damages = chosen(route.content[name], EVERY if exhaustive else 100)
            judge = partial(judges.judge_offsets, route)
            assert sweep(place, judge, ((name, damage) for damage in damages)) == []


def test_a_damaged_parked_entry_is_refused_alone(fast: Path, exhaustive: bool) -> None:
    """Invariant 15: no parked entry is altered. The others can be read beside a damaged one."""
    parked = leave_parked(fast / "left")
    place = Place(fast / "log", {name: one.encode() for name, one in parked.items()})
    with small():
        for name in parked:
            damages = chosen(place.content[name], EVERY if exhaustive else 150)
            judge = partial(judges.judge_parked, parked)
            assert sweep(place, judge, ((name, damage) for damage in damages)) == []


def test_a_damaged_audit_file_does_not_harm_what_is_audited_next(fast: Path) -> None:
    """Wherever an audit file was cut or changed, the next action stands on a line of its own."""
    with small(), OffsetLog(fast, ROUTE) as log:
        log.audit("ack", first=1, last=2)
        log.audit("replay", first=3, last=4)
        path = fast / AUDIT
        known = path.read_bytes()
        for damage in chosen(known, 400):
            path.write_bytes(damage.of(known))
            log.audit("skip", offsets=[7])
            assert json.loads(path.read_bytes().splitlines()[-1])["action"] == "skip", damage


def test_commands_say_what_is_wrong_and_no_more(
    fast: Path, exhaustive: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands on a damaged log show exact entries or one line of error."""
    leave(fast / "left", Kind("commands", before="rolled", settled=4, frames=5))
    leave_parked(fast / "left")
    left = describe(fast / "left")
    place = Place(fast / "log", left.content)
    names = random.Random(SEED).choices(sorted(left.content), k=300 if exhaustive else 8)
    damages = [
        (name, chosen(left.content[name], 1, number)[0]) for number, name in enumerate(names)
    ]
    with small():
        judge = partial(judge_commands, left, capsys)
        assert sweep(place, judge, damages) == []


def judge_commands(
    left: Left, capsys: pytest.CaptureFixture[str], place: Place, name: str, damage: Damage
) -> None:
    """Run each read-only command in this process, and check its output."""
    log, whole = str(place.directory), f"0..{left.last}"
    commands = [["log", "info", log], ["log", "show", log, whole, "--json"]]
    commands += [[*noun, log, ROUTE] for noun in (["offsets", "show"], ["parked", "list"])]
    for command in [*commands, ["offsets", "list", log]]:
        code = app.execute(command)
        said = capsys.readouterr()
        assert code in (0, 1, 3), (command, said)
        assert "bug in transporter" not in said.err + said.out, (command, said)
        assert "Traceback" not in said.err
        if "--json" in command:
            check_shown(left, json.loads(said.out).get("result", []))
        else:
            assert (code == 0) is (said.err == ""), (command, said)
    place.unchanged(name, damage)


def check_shown(left: Left, shown: list[dict[str, Any]]) -> None:
    """Check that the entries that a command shows are the first of those that were written."""
    written = [
        (offset, data.decode(), key.decode())
        for kept in left.frames
        for offset, data, key in zip(
            *(kept.entries[column].to_pylist() for column in ("offset", "data", "key")),
            strict=True,
        )
    ]
    assert [(each["offset"], each["data"], each["key"]) for each in shown] == written[: len(shown)]


def test_no_damaged_length_takes_memory(fast: Path) -> None:
    """Invariant 17: a read requests no more than a header allows, even for a damaged length."""
    left = leave(fast / "left", Kind("lengths", before="rolled", settled=4, frames=5))
    leave_parked(fast / "left")
    content = describe(fast / "left").content
    place = Place(fast / "log", content)
    (entry, *_) = sorted(name for name in content if name.endswith(".entry"))
    offsets = next(name for name in content if name.endswith("0.offsets"))
    frame = left.tail[1].frame.byte
    lengths = [(left.segment, 12), (left.segment, 80), (entry, 8), (entry, 12), (offsets, 8)]
    lengths += [(left.segment, frame + place) for place in (8, 12, 16)]
    tracemalloc.start()
    try:
        for name, start in lengths:
            for byte, bit in ((start + byte, bit) for byte in range(4) for bit in (0, 4, 7)):
                with place.damaged(name, Damage(byte, bit)):
                    look_everywhere(place)
                    assert place.files.most <= MAX_READ
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MAX_READ + (8 << 20)


def look_everywhere(place: Place) -> None:
    """Read all of a damaged log, with any result."""
    for look in (
        lambda: inspect(place.directory, files=place.files),
        lambda: list(LogReader(place.directory, place.files).read(0, 1 << 40)),
        lambda: OffsetLog(place.directory, ROUTE, place.files).close(),
        lambda: ParkedStore(route_folder(place.directory, ROUTE), place.files),
        lambda: crash(CommitLog.open(place.directory, files=place.files)),
    ):
        with suppress(TransporterError):
            look()


class TestWithoutAChecksum:
    """Mutation controls: each checksum left unverified makes its sweep fail."""

    def test_of_payloads_at_the_read(self, fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without the check at the read, altered entries are delivered."""

        def unchecked(self: Segment, frame: layout.FrameHeader, **_: object) -> Any:
            payload = self._file.pread(frame.payload_length, frame.payload_byte)
            try:
                return layout.decode_payload(payload)
            except ValueError as error:
                raise Corrupt("what cannot be decoded", str(self.path)) from error

        monkeypatch.setattr(Segment, "entries", unchecked)
        assert "not what was written" in complaints_of_payloads(fast)

    def test_of_frames_in_recovery(self, fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without the check in recovery, frames that should be cut are kept."""
        monkeypatch.setattr(Segment, "is_intact", lambda *_: True)
        assert complaints_of_payloads(fast)

    def test_of_headers(self, fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without it frames of any length and offset are accepted."""
        left = leave(fast / "left", WHOLE)
        monkeypatch.setattr(layout, "_matches_checksum", lambda _: True)
        frame = left.tail[5].frame
        damages = [Damage(frame.byte + 28 + byte, 0) for byte in range(24)]
        assert complaints(fast, left, damages)

    def test_of_meta(self, fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without it a changed epoch or proof is accepted."""
        monkeypatch.setattr("transporter.log.meta.crc32c", lambda _: 0)
        left = leave(fast / "left", Kind("meta", frames=4))
        place = Place(fast / "log", left.content)
        damages = [(META, Damage(byte, 0)) for byte in range(len(left.content[META]))]
        with small():
            assert sweep(place, partial(judges.judge_meta, left), damages)

    def test_of_offset_records(self, fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without it a watermark that was never written is accepted."""
        monkeypatch.setattr(records, "crc32c", lambda *_: 0)
        route = leave_route(fast / "left", 5, closed=False)
        place = Place(fast / "log", route.content)
        damages = [(route.current, Damage(byte, 0)) for byte in range(300)]
        with small():
            assert sweep(place, partial(judges.judge_offsets, route), damages)

    def test_of_parked_entries(self, fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without it an altered entry waits for its retry."""
        monkeypatch.setattr("transporter.offsets.parked.crc32c", lambda _: 0)
        parked = leave_parked(fast / "left")
        place = Place(fast / "log", {name: one.encode() for name, one in parked.items()})
        name = min(parked)
        damages = [(name, damage) for damage in chosen(place.content[name], 200)]
        with small():
            assert sweep(place, partial(judges.judge_parked, parked), damages)


def complaints_of_payloads(folder: Path) -> str:
    """Damage a payload below the floor and the last one, above it. Return the complaints."""
    left = leave(folder / "left", WHOLE)
    damages = [
        Damage(kept.frame.payload_byte + byte, 0)
        for kept in (left.tail[2], left.tail[-1])
        for byte in range(0, kept.frame.payload_length, 16)
    ]
    return complaints(folder, left, damages)


def complaints(folder: Path, left: Left, damages: list[Damage]) -> str:
    """Return the complaints about *damages* to the last segment of *left*."""
    place = Place(folder / "log", left.content)
    with small():
        judge = partial(judges.judge_last_segment, left)
        return "\n".join(sweep(place, judge, ((left.segment, each) for each in damages), most=50))
