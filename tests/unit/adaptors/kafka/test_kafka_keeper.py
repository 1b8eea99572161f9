"""The thread that keeps a membership while the owner is away."""

from __future__ import annotations

import threading
import time

import pytest
from transporter_adaptors.kafka import reader
from transporter_adaptors.kafka.reader import Keeper

PATIENCE = 30.0


def test_it_keeps_once_the_owner_is_away_and_not_before() -> None:
    """The thread keeps the membership only while the owner is away, again and again."""
    kept, calls = threading.Event(), []

    def keep() -> None:
        calls.append(threading.current_thread().name)
        kept.set()

    keeper = Keeper(0.05, keep)
    try:
        with keeper.pause():
            # The thread cannot run here, however long this takes.
            assert not kept.wait(0.2)
        assert kept.wait(PATIENCE)
    finally:
        keeper.close()

    assert calls[0] == "kafka-keeper"


def test_an_owner_that_comes_back_in_time_is_never_stood_in_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread does nothing as long as the owner returns in time."""
    calls: list[int] = []
    now = 0.0
    monkeypatch.setattr(reader, "monotonic", lambda: now)
    keeper = Keeper(0.2, lambda: calls.append(1))
    try:
        for _ in range(30):
            # The thread wakes here. The owner is in time, however long this takes.
            time.sleep(0.02)
            with keeper.pause():
                now += 0.1
    finally:
        keeper.close()

    assert calls == []


def test_what_fails_in_the_thread_is_raised_for_the_owner() -> None:
    """The thread ends with its first failure, and each later call of the owner raises it."""
    failed = threading.Event()

    def keep() -> None:
        failed.set()
        raise ValueError("no seat")

    keeper = Keeper(0.0, keep)
    try:
        assert failed.wait(PATIENCE)
        for _ in range(2):
            with pytest.raises(ValueError, match="no seat"), keeper.pause():
                pass
    finally:
        keeper.close()


def test_closing_ends_the_thread() -> None:
    """After a close the thread has ended."""
    keeper = Keeper(0.0, lambda: None)
    keeper.close()

    assert not keeper._thread.is_alive()


def test_who_works_aside_never_waits_and_stays_away() -> None:
    """A caller aside never waits, and gets false while the thread is at work."""
    inside, go_on, again = threading.Event(), threading.Event(), threading.Event()

    def keep() -> None:
        if inside.is_set():
            again.set()
        inside.set()
        go_on.wait(PATIENCE)

    keeper = Keeper(0.0, keep)
    try:
        assert inside.wait(PATIENCE)
        with keeper.try_pause() as free:
            assert not free
        go_on.set()
        deadline = time.monotonic() + PATIENCE
        while not free:
            assert time.monotonic() < deadline
            with keeper.try_pause() as free:
                pass
        assert again.wait(PATIENCE)
    finally:
        go_on.set()
        keeper.close()
