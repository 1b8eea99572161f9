"""Certificates and proxies on the way to the receiver."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from http_tools import LOCALHOST, Proxy, Receiver, failure, localhost_tls, numbered, write
from transporter_adaptors.http.targets import basic_credentials
from transporter_adaptors.http.writer import HttpWriter

from transporter.errors import RouteFault, SinkTimeout, SinkUnavailable

if TYPE_CHECKING:
    from http_tools import Open

CLIENT = Path(__file__).with_name("client.cert.pem")
"""Self-signed client certificate, valid until 2126, whose key has a password."""
SHOWN: dict[str, Any] = {
    "ca_file": LOCALHOST,
    "cert_file": CLIENT,
    "key_file": CLIENT.with_name("client.key.pem"),
    "key_password": "word-of-the-key",
}


def test_a_receiver_that_wants_a_certificate_gets_it(make_writer: Open) -> None:
    """Entries arrive with certificate, key and password, and not without them."""
    with Receiver(tls=localhost_tls(CLIENT)) as receiver:
        url = f"https://localhost:{receiver.port}/"
        assert write(make_writer(url, **SHOWN), numbered(3)).complete
        error = failure(write(make_writer(url, ca_file=LOCALHOST), numbered(1)))
    assert isinstance(error, SinkUnavailable)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cert_file", None),
        ("cert_file", "no certificate"),
        ("key_file", None),
        ("key_file", "no key"),
        ("key_file", LOCALHOST.with_name("localhost.key.pem").read_text()),
        ("key_password", "wr0ng-word"),
        ("key_password", None),
    ],
)
def test_a_certificate_that_cannot_be_used_is_the_routes_fault(
    make_writer: Open, tmp_path: Path, name: str, content: str | None
) -> None:
    """A missing or broken file, another key and a wrong password are reported at the open."""
    changed: Any = content
    if name != "key_password":
        changed = tmp_path / "x.pem"
        if content is not None:
            changed.write_text(content)
    with pytest.raises(RouteFault, match="cert_file and key_file must be readable") as fault:
        make_writer("https://localhost:1/", **{**SHOWN, name: changed})
    assert "wr0ng-word" not in str(fault.value)
    assert "word-of-the-key" not in str(fault.value)


def test_a_certificate_that_is_replaced_is_shown_from_then_on(
    make_writer: Open, tmp_path: Path
) -> None:
    """New connections use the replaced files, and the route waits until both are replaced."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(LOCALHOST, cert)
    shutil.copy(LOCALHOST.with_name("localhost.key.pem"), key)
    with Receiver(tls=localhost_tls(CLIENT)) as receiver:
        url = f"https://localhost:{receiver.port}/"
        settings = {**SHOWN, "cert_file": cert, "key_file": key, "key_password": "word-of-the-key"}
        writer = make_writer(url, **settings)
        assert isinstance(failure(write(writer, numbered(1))), SinkUnavailable)
        shutil.copy(CLIENT, cert)
        error = failure(write(writer, numbered(1)))
        assert isinstance(error, SinkUnavailable)
        assert "cert_file" in str(error)
        shutil.copy(SHOWN["key_file"], key)
        assert write(writer, numbered(1)).complete


def test_entries_go_through_a_tunnel(make_writer: Open) -> None:
    """An https receiver is reached by CONNECT, and its own certificate is verified."""
    with (
        Receiver(tls=localhost_tls(CLIENT)) as receiver,
        Proxy(basic_credentials("ada", "word/1")) as proxy,
    ):
        url, through = (
            f"https://localhost:{receiver.port}/in",
            proxy.url.replace("//", "//ada:word%2F1@"),
        )
        writer = make_writer(url, proxy=through, headers={"Authorization": "secret"}, **SHOWN)
        assert write(writer, numbered(1)).complete
        receiver.hang_up()
        receiver.await_closed()
        proxy.await_closed()
        assert write(writer, numbered(1, 2)).complete
        untrusted = make_writer(url, proxy=through)
        assert "certificate is not trusted" in str(failure(write(untrusted, numbered(1))))
    assert [each.path for each in receiver.requests] == ["/in", "/in"]
    assert {each.headers["host"] for each in receiver.requests} == {f"localhost:{receiver.port}"}
    assert all("proxy-authorization" not in each.headers for each in receiver.requests)
    assert [(each.method, each.path) for each in proxy.heads] == [
        ("CONNECT", f"localhost:{receiver.port}")
    ] * 3
    assert all("authorization" not in each.headers for each in proxy.heads)


def test_entries_are_passed_on_by_a_proxy(make_writer: Open) -> None:
    """A request to an http receiver has the whole URL and the proxy's credentials."""
    with Receiver() as receiver, Proxy(basic_credentials("ada", "word")) as proxy:
        writer = make_writer(receiver.url, proxy=proxy.url.replace("//", "//ada:word@"))
        assert write(writer, numbered(2)).complete
        assert write(writer, numbered(1, 3)).complete
    (head,) = proxy.heads
    assert (head.method, head.path) == ("POST", receiver.url)
    assert {each.headers["host"] for each in receiver.requests} == {f"127.0.0.1:{receiver.port}"}


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("status", "kind"), [(407, RouteFault), (403, RouteFault), (502, SinkUnavailable)]
)
def test_a_proxy_that_refuses_is_named(
    make_writer: Open, scheme: str, status: int, kind: type[Exception]
) -> None:
    """A refusal by the proxy is the route's fault, and an unreachable receiver is retried."""
    with Proxy(refuse=status) as proxy:
        through = proxy.url.replace("//", "//ada:word-of-ada@")
        error = failure(write(make_writer(f"{scheme}://localhost:1/", proxy=through), numbered(1)))
    assert type(error) is kind
    assert f"through the proxy 127.0.0.1:{proxy.port}" in str(error)
    assert str(status) in str(error)
    assert "word-of-ada" not in str(error)


def test_a_proxy_that_is_not_there_is_waited_for(make_writer: Open) -> None:
    """Nothing bypasses a proxy that is down."""
    with Receiver() as receiver:
        with Proxy() as proxy:
            through = proxy.url
        error = failure(write(make_writer(receiver.url, proxy=through), numbered(1)))
    assert isinstance(error, SinkUnavailable)
    assert "Connection refused" in str(error)
    assert receiver.connections == 0


def test_a_proxy_that_answers_for_ever_is_given_up(make_writer: Open) -> None:
    """A request ends in its time while the tunnel is made, and leaves nothing behind."""
    with Proxy(pause=0.2) as proxy:
        writer = make_writer("https://localhost:1/", proxy=proxy.url, timeout=0.5)
        begun = time.monotonic()
        for _ in range(2):
            error = failure(write(writer, numbered(1)))
            assert isinstance(error, SinkTimeout)
            assert "no answer within 0.5 s" in str(error)
        assert time.monotonic() - begun < 7  # Two whole answers take 7.6 s.


def test_a_tunnel_that_was_begun_too_late_is_cut(
    make_writer: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that timed out before it had a socket is cut as soon as it has one."""
    resolved, real = threading.Event(), socket.getaddrinfo

    def slow(*arguments: Any, **named: Any) -> Any:
        resolved.wait(20)
        return real(*arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with Proxy(pause=0.2) as proxy:  # A whole answer takes 3.8 s.
        writer = make_writer("https://localhost:1/", proxy=proxy.url, timeout=0.5)
        assert isinstance(failure(write(writer, numbered(1))), SinkTimeout)
        resolved.set()
        assert "the previous attempt still waits" in str(failure(write(writer, numbered(1))))
        assert "no answer within" in str(failure(write(writer, numbered(1))))


def test_a_probe_connects_and_sends_nothing() -> None:
    """The receiver and the token endpoint are named, and a failed connection is an error."""
    with Receiver(tls=localhost_tls()) as receiver, Receiver() as tokens:
        url = f"https://localhost:{receiver.port}/?key=secret"
        oauth2 = {
            "token_url": f"http://127.0.0.1:{tokens.port}/t",
            "client_id": "me",
            "client_secret": "word-of-me",
        }
        made = HttpWriter.Config.model_validate(
            {"url": url, "ca_file": LOCALHOST, "oauth2": oauth2}
        )
        found = [each.text for each in HttpWriter(made).probe()]
        untrusted = HttpWriter.Config.model_validate({"url": url})
        with pytest.raises(SinkUnavailable, match="not trusted"):
            list(HttpWriter(untrusted).probe())
    assert found == [
        f"HTTP receiver localhost:{receiver.port} accepts connections; nothing was sent",
        f"token endpoint 127.0.0.1:{tokens.port} accepts connections; nothing was sent",
    ]
    assert not receiver.requests
    assert not tokens.requests
    with pytest.raises(SinkUnavailable):
        list(HttpWriter(made).probe())
