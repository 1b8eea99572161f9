"""Tests of defaults in a settings class, which mean the same as in a pipeline file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, SecretStr

from transporter.adaptor import AdaptorConfig, Duration, LocalPath, Size
from transporter.errors import ConfigError
from transporter.pipeline.adaptor_description import settings_of
from transporter.units import FOLDER

PIPELINE = {FOLDER: Path("/pipelines")}


class Config(AdaptorConfig):
    """Settings with defaults written as in a file."""

    timeout: Duration = "5s"
    """How long to wait."""
    longest: Duration | None = "1m"
    pause: Duration = 2
    buffer: Annotated[Size, Field(ge=1)] = "64KiB"
    token: SecretStr = "hunter22"  # noqa: S105 - no real one
    path: LocalPath = "out.db"
    named: Size = Field("1KiB", alias="other-name")
    none: str = None
    wait: Duration = 0.25


class Longer(Config):
    """Settings that inherit all defaults but one."""

    timeout: Duration = "7d"


@pytest.mark.parametrize("context", [None, PIPELINE])
def test_a_text_becomes_what_it_stands_for(context: dict[str, Any] | None) -> None:
    """An instance has numbers, a secret and a path, in code and for a pipeline file."""
    found = Config.model_validate({}, context=context)
    assert (found.timeout, found.longest, found.pause, found.wait) == (5.0, 60.0, 2.0, 0.25)
    assert isinstance(found.pause, float)
    assert (found.buffer, found.named, found.none) == (65536, 1024, None)
    assert found.token.get_secret_value() == "hunter22"
    assert found.path == (Path("/pipelines") if context else Path.cwd()) / "out.db"


def test_a_subclass_has_its_own_and_the_inherited() -> None:
    """Inherited defaults stay valid beside new ones."""
    found = Longer.model_validate({}, context=PIPELINE)
    assert (found.timeout, found.longest, found.path) == (604800.0, 60.0, Path("/pipelines/out.db"))


def test_they_are_shown_as_a_file_writes_them() -> None:
    """The list of settings has each default in the largest whole unit, and its text."""
    shown = {each.name: (each.default, each.doc) for each in settings_of(Config)}
    assert shown["timeout"] == ("5s", "How long to wait.")
    assert [shown[name][0] for name in ("longest", "buffer", "other-name", "token", "path")] == [
        "1m",
        "64KiB",
        "1KiB",
        "(secret)",
        "out.db",
    ]


@pytest.mark.parametrize(
    ("kind", "default", "reason"),
    [
        (Duration, "hunter22", "is not a duration; write for example 200ms, 5s, 1m, 24h or 7d"),
        (Size, 1.5, "is not a size; write for example 512, 64KiB, 10MB or 1GiB"),
        (Annotated[Size, Field(ge=1)], "0", "should be greater than or equal to 1"),
        (int, "hunter22", "should be a valid integer, unable to parse string as an integer"),
    ],
)
def test_a_wrong_one_names_class_and_field(kind: Any, default: object, reason: str) -> None:
    """A wrong default fails its class, and the error names both but repeats no value."""
    with pytest.raises(ConfigError) as failed:
        type("Wrong", (AdaptorConfig,), {"__annotations__": {"wait": kind}, "wait": default})
    assert str(failed.value) == f"Wrong.wait: its default {reason}"


def test_a_class_that_is_completed_later_is_validated_then() -> None:
    """The defaults of an incomplete class are validated as soon as its types are known."""

    class Late(AdaptorConfig):
        wait: Duration = "often"
        other: Other | None = None

    class Other(AdaptorConfig):
        wait: Duration = "1s"

    assert Other().wait == 1.0
    with pytest.raises(ConfigError, match=r"Late\.wait: its default is not a duration"):
        Late.model_rebuild()
