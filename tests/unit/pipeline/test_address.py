"""Addresses as a pipeline file writes them."""

from __future__ import annotations

import pytest

from transporter.pipeline.address import split_address, validate_host


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.7", "10.0.0.7", 0),
        ("10.0.0.7:7070", "10.0.0.7", 7070),
        ("engine.example:0", "engine.example", 0),
        ("[2001:db8::7]:7070", "2001:db8::7", 7070),
        ("[2001:db8::7]", "2001:db8::7", 0),
        ("2001:db8::7", "2001:db8::7", 0),
    ],
)
def test_host_and_port_are_told_apart(text: str, host: str, port: int) -> None:
    """A port is optional, and IPv6 needs brackets only before a port."""
    assert split_address(text) == (host, port)


@pytest.mark.parametrize(
    "text", ["", ":7", "a:b", "a:65536", "[::1", "[::1]7", "a b", "spark://a", "a:²"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """The problem has the correct form."""
    with pytest.raises(ValueError, match="use HOST or HOST:PORT"):
        split_address(text)


def test_an_advertised_host_takes_no_port() -> None:
    """An advertised host takes no port, because workers call the port that is listened at."""
    assert validate_host("engine.example") == "engine.example"
    with pytest.raises(ValueError, match="takes no port"):
        validate_host("engine.example:7070")
