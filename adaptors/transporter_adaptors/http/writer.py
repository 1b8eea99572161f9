"""Writer of entries to an HTTP receiver, one batch a request."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urljoin

from transporter.adaptor import Finding
from transporter.errors import Rejected, RouteFault, SinkError, SinkTimeout, SinkUnavailable
from transporter_adaptors.http.answers import (
    REDIRECTS,
    UNAUTHORIZED,
    is_ack,
    is_gone,
    retry_after,
    sink_error,
)
from transporter_adaptors.http.bodies import Requests
from transporter_adaptors.http.client import Client
from transporter_adaptors.http.config import (
    HttpWriterConfig,
    longest_first,
    plain_value,
    secrets_of,
)
from transporter_adaptors.http.targets import target_of
from transporter_adaptors.http.tls import Tls
from transporter_adaptors.http.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from transporter.adaptor import Ack, AdaptorConfig, Entries, StoredOffset, WriterContext
    from transporter_adaptors.http.answers import Answer
    from transporter_adaptors.http.bodies import Request

_MOST_REDIRECTS: Final = 3
_PROBE_SECONDS: Final = 5.0
_MOST_REST: Final = 5.0
"""Longest Retry-After that is slept through within a slice, while a pause must wait for it."""


class HttpWriter:
    """Writer that delivers entries in order, and sends each request after the last one's 2xx.

    Delivery is at least once: a request whose answer did not come, or not to
    its end, is sent again with the same ids. Not thread-safe.

    Not promised: that an abandoned request can no longer arrive. It
    may, even behind later ones, with entries that were acked since.
    """

    Config: ClassVar[type[AdaptorConfig]] = HttpWriterConfig

    def __init__(self, config: HttpWriterConfig) -> None:
        """Keep *config*. The connection is made by the first request."""
        self._config = config
        self._target = config.target
        self._secrets = secrets_of(config)
        self._clients: list[Client] = []
        self._tokens: Tokens | None = None
        self._requests: Requests
        self._seconds = self._timeout = 0.0
        self._not_before = 0.0

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Prepare to connect. Only entries are ever sent, so nothing is sent here.

        Raises:
            RouteFault: A file of certificates or the key cannot be used.
        """
        self._requests, self._seconds = Requests(self._config, context.route), context.deadline
        # Requests begin in the first half of the time. The second half is for the last one's end.
        self._timeout = min(self._config.timeout, context.deadline / 2)
        # Invariant 20: urllib3's warning of a malformed answer holds the whole URL.
        logging.getLogger("urllib3.connection").setLevel(logging.ERROR)
        self._clients = self._make_clients()
        if (oauth2 := self._config.oauth2) is not None:
            self._tokens = Tokens(oauth2, self._clients[-1], self._obey_retry_after, self._secrets)
        return None

    def probe(self) -> Iterable[Finding]:
        """Connect to the receiver, and to the token endpoint, and send nothing."""
        for client in self._make_clients():
            client.check_connection(_PROBE_SECONDS)
            yield Finding(f"{client.place} accepts connections; nothing was sent")

    def _make_clients(self) -> list[Client]:
        """Return the clients of the receiver and of the token endpoint, if there is one."""
        tls, oauth2 = Tls(self._config), self._config.oauth2
        if self._config.wants_tls:
            tls.context()
        made = [Client(self._target, tls, self._config.parsed_proxy, "HTTP receiver")]
        if oauth2 is not None:
            made.append(Client(oauth2.target, tls, self._config.parsed_proxy, "token endpoint"))
        return made

    def write(self, batch: Entries, ack: Ack) -> None:
        """Send *batch*, request by request, until one fails or no whole one fits the deadline."""
        offsets, done = batch.offsets, 0
        end = time.monotonic() + self._seconds
        try:
            for request in self._requests.split(batch):
                self._await_retry_time(end)
                self._deliver(request)
                ack(offsets[done : batch.whole(done + request.rows)])
                done += request.rows
        except SinkError as error:
            ack.fail(error, error.offset if isinstance(error, Rejected) else None)

    def close(self) -> None:
        """Close the connections. Safe to call twice."""
        clients, self._clients = self._clients, []
        for client in clients:
            client.close()

    def _await_retry_time(self, end: float) -> None:
        """Wait for the end of a Retry-After, if that is short and leaves enough time."""
        now = time.monotonic()
        rest = max(0.0, self._not_before - now)
        if rest > _MOST_REST or (rest and now + rest + self._timeout > end):
            raise SinkUnavailable(
                f"{self._place} asked for a pause of {math.ceil(rest * 10) / 10:g} s more",
                rest,
            )
        if rest:
            time.sleep(rest)
        if now + rest + self._timeout > end:
            raise SinkTimeout(
                f"{self._place}: the slice was not accepted in full within {self._seconds:g} s: "
                "use smaller slices or larger requests"
            )

    def _deliver(self, request: Request) -> None:
        answer = self._send(request)
        alone = request.offset is not None
        if is_ack(answer) or (alone and request.address.method == "DELETE" and is_gone(answer)):
            return
        secrets = self._secrets
        if self._tokens is not None:
            token = self._tokens.token
            secrets = longest_first({*secrets, token, *token.split(".")})
        error = sink_error(answer, self._place, request.offset, secrets)
        if error.retriable:
            wait = self._obey_retry_after(answer)
            if isinstance(error, SinkUnavailable):
                error = SinkUnavailable(str(error), wait)
        raise error

    def _obey_retry_after(self, answer: Answer) -> float:
        """Obey the Retry-After of *answer*, and return its seconds."""
        wait = min(retry_after(answer.headers), self._config.retry_after_max)
        self._not_before = time.monotonic() + wait
        return wait

    def _send(self, request: Request) -> Answer:
        """Send *request* and return the answer. A token that is refused is replaced once."""
        end = time.monotonic() + self._timeout
        answer = self._follow_redirects(request, end)
        if answer.status == UNAUTHORIZED and self._tokens is not None:
            self._tokens.invalidate()
            answer = self._follow_redirects(request, end)
        return answer

    def _follow_redirects(self, request: Request, end: float) -> Answer:
        """Send *request*, after redirects that lead to the same origin, and return the answer."""
        method, path = request.address
        headers = {"User-Agent": "transporter", **self._headers(end), **request.headers}
        for _ in range(_MOST_REDIRECTS + 1):
            answer = self._clients[0].send(method, path, request.body, headers, _seconds_left(end))
            if answer.status not in REDIRECTS:
                return answer
            path = self._redirect_path(path, answer.headers)
        raise RouteFault(f"{self._place} redirected more than {_MOST_REDIRECTS} times: check url")

    def _redirect_path(self, path: str, headers: Mapping[str, str]) -> str:
        """Return the path of the new place, which is never shown, because it may hold a secret."""
        here = self._target
        base = f"{here.scheme}://{here.place}{path}"
        try:
            there = target_of(urljoin(base, headers.get("Location", "")).partition("#")[0])
        except ValueError as error:
            raise RouteFault(
                f"{self._place} redirected to an address that {error}: check url"
            ) from None
        if there.origin != here.origin:
            raise RouteFault(
                f"{self._place} redirected to {there.scheme}://{there.place}, but entries "
                f"and headers are sent only to {here.scheme}://{here.place}: check url"
            )
        return there.path

    def _headers(self, end: float) -> dict[str, str]:
        headers = {name: plain_value(value) for name, value in self._config.headers.items()}
        if self._tokens is not None:
            headers["Authorization"] = self._tokens.header(_seconds_left(end))
        return headers

    @property
    def _place(self) -> str:
        return self._clients[0].place


def _seconds_left(end: float) -> float:
    """Return the seconds until the monotonic time *end*."""
    return max(0.0, end - time.monotonic())
