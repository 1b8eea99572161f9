"""``python -m transporter.console.tethered``: a command that ends with whoever started it.

It ends, with all the processes of its group, when its standard input is closed, which the system
does for a parent that is killed as well. The command itself gets an empty standard input. A signal
at the parent's death (``spark.parent_death``) would spare what user code has started.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def _end_with(tether: int) -> None:
    os.read(tether, 1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run the command line of this process as ``transporter`` does."""
    tether = os.dup(sys.stdin.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    threading.Thread(target=_end_with, args=(tether,), name="tether", daemon=True).start()
    sys.argv[0] = "transporter"
    runpy.run_module("transporter", run_name="__main__")


if __name__ == "__main__":
    main()
