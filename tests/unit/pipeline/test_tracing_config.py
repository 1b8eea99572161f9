"""The key ``observe.tracing``: accepted values, refused values, and secrets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from transporter.pipeline.config import load
from transporter.pipeline.problems import InvalidPipeline

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.pipeline.config import Pipeline

URL = "http://127.0.0.1:4318/v1/traces"


def loaded(folder: Path, environ: dict[str, str] | None = None, **tracing: Any) -> Pipeline:
    """Load a pipeline whose entries are traced so."""
    file = folder / "p.yaml"
    document = {
        "observe": {"tracing": {"endpoint": URL, **tracing}},
        "readers": [{"name": "in", "adaptor": "file", "path": "in.jsonl"}],
        "routes": [{"name": "out", "writer": {"adaptor": "file", "path": "out.jsonl"}}],
    }
    file.write_text(json.dumps(document))
    return load(file, environ or {})


def test_the_defaults(tmp_path: Path) -> None:
    """One entry in a hundred is traced, to the endpoint in the file, and none without the key."""
    tracing = loaded(tmp_path).observe.tracing
    assert tracing is not None
    assert tracing.endpoint.get_secret_value() == URL
    assert (tracing.sample, tracing.service_name) == (0.01, "transporter")
    assert (tracing.headers, tracing.ca_file) == ({}, None)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"endpoint": "collector:4318"}, "must be the URL of a collector"),
        ({"endpoint": "grpc://collector:4317"}, "must be the URL of a collector"),
        ({"endpoint": "http://me:pass@collector/v1/traces"}, "may hold no user and password"),
        ({"endpoint": "http://c:99999/v1/traces"}, "must be the URL of a collector"),
        ({"endpoint": "http://c/v1/ traces"}, "must be the URL of a collector"),
        ({"sample": 1.5}, "sample"),
        ({"sample": -0.1}, "sample"),
        ({"headers": {"a b": "c"}}, "a name that no header may have"),
        ({"headers": {"a": "b\r\nc: d"}}, "printable ASCII"),
        ({"service_name": ""}, "service_name"),
        ({"endpoints": URL}, "unknown key 'endpoints'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, wrong: dict[str, Any], text: str) -> None:
    """The error names the key and its valid values."""
    with pytest.raises(InvalidPipeline) as error:
        loaded(tmp_path, **wrong)
    assert text in str(error.value)
    assert "observe.tracing" in str(error.value)
    assert "me:pass" not in str(error.value)


def test_every_header_is_a_secret(tmp_path: Path) -> None:
    """A header of any name is a secret, because each vendor has its own."""
    headers = {"x-honeycomb-team": "${TEAM}", "Authorization": "Bearer abcdefghij"}
    pipeline = loaded(tmp_path, {"TEAM": "t0p-s3cret"}, headers=headers)
    assert pipeline.secrets.hide("t0p-s3cret, Bearer abcdefghij") == "***, ***"
    tracing = pipeline.observe.tracing
    assert tracing is not None
    shown = f"{pipeline!r} {pipeline.model_dump()} {tracing.model_dump_json()}"
    assert "t0p-s3cret" not in shown
    assert "abcdefghij" not in shown
