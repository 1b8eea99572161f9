"""Verify and repair after every kind of damage: whole entries are kept, the rest is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from log_tools import crash, held_in, hurt, small_log

from transporter.errors import Corrupt, EnvironmentFault
from transporter.log.commit_log import CommitLog
from transporter.log.lock import LOCK
from transporter.log.reserve import RESERVE
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog, read_state
from transporter.offsets.state import Range
from transporter.offsets.verify_repair import repair_log, verify

if TYPE_CHECKING:
    from pathlib import Path

APPENDS = 14
SETTLED = 6


def fill(directory: Path, segment_bytes: int, *, clean: bool) -> dict[int, bytes]:
    """Append two entries at a time, of which a route has settled the first. Return all data."""
    data: dict[int, bytes] = {}
    log = CommitLog.open(directory, segment_bytes=segment_bytes, compression=None)
    for number in range(APPENDS):
        texts = [b"%d/%d" % (number, row) for row in range(2)]
        batch = messages_to_batch([Message("n", text, b"k") for text in texts])
        first, _ = log.append(batch, "r", str(number))
        data |= dict(enumerate(texts, start=first))
    with OffsetLog(directory, "out") as offsets:
        offsets.settle(Range(0, SETTLED), log.durable)
    if clean:
        log.close()
    else:
        crash(log)
    return data


def files_of(directory: Path) -> list[Path]:
    """Return every file whose damage must be found or be harmless."""
    useless = (LOCK, RESERVE)
    return sorted(
        path for path in directory.rglob("*") if path.is_file() and path.name not in useless
    )


def hurt_file(path: Path, how: str, where: float) -> None:
    """Apply to *path* the damage that :func:`hurt` does to bytes."""
    if (left := hurt(path.read_bytes(), how, where)) is None:
        path.unlink()
    else:
        path.write_bytes(left)


HURTS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "clear", "remove"]),
        st.floats(0, 0.999),
        st.floats(0, 0.999),
    ),
    min_size=1,
    max_size=4,
)


@given(HURTS, st.sampled_from([1, 1500, 1 << 20]), st.booleans())
@settings(max_examples=30)
def test_a_repaired_log_is_sound_and_names_what_it_lost(
    hurts: list[tuple[str, float, float]], segment_bytes: int, clean: bool
) -> None:
    """A repair after any damage keeps whole entries and opens for appends (Invariants 2 to 4).

    The lost entries are exactly the named ones, or lay above the floor. A second look
    finds nothing, and no offset is used twice.
    """
    with small_log() as directory:
        data = fill(directory, segment_bytes, clean=clean)
        for how, which, where in hurts:
            found = files_of(directory)
            hurt_file(found[int(which * len(found))], how, where)
        try:
            health = verify(directory)
        except Corrupt as error:
            assert "neither meta nor any segment header" in str(error)  # noqa: PT017 - may pass
            return
        except EnvironmentFault:
            assert not any(path.suffix == ".log" for path in directory.iterdir())
            assert not (directory / "meta").exists()
            return
        mended = repair_log(directory, health, 0)
        assert mended.health == health
        again = verify(directory)
        assert again.is_sound, again
        with CommitLog.open(directory) as log:
            kept = held_in(directory, log.durable)
            assert kept.items() <= data.items()
            lost = {o for first, last in again.lost for o in range(first, last + 1)}
            assert not lost & kept.keys()
            gone = {offset for offset in data if offset <= log.durable} - kept.keys()
            torn = {offset for offset in data if offset > health.through}
            removed = set(range(min(kept, default=len(data))))
            assert gone <= lost | torn | removed
            first, _ = log.append(messages_to_batch([Message("n", b"new")]), "r")
            assert first > max(kept, default=-1)
            assert first > health.through
        assert held_in(directory, first) == {**kept, first: b"new"}
        assert verify(directory).is_sound
        assert read_state(directory, "out").watermark in (-1, SETTLED)
