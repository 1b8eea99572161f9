"""Tests of the addresses of an engine, and of the identity of a directory."""

from __future__ import annotations

import shutil
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from transporter.pipeline.config import SparkConfig
from transporter.protocol.network import Network, is_at_place, is_tcp, network_of, place_of

if TYPE_CHECKING:
    from pathlib import Path

MASTER = "spark://127.0.0.1:7077"


@pytest.mark.parametrize("master", ["local", "local[4]"])
def test_a_local_master_needs_no_network(master: str) -> None:
    """A local master has its workers on this host, so the engine listens on no network."""
    assert network_of(SparkConfig(master=master)) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, Network("127.0.0.1", 0, "127.0.0.1")),
        ({"listen": "127.0.0.2:7070"}, Network("127.0.0.2", 7070, "127.0.0.2")),
        ({"listen": "::"}, Network("::", 0, "127.0.0.1")),
        ({"advertise": "engine.example"}, Network("127.0.0.1", 0, "engine.example")),
        (
            {"config": {"spark.driver.host": "h", "spark.driver.bindAddress": "127.0.0.3"}},
            Network("127.0.0.3", 0, "h"),
        ),
        (
            {"listen": "127.0.0.2", "advertise": "a", "config": {"spark.driver.host": "h"}},
            Network("127.0.0.2", 0, "a"),
        ),
    ],
)
def test_workers_call_the_address_by_which_the_master_is_reached(
    settings: dict[str, Any], expected: Network
) -> None:
    """Workers call the address towards the master, unless the settings name another one."""
    found = network_of(SparkConfig(master=MASTER, insecure=True, **settings))
    assert found == replace(expected, insecure=True)


@pytest.mark.parametrize(
    "master",
    ["spark://127.0.0.1:1,127.0.0.2:1", "k8s://https://127.0.0.1:6443", "spark://127.0.0.1"],
)
def test_the_master_s_address_is_understood(master: str) -> None:
    """The first of several masters decides the address, and a Kubernetes URL has two schemes."""
    found = network_of(SparkConfig(master=master, insecure=True))
    assert found == Network("127.0.0.1", 0, "127.0.0.1", insecure=True)


@pytest.mark.parametrize("key", ["listen", "advertise"])
def test_a_local_master_takes_no_address(key: str) -> None:
    """An option without effect is refused."""
    with pytest.raises(ValidationError, match="is for a cluster"):
        SparkConfig(**{"master": "local", key: "127.0.0.1"})


def test_only_the_directory_itself_is_seen(tmp_path: Path) -> None:
    """A copy of the log at the same path, or no log at all, is not the log."""
    log = tmp_path / "log"
    log.mkdir()
    place = place_of(log)
    assert is_at_place(place, log)
    log.rename(tmp_path / "old")
    assert not is_at_place(place, log)
    shutil.copytree(tmp_path / "old", log)
    assert not is_at_place(place, log)
    assert not is_at_place("", tmp_path / "nowhere")


def test_a_path_is_no_network_address() -> None:
    """A TCP address is recognised as a tuple and as a list from JSON, and a path is not."""
    assert not is_tcp("/run/x/engine.sock")
    assert is_tcp(("127.0.0.1", 7))
    assert is_tcp(["127.0.0.1", 7])


def test_a_socket_of_ours_notices_that_the_other_host_is_gone() -> None:
    """Small messages are sent at once, and a silent peer is probed."""
    from transporter.protocol.network import enable_keepalive  # noqa: PLC0415

    with socket.socket() as one:
        enable_keepalive(one)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000
