"""Durations, sizes and paths as texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from transporter.units import (
    FOLDER,
    Duration,
    LocalPath,
    Size,
    display_size,
    format_duration,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)


class Settings(BaseModel):
    """A model with one setting of each kind."""

    wait: Duration = 1.0
    buffer: Size = 1
    path: LocalPath = Path("x")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250us", 0.00025),
        ("200ms", 0.2),
        ("5s", 5),
        ("1.5s", 1.5),
        ("1m", 60),
        ("24h", 86400),
        ("7d", 604800),
        ("0s", 0),
    ],
)
def test_duration_reads_each_unit(text: str, seconds: float) -> None:
    """A duration is its number times its unit, in seconds."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["5", "", "5 s", "-5s", "5S", "s", "1h30m", "٣s", 5, None, True])
def test_duration_refuses_the_rest(value: object) -> None:
    """A duration needs a number and one known unit, and the error does not repeat the value."""
    with pytest.raises(ValueError, match=r"^is not a duration"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("512", 512),
        (512, 512),
        ("512B", 512),
        ("10MB", 10_000_000),
        ("64KiB", 65536),
        ("64 MiB", 64 * 1024**2),
        ("1GiB", 1024**3),
        ("2TiB", 2 * 1024**4),
        (0, 0),
    ],
)
def test_size_reads_each_unit(text: object, count: int) -> None:
    """Decimal units count in thousands, binary ones in 1024s, none in bytes."""
    assert parse_size(text) == count


@pytest.mark.parametrize("value", ["", "1.5MiB", "-1", -1, "1mib", "MiB", 1.0, None, True])
def test_size_refuses_the_rest(value: object) -> None:
    """Anything but a whole number with a known unit is refused."""
    with pytest.raises(ValueError, match=r"^is not a size"):
        parse_size(value)


def test_size_refuses_what_no_file_can_hold() -> None:
    """A size beyond 63 bits is refused instead of overflowing later."""
    with pytest.raises(ValueError, match="too large"):
        parse_size("9999999999TiB")


@given(st.integers(0, 2**62))
def test_size_text_reads_back(count: int) -> None:
    """Writing a size and reading it again changes nothing."""
    assert parse_size(format_size(count)) == count


@given(st.integers(0, 10**9))
def test_duration_text_reads_back(milliseconds: int) -> None:
    """Writing a duration and reading it again changes nothing that matters."""
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(
        milliseconds / 1000
    )


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "200ms"), (5, "5s"), (86400, "1d"), (0, "0s")])
def test_duration_text_uses_the_largest_whole_unit(seconds: float, text: str) -> None:
    """A duration is written as a person would."""
    assert format_duration(seconds) == text


def test_a_bare_number_is_a_duration_in_code_only() -> None:
    """Code may give seconds, but a pipeline file must name the unit."""
    assert Settings(wait=0.25).wait == 0.25
    with pytest.raises(ValidationError, match="is not a duration"):
        Settings.model_validate({"wait": 5}, context={FOLDER: Path("/x")})


def test_paths_start_at_the_pipeline_file(tmp_path: Path) -> None:
    """A relative path belongs to the pipeline file's folder, an absolute one stays."""
    context = {FOLDER: tmp_path}
    assert Settings.model_validate({"path": "a/b"}, context=context).path == tmp_path / "a/b"
    assert Settings.model_validate({"path": "/etc"}, context=context).path == Path("/etc")
    assert Settings(path=Path("a")).path == Path("a").absolute()


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``~`` never becomes a folder of that name, and an unknown user is an error."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings(path=Path("~/data")).path == tmp_path / "data"
    with pytest.raises(ValidationError, match="needs a user that exists"):
        Settings(path=Path("~nobody-of-this-name/data"))


@pytest.mark.parametrize(
    ("text", "a_second"), [("500/s", 500), ("30/m", 0.5), ("9/h", 0.0025), ("0.5/s", 0.5)]
)
def test_rate_reads_each_unit(text: str, a_second: float) -> None:
    """A rate is a number a second, a minute or an hour."""
    assert parse_rate(text) == a_second


@pytest.mark.parametrize(
    "value", [5, True, "5", "5/d", "0/s", "0.0/h", "-1/s", "1e3/s", "5 /s", None]
)
def test_rate_refuses_the_rest(value: object) -> None:
    """A rate of zero is refused, because that is a pause."""
    with pytest.raises(ValueError, match="is not a rate"):
        parse_rate(value)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (187504, "183 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (1024**2 - 1, "1.0 MiB"),
        (3 * 1024**3, "3.0 GiB"),
        (5000 * 1024**4, "5,000 TiB"),
    ],
)
def test_a_size_for_people_is_short_and_has_a_unit(count: int, text: str) -> None:
    """Two or three digits tell as much as people need."""
    assert display_size(count) == text
