"""Admission of the console's requests: hosts, origins, identities, payloads."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from transporter.console.app import HEADERS
from transporter.console.guard import Guard, Identity, RequestFacts, host_name
from transporter.pipeline.observe_config import ConsoleAccess, ListenAddress

TOKEN = "0123456789abcdef-ci"  # noqa: S105 - of a test
ANN = Identity("ann", "operator", "session")
EVERY = "0.0.0.0"  # noqa: S104 - nothing is bound
LOOPBACK = ListenAddress("127.0.0.1", 9465)


def guard(listen: ListenAddress = LOOPBACK, **access: Any) -> Guard:
    """Return a guard with this access."""
    return Guard.of(listen, ConsoleAccess.model_validate(access))


def facts(
    method: str = "GET", peer: str = "127.0.0.1", session: Identity | None = None, **headers: str
) -> RequestFacts:
    """Return a request; ``_`` in the name of a header is a hyphen."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RequestFacts(method, peer, {"host": "localhost:9465", **named}, session)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:9465", "localhost"),
        ("LOCALHOST", "localhost"),
        ("[::1]:9465", "[::1]"),
        ("[::1]", "[::1]"),
        ("console.example.org.", "console.example.org"),
        ("a:b:80", "a:b"),
        ("", ""),
    ],
)
def test_a_host_is_compared_without_its_port(host: str, name: str) -> None:
    """The port is cut, case and a trailing dot do not count, IPv6 keeps its brackets."""
    assert host_name(host) == name


@pytest.mark.parametrize("host", ["localhost:9465", "127.0.0.1:9465", "[::1]:9465", "127.0.0.1"])
def test_loopback_names_are_served(host: str) -> None:
    """A console on loopback answers to each name of loopback."""
    assert guard().check_origin(facts(host=host)) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9465", "localhost.evil.example", "", "127.0.0.2", "[::2]"],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_a_foreign_host_is_refused(host: str, method: str) -> None:
    """DNS rebinding ends with 421, whatever the method and however much else is right."""
    found = guard().check_origin(facts(method, host=host, sec_fetch_site="same-origin"))
    assert found is not None
    assert found.status == 421


def test_hosts_of_the_configuration_and_the_own_address_are_served() -> None:
    """The address that it listens on is a host, unless it is every address."""
    hosts = {"hosts": ["Console.Example.org"], "tokens": [{"name": "ci", "token": TOKEN}]}
    ours = guard(ListenAddress("10.0.0.7", 80), **hosts)
    assert ours.check_origin(facts(host="console.example.ORG:443")) is None
    assert ours.check_origin(facts(host="10.0.0.7")) is None
    every = guard(ListenAddress(EVERY, 80), **hosts)
    refused = every.check_origin(facts(host=EVERY))
    assert refused is not None
    assert refused.status == 421


SITES = (None, "same-origin", "same-site", "cross-site", "none", "")
ORIGINS = (None, "http://localhost:9465", "http://localhost:1", "https://evil.example", "null", "")
BEARERS = (None, f"Bearer {TOKEN}", "Basic YTpi")


@pytest.mark.parametrize(("site", "origin", "bearer"), list(product(SITES, ORIGINS, BEARERS)))
def test_unsafe_requests_come_from_the_console_itself(
    site: str | None, origin: str | None, bearer: str | None
) -> None:
    """Sec-Fetch-Site decides, else Origin, else a token, which no foreign page can send."""
    headers = {"sec_fetch_site": site, "origin": origin, "authorization": bearer}
    sent = {name: value for name, value in headers.items() if value is not None}
    if site is not None:
        expected = site == "same-origin"
    elif origin is not None:
        expected = origin == "http://localhost:9465"
    else:
        expected = bearer == BEARERS[1]
    found = guard().check_origin(facts("POST", **sent))
    assert (found is None) == expected
    assert expected or (found is not None and found.status == 403)
    assert guard().check_origin(facts("GET", **sent)) is None


@pytest.mark.parametrize(
    ("origin", "is_taken"),
    [
        ("http://console.example.org", True),
        ("https://Console.example.org", True),
        ("null", False),
        ("http://evil.example", False),
    ],
)
def test_under_another_name_the_origin_decides(origin: str, *, is_taken: bool) -> None:
    """Over plain HTTP a browser sends Sec-Fetch-Site to loopback only."""
    ours = guard(hosts=["console.example.org"])
    found = ours.check_origin(facts("POST", host="console.example.org", origin=origin))
    assert (found is None) is is_taken


def test_pages_let_browsers_send_their_origin() -> None:
    """With no-referrer Chromium sends 'Origin: null' with each form, which proves nothing."""
    assert HEADERS["Referrer-Policy"] == "same-origin"


def test_a_session_is_an_identity_and_nothing_is_none() -> None:
    """Without a session, a token or a proxy there is no identity."""
    assert guard().identify(facts()) is None
    assert guard().identify(facts(session=ANN)) == ANN


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (f"Bearer {TOKEN}", "ci"),
        (f"bearer   {TOKEN} ", "ci"),
        ("Bearer wrong-0123456789", None),
        ("Bearer ", None),
        ("Bearer", None),
        ("Bearer \xff\xe9", None),
    ],
)
def test_a_wrong_token_is_never_made_up_for_by_a_session(header: str, name: str | None) -> None:
    """A program with a token that has expired notices, even in a browser that is logged in."""
    ours = guard(tokens=[{"name": "ci", "token": TOKEN, "role": "viewer"}])
    found = ours.identify(facts(session=ANN, authorization=header))
    assert found == (None if name is None else Identity(name, "viewer", "token"))


def test_other_schemes_of_authorization_are_not_tokens() -> None:
    """A proxy's own Basic header does not log anybody out."""
    assert guard().identify(facts(session=ANN, authorization="Basic YTpi")) == ANN


PROXY = {"from": ["10.1.0.0/16", "::1/128"], "operators": ["sre", "oncall"]}


@pytest.mark.parametrize(
    ("peer", "is_trusted"),
    [
        ("10.1.2.3", True),
        ("::1", True),
        ("::ffff:10.1.2.3", True),
        ("10.2.0.1", False),
        ("127.0.0.1", False),
        ("", False),
        ("unix:", False),
    ],
)
def test_a_proxy_is_believed_from_its_addresses_only(peer: str, *, is_trusted: bool) -> None:
    """The same headers mean nothing from another address."""
    headers = {"x_forwarded_user": "ann@example.org", "x_forwarded_groups": "dev, sre"}
    found = guard(proxy=PROXY).identify(facts(peer=peer, **headers))
    assert found == (Identity("ann@example.org", "operator", "proxy") if is_trusted else None)


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        ("sre", "operator"),
        ("dev,oncall", "operator"),
        ("dev", "viewer"),
        ("", "viewer"),
        ("sreX", "viewer"),
    ],
)
def test_the_groups_of_a_proxy_decide_about_the_role(groups: str, role: str) -> None:
    """One group of operators is enough, and a part of its name is not."""
    found = guard(proxy=PROXY).identify(
        facts(peer="10.1.0.1", x_forwarded_user="ann", x_forwarded_groups=groups)
    )
    assert found is not None
    assert found.role == role


@pytest.mark.parametrize("name", ["José", "Ψ", "ann"])
def test_a_proxy_names_people_in_utf_8(name: str) -> None:
    """WSGI reads its headers as Latin-1. One that is not UTF-8 stays as it was read."""
    ours = guard(proxy=PROXY | {"operators": ["équipe"]})
    headers = {"x_forwarded_user": name, "x_forwarded_groups": "équipe"}
    raw = {key: value.encode().decode("latin-1") for key, value in headers.items()}
    assert ours.identify(facts(peer="10.1.0.1", **raw)) == Identity(name, "operator", "proxy")
    found = ours.identify(facts(peer="10.1.0.1", x_forwarded_user="Jos\xe9"))
    assert found == Identity("José", "viewer", "proxy")


def test_a_trusted_proxy_without_a_user_leaves_the_session() -> None:
    """An empty header names nobody."""
    ours = guard(proxy=PROXY)
    assert ours.identify(facts(peer="10.1.0.1", x_forwarded_user=" ", session=ANN)) == ANN
    assert ours.identify(facts(peer="10.1.0.1")) is None


def test_without_a_proxy_its_headers_mean_nothing() -> None:
    """Nobody becomes a user by a header that no configuration names."""
    assert guard().identify(facts(x_forwarded_user="ann", x_forwarded_groups="sre")) is None


@pytest.mark.parametrize(
    ("payloads", "role", "may"),
    [
        ("all", "viewer", True),
        ("all", "operator", True),
        ("operators", "viewer", False),
        ("operators", "operator", True),
        ("nobody", "viewer", False),
        ("nobody", "operator", False),
    ],
)
def test_payloads_are_shown_as_configured(payloads: str, role: Any, *, may: bool) -> None:
    """Keys, headers and data are for all, for operators, or for nobody."""
    ours = guard(payloads=payloads)
    assert ours.may_see_payloads(Identity("ann", role, "token")) is may


@pytest.mark.parametrize(
    ("peer", "headers", "secure", "origin"),
    [
        (
            "10.0.0.1",
            {"x-forwarded-proto": "https", "x-forwarded-for": "9.9.9.9, 7.7.7.7"},
            True,
            "7.7.7.7",
        ),
        ("10.0.0.1", {"x-forwarded-proto": "https, http"}, False, "10.0.0.1"),
        (
            "10.0.0.2",
            {"x-forwarded-proto": "https", "x-forwarded-for": "7.7.7.7"},
            False,
            "10.0.0.2",
        ),
        ("", {"x-forwarded-proto": "https"}, False, ""),
    ],
)
def test_only_a_trusted_proxy_says_where_a_request_comes_from(
    peer: str,
    headers: dict[str, str],
    secure: bool,
    origin: str,
) -> None:
    """TLS and the sender's address are believed from it alone, and of several the nearest."""
    access = ConsoleAccess.model_validate({"proxy": {"from": ["10.0.0.1/32"]}})
    guard = Guard.of(ListenAddress("127.0.0.1", 9465), access)
    facts = RequestFacts("GET", peer, headers)
    assert (guard.is_secure(facts), guard.origin_of(facts)) == (secure, origin)
