"""Offset logs written by another program, with valid checksums and bad content.

A checksum reveals damage only. The maker of a forged copy can compute it, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transporter.errors import Corrupt, UnknownFormat
from transporter.log.commit_log import CommitLog
from transporter.offsets import record as records
from transporter.offsets import state as states
from transporter.offsets.offset_log import NAMES, OffsetLog, read_state, route_folder
from transporter.offsets.record import Record
from transporter.offsets.state import Range, RouteState, begin_replay, settle
from transporter.offsets.verify_repair import verify

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GOOD = states.snapshot_event(RouteState(watermark=9, above=(Range(12, 14),), namespaces={"a": 9}))
REPLAY = {"first": 0, "last": 5, "next": 2, "namespace": ""}


def without(name: str) -> dict[str, Any]:
    """Return a whole snapshot without the field *name*."""
    return {key: value for key, value in GOOD.items() if key != name}


FORGED: dict[str, tuple[Any, ...]] = {
    "no watermark": (without("watermark"),),
    "a text for a watermark": (GOOD | {"watermark": "9"},),
    "a fraction": (GOOD | {"watermark": 9.5},),
    "far below zero": (GOOD | {"watermark": -(1 << 70)},),
    "far above any offset": (GOOD | {"above": [[1 << 70, 1 << 71, "acked"]]},),
    "a range that ends before it begins": (GOOD | {"above": [[14, 12, "acked"]]},),
    "ranges in disorder": (GOOD | {"above": [[20, 21, "acked"], [12, 14, "acked"]]},),
    "a range below the watermark": (GOOD | {"above": [[3, 4, "acked"]]},),
    "an unknown kind": (GOOD | {"above": [[12, 14, "lost"]]},),
    "a range of four": (GOOD | {"above": [[12, 14, "acked", 1]]},),
    "a replay of texts": (GOOD | {"replay": REPLAY | {"next": "2"}},),
    "a replay with more fields": (GOOD | {"replay": REPLAY | {"command": "rm"}},),
    "a replay whose namespace is a number": (GOOD | {"replay": REPLAY | {"namespace": 3}},),
    "retries of lists": (GOOD | {"retries": [[1]]},),
    "a list for namespaces": (GOOD | {"namespaces": ["a"]},),
    "a text for an offset of a namespace": (GOOD | {"namespaces": {"a": "9"}},),
    "a number for paused": (GOOD | {"paused": 7},),
    "a snapshot of a list": ([],),
    "a settled range of texts": (GOOD, {"type": "settled", "range": ["a", "b"], "namespaces": {}}),
    "a settled range of one": (GOOD, {"type": "settled", "range": [10], "namespaces": {}}),
    "a number for the second event": (GOOD, 7),
    "a step to a text": (GOOD, {"type": "paused"}, {"type": "step", "through": "x"}),
    "superseded without a reader": (GOOD, {"type": "superseded", "through": 3, "ranges": []}),
    "a text among what is skipped": (GOOD | {"skips": ["a"]},),
    "a skip without followers": (GOOD, {"type": "skipping", "offsets": [3]}),
    "retries without offsets": (GOOD, {"type": "retries", "offsets": 3}),
}


def forge(directory: Path, events: Sequence[Any]) -> Path:
    """Replace the offset log of ``r`` by records of *events*, with valid checksums."""
    folder = route_folder(directory, "r")
    folder.mkdir(parents=True, exist_ok=True)
    data = b"".join(Record(1, number, event).encode() for number, event in enumerate(events))
    (folder / NAMES[0]).write_bytes(data)
    (folder / NAMES[1]).write_bytes(b"")
    return folder


@pytest.mark.parametrize("events", FORGED.values(), ids=FORGED)
def test_a_forged_offset_log_is_corrupt_to_whoever_reads_it(
    tmp_path: Path, events: Sequence[Any]
) -> None:
    """A read, an open and a verify name the file and the next action, and change nothing."""
    with CommitLog.open(tmp_path):
        pass
    folder = forge(tmp_path, events)
    with pytest.raises(Corrupt, match=r"not one that an engine writes.*log repair") as caught:
        read_state(tmp_path, "r")
    assert str(folder / NAMES[0]) in str(caught.value)
    with pytest.raises(Corrupt):
        OffsetLog(tmp_path, "r")
    assert [route for route, _ in verify(tmp_path).routes] == ["r"]


def test_a_bottomless_event_is_corrupt(tmp_path: Path) -> None:
    """JSON that nests deeper than Python's stack is reported without a traceback."""
    folder = forge(tmp_path, [GOOD])
    deep = Record(1, 1, {"type": "settled"})
    body = b"[" * 200_000 + b"]" * 200_000
    data = (folder / NAMES[0]).read_bytes()
    (folder / NAMES[0]).write_bytes(data + encoded(deep, body))
    with pytest.raises(Corrupt, match="not one that an engine writes"):
        read_state(tmp_path, "r")


def encoded(record: Record, body: bytes) -> bytes:
    """Return the bytes of *record* with *body* as its event and a valid checksum."""
    head = records._HEADER.pack(
        records.MAGIC, records.FORMAT, 0, len(body), record.turn, record.sequence, 0
    )[:-4]
    data = head + crc32c(body, crc32c(head)).to_bytes(4, "little") + body
    return data.ljust(records._align(len(data)), b"\0")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*GOOD, "range", "through", "a"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(
    changed=st.dictionaries(st.sampled_from(sorted(GOOD)), values, max_size=3),
    events=st.lists(values, max_size=2),
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_a_record_it_is_a_state_or_an_error(
    tmp_path: Path, changed: dict[str, Any], events: list[Any]
) -> None:
    """Any event, however odd, gives a state or an error of ours."""
    forge(tmp_path, [GOOD | changed | {"type": "snapshot"}, *events])
    try:
        state = read_state(tmp_path, "r")
    except (Corrupt, UnknownFormat):
        return
    assert read_state(tmp_path, "r") == state


def test_a_state_that_events_lead_to_is_sound() -> None:
    """An event that an engine writes passes the check."""
    state = settle(RouteState(declared=3), Range(0, 20, "parked"))
    state = settle(state, Range(30, 40, "released"), {"orders": 35})
    begin_replay(state, 2, 8, "orders").validate()
