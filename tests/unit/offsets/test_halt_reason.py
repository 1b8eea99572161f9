"""The reason why a route waits, kept for the time after its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from transporter.errors import LockLost, LogPoisoned
from transporter.log.filesystem import RealFileSystem
from transporter.offsets.halt_reason import HALTED, HaltReason, read_halt_reason

if TYPE_CHECKING:
    from pathlib import Path


def test_a_reason_holds_until_the_route_moves_on(tmp_path: Path) -> None:
    """It is read as long as the route stands before the same entry, and until it is cleared."""
    assert read_halt_reason(tmp_path, 3) == ""
    reason = HaltReason(tmp_path, lambda text: text.replace("s3cr3t", "***"))
    reason.record("offset 3: s3cr3t refused\n", before=3)
    assert read_halt_reason(tmp_path, 3) == "offset 3: *** refused\n"
    assert read_halt_reason(tmp_path, 4) == ""
    reason.clear()
    assert read_halt_reason(tmp_path, 3) == ""
    reason.clear()


@pytest.mark.parametrize("content", [b"", b"{}\n0\n", b'{"format": 1}\n60a7d9b1\n', b"\xff" * 99])
def test_a_damaged_reason_is_none(tmp_path: Path, content: bytes) -> None:
    """It only informs, so it keeps nobody from the status."""
    (tmp_path / HALTED).write_bytes(content)
    assert read_halt_reason(tmp_path, 3) == ""


def test_no_reason_is_written_on_a_full_disk_or_in_anothers_log(tmp_path: Path) -> None:
    """A failing disk hides the reason, not the halt; a lost lock ends the route."""

    class Full(RealFileSystem):
        def rename(self, source: Path, target: Path) -> None:
            raise OSError(28, "No space left on device")

    class Unsynced(RealFileSystem):
        def sync_directory(self, directory: Path) -> None:
            raise OSError(5, "Input/output error")

    HaltReason(tmp_path, files=Full()).record("offset 3: refused", before=3)
    assert read_halt_reason(tmp_path, 3) == ""
    with pytest.raises(LogPoisoned):  # Invariant 13
        HaltReason(tmp_path, files=Unsynced()).record("offset 3: refused", before=3)

    def lost() -> None:
        raise LockLost("another engine's")

    with pytest.raises(LockLost):
        HaltReason(tmp_path, guard=lost).record("offset 3: refused", before=3)
    with pytest.raises(LockLost):
        HaltReason(tmp_path, guard=lost).clear()
