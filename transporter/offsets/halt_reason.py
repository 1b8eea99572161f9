"""The reason why a route waits for an operator: a small file that outlives the engine.

It only informs. Nothing depends on it, so it is written as far as the disk allows, and a damaged
one counts as none.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import EnvironmentFault, LogFull, TransporterError
from transporter.log import checksummed_file
from transporter.log.filesystem import (
    RealFileSystem,
    open_file,
    replace_all_durably,
    translate_os_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.log.filesystem import FileSystem

HALTED: Final = "halted"
_LONGEST: Final = 2_000
"""Characters of a reason."""
_MOST: Final = 64 << 10


def read_halt_reason(folder: Path, before: int, files: FileSystem | None = None) -> str:
    """Return why the route of *folder* waited when its engine ended, or "". Takes no lock.

    A reason counts as long as the route still stands *before* the same entry.
    """
    try:
        with open_file(files or RealFileSystem(), folder / HALTED) as file:
            data = file.pread(_MOST, 0)
        reason, stood_before = checksummed_file.decode(
            data, HALTED, "the reason", "remove the file", _parse
        )
    except (OSError, TransporterError):
        return ""
    return reason if stood_before == before else ""


def _parse(fields: dict[str, Any]) -> tuple[str, int]:
    return str(fields["problem"]), int(fields["before"])


class HaltReason:
    """Keeps the reason of one route. Belongs to the route's thread."""

    def __init__(
        self,
        folder: Path,
        redact: Callable[[str], str] = lambda text: text,
        files: FileSystem | None = None,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        """Touch nothing yet.

        *redact* takes secrets out of a text, because nobody who reads the file knows them.
        *guard* raises ``LockLost`` once it may be another engine's.
        """
        self._folder, self._redact = folder, redact
        self._files, self._guard = files or RealFileSystem(), guard

    def record(self, problem: str, before: int) -> None:
        """Write that the route waits *before* an entry because of *problem*.

        Raises:
            LogPoisoned: a sync failed (Invariant 13).

        """
        self._guard()  # Invariant 12
        reason = {"problem": self._redact(problem)[:_LONGEST], "before": before}
        content = {HALTED: checksummed_file.encode(reason)}
        with suppress(LogFull, EnvironmentFault), translate_os_errors(self._folder / HALTED):
            replace_all_durably(self._files, self._folder, content)

    def clear(self) -> None:
        """Write that the route does not wait."""
        self._guard()  # Invariant 12
        with suppress(OSError):
            self._files.remove(self._folder / HALTED)
