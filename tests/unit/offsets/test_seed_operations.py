"""The tables of the ancestor's design ("Normal Operations"), as tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from transporter.offsets.offset_log import OffsetLog, read_state
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from pathlib import Path

KEYS: Final = "AABBAABBCACBAACB"
"""The commit log: the namespace of the entries 0 to 15."""
EVENTS: Final = [
    ("c0", 1),
    ("c0", 4),
    ("c0", 6),
    ("c1", 4),
    ("c0", 4),
    ("c1", 5),
    ("c0", 7),
    ("c1", 7),
    ("c0", 10),
    ("c1", 13),
    ("c0", 12),
]
"""The offset log: which consumer has settled everything up to which offset, in order."""
LAST: Final = len(KEYS) - 1


def newest(through: int) -> dict[str, int]:
    """Return the newest offset of each namespace up to *through*."""
    return {key: offset for offset, key in enumerate(KEYS[: through + 1])}


def settle_through(offsets: OffsetLog, through: int) -> None:
    """Settle everything up to *through*, as a route does: from its watermark on."""
    first = min(offsets.state.next_unsettled(), through)
    offsets.settle(Range(first, through), LAST, newest(through))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the folder of both consumers' offset logs in the state of the first table."""
    logs = {name: OffsetLog(tmp_path, name) for name in ("c0", "c1")}
    for name, through in EVENTS:
        settle_through(logs[name], through)
    for log in logs.values():
        log.close()
    return tmp_path


def test_each_consumer_has_its_own_offset(directory: Path) -> None:
    """The commit log is at 15, c0 at 12 and c1 at 13, and an older ack moves neither back."""
    assert read_state(directory, "c0").watermark == 12
    assert read_state(directory, "c1").watermark == 13


def test_each_consumer_keeps_the_newest_offset_of_each_key(directory: Path) -> None:
    """The offset log holds at least one offset of each key, the newest, for every consumer."""
    assert read_state(directory, "c0").namespaces == {"A": 12, "B": 11, "C": 10}
    assert read_state(directory, "c1").namespaces == {"A": 13, "B": 11, "C": 10}


def test_a_restart_redelivers_what_was_not_settled(directory: Path) -> None:
    """After a restart c0 gets the entries 13 to 15 and c1 the entries 14 and 15."""
    with OffsetLog(directory, "c0") as c0, OffsetLog(directory, "c1") as c1:
        assert (c0.state.next_unsettled(), c1.state.next_unsettled()) == (13, 14)


def test_a_clean_resume_settles_the_rest(directory: Path) -> None:
    """After a redelivery to both, both stand at 15, the end of the commit log."""
    for name in ("c0", "c1"):
        with OffsetLog(directory, name) as offsets:
            settle_through(offsets, LAST)
    assert read_state(directory, "c0").watermark == 15
    assert read_state(directory, "c1").watermark == 15
    assert read_state(directory, "c0").namespaces == {"A": 13, "B": 15, "C": 14}


def test_a_failed_bulk_leaves_the_offset_where_it_was(tmp_path: Path) -> None:
    """As in "Message Failures", c0 stays at 8 when 9 to 15 fail, and at 13 when 14 fails again."""
    with OffsetLog(tmp_path, "c0") as offsets:
        for through in (1, 3, 4, 5, 7, 8):
            settle_through(offsets, through)
    with OffsetLog(tmp_path, "c0") as offsets:
        assert offsets.state.watermark == 8
        for offset in range(9, 14):
            offsets.settle(Range(offset, offset), LAST)
    assert read_state(tmp_path, "c0").watermark == 13


def test_a_message_can_be_marked_as_acknowledged(tmp_path: Path) -> None:
    """An entry acked by an operator is passed without a delivery to the writer."""
    with OffsetLog(tmp_path, "c0") as offsets:
        settle_through(offsets, 13)
        assert offsets.settle(Range(14, 14, "operator"), LAST).watermark == 14
        assert offsets.settle(Range(15, 15), LAST).watermark == 15
