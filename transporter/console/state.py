"""The state of one console: its logs, its guard, its links and sessions."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transporter.console.child import Verifier
from transporter.console.guard import Guard, Identity
from transporter.console.listening import page_url
from transporter.console.sessions import (
    FORM_SECONDS,
    LINK_SECONDS,
    OUTCOME_SECONDS,
    SESSION_SECONDS,
    ExpiringSecrets,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.console.sources import LogSource
    from transporter.pipeline.observe_config import ConsoleAccess, ListenAddress


@dataclass(frozen=True, slots=True)
class FormGrant:
    """The right to send one form once.

    Attributes:
        sender: the person to whom the form was shown.
        path: the address of the form.
        typed: the text that the sender must type to confirm, empty if none is needed.
        seen: a digest of the preview that the form was shown with, empty if it had none.

    """

    sender: Identity
    path: str
    typed: str = ""
    seen: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an act, which the page after it shows to the person who acted.

    It has no ``tone`` while the act is under way.
    """

    sender: Identity
    text: str
    tone: str = ""


def _sender_of(held: FormGrant | Outcome) -> Identity:
    return held.sender


class Activity:
    """The requests that are under way, and the time since the last one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._last = time.monotonic()

    def note(self) -> None:
        """Take note of a person or program."""
        with self._lock:
            self._last = time.monotonic()

    def begin(self) -> None:
        """Take note of a request."""
        with self._lock:
            self._open += 1

    def end(self) -> None:
        """Take note that a request is answered, with all that its answer has."""
        with self._lock:
            self._open -= 1
            self._last = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Seconds without a request."""
        with self._lock:
            return 0.0 if self._open else time.monotonic() - self._last


@dataclass(frozen=True)
class Console:
    """The state of a console. Thread-safe; kept in memory only.

    Attributes:
        targets: for each log, the argument by which commands name it.
        results: the result of each form that was sent, by the form, for one that is sent twice.

    """

    sources: Mapping[str, LogSource]
    targets: Mapping[str, str]
    listen: ListenAddress
    access: ConsoleAccess
    guard: Guard
    links: ExpiringSecrets[Identity] = field(default_factory=lambda: ExpiringSecrets(LINK_SECONDS))
    sessions: ExpiringSecrets[Identity] = field(
        default_factory=lambda: ExpiringSecrets(SESSION_SECONDS, holder=lambda each: each)
    )
    forms: ExpiringSecrets[FormGrant] = field(
        default_factory=lambda: ExpiringSecrets(FORM_SECONDS, holder=_sender_of)
    )
    outcomes: ExpiringSecrets[Outcome] = field(
        default_factory=lambda: ExpiringSecrets(OUTCOME_SECONDS, holder=_sender_of)
    )
    results: ExpiringSecrets[Outcome] = field(
        default_factory=lambda: ExpiringSecrets(FORM_SECONDS, holder=_sender_of)
    )
    verifier: Verifier = field(default_factory=Verifier)
    activity: Activity = field(default_factory=Activity)

    @classmethod
    def of(
        cls,
        sources: Mapping[str, LogSource],
        targets: Mapping[str, str],
        listen: ListenAddress,
        access: ConsoleAccess,
    ) -> Console:
        """Return the console of *sources* that listens on *listen*."""
        return cls(sources, targets, listen, access, Guard.of(listen, access))

    @property
    def cookie(self) -> str:
        """The name of the session's cookie. A browser shares cookies among all ports of a host."""
        return f"transporter-{self.listen.port}"

    @property
    def url(self) -> str:
        """The address of the first page, by its host on this machine."""
        return page_url(self.listen, self.access.base_path)

    def login_link(self, name: str) -> str:
        """Return a link that logs *name* in once, as an operator, within a minute."""
        self.activity.note()  # It is good for a minute, and so is the console.
        secret = self.links.issue(Identity(name, "operator", "session"))
        return f"{self.url}login?link={secret}"

    def close(self) -> None:
        """Close the conversations with engines."""
        for source in self.sources.values():
            source.close()
