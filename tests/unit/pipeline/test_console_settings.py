"""The console's keys of a pipeline file."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import make_pipeline

from transporter.errors import ConfigError
from transporter.pipeline.config import load
from transporter.pipeline.observe_config import (
    ConsoleAccess,
    ConsoleConfig,
    ConsoleProxy,
    ConsoleToken,
    ListenAddress,
    read_console_settings,
)
from transporter.pipeline.reload_changes import reread

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN = "0123456789abcdef-ci"  # noqa: S105 - of a test


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a pipeline file with this section ``observe``."""
    make_pipeline(tmp_path, ["a 1"], out={})
    path = tmp_path / "pipeline.yaml"
    document = json.loads(path.read_text())

    def write_file(**observe: Any) -> Path:
        path.write_text(json.dumps(document | {"observe": observe}, indent=1))
        return path

    return write_file


def test_by_default_the_console_is_on_loopback(write: Callable[..., Path]) -> None:
    """Nothing has to be configured for the owner of the log."""
    found = read_console_settings(write(), {})
    assert found == ConsoleConfig()
    assert found.console == ListenAddress("127.0.0.1", 9465)
    assert found.console_access.payloads == "operators"


def test_other_settings_and_their_variables_are_not_looked_at(write: Callable[..., Path]) -> None:
    """The console starts on a file that the engine refuses, and needs no variable of the engine."""
    path = write(token="${UNSET}", listen="nonsense", console="[::1]:80")
    assert read_console_settings(path, {}).console == ListenAddress("::1", 80)


def test_tokens_may_come_from_variables_and_files(write: Callable[..., Path]) -> None:
    """So that no secret stands in the pipeline file."""
    path = write(
        console_access={
            "tokens": [
                {"name": "ci", "token": "${CI}", "role": "operator"},
                {"name": "f", "token": "${file:t}"},
            ]
        }
    )
    (path.parent / "t").write_text(f"{TOKEN}-f\n")
    (path.parent / "t").chmod(0o600)
    found = read_console_settings(path, {"CI": TOKEN}).console_access.tokens
    assert [(each.name, each.role, each.token.current_value()) for each in found] == [
        ("ci", "operator", TOKEN),
        ("f", "viewer", f"{TOKEN}-f"),
    ]
    assert TOKEN not in repr(found)


PROXY = {"from": ["10.0.0.0/8", "::1/128"], "operators": ["sre"]}


def test_a_proxy_is_trusted_by_its_networks(write: Callable[..., Path]) -> None:
    """Its headers have the usual names by default."""
    found = read_console_settings(write(console="0.0.0.0:80", console_access={"proxy": PROXY}), {})
    proxy = found.console_access.proxy
    assert proxy is not None
    assert proxy.trusted == (ip_network("10.0.0.0/8"), ip_network("::1/128"))
    assert (proxy.user, proxy.groups) == ("X-Forwarded-User", "X-Forwarded-Groups")


@pytest.mark.parametrize(
    ("observe", "problem"),
    [
        ({"console": "0.0.0.0:9465"}, "other hosts can reach this address, so console_access"),
        ({"console": "10.0.0.7:80", "console_access": {"hosts": ["a"]}}, "needs tokens or a proxy"),
        ({"console": "off"}, "must be an address and a port"),
        ({"console": "9465"}, "must be an address and a port"),
        ({"console_access": {"payloads": "some"}}, "payloads"),
        ({"console_access": {"tokens": [{"name": "a", "token": "short"}]}}, "16 or more letters"),
        ({"console_access": {"tokens": [{"token": TOKEN}]}}, "name is missing"),
        ({"console_access": {"tokens": [{"name": "a", "token": TOKEN, "role": "root"}]}}, "role"),
        ({"console_access": {"proxy": {}}}, "from is missing"),
        ({"console_access": {"proxy": {"from": []}}}, "from"),
        ({"console_access": {"proxy": {"from": ["x"]}}}, "from"),
        ({"console_access": {"proxy": {"from": ["10.0.0.1/8"]}}}, "from"),
        ({"console_access": {"proxy": PROXY | {"user": "a b"}}}, "no header may have"),
        ({"console_access": {"hosts": ["a.example:80"]}}, "a host name without a port"),
        ({"console_access": {"hosts": ["*"]}}, "a host name without a port"),
        ({"console_access": {"base_path": "x"}}, "without a slash at its end"),
        ({"console_access": {"base_path": "/x/"}}, "without a slash at its end"),
        ({"console_access": {"read_only": "maybe"}}, "read_only"),
        ({"console_access": {"readonly": True}}, "unknown"),
    ],
)
def test_wrong_settings_are_refused_with_their_line(
    write: Callable[..., Path], observe: dict[str, Any], problem: str
) -> None:
    """The engine's own load refuses them too, and neither repeats a token."""
    path = write(**observe)
    for read in (read_console_settings, load):
        with pytest.raises(ConfigError) as caught:
            read(path, {})
        assert problem in str(caught.value)
        assert f"{path}:" in str(caught.value)
        assert TOKEN not in str(caught.value)


def test_a_reload_takes_changes_of_the_console(write: Callable[..., Path]) -> None:
    """The engine does not use them; all other keys of the section stay fixed while it runs."""
    running = load(write(listen="off"), {})
    wanted = reread(running, {}) if write(listen="off", console="127.0.0.1:1") else None
    assert wanted is not None
    assert wanted.observe.console.port == 1
    write(listen="127.0.0.1:1")
    with pytest.raises(ConfigError, match="observe cannot change while the engine runs"):
        reread(running, {})


def test_every_key_is_documented() -> None:
    """The reference has a row for each key of the console."""
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    rows = {
        *ConsoleConfig.model_fields,
        *(["payloads", "read_only", "hosts", "base_path", "tokens", "proxy"]),
        *(f"tokens.{key}" for key in ConsoleToken.model_fields),
        *(f"proxy.{field.alias or key}" for key, field in ConsoleProxy.model_fields.items()),
    }
    assert set(ConsoleAccess.model_fields) <= rows
    assert [
        key for key in rows if f"| `{key}` |" not in page and key not in {"tokens", "proxy"}
    ] == []
