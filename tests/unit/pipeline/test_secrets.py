"""The secrets of a pipeline file, and the forms in which they are found."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

import pytest

from transporter.pipeline.secrets import HIDDEN, Secrets, secrets_of
from transporter.pipeline.yaml_document import parse

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = 'c4n"ry&/+ä=?\\z~1'
PEM = """-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0B
AQEFAASCBKcwggSjAgEAAoIB
-----END PRIVATE KEY-----
"""
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "quoted for a URL": lambda text: quote(text, safe=""),
    "quoted for a path": quote,
    "quoted for a form": quote_plus,
    "JSON": json.dumps,
    "JSON with its own letters": lambda text: json.dumps(text, ensure_ascii=False),
    "Python": repr,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "basic authentication": lambda text: base64.b64encode(f"shop:{text}".encode()).decode(),
    "a name that a server folds": str.lower,
    "base64 behind two bytes": lambda text: base64.b64encode(f"ab{text}c".encode()).decode(),
    "base64 behind a byte": lambda text: base64.b64encode(f"a{text}bc".encode()).decode(),
}
NAMES = ["API_KEY", "PRIVATE_KEY", "SSL_KEY_PEM", "DB_PASSWORD", "CLIENT_SECRET", "OUTBOX_DSN"]
KEYS = [
    "api_key",
    "private_key",
    "ssl.key.pem",
    "sasl.password",
    "token",
    "apikey",
    "ssl_key_pem",
    "fs.azure.account.key.shop.dfs.core.windows.net",
    "fs.azure.sas.container.shop",
    "fs.s3a.access.key",
    "sasl.jaas.config",
]


def found(text: str, **environ: str) -> Secrets:
    """Return the secrets of the pipeline file *text*."""
    return secrets_of(parse(text, str(Path("p.yaml")), environ), None)


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_however_it_is_written(form: str) -> None:
    """Invariant 20: drivers quote, escape and encode their settings before they show them."""
    secrets = found("password: ${THE_ONE}", THE_ONE=CANARY)
    shown = secrets.hide(f"it was <{FORMS[form](CANARY)}>, they say")
    assert HIDDEN in shown
    # A letter or two at an end may depend on the neighbouring text.
    assert not [part for part in windows(FORMS[form](CANARY), 12) if part in shown]


def windows(text: str, size: int) -> list[str]:
    """Return every part of *text* of that *size*."""
    return [text[at : at + size] for at in range(len(text) - size + 1)]


@pytest.mark.parametrize("joined", ["", " ", "\n", "\\n"])
def test_a_key_of_many_lines_is_found_on_one(joined: str) -> None:
    """A key is found however its lines are joined. Its first and last line are not secrets."""
    shown = found("private_key: ${KEY}", KEY=PEM).hide(joined.join(PEM.split("\n")))
    assert "MIIEvQIBADANBgkqhkiG9w0B" not in shown
    assert "AQEFAASCBKcwggSjAgEAAoIB" not in shown


@pytest.mark.parametrize("name", NAMES)
def test_a_variable_with_a_telling_name_is_a_secret(name: str) -> None:
    """A variable with a typical name is a secret wherever it is used."""
    secrets = found(f"x: {{headers: {{X-Anything: 'is ${{{name}}}'}}}}", **{name: "s3cr"})
    assert secrets.hide("it is s3cr") == "it is ***"


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ["s3cr", "${PLAIN}"])
def test_what_stands_under_a_telling_key_is_a_secret(key: str, value: str) -> None:
    """A value of a secret key is a secret, in the file or from a variable of any name."""
    assert found(f"x: {{{key}: '{value}'}}", PLAIN="s3cr").hide("it is s3cr") == "it is ***"


def test_who_holds_a_token_of_the_console_is_no_secret() -> None:
    """Names and roles are in the audit, and are words of any text; the tokens are hidden."""
    secrets = found(
        "observe: {console_access: {tokens: "
        "[{name: deploy, token: s3cr, role: viewer}, {name: '${WHO}', token: '${T}'}]}}",
        WHO="order",
        T="other",
    )
    text = "the viewer may not deploy an order"
    assert secrets.hide(text) == text
    assert secrets.hide("s3cr other") == "*** ***"


@pytest.mark.parametrize("key", ["host", "topic", "bootstrap_servers", "path", "key"])
def test_what_tells_nothing_stays_readable(key: str) -> None:
    """Hosts and topics are not redacted in errors."""
    secrets = found(f"x: {{{key}: '${{PLACE}}'}}", PLACE="kafka-1:9092")
    assert secrets.hide("cannot reach kafka-1:9092") == "cannot reach kafka-1:9092"
