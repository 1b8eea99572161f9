"""The engine's side of the conversation with workers: connection, requests and answers."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final, Self

from transporter.protocol.messages import (
    Announcement,
    Need,
    Output,
    PartialOutcome,
    Proceed,
    Retry,
    Slice,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from transporter.engine.workers.frame_server import FrameServer
    from transporter.engine.workers.shard_group import ShardGroup
    from transporter.protocol.channel import EngineChannel
    from transporter.protocol.messages import Outcome

IDLE: Final = 0.5
"""Seconds an idle route waits before it looks whether it should stop."""


class WorkerConnection:
    """A route's connection to its worker. Belongs to the route's thread.

    A worker that does not see the log receives its entries from *frame_server* in between, and
    nothing else differs. Every end of the connection is an ``EOFError`` or a
    ``ConnectionError``.
    """

    shard = 0
    """Of a route with one worker."""

    def __init__(self, connection: EngineChannel, frame_server: FrameServer | None = None) -> None:
        """Talk over *connection*."""
        self._connection, self._frame_server = connection, frame_server
        self._received: list[Any] = []
        self._end: BaseException | None = None
        self.last_sent_at = time.monotonic()
        """Time of the last message to the worker, which permits its current action."""

    @property
    def connection(self) -> EngineChannel:
        """The descriptor to wait on for a message."""
        return self._connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up: the worker ends as soon as it looks."""
        self._connection.close()
        if self._frame_server is not None:
            self._frame_server.close()

    @property
    def closed_by_worker(self) -> bool:
        """Whether the worker's own system has closed the connection, as far as we can see.

        A connection that was reset or has fallen silent may have broken in between.
        """
        return isinstance(self._end, EOFError)

    def send(self, message: object) -> None:
        """Send *message*."""
        if self._frame_server is not None and isinstance(message, Slice | Retry):
            self._frame_server.begin(message)
            if isinstance(message, Slice):
                # A remote worker delivers by leave that is fresher than the slice: it asks.
                message = message._replace(frames=())
        self._send(message)

    def poll(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds; return whether :meth:`recv` returns at once."""
        if not self._received and self._end is None and self._connection.poll(timeout):
            self._receive()
        return bool(self._received) or self._end is not None

    def recv(self) -> Any:  # noqa: ANN401 - any message
        """Return the worker's next message, however long that takes.

        Raises:
            EOFError: the worker has closed the connection.
            ConnectionError: the connection broke.

        """
        while not self._received:
            if self._end is not None:
                raise self._end
            self._receive()
        return self._received.pop()

    def _receive(self) -> None:
        try:
            message = self._connection.recv()
            if not isinstance(message, Need):
                self._received.append(message)
            elif self._frame_server is not None:
                frames, payloads = self._frame_server.next_frames()
                self._send(frames, payloads)
        except EOFError as error:
            self._end = error
        except OSError as error:
            self._end = _to_connection_error(error)

    def _send(self, message: object, payloads: Iterable[bytes] = ()) -> None:
        try:
            self._connection.send(message)
            for payload in payloads:
                self._connection.send_raw(payload)
        except OSError as error:
            self._end = _to_connection_error(error)
            raise self._end from error
        finally:
            self.last_sent_at = time.monotonic()


def _to_connection_error(error: OSError) -> ConnectionError:
    """Return a system error of a connection as the type that callers expect."""
    return error if isinstance(error, ConnectionError) else ConnectionError(str(error))


class WorkerSession:
    """The route's side. Belongs to the route's thread.

    ``announced`` is the entry that the worker has announced and is delivering alone.
    """

    def __init__(
        self, stopping: threading.Event, on_wait: Callable[[], None] = lambda: None
    ) -> None:
        """Listen until *stopping* is set. *on_wait* is called while it waits, each moment."""
        self._stopping, self._on_wait = stopping, on_wait
        self.announced: int | None = None

    def request(
        self,
        worker: WorkerConnection | ShardGroup,
        message: Slice | Retry,
        settle: Callable[[Outcome], None] | None = None,
    ) -> object:
        """Send *message*, and return the result of :meth:`receive_answer`."""
        self.announced = None
        worker.send(message)
        return self.receive_answer(worker, settle)

    def receive_answer(
        self, worker: WorkerConnection | ShardGroup, settle: Callable[[Outcome], None] | None = None
    ) -> object:
        """Return the worker's next answer, or ``None`` if the route must stop without it.

        *settle* is called with each partial outcome that comes before the answer. Raises
        ``EOFError`` if the worker is gone, after all that it has sent.
        """
        self.announced = None
        while True:
            while not worker.poll(IDLE):
                self._on_wait()
                if self._stopping.is_set():
                    return None
            match worker.recv():
                case Output(text):
                    sys.stdout.write(text)
                    sys.stdout.flush()
                case Announcement(offset):
                    self.announced = offset
                    worker.send(Proceed())
                case PartialOutcome(outcome):
                    if settle is not None:
                        settle(outcome)
                case answer:
                    return answer
