"""The search for bad entries finds each one, in few attempts."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from transporter_adaptors.postgres_writer.guilty import Failure, Units, apply_good


class Sink:
    """Applies parts without bad entries. Knows the place of some bad entries beforehand."""

    def __init__(self, bad: set[int], *, names: bool = False) -> None:
        self.bad, self.names = bad, names
        self.applied: list[int] = []
        self.sizes: list[int] = []

    def attempt(self, begin: int, end: int) -> Failure | None:
        """Apply the entries from *begin* to *end*, or none."""
        assert 0 <= begin < end
        self.sizes.append(end - begin)
        found = sorted(self.bad & {*range(begin, end)})
        if found:
            return Failure(f"bad {found[0]}", found[0] if self.names else None)
        self.applied += range(begin, end)
        return None


@given(st.integers(1, 600), st.data(), st.booleans())
def test_everything_before_the_first_bad_entry_is_applied(
    count: int, data: st.DataObject, names: bool
) -> None:
    """Exactly the entries before the first bad one are applied, in order, and it is named."""
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    sink = Sink(bad, names=names)
    failed = sink.attempt(0, count)
    assert failed is not None
    sink.sizes.clear()

    place, failure = apply_good(0, count, sink.attempt, failed)

    assert place == min(bad)
    assert failure is not None
    assert failure.problem == f"bad {place}"
    assert sink.applied == [*range(place)]
    assert len(sink.sizes) <= (2 if names else math.ceil(math.log2(count)) + 1)
    assert sum(sink.sizes) <= 2 * count


@given(st.integers(2, 300), st.integers(2, 300))
def test_entries_that_fail_together_only(count: int, most: int) -> None:
    """If the entries fail in large parts only, all of them are applied."""
    applied: list[int] = []

    def attempt(begin: int, end: int) -> Failure | None:
        if end - begin >= most:
            return Failure("too many")
        applied.extend(range(begin, end))
        return None

    assert apply_good(0, count, attempt, Failure("too many")) == (count, None)
    assert applied == [*range(count)]


def test_a_place_in_the_middle() -> None:
    """Parts begin where the entries before are applied already."""
    sink = Sink({7})
    place, failure = apply_good(5, 20, sink.attempt, Failure("all"))
    assert (place, failure) == (7, Failure("bad 7"))
    assert sink.applied == [5, 6]


@given(st.integers(1, 60), st.data())
def test_units_are_not_cut(count: int, data: st.DataObject) -> None:
    """Entries of a unit are applied together, and a bad one keeps all of its unit out."""
    cuts = sorted({0, count, *data.draw(st.sets(st.integers(0, count)))})
    spans = [*pairwise(cuts)]
    alone = data.draw(st.sets(st.sampled_from(spans)))
    units = Units(span for span in spans if span not in alone)
    bad = data.draw(st.sets(st.integers(0, count - 1)))
    names = data.draw(st.booleans())
    sink = Sink(bad, names=names)

    def attempt(begin: int, end: int) -> Failure | None:
        inside = [
            span
            for span in spans
            if span not in alone and {begin, end} & {*range(*span)} - {span[0]}
        ]
        assert not inside, (begin, end)
        return sink.attempt(begin, end)

    failed = attempt(0, count)
    if failed is None:
        return
    place, failure = apply_good(0, count, attempt, failed, units)
    first = min(bad)
    begin = next(b for b, e in spans if b <= first < e)
    is_alone = any(first in range(*span) for span in alone)
    assert place == (first if is_alone else begin)
    assert failure is not None
    assert sink.applied == [*range(place)]


def test_the_time_is_over() -> None:
    """Entries that were applied until then count."""
    sink, left = Sink({70}), iter([False, False, True])
    assert apply_good(0, 100, sink.attempt, Failure("all"), is_over=lambda: next(left)) == (
        50,
        None,
    )
    assert sink.applied == [*range(50)]
