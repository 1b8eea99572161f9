"""Processes that end with the one that has started them, even when they hang.

Linux kills a process when the *thread* that forked it ends, if the process has asked for that
(``PR_SET_PDEATHSIG``). So only a thread that lives as long as its process may start one here.
Elsewhere nothing is asked for, and what hangs outlives its parent.

Run as a program, this file asks for it and becomes another command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_SET_PDEATHSIG: Final = 1


def bound_to_parent(command: Sequence[str]) -> list[str]:
    """Return what to start instead of *command*, so that it ends with the thread that starts it.

    The setting survives ``exec``, and nothing of Python's runs in the process that forks.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def end_with_parent(parent: int) -> None:
    """Have this process killed when the thread that forked it, of the process *parent*, ends."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        # It had ended before we asked.
        os._exit(1)


def _main() -> None:
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - the command that our parent has given


if __name__ == "__main__":
    _main()
