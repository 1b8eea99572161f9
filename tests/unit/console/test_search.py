"""A bounded search for entries."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from log_tools import damage

from transporter.console.search import (
    Found,
    Limits,
    Query,
    Span,
    inspect_log,
    read_entry,
    search,
    select_span,
)
from transporter.errors import ConfigError, OffsetRefused
from transporter.log.commit_log import CommitLog
from transporter.log.search import EntryFilter
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 200
SECOND = 1_000_000
NOW = datetime.fromtimestamp(1_000, UTC)


def message(number: int) -> Message:
    """Return the message at an offset: namespaces, keys, data and headers of some variety."""
    headers = (("trace", b"needle"),) if number % 50 == 7 else ()
    data = None if number % 40 == 1 else f'{{"id": {number}}}'.encode()
    key = None if number % 10 == 3 else f"k{number % 7}".encode()
    return Message(f"orders.{'ab'[number % 2]}", data, key, headers=headers)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a log of many segments, one second an append."""
    found, chance = tmp_path_factory.mktemp("log"), random.Random(3)
    now = [100 * SECOND]

    def clock() -> int:
        now[0] += SECOND
        return now[0]

    with CommitLog.open(found, segment_bytes=3000, clock=clock) as log:
        number = 0
        while number < COUNT:
            size = min(chance.randrange(1, 9), COUNT - number)
            log.append(messages_to_batch([message(number + each) for each in range(size)]), "r")
            number += size
    return found


def offsets(found: Found) -> list[int]:
    """Return the offsets of the entries, in the order in which they were found."""
    return [each.offset for each in found.entries]


def everything(directory: Path, **fields: Any) -> Span:
    """Return the span of a query of these fields."""
    return select_span(Query(**fields), inspect_log(directory), NOW)


@pytest.mark.parametrize("direction", ["newest", "oldest"])
@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
def test_a_search_that_goes_on_finds_each_entry_once(
    directory: Path, direction: Any, rows: int
) -> None:
    """Beginning again where the last look ended, nothing is left out and nothing comes twice."""
    span, found = everything(directory), []
    while True:
        part = search(directory, span, direction, Limits(rows=rows))
        found += offsets(part)
        if part.finished:
            break
        assert len(part.entries) == rows
        if direction == "newest":
            span = Span(span.first, part.looked_from - 1, span.entry_filter)
        else:
            span = Span(part.looked_to + 1, span.last, span.entry_filter)
        if span.last < span.first:
            break
    assert found == sorted(range(COUNT), reverse=direction == "newest")


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"namespace": "b$"}, lambda n: n % 2 == 1),
        ({"key": "k3"}, lambda n: n % 7 == 3 and n % 10 != 3),
        ({"contains": '"id": 17'}, lambda n: b'"id": 17' in (message(n).data or b"")),
        ({"contains": "k5"}, lambda n: n % 7 == 5 and n % 10 != 3),
        ({"contains": "needle"}, lambda n: n % 50 == 7),
        ({"start": "120"}, lambda n: n >= 120),
        ({"start": "20", "end": "30"}, lambda n: 20 <= n <= 30),
        ({"start": "999999"}, lambda _: False),
        ({"contains": "nowhere"}, lambda _: False),
    ],
)
def test_a_search_finds_what_a_naive_one_does(
    directory: Path, fields: dict[str, str], wanted: Any
) -> None:
    """Namespace, key, content and offsets select as they do one by one."""
    span = everything(directory, **fields)
    expected = [number for number in range(COUNT) if wanted(number)]
    assert offsets(search(directory, span, "oldest", Limits(rows=1000))) == expected
    assert offsets(search(directory, span, "newest", Limits(rows=1000))) == expected[::-1]


def test_times_select_by_log_time(directory: Path) -> None:
    """ISO times and ages are both included, and the search does not look beyond them."""
    all_of_it = search(directory, everything(directory), "oldest", Limits(rows=1000))
    some = [each for each in all_of_it.entries if 110 <= each.logged_at / SECOND <= 115]
    start, end = (datetime.fromtimestamp(moment, UTC).isoformat() for moment in (110, 115))
    span = everything(directory, start=start, end=end)
    found = search(directory, span, "oldest", Limits(rows=1000))
    assert offsets(found) == [each.offset for each in some] != []
    aged = everything(directory, start="890s", end="885s")
    assert offsets(search(directory, aged, "newest")) == offsets(found)[::-1]


def test_a_search_ends_in_time_and_says_how_far_it_came(directory: Path) -> None:
    """It stops behind the frame at which the time or the bytes are spent."""
    ticks = iter(range(1000))
    span = everything(directory, contains="nowhere")
    found = search(directory, span, "newest", Limits(seconds=3), clock=lambda: next(ticks))
    assert not found.finished
    assert found.looked_to == COUNT - 1
    assert 0 < found.looked_from < COUNT - 1
    by_size = search(directory, span, "newest", Limits(size=1))
    assert not by_size.finished
    assert by_size.looked_from > found.looked_from
    whole = search(directory, span)
    assert (whole.finished, whole.looked_from, whole.looked_to) == (True, 0, COUNT - 1)


def test_found_entries_are_bounded_in_bytes(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page holds what was found, so a search ends with it, and goes on later (Invariant 17)."""
    monkeypatch.setattr("transporter.console.search.KEPT", 1)
    span = everything(directory)
    found = search(directory, span, "oldest", Limits(rows=1000))
    assert not found.finished
    assert 0 < len(found.entries) < 9
    assert found.looked_to == found.entries[-1].offset


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"start": "yesterdayish"}, "from: 'yesterdayish' is neither an offset nor a time"),
        ({"end": "5 parsecs"}, "to: '5 parsecs' is neither"),
        ({"namespace": "("}, "namespace: is not a regular expression that RE2 reads"),
    ],
)
def test_a_wrong_field_is_named(directory: Path, fields: dict[str, str], text: str) -> None:
    """The error names the field, and shows valid values."""
    with pytest.raises(ConfigError, match=text.split(":", maxsplit=1)[0]) as caught:
        everything(directory, **fields)
    assert text in str(caught.value)


def test_one_entry_is_read_by_its_offset(directory: Path) -> None:
    """Offsets outside the log are refused with its bounds."""
    entry = read_entry(directory, 57)
    assert entry is not None
    assert (entry.offset, entry.message.key) == (57, message(57).key)
    with pytest.raises(OffsetRefused, match=r"0\.\.199"):
        read_entry(directory, COUNT)


def test_damage_ends_a_search_with_its_place(tmp_path: Path) -> None:
    """What was found before it is kept, and the page shows the error."""
    with CommitLog.open(tmp_path, segment_bytes=2000, compression=None) as log:
        for number in range(60):
            log.append(messages_to_batch([message(number)]), "r")
    damage(tmp_path, 700)
    span = Span(0, 59, EntryFilter(contains=b"nowhere"))
    found = search(tmp_path, span)
    assert not found.finished
    assert found.looked_from > 0
    assert "log" in found.problem
