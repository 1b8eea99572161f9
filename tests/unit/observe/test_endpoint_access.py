"""Access to the endpoint: TLS, a bearer token, and addresses that need both."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from acceptance_tools import page
from engine_tools import Events, make_pipeline

from transporter.cli import app
from transporter.errors import EnvironmentFault
from transporter.observe.http_server import CLIENTS, Endpoint, HttpAnswer
from transporter.observe.metrics_and_health import Monitor
from transporter.pipeline.config import load
from transporter.pipeline.observe_config import ListenAddress, TlsConfig, Token
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.secret_files import Template

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent.parent / "adaptors" / "http"
TOKEN = "canary-0123456789abcdef=="  # noqa: S105 - nobody's
ANY = ListenAddress("127.0.0.1", 0)


@pytest.fixture
def tls(tmp_path: Path) -> TlsConfig:
    """Return the files of a certificate for localhost."""
    for name in ("cert", "key"):
        shutil.copy(HERE / f"localhost.{name}.pem", tmp_path / f"{name}.pem")
    return TlsConfig(cert=tmp_path / "cert.pem", key=tmp_path / "key.pem")


@contextmanager
def serving(tls: TlsConfig | None = None, token: Token | None = None) -> Iterator[Endpoint]:
    """Serve one page for the length of a ``with`` block."""
    found = Endpoint(ANY, tls, token)
    found.start({"/good": lambda _: HttpAnswer(200, "text/plain", b"fine")})
    try:
        yield found
    finally:
        found.stop()


def port(endpoint: Endpoint) -> int:
    """Return the endpoint's port."""
    return int(endpoint.url.rpartition(":")[2])


def trusting() -> ssl.SSLContext:
    """Return a TLS context that trusts only the test's certificate."""
    return ssl.create_default_context(cafile=str(HERE / "localhost.cert.pem"))


def asked(endpoint: Endpoint, **headers: str) -> tuple[int, str]:
    """Request the page over TLS, as localhost."""
    request = Request(f"https://localhost:{port(endpoint)}/good", headers=headers)
    try:
        with urlopen(request, timeout=10, context=trusting()) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def given(value: str = TOKEN) -> Token:
    """Return a token written in the pipeline file."""
    return Token(Template((value,)), value)


def test_with_a_certificate_it_speaks_tls_only(tls: TlsConfig) -> None:
    """A caller without TLS gets no answer, and one that trusts the certificate is answered."""
    with serving(tls) as endpoint:
        assert endpoint.url.startswith("https://127.0.0.1:")
        assert asked(endpoint) == (200, "fine")
        with socket.create_connection(("127.0.0.1", port(endpoint)), 10) as caller:
            caller.sendall(b"GET /good HTTP/1.0\r\n\r\n")
            assert b"fine" not in caller.recv(1000)


def test_who_never_shakes_hands_silences_nobody(tls: TlsConfig) -> None:
    """Callers that connect and send nothing do not delay the answer to another one."""
    with serving(tls) as endpoint:
        idle = [
            socket.create_connection(("127.0.0.1", port(endpoint)), 10) for _ in range(4 * CLIENTS)
        ]
        assert asked(endpoint) == (200, "fine")
        for each in idle:
            each.close()


def test_a_certificate_that_was_replaced_is_taken_up(tls: TlsConfig) -> None:
    """A replaced certificate counts from the next connection on, if it can be used."""
    with serving(tls) as endpoint:
        key = tls.key.read_bytes()
        tls.key.write_bytes(b"nothing")
        assert asked(endpoint)[0] == 200
        tls.key.write_bytes(key)
        before = endpoint._server._certificate
        assert before is not None
        context = before._context
        assert asked(endpoint)[0] == 200
        assert before._context is not context


@pytest.mark.parametrize("broken", ["cert", "key"])
def test_a_certificate_that_cannot_be_used_is_refused(tls: TlsConfig, broken: str) -> None:
    """A certificate that cannot be used is refused at the start, with its file."""
    getattr(tls, broken).write_bytes(b"nothing")
    with pytest.raises(EnvironmentFault, match=f"observe.tls: .*{broken}.pem"):
        Endpoint(ANY, tls)
    getattr(tls, broken).unlink()
    with pytest.raises(EnvironmentFault, match="No such file"):
        Endpoint(ANY, tls)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x"],
)
def test_without_the_token_nothing_is_answered(header: str) -> None:
    """Without the token every page is refused alike, present or not."""
    with serving(token=given()) as endpoint:
        for name in ("good", "other"):
            assert page(f"{endpoint.url}/{name}", Authorization=header) == (401, "unauthorized\n")
        assert page(f"{endpoint.url}/good", Authorization=f"Bearer {TOKEN}") == (200, "fine")
        assert page(f"{endpoint.url}/good", Authorization=f"bearer  {TOKEN} ")[0] == 200
        with socket.create_connection(("127.0.0.1", port(endpoint)), 10) as caller:
            caller.sendall(b"GET /good HTTP/1.0\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
            assert b"401" in caller.recv(1000)


def test_a_token_in_a_file_is_read_at_each_use(tmp_path: Path) -> None:
    """A new token in the file counts at once, and without a usable file all are refused."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with serving(token=Token(Template((file,)), TOKEN)) as endpoint:

        def answered(token: str) -> int:
            return page(f"{endpoint.url}/good", Authorization=f"Bearer {token}")[0]

        assert answered(TOKEN) == 200
        file.write_text("another-0123456789")
        assert (answered(TOKEN), answered("another-0123456789")) == (401, 200)
        for content in ("", "short"):
            file.write_text(content)
            assert (answered(TOKEN), answered(content)) == (401, 401)
        file.unlink()
        assert (answered(TOKEN), answered("")) == (401, 401)


OPEN = {"listen": "0.0.0.0:0"}
FILES = {"cert": "c.pem", "key": "k.pem"}


@pytest.mark.parametrize(
    ("observe", "problem"),
    [
        (OPEN, "needs tls and token"),
        ({"listen": "[::]:0"}, "needs tls and token"),
        ({"listen": "metrics.example:1"}, "needs tls and token"),
        (OPEN | {"token": TOKEN}, "needs tls and token"),
        (OPEN | {"tls": FILES}, "needs tls and token"),
        (OPEN | {"tls": FILES, "token": TOKEN, "insecure": True}, "changes nothing here"),
        ({"insecure": True}, "changes nothing here"),
        ({"listen": "off", "insecure": True}, "changes nothing here"),
        ({"token": "short"}, "must be 16 or more"),
        ({"token": "with a space in it, and long"}, "must be 16 or more"),
        ({"tls": {"cert": "c.pem"}}, "key"),
    ],
)
def test_what_is_not_safe_is_refused(
    tmp_path: Path, observe: dict[str, Any], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``check`` refuses an unsafe setting with its line and without the token."""
    path = written(tmp_path, observe)
    assert app.execute(["check", str(path)]) == 2
    said = capsys.readouterr().err
    assert "pipeline.yaml:1: " in said
    assert problem in said
    assert "canary" not in said
    assert "with a space" not in said


@pytest.mark.parametrize(
    "observe",
    [
        {},
        {"listen": "off"},
        {"listen": "localhost:0", "token": TOKEN},
        {"listen": "127.8.9.1:0"},
        {"listen": "[::1]:0", "tls": FILES},
        OPEN | {"tls": FILES, "token": TOKEN},
        OPEN | {"insecure": True},
        OPEN | {"insecure": True, "token": TOKEN},
    ],
)
def test_what_is_safe_or_wanted_is_taken(tmp_path: Path, observe: dict[str, Any]) -> None:
    """Loopback needs nothing, and other addresses need TLS and a token, or an explicit setting."""
    load(written(tmp_path, observe), {})


def written(folder: Path, observe: dict[str, Any]) -> Path:
    """Return a pipeline file with this ``observe``."""
    make_pipeline(folder, [], out={})
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"observe": observe}))
    return path


def test_a_pipeline_file_gives_both(tmp_path: Path, tls: TlsConfig) -> None:
    """Paths begin at the file, the token is a secret, and a new token changes no pipeline."""
    (tmp_path / "token").write_text(TOKEN)
    observe = {
        "listen": "127.0.0.1:0",
        "tls": {"cert": "cert.pem", "key": "key.pem"},
        "token": "${file:token}",
    }
    found = load(written(tmp_path, observe), {})
    assert found.secrets.hide(TOKEN) == "***"
    with Monitor(found, Events(), "1") as monitor:
        assert str(monitor.url).startswith("https://")
        assert monitor._endpoint is not None
        monitor._endpoint.start({"/good": lambda _: HttpAnswer(200, "text/plain", b"fine")})
        assert asked(monitor._endpoint)[0] == 401
        (tmp_path / "token").write_text("another-0123456789")
        bearer = {"Authorization": "Bearer another-0123456789"}
        assert asked(monitor._endpoint, **bearer) == (200, "fine")
    again = load(found.file, {})
    assert again.observe == found.observe
    (tmp_path / "token").unlink()
    with pytest.raises(InvalidPipeline, match="cannot be read"):
        load(found.file, {})
