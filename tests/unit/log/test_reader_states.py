"""The states of readers beside the log: durable before a position names them, and checked."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from log_tools import Disk

from transporter.errors import Corrupt, EnvironmentFault, LockLost, LogFull
from transporter.log.filesystem import RealFileSystem
from transporter.log.reader_states import ReaderStates, check_states

if TYPE_CHECKING:
    from pathlib import Path


def test_a_state_is_read_as_it_was_kept(tmp_path: Path) -> None:
    """Each state has a name. Keeping it twice changes nothing."""
    states = ReaderStates(tmp_path, "shop")
    for name, text in (("a", "one"), ("b", "two\n\0é"), ("a", "one")):
        states.keep(name, text)
    again = ReaderStates(tmp_path, "shop")
    assert [again.read("a"), again.read("b")] == ["one", "two\n\0é"]


def test_only_the_current_state_is_left(tmp_path: Path) -> None:
    """Whatever no durable position names is removed, and nothing of other readers."""
    states, others = ReaderStates(tmp_path, "shop"), ReaderStates(tmp_path, "other")
    others.keep("a", "theirs")
    for name in "abc":
        states.keep(name, name)
    states.drop_others("c")
    states.drop_others("c")
    assert states.read("c") == "c"
    assert others.read("a") == "theirs"
    with pytest.raises(
        EnvironmentFault, match=r"readers/shop/a: the reader's state is missing; put"
    ):
        states.read("a")


def test_damage_is_found(tmp_path: Path) -> None:
    """A changed byte is an error that names the file."""
    states = ReaderStates(tmp_path, "shop")
    states.keep("a", "one")
    assert list(check_states(tmp_path, RealFileSystem())) == []
    path = tmp_path / "readers" / "shop" / "a"
    path.write_bytes(path.read_bytes().replace(b"one", b"two"))
    with pytest.raises(Corrupt, match="does not match its checksum"):
        states.read("a")
    (found,) = check_states(tmp_path, RealFileSystem())
    assert found.file == str(path)


def test_an_engine_without_its_lock_changes_no_state(tmp_path: Path) -> None:
    """Invariant 12: the state is another engine's by now."""

    def guard() -> None:
        raise LockLost("lost")

    ReaderStates(tmp_path, "shop").keep("a", "one")
    stale = ReaderStates(tmp_path, "shop", guard=guard)
    for change in (lambda: stale.keep("b", "two"), lambda: stale.drop_others("b")):
        with pytest.raises(LockLost):
            change()
    assert ReaderStates(tmp_path, "shop").read("a") == "one"


def test_a_full_disk_keeps_the_last_state(tmp_path: Path) -> None:
    """Without room nothing has changed."""
    disk = Disk()
    states = ReaderStates(tmp_path, "shop", disk)
    states.keep("a", "one")
    disk.failing["pwrite"] = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(LogFull):
        states.keep("b", "two")
    disk.failing.clear()
    assert states.read("a") == "one"
