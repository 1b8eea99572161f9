"""The watchdog of a worker's process."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from transporter.worker import watchdog
from transporter.worker.watchdog import Watchdog
from transporter.worker.worker import _Engine

_BEGIN = "import time; from transporter.worker.watchdog import Watchdog; watch = Watchdog(1.0); "


@pytest.mark.parametrize(
    ("then", "ends"),
    [
        ("watch.rearm(); time.sleep(60)", True),
        ("watch.rearm(); sum(range(10 ** 12))", True),
        ("[(time.sleep(0.2), watch.rearm()) for _ in range(8)]", False),
        ("watch.rearm(); watch.disarm(); time.sleep(1.5)", False),
    ],
    ids=["waits", "computes", "is-rearmed", "is-disarmed"],
)
def test_a_process_that_hangs_is_ended(then: str, *, ends: bool) -> None:
    """A process ends when its watchdog is not armed again in time, whatever it does."""
    ended = subprocess.run(
        [sys.executable, "-c", _BEGIN + then], check=False, timeout=50, capture_output=True
    )
    assert (ended.returncode, b"Timeout" in ended.stderr) == (int(ends), ends)


def test_requests_arm_the_watchdog_only_when_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arming starts a thread, so many requests in a short time arm once."""
    armed: list[float] = []
    monkeypatch.setattr(
        watchdog.faulthandler, "dump_traceback_later", lambda seconds, **_: armed.append(seconds)
    )
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = Watchdog(8.0)
    engine = _Engine(_Line(), watch)  # type: ignore[arg-type]
    for _ in range(3):
        engine.request("a")
    now += watch.patience - 0.1
    engine.request("a")
    assert armed == [8.0]
    now += 0.1
    engine.request("a")
    assert armed == [8.0, 8.0]
    assert watch.patience == 2.0


class _Line:
    """A connection that takes everything."""

    def send(self, message: object) -> None:
        """Drop *message*."""
