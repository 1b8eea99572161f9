"""Descriptions of adaptors."""

from __future__ import annotations

from enum import Enum
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations at run time
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr

from transporter.pipeline.adaptor_description import Setting, installed_adaptors, settings_of
from transporter.units import Duration, LocalPath, Size


class Colour(Enum):
    """Some choice."""

    RED = "red"


class Tls(BaseModel):
    """Nested settings."""

    verify: bool = True


class Config(BaseModel):
    """Settings of every kind."""

    dsn: SecretStr
    topic: str = Field(default="{namespace}", description="Where\n  to.")
    wait: Duration = 0.25
    longest: Duration | None = None
    buffer: Annotated[Size, Field(ge=1)] = 65536
    path: LocalPath | None = None
    password: SecretStr = SecretStr("hunter22")
    hidden: str = Field(default="hunter22", repr=False)
    acks: Literal["all", "1"] = "all"
    tags: list[str] = []
    parts: list[int] = Field(default_factory=list)
    later: str = Field(default_factory=lambda known: str(known["topic"]))
    options: dict[str, str] = {}
    on: bool = False
    colour: Colour = Colour.RED
    tls: Tls | None = None
    either: str | int = ""
    anything: Any = None
    named: int = Field(default=1, alias="other-name")


@pytest.mark.parametrize(
    "expected",
    [
        Setting("dsn", "text (secret)", required=True, default=None, doc=""),
        Setting("topic", "text", required=False, default="{namespace}", doc="Where to."),
        Setting("wait", "duration", required=False, default="250ms", doc=""),
        Setting("longest", "duration", required=False, default="unset", doc=""),
        Setting("buffer", "size", required=False, default="64KiB", doc=""),
        Setting("path", "path", required=False, default="unset", doc=""),
        Setting("password", "text (secret)", required=False, default="(secret)", doc=""),
        Setting("hidden", "text", required=False, default="(secret)", doc=""),
        Setting("acks", "all or 1", required=False, default="all", doc=""),
        Setting("tags", "list of text", required=False, default="[]", doc=""),
        Setting("parts", "list of whole number", required=False, default="[]", doc=""),
        Setting("later", "text", required=False, default="(computed)", doc=""),
        Setting("options", "mapping", required=False, default="{}", doc=""),
        Setting("on", "true or false", required=False, default="false", doc=""),
        Setting("colour", "red", required=False, default="red", doc=""),
        Setting("tls", "mapping", required=False, default="unset", doc=""),
        Setting("either", "text or whole number", required=False, default='""', doc=""),
        Setting("anything", "anything", required=False, default="unset", doc=""),
        Setting("other-name", "whole number", required=False, default="1", doc=""),
    ],
    ids=lambda setting: setting.name,
)
def test_settings_are_told_as_a_file_writes_them(expected: Setting) -> None:
    """Each setting has its name, kind and default in the words of a pipeline file."""
    assert {each.name: each for each in settings_of(Config)}[expected.name] == expected


def test_settings_keep_their_order_and_secrets() -> None:
    """Settings come in the order of their declaration, and no secret among them."""
    settings = settings_of(Config)
    assert [each.name for each in settings][:3] == ["dsn", "topic", "wait"]
    assert "hunter22" not in repr(settings)


def test_installed_adaptors_are_listed_even_when_broken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One adaptor that cannot be imported is listed with its problem, and hides no other."""
    info = folder / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[transporter.readers]\nzz-good = described:Source\nzz-bad = described_not:Source\n"
    )
    (folder / "described.py").write_text(
        "from transporter.adaptor import AdaptorConfig\n"
        "class Source:\n"
        "    '''Reads.\n\n    More.\n    '''\n"
        "    class Config(AdaptorConfig):\n        count: int\n"
        "    def open(self, resume): ...\n    def poll(self, timeout): ...\n"
        "    def commit(self, position): ...\n    def close(self): ...\n"
    )
    monkeypatch.syspath_prepend(folder)
    found = {each.name: each for each in installed_adaptors()}
    good, bad = found["zz-good"], found["zz-bad"]
    assert (good.kind, good.doc, good.problem) == ("reader", "Reads.\n\nMore.", None)
    assert [each.name for each in good.settings] == ["count"]
    assert bad.problem == "there is no module 'described_not'"
    assert bad.settings == ()
