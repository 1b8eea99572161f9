"""Addresses of a network as a pipeline file writes them. Pure: nothing is looked up."""

from __future__ import annotations

from typing import Final

_PORTS: Final = 1 << 16
_PROBLEM: Final = "is not an address; use HOST or HOST:PORT, or [HOST]:PORT for IPv6"


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST[:PORT]``. Port 0 is any free port.

    Raises:
        ValueError: the text has another form.

    """
    host, port = address, ""
    if address.startswith("["):
        host, closed, rest = address[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(_PROBLEM)
        port = rest[1:]
    elif address.count(":") == 1:
        host, _, port = address.partition(":")
    if not host or any(each in host for each in " /@") or not _is_port(port):
        raise ValueError(_PROBLEM)
    return host, int(port or 0)


def _is_port(text: str) -> bool:
    return not text or (text.isascii() and text.isdecimal() and int(text) < _PORTS)


def validate_address(address: str) -> str:
    """Return *address* if :func:`split_address` can read it."""
    split_address(address)
    return address


def validate_host(host: str) -> str:
    """Return *host* if it is one, without a port."""
    if split_address(host)[1]:
        raise ValueError("takes no port: workers call the one of listen")
    return host
