"""Canaries in every setting of every installed adaptor, which no error, output or text shows."""

from __future__ import annotations

import traceback
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin

import pytest
from canary_tools import CANARIES, INSTALLED, SASL, TLS, clean, encodings, lines, required, written
from pydantic import BaseModel

from transporter.cli import app
from transporter.errors import ConfigError
from transporter.pipeline.adaptor_registry import READER, find_adaptor
from transporter.pipeline.config import load
from transporter.pipeline.validation_errors import is_secret

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.pipeline.config import Pipeline, WriterConfig

KeyPath = tuple[str | int, ...]

BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    (READER, "kafka"): {"topics": ["x"]},
    (READER, "postgres-cdc"): {"tables": ["x"]},
}
"""Settings that an adaptor needs besides."""
TOGETHER: dict[str, dict[str, Any]] = {
    "username": {**SASL, "password": "x"},
    "password": {**SASL, "username": "x"},
    "ssl_key_password": {"security_protocol": "ssl"},
    "key_password": TLS,
    "ca_file": TLS,
    "cert_file": TLS,
    "key_file": TLS,
    "pattern": {"topics": []},
    "progress_topic": {"transactional": True},
}
"""Settings that are of use only with others, and those."""
WRAPPED = {
    "dsn": "host=127.0.0.1 port=1 password='{}'",
    "proxy": "http://x:{}@127.0.0.1:1",
    "token_url": "http://127.0.0.1:1/{}",
    "url": "http://127.0.0.1:1/{}",
}
"""The text around a secret, for settings that do not take any text."""
KEYS = ("some.password", "X-Api-Key", "plain")
"""Names of the values of settings that are mappings."""


def models(annotation: object) -> list[type[BaseModel]]:
    """Return the models that a setting may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in models(part)]


def holds(annotation: object, *kinds: type) -> bool:
    """Return whether a setting may hold one of *kinds*."""
    if get_origin(annotation) in kinds:
        return True
    return any(holds(part, *kinds) for part in get_args(annotation))


def places(model: type[BaseModel], base: dict[str, Any]) -> Iterator[tuple[KeyPath, Any, bool]]:
    """Yield the path of each setting, nested ones too, the settings around it, and its secrecy."""
    for name, info in model.model_fields.items():
        around = base | TOGETHER.get(name, {})
        for nested in models(info.annotation):
            several = holds(info.annotation, tuple, list)
            for path, inner, secret in places(nested, required(nested)):
                value = [inner] if several else inner
                yield ((name, *((0,) if several else ()), *path), around | {name: value}, secret)
        if mapping := holds(info.annotation, dict):
            for key in KEYS:
                yield (name, key), around | {name: {key: "x"}}, False
        elif holds(info.annotation, tuple, list) and not models(info.annotation):
            yield (name, 0), around | {name: ["x"]}, False
        yield (name,), around, is_secret(info) and not mapping


def put(values: Any, path: KeyPath, value: str) -> Any:
    """Return a copy of nested *values* with *value* at *path*."""
    copy = list(values) if isinstance(values, list) else dict(values)
    copy[path[0]] = put(values[path[0]], path[1:], value) if path[1:] else value
    return copy


def look(form: str, pipeline: Pipeline, part: WriterConfig, where: object) -> None:
    """Fail if the redaction of *pipeline*, or of its adaptor, leaves a secret in a text."""
    secret = CANARIES[form]
    assert "***" not in repr(pipeline)
    clean(form, repr(pipeline), where)
    for hide in (pipeline.secrets.hide, part.secrets.hide):
        for each in (*encodings(secret), *lines(secret), "\n".join(lines(secret))):
            shown = hide(f"it was <{each}>, they say")
            assert "***" in shown, (where, shown)
            clean(form, shown, where)


def cases(form: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield a source of the canary, its text in a file, and the variables."""
    yield "file", "${file:secret}", {}
    if form == "plain":
        yield "variable", "${CANARY_TOKEN}", {"CANARY_TOKEN": CANARIES[form]}


ADAPTORS = cache(find_adaptor)


@pytest.fixture(autouse=True)
def adaptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for each adaptor once, because the search takes longer than the validation."""
    monkeypatch.setattr("transporter.pipeline.config.find_adaptor", ADAPTORS)


@pytest.mark.parametrize("form", CANARIES)
@pytest.mark.parametrize(("kind", "adaptor"), INSTALLED)
def test_no_setting_shows_a_secret_that_it_is_given(
    tmp_path: Path, kind: str, adaptor: str, form: str
) -> None:
    """Invariant 20: a setting of any name hides a secret of any form, refused or accepted."""
    (tmp_path / "secret").write_text(CANARIES[form])
    (tmp_path / "secret").chmod(0o600)
    config = ADAPTORS(kind, adaptor, tmp_path).Config
    base = required(config) | BESIDE.get((kind, adaptor), {})
    accepted = set()
    for path, around, secret in places(config, base):
        wraps = {"{}", WRAPPED.get(str(path[-1]), "{}")}
        for source, reference, environ in cases(form):
            for wrap in sorted(wraps):
                where = (kind, adaptor, path, source, wrap)
                settings = put(around, path, wrap.replace("{}", reference))
                file = written(tmp_path, kind, adaptor, settings)
                try:
                    found = load(file, environ)
                except ConfigError as error:
                    clean(form, "".join(traceback.format_exception(error)), where)
                    continue
                part = found.readers[0] if kind == READER else found.routes[0].writer
                look(form, found, part, where)
                accepted.add(path)
        assert form != "plain" or not secret or path in accepted, f"{path} is never accepted"


@pytest.mark.parametrize(
    ("adaptor", "settings"),
    [
        ("postgres-outbox", {"columns": {"topic": "${file:secret}", "key": "${file:secret}"}}),
        ("kafka", {"topics": ["${file:secret}", "${file:secret}"]}),
    ],
)
def test_settings_that_must_differ_show_no_secret(
    tmp_path: Path, adaptor: str, settings: dict[str, Any]
) -> None:
    """An error about two settings with the same value does not show it, in lower case either."""
    (tmp_path / "secret").write_text(CANARIES["plain"])
    (tmp_path / "secret").chmod(0o600)
    config = ADAPTORS(READER, adaptor, tmp_path).Config
    file = written(tmp_path, READER, adaptor, required(config) | settings)
    with pytest.raises(ConfigError, match=r"own|twice") as raised:
        load(file, {})
    clean("plain", str(raised.value), adaptor)


FORMS = ("to quote", "lines")


@pytest.mark.parametrize(
    ("kind", "adaptor", "form"),
    [
        # In turn: the loading of the file is tested above with every form.
        pytest.param(*installed, form, marks=() if number % 2 == place else pytest.mark.exhaustive)
        for number, installed in enumerate(INSTALLED)
        for place, form in enumerate(FORMS)
    ],
)
def test_check_prints_no_secret_of_any_setting(
    tmp_path: Path, kind: str, adaptor: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``check --json`` shows no secret, in any setting and with any problem."""
    (tmp_path / "secret").write_text(CANARIES[form])
    (tmp_path / "secret").chmod(0o600)
    config = ADAPTORS(kind, adaptor, tmp_path).Config
    base = required(config) | BESIDE.get((kind, adaptor), {})
    for path, around, _ in places(config, base):
        wrap = WRAPPED.get(str(path[-1]), "{}")
        settings = put(around, path, wrap.replace("{}", "${file:secret}"))
        file = written(tmp_path, kind, adaptor, settings)
        assert app.execute(["check", str(file), "--json"]) in (0, 2)
        clean(form, "".join(capsys.readouterr()), (kind, adaptor, path))
