"""The reason why a route waits for an operator: a small file that outlives the engine.

It only informs. Nothing depends on it, so it is written as far as the disk allows, and a damaged
one counts as none.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import TransporterError
from transporter.log import checksummed_file
from transporter.log.filesystem import RealFileSystem, open_file, replace_durably

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
        files: FileSystem | None = None,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        """Touch nothing yet. *guard* raises ``LockLost`` once it may be another engine's."""
        self._folder, self._files, self._guard = folder, files or RealFileSystem(), guard

    def record(self, problem: str, before: int) -> None:
        """Write that the route waits *before* an entry because of *problem*."""
        self._guard()  # Invariant 12
        content = checksummed_file.encode({"problem": problem[:_LONGEST], "before": before})
        with suppress(OSError):
            replace_durably(self._files, self._folder / HALTED, [content])

    def clear(self) -> None:
        """Write that the route does not wait."""
        self._guard()  # Invariant 12
        with suppress(OSError):
            self._files.remove(self._folder / HALTED)
