"""Judges of damage: the allowed fates of a log, an offset log and a parked entry.

Each goes the ways that users go (look, read, open, append, stop, open again) and raises
``AssertionError`` for any forbidden result: an altered entry, a hole, an offset assigned twice, a
refusal that changed something. The expected result is derived from the written bytes alone, never
from the code under test.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from damage_tools import ROUTE, Damage, some_messages
from log_tools import crash

from transporter.errors import TransporterError
from transporter.log.commit_log import CommitLog
from transporter.log.format import FrameHeader
from transporter.log.inspection import inspect
from transporter.log.reader import LogReader
from transporter.log.segment import segment_name
from transporter.offsets.offset_log import OffsetLog, proved_offset, read_state, route_folder
from transporter.offsets.parked import ParkedStore
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable

    from damage_routes import LeftRoute
    from damage_tools import Kept, Left, Place

    from transporter.offsets.parked import ParkedEntry


class Expected(NamedTuple):
    """The required fate of a log whose last segment is damaged.

    ``refused`` is whether it may be opened: ``False``, ``True``, or ``None`` where the index
    decides whether the open looks there (the read finds it then). ``last`` is the last offset that
    is there once it is open, ``floor`` the highest proved one. ``hurt`` is the frame that cannot be
    read, ``behind`` whether those behind it need not be found. ``used`` is the highest offset never
    to be assigned again.
    """

    refused: bool | None
    last: int
    floor: int
    hurt: FrameHeader | None = None
    behind: bool = False
    used: int = -1
    vague: bool = False
    """True if a reader's position may be an older one."""


def expect(left: Left, damage: Damage) -> Expected:
    """Return the required result of *damage* to the last segment, from the written bytes alone."""
    if damage.byte < left.begin:
        return Expected(refused=True, last=left.last, floor=left.proved)
    return _after_cut(left, damage.byte) if damage.bit is None else _after_flip(left, damage.byte)


def _after_cut(left: Left, byte: int) -> Expected:
    whole = [kept.frame for kept in left.tail if kept.frame.end <= byte]
    last = whole[-1].last if whole else left.base - 1
    proofs = [left.proved, left.base - 1, *(frame.durable for frame in whole)]
    floor = _rounded(left, max(proofs))
    return Expected(last < max(proofs), last, floor, used=max(last, floor))


def _after_flip(left: Left, byte: int) -> Expected:
    tail = [kept.frame for kept in left.tail]
    hit = next((frame for frame in tail if frame.byte <= byte < frame.end), None)
    in_header = hit is not None and byte < hit.extension_byte
    valid = [frame for frame in tail if not (in_header and frame is hit)]
    floor = _rounded(left, max(left.proved, left.base - 1, *(one.durable for one in valid)))
    used = max(floor, *(frame.last for frame in valid))
    if hit is None or byte >= hit.payload_byte + hit.payload_length:
        return Expected(refused=False, last=left.last, floor=floor, used=used)
    if hit.first > floor:
        last = max((frame.last for frame in tail if frame.last < hit.first), default=left.base - 1)
        return Expected(refused=False, last=last, floor=floor, used=used, vague=False)
    if in_header:
        return Expected(None, left.last, floor, hit, behind=True, used=used, vague=True)
    in_payload = byte >= hit.payload_byte
    hurt = hit if in_payload else None
    return Expected(refused=False, last=left.last, floor=floor, hurt=hurt, used=used, vague=True)


def _rounded(left: Left, floor: int) -> int:
    """Return *floor*, or the end of the frame of the last segment that holds it."""
    frames = (kept.frame for kept in left.tail)
    return next((frame.last for frame in frames if frame.first <= floor <= frame.last), floor)


NEW = some_messages(999, 2)
"""Entries that are appended to a log that was damaged and opened."""


def judge_last_segment(left: Left, place: Place, name: str, damage: Damage) -> None:
    """Accept an exact prefix or a refusal, by every way into the log. A refusal changes nothing."""
    expected = expect(left, damage)
    refused = _look(place, expected)
    read_all(left, place, expected, refused=refused)
    place.unchanged(name, damage)
    log = opened(place)
    assert (log is None) is refused, "inspect and open do not agree"
    if log is None:
        place.unchanged(name, damage)
    elif _thorough(left, damage):
        use(left, place, expected, log, kill=bool(damage.byte & 1))
    else:
        crash(log)
        assert log.durable == expected.last


def refuses(call: Callable[..., object], *arguments: object) -> None:
    """Check that *call* raises a documented refusal."""
    try:
        call(*arguments)
    except TransporterError:
        return
    raise AssertionError("damage that was not seen")


def judge_index(left: Left, place: Place, name: str, damage: Damage) -> None:
    """Miss no entry: an index that is damaged or gone costs none, and the log goes on."""
    expected = expect(left, Damage(1 << 62, 0))
    assert not _look(place, expected)
    read_all(left, place, expected, refused=False)
    place.unchanged(name, damage)
    log = opened(place)
    assert log is not None, "refused for a hint"
    use(left, place, expected, log, kill=True)


def judge_sealed_segment(left: Left, place: Place, name: str, damage: Damage) -> None:
    """Read every intact segment. Entries of the damaged one are exact or refused.

    A damaged segment header is different: every open looks at it and refuses the log.
    """
    in_header = damage.byte < int.from_bytes(place.content[name][12:16], "little")
    for kept in left.frames:
        with LogReader(place.directory, place.files) as reader:
            came = read_in_order(reader, [kept])
        whole = segment_name(kept.base) != name or kept.frame.end <= damage.byte
        assert came or in_header or not whole, (
            f"offset {kept.frame.first} was not hurt and cannot be read"
        )
    with LogReader(place.directory, place.files) as reader:
        read_in_order(reader, list(left.frames))
    place.unchanged(name, damage)
    if (log := opened(place)) is None:
        place.unchanged(name, damage)
        return
    assert not in_header
    with log:
        assert (log.durable, log.positions) == (left.last, _positions(left))
        assert log.append(NEW, "new", "1")[0] > left.last
    again = opened(place)
    assert again is not None, "what was opened once is refused now"
    again.close()


def judge_meta(left: Left, place: Place, name: str, damage: Damage) -> None:
    """Check that any change in the log's meta is refused, except for the newline at its end."""
    harmless = damage.byte == len(place.content[name]) - 1
    log = opened(place)
    if log is not None:
        with log:
            assert harmless, "damage that was not seen"
            assert (log.durable, log.positions) == (left.last, _positions(left))
        return
    place.unchanged(name, damage)
    refuses(inspect, place.directory, -1, place.files)


def _thorough(left: Left, damage: Damage) -> bool:
    """Return true if the opened log is to be used, too, which takes as long as all the rest.

    It is true for each truncation, each bit of a frame's header, and one bit of each other byte.
    """
    if damage.bit is None or damage.bit == damage.byte % 8:
        return True
    headers = ((kept.frame.byte, kept.frame.extension_byte) for kept in left.tail)
    return any(start <= damage.byte < end for start, end in headers)


def _look(place: Place, expected: Expected) -> bool:
    """Look at the log as a command does. Return true if it was refused."""
    try:
        found = inspect(place.directory, proved_offset(place.directory, place.files), place.files)
    except TransporterError as refusal:
        if expected.refused is False:
            raise AssertionError("refused without need") from refusal
        return True
    assert expected.refused is not True, "what was proved is gone, and nobody is told"
    assert (found.last, found.confirmed) == (expected.last, expected.floor)
    return False


def opened(place: Place) -> CommitLog | None:
    """Open the log. Return ``None`` when that is refused."""
    try:
        return CommitLog.open(
            place.directory,
            proved=lambda: proved_offset(place.directory, place.files),
            files=place.files,
            compression=None,
        )
    except TransporterError:
        return None


def use(left: Left, place: Place, expected: Expected, log: CommitLog, *, kill: bool) -> None:
    """Check the open *log*'s state, append, leave it, open it again, read everything."""
    with ExitStack() as stack:
        stack.callback(crash if kill else CommitLog.close, log)
        assert log.durable == expected.last
        _check_positions(log.positions, left, expected)
        first, last = log.append(NEW, "new", "1")
        assert first > expected.used, f"offset {first} was given before"
    again = opened(place)
    assert again is not None, "what was opened once is refused now"
    with again:
        assert (again.durable, again.positions["new"]) == (last, "1")
    read_all(left, place, expected, refused=False)
    if not expected.behind:
        _read_backwards(left, place, expected.last)
    with LogReader(place.directory, place.files) as reader:
        (entries,) = reader.read(first, last)
    assert entries.select(NEW.schema.names).equals(NEW)


def _positions(left: Left, last: int = 1 << 62) -> dict[str, str]:
    return dict(kept.position for kept in left.frames if kept.frame.last <= last)


def _check_positions(found: dict[str, str], left: Left, expected: Expected) -> None:
    """Check that no reader is beyond the log's contents, and none goes back without need."""
    if not expected.vague:
        assert found == _positions(left, expected.last)
    held = {kept.position for kept in left.frames if kept.frame.last <= expected.last}
    assert found.items() <= held, f"{found} is beyond what the log holds"


def read_all(left: Left, place: Place, expected: Expected, *, refused: bool) -> None:
    """Read all required entries in one go, then one by one from the first damage on."""
    frames = [kept for kept in left.frames if kept.frame.last <= expected.last]
    with LogReader(place.directory, place.files) as reader:
        found = read_in_order(reader, frames)
    if found == len(frames):
        assert expected.hurt is None, "what was damaged is read as if it were whole"
        return
    assert refused or expected.hurt is not None, f"frame {found} cannot be read"
    with LogReader(place.directory, place.files) as reader:
        for kept in frames[found:]:
            _read_alone(reader, kept, expected, refused=refused)


def _read_alone(reader: LogReader, kept: Kept, expected: Expected, *, refused: bool) -> None:
    came = read_in_order(reader, [kept])
    hurt = expected.hurt
    if hurt is not None and kept.frame == hurt:
        assert came == 0, "what was damaged is read as if it were whole"
    elif not (refused or (hurt is not None and expected.behind and kept.frame.first > hurt.last)):
        assert came == 1, f"offset {kept.frame.first} was not hurt and cannot be read"


def read_in_order(reader: LogReader, frames: list[Kept]) -> int:
    """Read *frames* in one go. Return the number read, all of them exactly as written."""
    count = 0
    if not frames:
        return count
    try:
        for entries in reader.read(frames[0].frame.first, frames[-1].frame.last):
            assert entries.equals(frames[count].entries), f"frame {count} is not what was written"
            count += 1
    except TransporterError:
        return count
    assert count == len(frames), f"{count} of {len(frames)} frames came, and no error"
    return count


def _read_backwards(left: Left, place: Place, last: int) -> None:
    with LogReader(place.directory, place.files) as reader:
        found = [(one.frame.first, one.frame.last) for one in reader.frames_backwards(last)]
    frames = [kept.frame for kept in left.frames if kept.frame.last <= last]
    assert found == [(frame.first, frame.last) for frame in reversed(frames)]


def judge_offsets(route: LeftRoute, place: Place, name: str, damage: Damage) -> None:
    """Find the route's state before the first damaged record, also when it is used."""
    expected = route.state_after(name, damage)
    if expected is None:
        for look in (read_state, OffsetLog):
            refuses(look, place.directory, ROUTE, place.files)
        place.unchanged(name, damage)
        return
    assert read_state(place.directory, ROUTE, place.files) == expected
    place.unchanged(name, damage)
    log = OffsetLog(place.directory, ROUTE, place.files, first_offset=lambda: 1 << 40)
    assert (log.state, log.is_new) == (expected, False)
    kill(log)
    known = read_state(place.directory, ROUTE, place.files)
    assert known == expected, "a record of long ago counts again"
    with OffsetLog(place.directory, ROUTE, place.files) as log:
        after = log.settle(Range(0, expected.watermark + 1), 1 << 40)
        known = read_state(place.directory, ROUTE, place.files)
        assert known == after, "a record of long ago counts again"
    assert read_state(place.directory, ROUTE, place.files) == after


def kill(log: OffsetLog) -> None:
    """Leave *log* as a killed process does."""
    assert log._file is not None
    log._file.close()
    log._file = None


def judge_parked(parked: dict[str, ParkedEntry], place: Place, name: str, damage: Damage) -> None:
    """Check that the parked entry is exact or refused, and that no other one suffers."""
    folder = route_folder(place.directory, ROUTE)
    frame = FrameHeader.decode(place.content[name], 0, 0)
    assert frame is not None
    hurt = damage.byte < frame.payload_byte + frame.payload_length
    for each, one in parked.items():
        if each == name and hurt:
            refuses(ParkedStore.read_entry, folder, one.offset, place.files)
        else:
            assert ParkedStore.read_entry(folder, one.offset, place.files) == one
    if hurt:
        refuses(ParkedStore, folder, place.files)
    else:
        assert ParkedStore(folder, place.files).offsets() == [one.offset for one in parked.values()]
    place.unchanged(name, damage)
