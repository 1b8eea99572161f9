"""Processes that end with their parent, even when they hang.

Linux kills a process when the *thread* that forked it ends, if the process has requested it
(``PR_SET_PDEATHSIG``). So only a thread that lives as long as its process may start one here.
Other systems have no such request, and a process that hangs outlives its parent.

Run as a program, this file makes the request and becomes another command.
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


def bind_to_parent(command: Sequence[str]) -> list[str]:
    """Return *command* wrapped so that it ends with the thread that starts it.

    The setting survives ``exec``, and no Python code runs in the forked process before it.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def end_with_parent(parent: int) -> None:
    """Have this process killed when the thread of *parent* that forked it ends."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        # The parent had ended before the request.
        os._exit(1)


def _main() -> None:
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - the command comes from our parent


if __name__ == "__main__":
    _main()
