"""Sends entries to an HTTP receiver, a batch a request."""

from __future__ import annotations

import logging
import math
import ssl
import time
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urljoin

from adaptors.http.answers import REDIRECTS, is_ack, retry_after, sink_error
from adaptors.http.bodies import requests_of
from adaptors.http.client import Client
from adaptors.http.config import HttpWriterConfig, plain, secrets_of, target_of
from transporter.errors import Rejected, RouteFault, SinkError, SinkTimeout, SinkUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adaptors.http.answers import Answer
    from adaptors.http.bodies import Request
    from transporter.adaptor import Ack, AdaptorConfig, Entries, StoredOffset, WriterContext

_MOST_REDIRECTS: Final = 3
_MOST_REST: Final = 5.0
"""Seconds of a Retry-After that are slept off within a slice; a pause waits for that, too."""


class HttpWriter:
    """Delivers entries in order, each request answered with 2xx before the next is sent.

    Delivery is at least once: a request whose answer did not come, or not to
    its end, is sent again with the same ids. Not thread-safe.

    Not promised: that a request that was given up does not arrive any more. It
    may, even behind later ones, with entries that were acked since.
    """

    Config: ClassVar[type[AdaptorConfig]] = HttpWriterConfig

    def __init__(self, config: HttpWriterConfig) -> None:
        """Keep *config*; the connection is made by the first request."""
        self._config = config
        self._target = config.target
        self._hidden = secrets_of(config)
        self._client: Client | None = None
        self._route = ""
        self._seconds = self._timeout = 0.0
        self._not_before = 0.0

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Prepare to connect; only entries are ever sent, so nothing is sent here.

        :raises RouteFault: when the ``ca_file`` cannot be used.
        """
        self._route, self._seconds = context.route, context.deadline
        # Half of the time is there to begin requests in, half for the last of them to end.
        self._timeout = min(self._config.timeout, context.deadline / 2)
        # Invariant 20: of a malformed answer urllib3 warns with the whole URL.
        logging.getLogger("urllib3.connection").setLevel(logging.ERROR)
        self._client = Client(self._target, self._tls())
        return None

    def write(self, batch: Entries, ack: Ack) -> None:
        """Send *batch*, request by request, until one fails or no whole one fits the deadline."""
        offsets, done = batch.offsets, 0
        end = time.monotonic() + self._seconds
        try:
            for request in requests_of(batch, self._config, self._route):
                self._rest(end)
                self._deliver(request)
                ack(offsets[done : batch.whole(done + request.rows)])
                done += request.rows
        except SinkError as error:
            ack.fail(error, error.offset if isinstance(error, Rejected) else None)

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _rest(self, end: float) -> None:
        """Wait while the receiver is to be left alone, if that is short and leaves enough time."""
        now = time.monotonic()
        rest = max(0.0, self._not_before - now)
        if rest > _MOST_REST or (rest and now + rest + self._timeout > end):
            raise SinkUnavailable(
                f"{self._place} asked to be left alone for {math.ceil(rest * 10) / 10:g} s more"
            )
        if rest:
            time.sleep(rest)
        if now + rest + self._timeout > end:
            raise SinkTimeout(
                f"{self._place}: not everything was taken within {self._seconds:g} s "
                "(smaller slices, or larger requests, would be)"
            )

    def _deliver(self, request: Request) -> None:
        answer = self._answer(request)
        if is_ack(answer):
            return
        error = sink_error(answer, self._place, request.offset, self._hidden)
        if error.retriable:
            wait = min(retry_after(answer.headers), self._config.retry_after_max)
            self._not_before = time.monotonic() + wait
        raise error

    def _answer(self, request: Request) -> Answer:
        """Send *request*, after redirects that lead to the same origin, and return the answer."""
        assert self._client is not None, "open() comes first"  # noqa: S101 - the contract
        end = time.monotonic() + self._timeout
        headers = {"User-Agent": "transporter", **self._headers(), **request.headers}
        path = self._target.path
        for _ in range(_MOST_REDIRECTS + 1):
            seconds = max(0.0, end - time.monotonic())
            answer = self._client.ask(self._config.method, path, request.body, headers, seconds)
            if answer.status not in REDIRECTS:
                return answer
            path = self._redirected(path, answer.headers)
        raise RouteFault(f"{self._place} redirected more than {_MOST_REDIRECTS} times: check url")

    def _redirected(self, path: str, headers: Mapping[str, str]) -> str:
        """Return the path of the new place; it is never told: it may hold a secret."""
        here = self._target
        base = f"{here.scheme}://{here.place}{path}"
        try:
            there = target_of(urljoin(base, headers.get("Location", "")).partition("#")[0])
        except ValueError as error:
            raise RouteFault(f"{self._place} redirected to what {error}: check url") from None
        if there.origin != here.origin:
            raise RouteFault(
                f"{self._place} redirected to {there.scheme}://{there.place}, and entries and "
                f"headers are sent nowhere but to {here.scheme}://{here.place}: check url"
            )
        return there.path

    def _tls(self) -> ssl.SSLContext | None:
        if self._target.scheme == "http":
            return None
        try:
            return ssl.create_default_context(cafile=self._config.ca_file)
        except OSError as error:
            raise RouteFault(
                f"{self._config.ca_file}: {error.strerror or error}: ca_file must be a readable "
                "file of PEM certificates"
            ) from error

    def _headers(self) -> dict[str, str]:
        return {name: plain(value) for name, value in self._config.headers.items()}

    @property
    def _place(self) -> str:
        return f"HTTP receiver {self._target.place}"
