"""The delays between retries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.engine.backoff import Backoff, BackoffWait

if TYPE_CHECKING:
    import pytest


def test_delays_double_up_to_the_most() -> None:
    """Each delay lies between half and all of a bound that doubles up to its cap."""
    backoff = Backoff(first=0.5, longest=3.0)
    for bound in (0.5, 1.0, 2.0, 3.0, 3.0):
        assert bound / 2 <= backoff.next() <= bound


def test_delays_are_not_all_alike() -> None:
    """Jitter keeps parties that failed together from retrying together."""
    assert len({Backoff().next() for _ in range(20)}) > 1


def test_a_success_begins_anew() -> None:
    """After a reset the next delay is a first one again."""
    backoff = Backoff(first=1.0, longest=100.0)
    for _ in range(5):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 1.0


def test_it_tells_how_long_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A back-off reports the time since the first failure and until the next attempt."""
    now = [100.0]
    monkeypatch.setattr("transporter.engine.backoff.time.monotonic", lambda: now[0])
    backoff = Backoff(first=8.0)
    assert backoff.current_wait() is None
    backoff.next()
    now[0] += 60.0
    assert backoff.current_wait() == BackoffWait(60.0, 0.0)
    delay = backoff.next()
    now[0] += 1.0
    waiting = backoff.current_wait()
    assert waiting is not None
    assert (waiting.since, round(waiting.left, 6)) == (61.0, round(delay - 1.0, 6))
    backoff.reset()
    assert backoff.current_wait() is None


def test_failing_for_ever_overflows_nothing() -> None:
    """After very many failures the delay is still the cap, and nothing overflows."""
    backoff = Backoff(failures=10**6)
    assert 15.0 <= backoff.next() <= 30.0
