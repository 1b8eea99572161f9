"""A process that has imported everything, and forks the processes of storms: each in 10 ms.

Run as a program it forks a child for every request. The child runs an engine, or does one act on a
log without an engine, and answers on a channel of its own.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from typing import Any

from child_paths import python_path


class Child:
    """A forked process of the nursery, with its commands and answers."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid, self._channel = pid, channel
        self._pidfd = os.pidfd_open(pid)
        self._buffer = b""
        # It begins only now, because a child that has ended has no descriptor to open.
        channel.sendall(b"\n")

    def ask(self, timeout: float, **request: Any) -> dict[str, Any] | None:
        """Return the answer to *request*, or ``None`` if the child ended, or has none in time."""
        try:
            self._channel.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            return None
        return self.answer(timeout)

    def answer(self, timeout: float) -> dict[str, Any] | None:
        """Return the next answer, or ``None`` as for a request."""
        self._channel.settimeout(timeout)
        while b"\n" not in self._buffer:
            try:
                found = self._channel.recv(1 << 16)
            except OSError:
                return None
            if not found:
                return None
            self._buffer += found
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ended(self, timeout: float = 0.0) -> bool:
        """Return true if the process has ended, waiting up to *timeout* seconds."""
        return bool(select.select([self._pidfd], [], [], timeout)[0])

    def kill(self) -> None:
        """End it as ``kill -9`` does, and wait for that."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        assert self.ended(20.0), f"process {self.pid} does not die"

    def close(self) -> None:
        """Release its resources."""
        self._channel.close()
        os.close(self._pidfd)


class Nursery:
    """Forks children on demand. Ends with the process that made it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "storm.nursery"],
            stdin=theirs,
            env={**os.environ, "PYTHONPATH": python_path()},
        )
        theirs.close()

    def bear(self, **request: Any) -> Child:
        """Fork a child that carries out *request*."""
        ours, theirs = socket.socketpair()
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [theirs.fileno()])
            pid = int.from_bytes(self._channel.recv(4), "little")
        theirs.close()
        return Child(pid, ours)

    def close(self) -> None:
        """End the nursery. Its children end by themselves or by their drivers."""
        self._channel.close()
        self._process.wait()


_making = threading.Lock()


def nursery() -> Nursery:
    """Return the nursery of this process, whichever thread asks first."""
    with _making:  # a cache alone would let two threads make one each
        return _only()


@cache
def _only() -> Nursery:
    return Nursery()


def main() -> None:
    """Fork a child for every request that comes on standard input."""
    from storm.life import live  # noqa: PLC0415 - the driver does without

    channel = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Otherwise each child's collector would write to, and so copy, every page of the imports.
    gc.freeze()
    while True:
        said, descriptors, _, _ = socket.recv_fds(channel, 1 << 16, 1)
        if not said:
            return
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.close()
            child = socket.socket(fileno=descriptors[0])
            child.recv(1)
            live(json.loads(said), child)
            os._exit(0)
        os.close(descriptors[0])
        channel.sendall(pid.to_bytes(4, "little"))


if __name__ == "__main__":
    main()
