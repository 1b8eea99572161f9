"""Notifications to the service manager that started the engine: the protocol of sd_notify.

One datagram of ``NAME=value`` lines to the socket that ``NOTIFY_SOCKET`` names. Without that
variable nothing is sent.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from transporter.cli.output import count_text, printable
from transporter.engine.readiness import is_starting, not_ready_reasons, paused_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

    from transporter.engine.events import EngineStatus

LOOK: Final = 1.0
"""Seconds between two looks at the engine."""
_START_EXTENSION: Final = 60.0
"""Seconds by which each look at a starting engine extends its time."""
STOP_GRACE: Final = 60.0
"""Seconds of a stop beyond ``shutdown_timeout``: readers, Spark and the listener end, too."""


class ServiceNotifier:
    """Reports start, readiness, reloads and the stop of one engine. Thread-safe.

    It never fails: a manager that does not listen costs its notifications only.
    """

    def __init__(self, address: str = "", watchdog: float | None = None) -> None:
        """Send to *address*, if it is not empty. *watchdog* is the manager's, in seconds."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._has_watchdog = watchdog is not None
        self._interval = LOOK if watchdog is None else min(LOOK, watchdog / 4)
        self._next_look = 0.0
        self._has_started = self._is_ready_due = False
        self._reloads, self._lock = 0, threading.Lock()
        self._text = ""

    def update(self, read: Callable[[], EngineStatus], patience: float) -> None:
        """Report the engine's status that *read* returns, if that is due.

        The watchdog is fed, and the time to start extended, only while no thread of the engine
        is dead or hangs. The engine is started when every part has begun once: the routes have
        opened their sinks, or show why they could not. *patience* is for the readiness.
        """
        if not self._address or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + self._interval
        status = read()
        with self._lock:
            self._report(status, patience)

    def _report(self, status: EngineStatus, patience: float) -> None:
        is_starting_now = not self._has_started and is_starting(status)
        if not (self._has_started or is_starting_now):
            self._has_started = self._is_ready_due = True
        lines = [] if status.dead or status.hung else self._signs_of_life()
        if self._is_ready_due and not self._reloads:
            lines.append("READY=1")
        text = status_text(status, patience, starting=is_starting_now)
        if text != self._text:
            lines.append(f"STATUS={text}")
        if lines and self._send(*lines):
            self._text = text
            self._is_ready_due = self._is_ready_due and bool(self._reloads)

    def _signs_of_life(self) -> list[str]:
        lines = ["WATCHDOG=1"] if self._has_watchdog else []
        return lines if self._has_started else [*lines, _extension(_START_EXTENSION)]

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Report a reload for the length of a block, once the engine has started."""
        with self._lock:
            self._reloads += 1
            if self._has_started:
                self._is_ready_due = True
                now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
                self._send("RELOADING=1", f"MONOTONIC_USEC={now}")
        try:
            yield
        finally:
            with self._lock:
                self._reloads -= 1
                if self._is_ready_due and not self._reloads:
                    self._is_ready_due = not self._send("READY=1")

    def stopping(self, limit: float) -> None:
        """Report that the engine stops, which may take *limit* seconds and a little more."""
        with self._lock:
            self._is_ready_due = False
            text = f"stopping: up to {limit:g} s for all that is logged"
            self._send("STOPPING=1", _extension(limit + STOP_GRACE), f"STATUS={text}")

    def _send(self, *lines: str) -> bool:
        """Send *lines*, without waiting. Returns whether the manager has them."""
        if not self._address:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(0)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True


def take_notifier(environ: MutableMapping[str, str]) -> ServiceNotifier:
    """Return the notifier that *environ* asks for, and remove its variables.

    Children such as Spark inherit the rest, and must not notify in the engine's name.
    """
    address = environ.pop("NOTIFY_SOCKET", "")
    microseconds = environ.pop("WATCHDOG_USEC", "")
    pid = environ.pop("WATCHDOG_PID", "")
    if not address.startswith(("/", "@")):
        return ServiceNotifier()
    is_ours = pid in ("", str(os.getpid()))
    given = int(microseconds) / 1e6 if microseconds.isdecimal() and is_ours else 0
    return ServiceNotifier(address, given or None)


def status_text(status: EngineStatus, patience: float, *, starting: bool) -> str:
    """Return the engine's state in a line: fixed texts and names, and no error (Invariant 20)."""
    if found := (*status.dead, *status.hung):
        return f"not healthy: no sign of life of {', '.join(map(printable, found))}"
    reasons = not_ready_reasons(status, patience)
    if not reasons:
        paused = ", ".join(map(printable, paused_names(status)))
        return f"ready; paused: {paused}" if paused else "ready"
    first, others = reasons[0], len(reasons) - 1
    more = f" (and {count_text(others, 'other', 'others')})" if others else ""
    state = "starting" if starting else "not ready"
    return f"{state}: {f'{first.kind} {printable(first.name)}'.rstrip()}: {first.why}{more}"


def _extension(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"
