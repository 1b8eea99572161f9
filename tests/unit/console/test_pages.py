"""The console's pages over a log whose engine has ended: HTML, JSON, and people's rights."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from console_tools import CANARY, HOSTILE, JSON, SECRET, TOKENS, client_of, make_console, make_shop

from transporter.cli.app import execute
from transporter.console.app import create_app
from transporter.offsets.halt_reason import HaltReason
from transporter.offsets.offset_log import read_state, route_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flask import Flask
    from werkzeug.test import TestResponse

BASE = "http://localhost/transporter"
PAGES = (
    *("/", "/help", "/p/shop", "/p/shop?part=live", "/p/shop/r/out", "/p/shop/r/out?part=live"),
    *("/p/shop/log", "/p/shop/log?dir=live", "/p/shop/log?dir=live&part=live&after=2"),
    *("/p/shop/log/4", "/p/shop/parked", "/p/shop/audit", "/p/shop/config", "/p/shop/health"),
    *("/p/shop/events", "/p/shop/history", "/p/shop/cluster"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a pipeline that has run to its end."""
    return make_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def app(folder: Path) -> Flask:
    """Return the console's application, whose templates are compiled once."""
    return create_app(make_console(folder))


@pytest.fixture(params=["operator"])
def get(app: Flask, request: pytest.FixtureRequest) -> Callable[..., TestResponse]:
    """Return a function that gets a page with the token of this role."""
    client = app.test_client()
    bearer = {"Authorization": f"Bearer {TOKENS[request.param]}"}

    def get_page(path: str, **headers: str) -> TestResponse:
        return client.get(path, headers=bearer | headers)

    return get_page


def cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Run ``transporter`` with ``--json`` in this process, and return its result."""
    assert execute([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["result"]


def names_in(value: Any) -> Iterator[str]:
    """Yield the names of all members in a JSON value."""
    if isinstance(value, dict):
        yield from value
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from names_in(each)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_a_page(get: Callable[..., TestResponse], path: str) -> None:
    """It answers, and has no inline script or style, nothing of another host, and no cache."""
    found = get(path)
    assert found.status_code in {200, 302}, found.text
    assert found.headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in found.headers["Content-Security-Policy"]
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?! src=\"/)|javascript:", found.text)
    assert not re.search(r"(?:src|href|action)=\"(?:[a-z]+:)?//", found.text)


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_no_page_opens_without_a_login(app: Flask, folder: Path, path: str, accept: str) -> None:
    """Without an identity each page answers with 401, and shows nothing of the log."""
    found = app.test_client().get(path, headers={"Accept": accept})
    assert found.status_code == 401
    assert str(folder) not in found.text
    assert "shop" not in found.text


@pytest.mark.parametrize("path", [*PAGES, "/login", "/healthz", "/static/console.css"])
def test_no_page_is_served_to_another_host(app: Flask, path: str) -> None:
    """Under a foreign host's name nothing is served at all, not even the login page."""
    found = app.test_client().get(path, headers={"Host": "evil.example"})
    assert found.status_code == 421


@pytest.mark.parametrize("path", ["/login", "/logout"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({}, 403),
        ({"Host": "evil.example", "Sec-Fetch-Site": "same-origin"}, 421),
    ],
)
def test_no_form_of_another_site_is_taken(
    folder: Path, path: str, headers: dict[str, str], status: int
) -> None:
    """Each POST is refused from elsewhere, and a link that it carried is not spent."""
    console = make_console(folder)
    secret = console.login_link("ann").rpartition("link=")[2]
    found = client_of(console).post(path, data={"secret": secret}, headers=headers)
    assert found.status_code == status
    assert console.links.take(secret) is not None


def test_a_link_logs_in_once_and_logout_ends_it(folder: Path) -> None:
    """The cookie is out of reach of scripts and other sites, and its session ends in memory."""
    console = make_console(folder)
    client, link = client_of(console), console.login_link("ann")
    path = link.removeprefix("http://127.0.0.1:9465")
    found = client.get(path)
    assert (found.status_code, found.location) == (303, "/")
    cookie = found.headers["Set-Cookie"]
    assert all(
        part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200")
    )
    assert "ann · operator" in client.get("/p/shop").text
    again = client_of(console).get(path)
    assert again.status_code == 401
    assert "not valid" in again.text
    assert client.post("/logout", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 303
    client.set_cookie(console.cookie, cookie.partition("=")[2].partition(";")[0])
    assert client.get("/p/shop").status_code == 401


def test_a_look_at_a_link_does_not_spend_it(folder: Path) -> None:
    """Programs that check links send HEAD."""
    console = make_console(folder)
    path = console.login_link("ann").removeprefix("http://127.0.0.1:9465")
    assert client_of(console).head(path).status_code == 200
    assert client_of(console).get(path).status_code == 303


def test_a_viewer_gets_no_form(folder: Path) -> None:
    """Forms of people who change nothing would only make those of others expire."""
    console = make_console(folder)
    for role, count in (("viewer", 0), ("operator", 1)):
        headers = {"Authorization": f"Bearer {TOKENS[role]}"}
        text = client_of(console).get("/p/shop/health", headers=headers).text
        assert text.count('name="form"') == count
        assert len(vars(console.forms)["_known"]) == count


def test_the_config_page_is_json_too(get: Callable[..., TestResponse]) -> None:
    """It has the names and lines that the page has, and no value of an adaptor."""
    found = get("/p/shop/config", **JSON).json["result"]
    assert [each["name"] for each in found["routes"]] == ["out", "some"]
    assert "password" in found["routes"][0]["hidden"]
    assert SECRET not in str(found)


def test_json_of_parked_entries_is_bounded(
    get: Callable[..., TestResponse], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts what it leaves out, because a program cannot see that."""
    monkeypatch.setattr("transporter.console.pages.JSON_BYTES", 1)
    found = get("/p/shop/parked?route=out", **JSON).json
    assert [each["offset"] for each in found["result"]] == [3]
    assert (found["total"], found["left_out"], found["damaged"]) == (2, 1, [])


def test_a_token_logs_in_with_its_own_role(folder: Path) -> None:
    """A form takes a token too, and its session has no more rights than the token."""
    client = client_of(make_console(folder))
    headers = {"Sec-Fetch-Site": "same-origin"}
    assert client.post("/login", data={"secret": "x"}, headers=headers).status_code == 401
    found = client.post("/login", data={"secret": TOKENS["viewer"]}, headers=headers)
    assert found.status_code == 303
    assert "viewer · viewer" in client.get("/p/shop").text


def test_a_base_path_is_in_front_of_every_link(folder: Path) -> None:
    """Behind a proxy's path, links, forms and the cookie are below that path."""
    console = make_console(folder, base_path="/transporter")
    client = client_of(console)
    assert console.url == "http://127.0.0.1:9465/transporter/"
    link = console.login_link("ann").partition("/transporter")[2]
    found = client.get(link, base_url=BASE)
    assert "Path=/transporter" in found.headers["Set-Cookie"]
    acts = ("r/out/pause", "r/out/replay?from=1", "r/out/parked/skip?offsets=3", "reload")
    for path in (*PAGES[1:], *(f"/p/shop/{each}" for each in acts)):
        page = client.get(path, base_url=BASE).text
        found = set(re.findall(r'(?:href|action|src|data-icons|data-hx-get)="(/[^/"]*)', page))
        assert found <= {"/transporter"}, path
        assert found or "part=live" in path
    live = re.findall(r'data-hx-get="([^"]*)"', client.get("/p/shop", base_url=BASE).text)
    assert live == ["/transporter/p/shop?&amp;part=live"]
    for path in ("health", "r/out/pause"):
        page = client.get(f"/p/shop/{path}", base_url=BASE).text
        form = re.findall(r'name="form" value="([^"]*)"', page)[0]
        act = path.replace("health", "verify")
        headers = {"Sec-Fetch-Site": "same-origin"}
        sent = client.post(f"/p/shop/{act}", data={"form": form}, headers=headers, base_url=BASE)
        assert (sent.status_code, sent.location[:15]) == (303, "/transporter/p/")
    console.close()


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("/p/shop", ("status",)),
        ("/p/shop/log", ("log", "show", "--last", "100")),
        ("/p/shop/log?ns=^a&dir=oldest", ("log", "show", "--namespace", "^a", "--last", "100")),
        ("/p/shop/log/4", ("log", "show", "4")),
        ("/p/shop/parked?route=out", ("parked", "list", "out")),
        ("/p/shop/audit", ("audit",)),
        ("/p/shop/audit?last=1", ("audit", "--last", "1")),
        ("/p/shop/health", ("log", "info")),
    ],
)
def test_a_page_as_json_is_the_command(
    folder: Path,
    get: Callable[..., TestResponse],
    capsys: pytest.CaptureFixture[str],
    path: str,
    arguments: tuple[str, ...],
) -> None:
    """The JSON of a page is what the command prints with ``--json``."""
    words = 2 if arguments[0] in {"log", "parked"} else 1
    target = str(folder / "shop.yaml")
    expected = cli(capsys, *arguments[:words], target, *arguments[words:])
    assert get(path, **JSON).json["result"] == expected


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/p/other", 404, "does not show a log named"),
        ("/p/shop/r/zz", 404, "there is no route"),
        ("/p/shop/parked?route=zz", 404, "no route of this name"),
        ("/p/shop/log/99999", 404, "which holds 0..12"),
        *(
            (f"/p/shop/{page}={'1' * 5_000}", 400, "not a number")
            for page in ("log?dir=live&after", "audit?last", "log?from", "log?to")
        ),
        ("/p/shop/log?from=x", 400, "neither an offset nor a time"),
        ("/p/shop/log?ns=(", 400, "RE2"),
        ("/nowhere", 404, "not found"),
        ("/p/shop/log/-1", 404, "not found"),
    ],
)
def test_errors_are_pages_and_json(
    get: Callable[..., TestResponse], path: str, status: int, text: str
) -> None:
    """An error names its cause in both forms, and none is a traceback."""
    for headers in ({}, JSON):
        found = get(path, **headers)
        assert found.status_code == status
        assert text in (found.json["error"]["message"] if headers else found.text)
        assert "Traceback" not in found.text


def test_a_bug_is_reported_without_its_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The text of an unexpected error may hold a secret, so only its class and place are shown."""

    def fail(*_: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr("transporter.console.pages.read_changes", fail)
    monkeypatch.delenv("TRANSPORTER_DEBUG", raising=False)
    client = client_of(make_console(folder))
    found = client.get("/p/shop/audit", headers={"Authorization": f"Bearer {TOKENS['viewer']}"})
    assert found.status_code == 500
    assert "RuntimeError at test_pages.py" in found.text
    assert SECRET not in found.text + "".join(capfd.readouterr())


@pytest.mark.parametrize("path", [*PAGES, "/p/shop/log/12", "/p/shop/log?has=alert"])
def test_a_payload_is_text_and_never_markup(get: Callable[..., TestResponse], path: str) -> None:
    """Tags are escaped, and letters that control a terminal or turn the text are shown as codes."""
    found = get(path)
    assert found.status_code in {200, 302}
    assert "<script>alert" not in found.text
    assert "\x1b" not in found.text
    assert "\u202e" not in found.text


def test_a_hostile_payload_is_shown_in_full(get: Callable[..., TestResponse]) -> None:
    """It is legible, and its raw bytes are a file that no browser shows."""
    assert r"&lt;script&gt;alert(1)&lt;/script&gt;\x1b[2J\u202e" in get("/p/shop/log/12").text
    raw = get("/p/shop/log/12/raw")
    assert raw.data == f"{HOSTILE}{CANARY}".encode()
    assert raw.headers["Content-Type"] == "application/octet-stream"
    assert raw.headers["Content-Disposition"] == "attachment; filename=shop-12.bin"
    assert raw.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("get", ["viewer"], indirect=True)
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
@pytest.mark.parametrize("path", [*PAGES, "/p/shop/log/3", "/p/shop/log/12"])
def test_a_viewer_sees_no_payload(get: Callable[..., TestResponse], path: str, accept: str) -> None:
    """By default keys, headers, data and the texts of errors are for operators."""
    found = get(path, Accept=accept)
    assert found.status_code in {200, 302}
    assert "no 3 here" not in found.text
    assert CANARY not in found.text
    if found.is_json:
        assert not {"data", "key", "headers", "source_id"} & set(names_in(found.json))


@pytest.mark.parametrize("get", ["viewer"], indirect=True)
@pytest.mark.parametrize("path", ["/p/shop/log/4/raw", "/p/shop/log?has=4", "/p/shop/log?key=k"])
def test_a_viewer_cannot_search_payloads(get: Callable[..., TestResponse], path: str) -> None:
    """A search by content would tell content, one guess after another."""
    found = get(path, **JSON)
    assert found.status_code == 409
    assert "only operators" in found.json["error"]["message"]


@pytest.mark.parametrize("path", PAGES)
def test_no_setting_of_an_adaptor_is_shown(get: Callable[..., TestResponse], path: str) -> None:
    """A password that stands in the file itself is on no page (Invariant 20)."""
    found = get(path)
    assert found.status_code in {200, 302}
    assert SECRET not in found.text


def test_the_config_page_names_what_it_hides(get: Callable[..., TestResponse]) -> None:
    """Settings of adaptors are named, and our own options have their values and lines."""
    text = get("/p/shop/config").text
    assert "path, reject, password" in text
    assert "<code>park</code>" in text


def test_a_stopped_log_says_what_it_shows(get: Callable[..., TestResponse]) -> None:
    """Without an engine the page is the disk's, with the command that starts one."""
    text = get("/p/shop").text
    assert "no engine runs on this log" in text
    assert "This is what the disk holds." in text
    assert "transporter run" in text


def test_why_a_route_waited_outlives_its_engine(folder: Path) -> None:
    """The reason is a problem of the page. Only an engine could try again now."""
    log = folder / "log"
    reason = HaltReason(route_folder(log, "some"))
    reason.record("it says no", before=read_state(log, "some").next_offset())
    client = create_app(make_console(folder)).test_client()  # It has looked at nothing yet.
    bearer = {"Authorization": f"Bearer {TOKENS['operator']}"}
    text = client.get("/p/shop", headers=bearer).text
    reason.clear()
    assert "it says no" in text
    assert "Try now" not in text


def test_an_entry_shows_its_fate_in_each_route(get: Callable[..., TestResponse]) -> None:
    """Parked with its error, left out by a filter, settled by an operator."""
    parked = get("/p/shop/log/3").text
    assert "parked after 2 attempts" in parked
    assert "no 3 here" in parked
    assert "its filter leaves it out" in parked
    assert "settled undelivered by an operator, ann" in get("/p/shop/log/1").text


def test_health_needs_no_login_and_shows_nothing(app: Flask) -> None:
    """A probe learns that the console answers, and no more."""
    found = app.test_client().get("/healthz")
    assert (found.status_code, found.text) == (200, "ok\n")


def test_large_bodies_are_refused(app: Flask) -> None:
    """A form is at most 64 KiB (Invariant 17)."""
    client = app.test_client()
    headers = {"Sec-Fetch-Site": "same-origin"}
    found = client.post("/login", data={"secret": "x" * 70_000}, headers=headers)
    assert found.status_code == 413


def test_every_asset_is_ours(folder: Path) -> None:
    """Htmx is the file of the release, by its checksum, and its licence lies beside it."""
    import hashlib  # noqa: PLC0415 - this test only
    from pathlib import Path  # noqa: PLC0415

    import transporter.console.app as module  # noqa: PLC0415

    static = Path(str(module.__file__)).parent / "static"
    name, version, digest = (static / "htmx.lock").read_text().split()
    assert (name, version) == ("htmx.org", "4.0.1")
    assert hashlib.sha256((static / "htmx.min.js").read_bytes()).hexdigest() == digest
    assert "Zero-Clause BSD" in (static / "htmx.LICENSE.txt").read_text()
