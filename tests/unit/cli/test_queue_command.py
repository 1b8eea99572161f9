"""Errors of ``transporter queue`` for an invalid command line or file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from transporter.cli import app

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = ["--bootstrap-servers", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["stats"],
            "name the brokers by --bootstrap-servers host:port, or by --settings FILE",
        ),
        (["stats", "--settings", "nix.yaml"], "nix.yaml: cannot be read"),
        (["send", "a/b", "v", *NOWHERE, "--queue-topic", "x/y"], "queue_topic"),
        (["send", "q", "v", *NOWHERE, "--header", "x"], "'x' is not a header; use NAME=VALUE"),
        (["peek", "a/b", *NOWHERE], "'a/b' is not a queue name"),
        (["init", *NOWHERE, "--partitions", "0"], "--partitions"),
        (["nix"], "No such command 'nix'"),
    ],
)
def test_a_mistake_is_told_with_exit_code_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake is reported before any broker is contacted."""
    assert app.execute(["queue", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_each_mistake_of_a_settings_file_has_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown key is an error with a suggestion, and a duration needs its unit."""
    file = tmp_path / "queue.yaml"
    file.write_text("bootstrap_servers: x\nredelivr_after: 5s\nhold: 5\n")
    assert app.execute(["queue", "stats", "--settings", str(file)]) == 2
    error = capsys.readouterr().err
    assert f"{file}:2: unknown key 'redelivr_after'; did you mean 'redeliver_after'?" in error
    assert f"{file}:3: hold is not a duration" in error


def test_options_override_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An option overrides the setting of the same name."""
    file = tmp_path / "queue.yaml"
    file.write_text("bootstrap_servers: x\nmarkers_topic: m\n")
    arguments = ["queue", "stats", "--settings", str(file), "--queue-topic", "m"]
    assert app.execute(arguments) == 2
    assert "must differ" in capsys.readouterr().err


def test_a_secret_of_the_file_is_in_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value of a variable is not repeated (Invariant 20)."""
    monkeypatch.setenv("QUEUE_PASSWORD", "hunter22")
    file = tmp_path / "queue.yaml"
    file.write_text(
        "bootstrap_servers: 127.0.0.1:1\ntimeout: 1s\n"
        "client: {security.protocol: '${QUEUE_PASSWORD}', sasl.password: '${QUEUE_PASSWORD}'}\n"
    )
    assert app.execute(["queue", "stats", "--settings", str(file)]) == 3
    error = capsys.readouterr().err
    assert "check the client settings" in error
    assert "hunter22" not in error
