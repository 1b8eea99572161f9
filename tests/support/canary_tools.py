"""Canaries: secrets of many forms, and a search for their traces in any output."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin
from urllib.parse import quote, quote_plus, urlencode

from transporter.pipeline.adaptor_registry import READER, WRITER, adaptor_entry_points

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import BaseModel

CANARIES = {
    "plain": "kanArie7Qx2Zw9Lp4VtGh",
    "to quote": "kanA rie/7Qx?2Zw&9'Lp=4V+tG%h~é@:#",
    "base64": "a2FuQXJp/ZTdReDJadz+lMcDRWdEdo/Xy==",
    "JSON": 'kanA"rie\\7Qx\t2Zw\'9Lp"ü4VtGh',
    "lines": "-----BEGIN KEY-----\nkanArie7Qx2Zw9\nLp4-VtGh-3Rk8\nMs6_Yb1/Nd5=\n-----END KEY-----",
}
LEAST = 8
"""Letters of a canary in a row that count as a trace of it."""

SAMPLES: dict[str, Any] = {
    "bootstrap_servers": "127.0.0.1:1",
    "dsn": "host=127.0.0.1 port=1",
    "path": "x.jsonl",
    "placement": "header",
    "token_url": "http://127.0.0.1:1/",
    "url": "http://127.0.0.1:1/",
}
"""Values of required settings. Any other setting is ``x``."""
SASL = {"security_protocol": "sasl_plaintext", "sasl_mechanism": "PLAIN"}
TLS = {"url": "https://127.0.0.1:1/", "cert_file": "c.pem", "key_file": "k.pem"}
INSTALLED = sorted(
    (kind, each.name) for kind in (READER, WRITER) for each in adaptor_entry_points(kind)
)


def required(model: type[BaseModel]) -> dict[str, Any]:
    """Return the fewest settings of *model*."""
    found: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        if get_origin(info.annotation) is Literal and info.is_required():
            found[name] = SAMPLES.get(name, get_args(info.annotation)[0])
        elif info.is_required():
            found[name] = SAMPLES.get(name, "x")
    return found


def written(folder: Path, kind: str, adaptor: str, settings: dict[str, Any]) -> Path:
    """Write a pipeline file with one adaptor of these *settings*."""
    own = {"adaptor": adaptor, **settings}
    reader = {"adaptor": "demo"} if kind == WRITER else own
    writer = {"adaptor": "file", "path": "out.jsonl"} if kind == READER else own
    document = {
        "readers": [{"name": "in", **reader}],
        "routes": [{"name": "out", "writer": writer}],
    }
    (folder / "p.yaml").write_text(json.dumps(document))
    return folder / "p.yaml"


def encodings(secret: str) -> Iterator[str]:
    """Yield *secret* as drivers, URLs, forms, JSON and HTTP may show it."""
    yield from (secret, repr(secret)[1:-1], repr(f'"{secret}')[2:-1])
    yield from (quote(secret), quote(secret, safe=""))
    yield from (quote_plus(secret), urlencode({"x": secret}), " ".join(secret.split()))
    yield from (json.dumps(secret), json.dumps(secret, ensure_ascii=False))
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            for behind in range(3):
                yield encode(b"." * before + secret.encode() + b"." * behind).decode()


def lines(secret: str) -> list[str]:
    """Return the lines of *secret* without the BEGIN and END lines."""
    return [each for each in secret.splitlines() if not each.startswith("-----")]


def windows(text: str) -> set[str]:
    """Return every part of *text* that is long enough for a trace of it."""
    text = text.lower()
    return {text[at : at + LEAST] for at in range(len(text) - LEAST + 1)}


TRACES = {
    name: set[str]().union(
        *map(
            windows,
            [*encodings(secret), *(form for one in lines(secret) for form in encodings(one))],
        )
    )
    - windows("-----BEGIN KEY----- -----END KEY-----")
    for name, secret in CANARIES.items()
}


def clean(form: str, text: str, where: object) -> None:
    """Fail if *text* holds a trace of the canary in any encoding."""
    found = windows(text) & TRACES[form]
    assert not found, (where, sorted(found)[:3], text[-1000:])
