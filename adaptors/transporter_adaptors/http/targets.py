"""Destinations of requests: the parts of a URL, and the proxy on the way."""

from __future__ import annotations

import base64
import re
from typing import Final, NamedTuple
from urllib.parse import quote, quote_from_bytes, unquote

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from transporter_adaptors.templates import fields_of

FIELDS: Final = frozenset({"namespace", "key"})
"""Fields that a URL may hold."""

_BLANK: Final = re.compile(r"[\x00-\x20\x7f]")
_PORTS: Final = {"http": 80, "https": 443}
_SEPARATOR: Final = re.compile(r"[/\\]")


class Target(NamedTuple):
    """Destination of a request: an origin, and the path with its query at it."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """The parts that must be equal before credentials are sent."""
        return self.scheme, self.host.lower(), self.port

    @property
    def place(self) -> str:
        """Host and port for people. Path and query are left out, because they may hold a secret."""
        return _host_and_port(self.host, self.port)


class Proxy(NamedTuple):
    """An HTTP proxy, and the user and password for it, both empty without one."""

    host: str
    port: int
    user: str
    password: str

    @property
    def place(self) -> str:
        """Host and port for people."""
        return _host_and_port(self.host, self.port)

    @property
    def headers(self) -> dict[str, str]:
        """The headers for the proxy."""
        if not self.user:
            return {}
        return {"Proxy-Authorization": basic_credentials(self.user, self.password)}


def basic_credentials(user: str, password: str) -> str:
    """Return the credentials of the scheme Basic (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def target_of(url: str) -> Target:
    """Return the destination of *url*.

    Raises:
        ValueError: *url* is not an absolute HTTP URL, or holds a user, a password or a
            fragment. The message does not repeat it.
    """
    found = _parse(url)
    if found.scheme not in _PORTS or not found.host or _BLANK.search(url):
        raise ValueError("must begin with http:// or https:// and a host, without blanks")
    if found.auth is not None:
        raise ValueError("must not hold a user or password; use the header Authorization")
    if found.fragment is not None:
        raise ValueError("must not hold a fragment, which is never sent")
    port = _PORTS[found.scheme] if found.port is None else found.port
    if not port:
        raise ValueError("must not use port 0")
    return Target(found.scheme, found.host.strip("[]"), port, found.request_uri)


def fill_url(url: str, namespace: str, key: bytes | None) -> Target:
    """Return the destination of *url* with *namespace* and *key* in its fields, percent-encoded.

    Raises:
        ValueError: One of them is missing or empty, or would lead to another folder of the
            receiver. The message repeats neither.
    """
    fields = fields_of(url)
    values = {"namespace": quote(namespace, safe=""), "key": quote_from_bytes(key or b"", safe="")}
    if missing := [name for name in sorted(fields) if not values[name]]:
        raise ValueError(f"the entry has no {missing[0]}, but the url needs one")
    text = url.format(**values)
    # Receivers may decode a path before they resolve it.
    if fields and {".", ".."} & {*_SEPARATOR.split(unquote(text.partition("?")[0]))}:
        raise ValueError("the entry makes a url whose path has . or .. as a part")
    return target_of(text)


def proxy_of(url: str) -> Proxy:
    """Return the proxy at *url*.

    Raises:
        ValueError: *url* is not an ``http://`` URL with a host, or has more behind that than a
            port. The message does not repeat it.
    """
    found = _parse(url)
    if found.scheme != "http" or not found.host or _BLANK.search(url) or found.port == 0:
        raise ValueError("must have the form http://host:port or http://user:password@host:port")
    if found.path not in (None, "/") or found.query is not None or found.fragment is not None:
        raise ValueError("must end after host and port")
    user, _, password = (found.auth or "").partition(":")
    port = _PORTS["http"] if found.port is None else found.port
    return Proxy(found.host.strip("[]"), port, unquote(user), unquote(password))


def _parse(url: str) -> Url:
    try:
        return parse_url(url)
    except LocationParseError:
        raise ValueError("is not a URL") from None


def _host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
