"""Trials on Spark: a copy of the log, entries that fail, and the retries around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from transporter.dry_run.collecting_writer import Collector, CollectorConfig, read_outputs
from transporter.dry_run.on_spark import deliver_entries, write_log_copy
from transporter.dry_run.outcome import OutputRow, trial_results
from transporter.log.reader import LogReader
from transporter.message import Entries, Message, concat, messages_to_batch, with_offsets
from transporter.protocol.messages import (
    Announcement,
    Failure,
    FailureKind,
    Opened,
    OpenFailed,
    Outcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.protocol.messages import Slice

OFFSETS = [3, 5, 6, 9, 10]


class Worker:
    """A worker that answers slices with *outcome*, in place of the engine's connection."""

    def __init__(self, outcome: Callable[[Slice], Outcome], opened: object) -> None:
        self.asked: list[tuple[int, int, bool]] = []
        self._outcome, self._said = outcome, [opened]

    def send(self, message: Any) -> None:
        """Accept a slice, or a message to proceed."""
        if hasattr(message, "first"):
            self.asked.append((message.first, message.last, message.single))
            self._said += [Announcement(message.first)] * message.single + [self._outcome(message)]

    def poll(self, _: float) -> bool:
        """Return whether there is an answer."""
        return bool(self._said)

    def recv(self) -> object:
        """Return the next answer."""
        return self._said.pop(0)


def failing(*bad: int, kind: FailureKind = FailureKind.REJECTED, through: int | None = None) -> Any:
    """Return a function that makes outcomes of slices failing at the first of the *bad* offsets."""

    def outcome(asked: Slice) -> Outcome:
        found = [each for each in bad if asked.first <= each <= asked.last]
        if not found:
            return Outcome(asked.last, 1, 0, 0, {})
        acked = asked.first - 1 if through is None else max(asked.first - 1, through)
        return Outcome(acked, 0, 0, 0, {}, Failure(kind, f"{found[0]} is bad", found[0]))

    return outcome


def test_the_entries_around_one_that_fails_are_delivered() -> None:
    """The entries before a failing one are delivered first, then it alone, then the rest."""
    worker = Worker(failing(6), Opened(None))
    assert deliver_entries(worker, OFFSETS) == {6: "6 is bad"}
    assert worker.asked == [(3, 10, False), (3, 5, False), (6, 6, True), (9, 10, False)]


def test_what_was_delivered_is_not_delivered_again() -> None:
    """Entries that the outcome reports as delivered are not delivered again."""
    worker = Worker(failing(9, through=6), Opened(None))
    assert deliver_entries(worker, OFFSETS) == {9: "9 is bad"}
    assert worker.asked == [(3, 10, False), (9, 9, True), (10, 10, True)]


def test_several_entries_fail() -> None:
    """Each failing entry has its own error, the first and the last too."""
    found = deliver_entries(Worker(failing(3, 9, 10), Opened(None)), OFFSETS)
    assert found == {each: f"{each} is bad" for each in (3, 9, 10)}


def test_an_entry_that_fails_only_among_others_is_delivered() -> None:
    """An entry that succeeds alone is delivered, because a route retries it alone."""

    def outcome(asked: Slice) -> Outcome:
        return failing()(asked) if asked.first == asked.last else failing(6)(asked)

    worker = Worker(outcome, Opened(None))
    assert deliver_entries(worker, OFFSETS) == {}
    assert (6, 6, True) in worker.asked


@pytest.mark.parametrize("kind", [FailureKind.FAULT, FailureKind.TIMEOUT, FailureKind.UNAVAILABLE])
def test_what_fails_the_route_fails_all_that_is_left(kind: FailureKind) -> None:
    """A fault or an outage fails all remaining entries, because a route would deliver none."""
    found = deliver_entries(Worker(failing(9, kind=kind, through=5), Opened(None)), OFFSETS)
    assert found == dict.fromkeys([6, 9, 10], "9 is bad")


def test_a_route_that_cannot_be_opened_fails_every_entry() -> None:
    """A query that cannot work fails every entry before the first slice."""
    opened = OpenFailed(Failure(FailureKind.FAULT, "no such column"))
    worker = Worker(failing(), opened)
    assert deliver_entries(worker, OFFSETS) == dict.fromkeys(OFFSETS, "no such column")
    assert worker.asked == []


def test_what_a_writer_was_given_is_told_by_entry(tmp_path: Path) -> None:
    """Outputs are reported by entry, also several, none, and one at an unexpected offset."""
    entries = with_offsets(messages_to_batch([Message("a", b"%d" % n) for n in range(4)]), 0, 7)
    given = entries.take([0, 0, 3])
    writer = Collector(CollectorConfig(folder=str(tmp_path)))
    acks: list[bool] = []
    acked: Any = type("Acks", (), {"all": lambda _: acks.append(True)})()
    for part in (given.slice(2), given.slice(0, 2)):
        writer.write(Entries(part), acked)
    (tmp_path / f"{2:020d}.jsonl").write_text('[2, {"a": 1}]\n[77, {"a": 2}]\n')
    found = trial_results(entries, read_outputs(tmp_path), {1: "is bad"})
    assert [each.outputs for each in found] == [
        (Message("a", b"0"), Message("a", b"0")),
        (),
        (OutputRow({"a": 1}),),
        (OutputRow({"a": 2}), Message("a", b"3")),
    ]
    assert [each.error for each in found] == [None, "is bad", None, None]
    assert acks == [True, True]


MESSAGES = [
    Message("orders", b"\xff", None, "delete", headers=(("h", b"\x00"), ("n", None))),
    Message("users", None, b"k", timestamp=-5, content_type=None, source_id="s"),
    *[Message("orders", bytes(700_000), b"large")] * 6,
    *[Message("orders", b"{}", b"%d" % n) for n in range(92)],
]


@pytest.mark.parametrize(
    "kept",
    [range(100), range(1), range(1, 100, 7), [99], [0, 1, 2, 3, 50]],
    ids=["all", "first", "thinned", "last", "beginning"],
)
@pytest.mark.parametrize("first", [0, 1, 5_000_000_000])
def test_what_is_read_is_what_was_written(tmp_path: Path, kept: list[int], first: int) -> None:
    """Offsets with holes, log times, bytes and headers read back, also of several frames."""
    entries = with_offsets(messages_to_batch(MESSAGES), first, 1_700_000_000_000_000)
    chosen = entries.take(pa.array(list(kept)))
    write_log_copy(tmp_path, chosen)
    offsets = chosen.column("offset").to_pylist()
    with LogReader(tmp_path) as reader:
        assert concat(reader.read(offsets[0], offsets[-1])) == chosen
        middle = offsets[len(offsets) // 2]
        assert concat(reader.read(middle, offsets[-1])) == chosen.slice(len(offsets) // 2)
