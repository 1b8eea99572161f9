"""Login links, sessions and forms, in memory only: a restart of the console ends all of them."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")

LINK_SECONDS: Final = 60.0
SESSION_SECONDS: Final = 12 * 3600.0
FORM_SECONDS: Final = 3600.0
OUTCOME_SECONDS: Final = 300.0
MOST: Final = 1_000
"""Secrets of one kind at once. The oldest of the holder who has most of them makes room."""
_SECRET_BYTES: Final = 32


class ExpiringSecrets(Generic[T]):
    """Secrets that each stand for a value, such as an identity, for some time. Thread-safe.

    Only digests are kept, so that neither a dump of the memory nor the time of a look-up
    reveals one.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        holder: Callable[[T], Hashable] = lambda _: None,
    ) -> None:
        """Let each secret expire after *seconds* of *clock*. *holder* returns whose a value is."""
        self._seconds, self._clock, self._holder = seconds, clock, holder
        self._lock = threading.Lock()
        self._known: dict[bytes, tuple[float, T]] = {}

    def issue(self, value: T) -> str:
        """Return a new secret for *value*."""
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        self.keep(secret, value)
        return secret

    def keep(self, secret: str, value: T) -> None:
        """Let *secret*, which somebody else knows already, stand for *value*."""
        with self._lock:
            self._drop_expired()
            while len(self._known) >= MOST:
                del self._known[self._oldest_of_most()]
            self._known[_digest(secret)] = (self._clock() + self._seconds, value)

    def find(self, secret: str) -> T | None:
        """Return the value that *secret* stands for, or ``None``."""
        with self._lock:
            self._drop_expired()
            found = self._known.get(_digest(secret))
        return None if found is None else found[1]

    def take(self, secret: str) -> T | None:
        """Return the value that *secret* stands for, and never again."""
        with self._lock:
            self._drop_expired()
            found = self._known.pop(_digest(secret), None)
        return None if found is None else found[1]

    def _oldest_of_most(self) -> bytes:
        """Return the oldest secret of the holder who has most. So nobody ends those of others."""
        holders = [self._holder(value) for _, value in self._known.values()]
        ((greediest, _),) = Counter(holders).most_common(1)
        return next(
            each for each, holder in zip(self._known, holders, strict=True) if holder == greediest
        )

    def _drop_expired(self) -> None:
        now = self._clock()
        for each in [each for each, (until, _) in self._known.items() if until <= now]:
            del self._known[each]


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()
