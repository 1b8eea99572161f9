"""Access tokens by OAuth 2.0 client credentials, from an endpoint on the loopback address."""

from __future__ import annotations

import base64
import json
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from http_tools import (
    LOCALHOST,
    OK,
    Proxy,
    Receiver,
    Reply,
    failure,
    localhost_tls,
    numbered,
    write,
)

from transporter.errors import RouteFault, SinkTimeout, SinkUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from http_tools import Open, Request

SECRET = "s3cr3t+of/ada"  # noqa: S105 - of a client that there is not
PARTS = ("s3cr3t", "jwt-head", "jwt-body", base64.b64encode(b"ada:s3cr3t").decode()[:10])
"""Texts that no error contains, in any encoding."""


def token(number: int) -> str:
    """Return a token of three parts, as most are."""
    return f"jwt-head.jwt-body-{number}.jwt-sign"


def given(number: int, **fields: Any) -> Reply:
    """Return the answer that contains a token."""
    answer = {"access_token": token(number), "token_type": "Bearer", **fields}
    return Reply(body=json.dumps(answer).encode())


@pytest.fixture
def endpoint() -> Iterator[Receiver]:
    """Yield an endpoint that issues another token each time, valid for an hour."""
    with Receiver() as endpoint:
        endpoint.script(*(given(number, expires_in=3600) for number in range(1, 10)))
        yield endpoint


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield a receiver of entries."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the clock that decides the age of tokens."""
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("transporter_adaptors.http.tokens.time", clock)
    return clock


def oauth2(endpoint: Receiver, **changed: Any) -> dict[str, Any]:
    """Return settings of a client that *endpoint* accepts."""
    known = {"token_url": endpoint.url, "client_id": "ada", "client_secret": SECRET}
    return {**known, **changed}


def sent(receiver: Receiver) -> list[str]:
    """Return the number of the token of each request."""
    return [
        each.headers["authorization"].split("-")[-2].split(".")[0] for each in receiver.requests
    ]


def form(request: Request) -> dict[str, str]:
    """Return the fields of a form."""
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    return {name: value for name, (value,) in parse_qs(request.body.decode()).items()}


def test_a_token_is_fetched_once_and_sent_with_each_request(
    make_writer: Open, receiver: Receiver, endpoint: Receiver
) -> None:
    """The token request follows RFC 6749, and the token is kept over slices."""
    wanted = oauth2(endpoint, scope="write all", parameters={"audience": "shop"})
    writer = make_writer(receiver.url, oauth2=wanted, batch_rows=1)
    assert write(writer, numbered(3)).complete
    assert write(writer, numbered(2, 4)).complete
    assert {each.headers["authorization"] for each in receiver.requests} == {f"Bearer {token(1)}"}
    (asked,) = endpoint.requests
    assert asked.method == "POST"
    assert form(asked) == {
        "grant_type": "client_credentials",
        "scope": "write all",
        "audience": "shop",
    }
    credentials = base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")).decode()
    assert credentials == "ada:s3cr3t%2Bof%2Fada"


def test_credentials_go_into_the_body_where_that_is_wanted(
    make_writer: Open, receiver: Receiver, endpoint: Receiver
) -> None:
    """With client_auth post the credentials are in the body, and not in a header."""
    writer = make_writer(receiver.url, oauth2=oauth2(endpoint, client_auth="post"))
    assert write(writer, numbered(1)).complete
    (asked,) = endpoint.requests
    assert form(asked) == {
        "grant_type": "client_credentials",
        "client_id": "ada",
        "client_secret": SECRET,
    }
    assert "authorization" not in asked.headers


@pytest.mark.parametrize(
    ("expires_in", "after", "fetched"),
    [
        (3600, 3569, 1),
        (3600, 3571, 2),
        (100, 89, 1),
        (100, 91, 2),
        ("100", 91, 2),
        (0, 0, 2),
        (-5, 0, 2),
        (None, 10**9, 1),
        ("soon", 10**9, 1),
        (float("nan"), 10**9, 1),
    ],
)
def test_a_token_is_replaced_shortly_before_it_expires(
    make_writer: Open,
    receiver: Receiver,
    endpoint: Receiver,
    clock: SimpleNamespace,
    expires_in: object,
    after: int,
    fetched: int,
) -> None:
    """A token is replaced 30 s, or a tenth of its time, before it expires, if it expires."""
    endpoint.script(given(1, expires_in=expires_in), given(2))
    writer = make_writer(receiver.url, oauth2=oauth2(endpoint))
    assert write(writer, numbered(1)).complete
    clock.now += after
    assert write(writer, numbered(1, 2)).complete
    assert sent(receiver) == ["1", str(fetched)]
    assert len(endpoint.requests) == fetched


def test_a_token_that_is_refused_is_replaced_once(
    make_writer: Open, receiver: Receiver, endpoint: Receiver
) -> None:
    """A 401 costs no failure, and a second refusal is the route's fault."""
    receiver.script(OK, Reply(401), OK, Reply(401), Reply(401, body=token(3).encode()))
    writer = make_writer(receiver.url, oauth2=oauth2(endpoint), batch_rows=1)
    assert write(writer, numbered(2)).complete
    assert sent(receiver) == ["1", "1", "2"]
    ack = write(writer, numbered(2, 3))
    assert (ack.prefix, type(failure(ack))) == ([], RouteFault)
    assert 'answered 401 Unauthorized "***"' in str(failure(ack))
    assert sent(receiver)[3:] == ["2", "3"]
    assert write(writer, numbered(1, 3)).complete  # An operator has looked at it.


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (Reply(401, body=b'{"error":"invalid_client"}'), RouteFault, "invalid_client"),
        (
            Reply(400, body=b"unknown " + SECRET.encode()),
            RouteFault,
            "check the settings of oauth2",
        ),
        (Reply(404), RouteFault, "answered 404 Not Found"),
        (Reply(307, (("Location", "/s3cr3t"),)), RouteFault, "answered 307"),
        (Reply(500), SinkUnavailable, "answered 500"),
        (Reply(408), SinkTimeout, "answered 408"),
        (Reply(after=5), SinkUnavailable, ""),
        (Reply(hold=True), SinkTimeout, "no answer within"),
        (Reply(body=b"<html>s3cr3t"), RouteFault, "without a token"),
        (Reply(body=b"[" * 60_000), RouteFault, "without a token"),
        (Reply(body=b'["access_token"]'), RouteFault, "without a token"),
        (Reply(body=b'{"access_token":""}'), RouteFault, "without a token"),
        (Reply(body=b'{"access_token":"a\\r\\nX: y"}'), RouteFault, "without a token"),
        (given(1, token_type="mac"), RouteFault, "not a bearer token"),
    ],
)
def test_without_a_token_nothing_is_sent(
    make_writer: Open,
    receiver: Receiver,
    endpoint: Receiver,
    caplog: pytest.LogCaptureFixture,
    reply: Reply,
    kind: type[Exception],
    words: str,
) -> None:
    """A refusal by the endpoint is the route's fault, and a temporary failure is retried."""
    endpoint.script(reply)
    timeout = 0.5 if reply.hold else 30  # A busy machine may take long for an answer that comes.
    with caplog.at_level(logging.DEBUG):
        writer = make_writer(receiver.url, oauth2=oauth2(endpoint), timeout=timeout)
        error = failure(write(writer, numbered(1)))
    assert type(error) is kind
    assert f"token endpoint 127.0.0.1:{endpoint.port}" in str(error)
    assert words in str(error)
    assert not [part for part in PARTS if part in str(error) + caplog.text]
    assert receiver.requests == []


def test_no_refusal_repeats_a_secret(
    make_writer: Open, receiver: Receiver, endpoint: Receiver
) -> None:
    """No error shows the secret or a token that the endpoint or the receiver repeats."""
    echo = f"{SECRET} ada:{SECRET} s3cr3t%2Bof%2Fada {token(1)} jwt-body-1 {{}}"
    endpoint.script(given(1))
    receiver.decide = lambda request: Reply(
        400, body=echo.format(request.headers["authorization"]).encode()
    )
    writer = make_writer(receiver.url, oauth2=oauth2(endpoint))
    error = failure(write(writer, numbered(1)))
    assert not [part for part in PARTS if part in str(error)]
    endpoint.decide = lambda request: Reply(
        400, body=echo.format(request.headers["authorization"]).encode()
    )
    error = failure(write(make_writer(receiver.url, oauth2=oauth2(endpoint)), numbered(1)))
    assert "s3cr3t" not in str(error)
    assert PARTS[-1] not in str(error)


def test_an_endpoint_that_asks_to_be_left_alone_is(
    make_writer: Open, receiver: Receiver, endpoint: Receiver
) -> None:
    """The endpoint's Retry-After is obeyed like the receiver's."""
    endpoint.script(Reply(429, (("Retry-After", "120"),)))
    writer = make_writer(receiver.url, oauth2=oauth2(endpoint))
    assert "answered 429" in str(failure(write(writer, numbered(1))))
    assert "asked for a pause of" in str(failure(write(writer, numbered(1))))
    assert (len(endpoint.requests), receiver.requests) == (1, [])


def test_the_endpoint_is_reached_by_tls_and_by_the_proxy(make_writer: Open) -> None:
    """The endpoint is reached with the writer's certificates and proxy."""
    with (
        Receiver(tls=localhost_tls()) as endpoint,
        Receiver() as receiver,
        Proxy() as proxy,
    ):
        endpoint.script(given(1))
        url = f"https://localhost:{endpoint.port}/token"
        settings = {"ca_file": LOCALHOST, "proxy": proxy.url}
        writer = make_writer(receiver.url, oauth2=oauth2(endpoint, token_url=url), **settings)
        assert write(writer, numbered(1)).complete
    assert [each.method for each in proxy.heads] == ["CONNECT", "POST"]
    assert endpoint.requests[0].path == "/token"
