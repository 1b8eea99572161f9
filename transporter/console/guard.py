"""Admission of the console's requests: hosts, origins, identities, roles. Pure.

A request passes four checks, in this order. Its Host is one of ours, because a page of another
site can make a browser call a loopback address under a name of its own (DNS rebinding). If it is
unsafe, it comes from a page of the console itself. Its sender has an identity: a bearer token, a
user named by a trusted proxy, or a session. The identity may see what the page shows, and do
what a form asks for.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.pipeline.observe_config import (
        ConsoleAccess,
        ConsoleProxy,
        ConsoleToken,
        ListenAddress,
        Role,
    )

SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
OPERATOR: Final = "operator"


@dataclass(frozen=True, slots=True)
class Identity:
    """The sender of a request.

    Attributes:
        name: the person, or the program that holds a token.
        via: the way in which they are known: ``session``, ``token`` or ``proxy``.

    """

    name: str
    role: Role
    via: str


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The parts of a request that decide about its admission. Header names are lower case."""

    method: str
    peer: str
    headers: Mapping[str, str]
    session: Identity | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that is not admitted: an HTTP status, and a text for people."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules of one console. Immutable.

    Attributes:
        hosts: the host names, in lower case and without a port, under which it is called.
        access: the people and programs that may use it.

    """

    hosts: frozenset[str]
    access: ConsoleAccess

    @classmethod
    def of(cls, listen: ListenAddress, access: ConsoleAccess) -> Guard:
        """Return the guard of a console that listens on *listen*."""
        own = () if listen.host in _ANY else (bracketed(listen.host).lower(),)
        return cls(frozenset({*_LOOPBACK, *own, *access.hosts}), access)

    def check_origin(self, facts: RequestFacts) -> Refusal | None:
        """Return the refusal of a request under a foreign host, or unsafe and from elsewhere."""
        host = facts.headers.get("host", "")
        if host_name(host) not in self.hosts:
            return Refusal(
                421,
                "This console does not serve that host name. Use the address that "
                "'transporter ui' has printed, or add the name to "
                "observe.console_access.hosts.",
            )
        if facts.method in SAFE_METHODS or _is_same_origin(facts.headers, host):
            return None
        return Refusal(403, "The request came from a page of another site. Nothing was changed.")

    def identify(self, facts: RequestFacts) -> Identity | None:
        """Return the sender of a request, or ``None`` if nothing proves one.

        A wrong token is never made up for by a session, so that a program notices.
        """
        scheme, _, credentials = facts.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.token_holder(credentials.strip())
        proxy = self.access.proxy
        named = _named_by_proxy(proxy, facts) if proxy is not None else None
        return named or facts.session

    def token_holder(self, given: str) -> Identity | None:
        """Return the holder of the token *given*. Takes the same time for each wrong one."""
        found = None
        for each in self.access.tokens:
            if _is_equal(given, each):
                found = Identity(each.name, each.role, "token")
        return found

    def refusal_to_act(self, identity: Identity) -> str:
        """Return the reason why *identity* may change nothing, empty if it may."""
        if self.access.read_only:
            return "this console is read-only"
        if identity.role != OPERATOR:
            return f"the role {identity.role} changes nothing; this needs the role {OPERATOR}"
        return ""

    def is_secure(self, facts: RequestFacts) -> bool:
        """Return whether a trusted proxy says that the browser has sent the request over TLS."""
        proxy = self.access.proxy
        if proxy is None or not _is_trusted(proxy, facts.peer):
            return False
        return _last_of(facts.headers.get("x-forwarded-proto", "")).lower() == "https"

    def origin_of(self, facts: RequestFacts) -> str:
        """Return the address of the sender: the peer's, or the one that a trusted proxy names."""
        proxy = self.access.proxy
        if proxy is None or not _is_trusted(proxy, facts.peer):
            return facts.peer
        return _last_of(facts.headers.get("x-forwarded-for", "")) or facts.peer

    def may_see_payloads(self, identity: Identity) -> bool:
        """Return whether *identity* may see keys, headers and data of entries."""
        allowed = self.access.payloads
        return allowed == "all" or (allowed == "operators" and identity.role == OPERATOR)


def _last_of(values: str) -> str:
    """Return the last of *values*, which the nearest proxy has added."""
    return values.rpartition(",")[2].strip()


def host_name(host: str) -> str:
    """Return the name in a Host header, in lower case and without the port."""
    name, colon, port = host.rpartition(":")
    is_port = colon and not port.endswith("]") and (port.isdecimal() or not port)
    return (name if is_port else host).lower().rstrip(".")


def bracketed(host: str) -> str:
    """Return *host* as an address of a URL has it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def _is_same_origin(headers: Mapping[str, str], host: str) -> bool:
    """Return whether an unsafe request comes from a page of this origin, or from no page at all.

    Each browser of today sends Sec-Fetch-Site, but over plain HTTP on loopback only. Elsewhere
    there is Origin, whose host and port must be those of the request. A program with a token
    sends neither, and no page can make a browser send a token.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    if origin is not None:
        return origin.partition("://")[2].lower() == host.lower() != ""
    return headers.get("authorization", "").lower().startswith("bearer ")


def _is_equal(given: str, token: ConsoleToken) -> bool:
    current = token.token.current_value()
    offered = given.encode(errors="surrogatepass")
    return current is not None and hmac.compare_digest(offered, current.encode())


def _named_by_proxy(proxy: ConsoleProxy, facts: RequestFacts) -> Identity | None:
    """Return the user whom a trusted proxy names. The same headers of others mean nothing."""
    if not _is_trusted(proxy, facts.peer):
        return None
    user = _header_text(facts, proxy.user).strip()
    if not user:
        return None
    groups = {each.strip() for each in _header_text(facts, proxy.groups).split(",")}
    role: Role = "operator" if groups & set(proxy.operators) else "viewer"
    return Identity(user, role, "proxy")


def _header_text(facts: RequestFacts, name: str) -> str:
    """Return the value of a header as proxies send it: UTF-8, which WSGI reads as Latin-1."""
    value = facts.headers.get(name.lower(), "")
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _is_trusted(proxy: ConsoleProxy, peer: str) -> bool:
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    # A socket for both families gives IPv4 peers an address of IPv6.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return any((mapped or address) in network for network in proxy.trusted)
