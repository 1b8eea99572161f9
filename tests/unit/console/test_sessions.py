"""Login links and sessions."""

from __future__ import annotations

import pytest

from transporter.console import sessions
from transporter.console.guard import Identity
from transporter.console.sessions import ExpiringSecrets

ANN = Identity("ann", "operator", "session")


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_link_works_once() -> None:
    """A second use proves nothing."""
    links = ExpiringSecrets(60)
    secret = links.issue(ANN)
    assert links.take(secret) == ANN
    assert links.take(secret) is None


def test_a_session_works_until_it_expires() -> None:
    """It proves the identity at each look, and at its last second no more."""
    clock = Clock()
    held = ExpiringSecrets(60, clock)
    secret = held.issue(ANN)
    clock.now = 59.9
    assert held.find(secret) == held.find(secret) == ANN
    clock.now = 60.0
    assert held.find(secret) is None
    assert held.take(secret) is None


@pytest.mark.parametrize("wrong", ["", "x", "\udcff", "0" * 10_000])
def test_anything_else_proves_nothing(wrong: str) -> None:
    """A guess, an empty cookie and text that is not UTF-8 are all unknown."""
    held = ExpiringSecrets(60)
    held.issue(ANN)
    assert held.find(wrong) is None


def test_secrets_are_long_unlike_and_not_kept() -> None:
    """They have 256 bits, and the memory has only their digests."""
    held = ExpiringSecrets(60)
    found = {held.issue(ANN) for _ in range(50)}
    assert len(found) == 50
    assert min(map(len, found)) >= 43
    assert not any(secret in repr(vars(held)) for secret in found)


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest secret makes room for a new one (Invariant 17)."""
    monkeypatch.setattr(sessions, "MOST", 3)
    held = ExpiringSecrets(60)
    found = [held.issue(ANN) for _ in range(4)]
    assert [held.find(secret) for secret in found] == [None, ANN, ANN, ANN]


def test_nobody_ends_the_sessions_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder who has most secrets makes room for a new one, whoever needs it."""
    monkeypatch.setattr(sessions, "MOST", 3)
    held = ExpiringSecrets[Identity](60, holder=lambda each: each)
    viewer = Identity("dashboard", "viewer", "session")
    ann = held.issue(ANN)
    viewers = [held.issue(viewer) for _ in range(20)]
    assert held.find(ann) == ANN
    assert [held.find(each) for each in viewers[-2:]] == [viewer, viewer]
    bob = Identity("bob", "operator", "session")
    assert held.find(held.issue(bob)) == bob
    assert (held.find(ann), held.find(viewers[-2])) == (ANN, None)
