"""Acts by forms: admission, one use, parity with the commands, and honest answers."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from console_tools import JSON, TOKENS, client_of, make_console, make_shop
from engine_tools import until

from transporter.audit import AUDIT
from transporter.cli.app import execute
from transporter.console import act_pages
from transporter.console.acts import ACTS, parse_ranges, ranges_text
from transporter.console.app import create_app
from transporter.console.guard import Identity
from transporter.control import client as control_client
from transporter.control.client import EngineEnded
from transporter.control.request_arguments import command_words
from transporter.control.requests import Pause
from transporter.control.wire import SOCKET, JsonLines
from transporter.offsets.offset_log import read_state
from transporter.offsets.state import RouteState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from werkzeug.test import TestResponse

    from transporter.console.state import Console

HERE = {"Sec-Fetch-Site": "same-origin"}
REASON = 'ticket 7; it\'s "urgent"'
OFFLINE: Mapping[str, Mapping[str, str]] = {
    "r/out/pause": {},
    "r/out/resume": {},
    "r/out/ack": {"first": "12"},
    "r/out/replay": {"from": "2", "to": "9", "ns": "^a"},
    "r/out/parked/retry": {"offsets": "3,7"},
    "r/out/parked/skip": {"offsets": "3"},
    "r/out/parked/note": {"offsets": "7", "text": "waits for ACME"},
    "r/some/forget": {},
}
"""The acts that a log without an engine takes, with the values of their forms."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a pipeline that has run to its end, which no test changes."""
    return make_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def folder(shop: Path, tmp_path: Path) -> Path:
    """Return a copy of the shop, which the test may change."""
    return shutil.copytree(shop, tmp_path / "shop")


class Person:
    """A browser that has logged in, and fills in forms."""

    def __init__(self, console: Console, name: str = "ann", role: Any = "operator") -> None:
        self.console, self.client = console, client_of(console)
        secret = console.sessions.issue(Identity(name, role, "session"))
        self.client.set_cookie(console.cookie, secret)

    def open(self, act: str, values: Mapping[str, str]) -> str:
        """Return the form of an act, with *values* filled in."""
        found = self.client.get(f"/p/shop/{act}", query_string=dict(values))
        assert found.status_code == 200, found.text
        return found.text

    def send(self, act: str, fields: Mapping[str, str], **headers: str) -> TestResponse:
        """Send a form."""
        return self.client.post(f"/p/shop/{act}", data=dict(fields), headers=HERE | headers)

    def act(self, act: str, values: Mapping[str, str]) -> str:
        """Do an act as a person does: open the form, confirm it, and read the next page."""
        page = self.open(act, values)
        found = self.send(act, {**values, **fields_of(page), "reason": REASON})
        assert found.status_code == 303, found.text
        return self.client.get(found.location).text


def fields_of(page: str) -> dict[str, str]:
    """Return the hidden fields of the form on *page*, and what is to be typed."""
    hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page)
    typed = re.search(r"<label>Type (.*?) to confirm", page)
    found = {name: html.unescape(value) for name, value in hidden}
    return found | ({"typed": typed[1]} if typed else {})


def leave_out(file: Path, route: str) -> None:
    """Remove *route* from a pipeline file."""
    document = json.loads(file.read_text())
    document["routes"] = [each for each in document["routes"] if each["name"] != route]
    file.write_text(json.dumps(document))


def audit_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the audit file."""
    path = folder / "log" / AUDIT
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_author(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return audit lines without who made them and when."""
    own = {"id", "of", "at", "who", "via", "from", "known_by", "by", "uid", "pid", "loginuid"}
    return [{name: line[name] for name in line if name not in own} for line in lines]


@pytest.mark.parametrize("act", OFFLINE)
def test_a_form_does_what_its_command_does(folder: Path, tmp_path: Path, act: str) -> None:
    """State and audit are the same after the form and after the command that it shows."""
    if act.endswith("forget"):
        leave_out(folder / "shop.yaml", "some")
    twin = shutil.copytree(folder, tmp_path / "twin")
    person = Person(make_console(folder))
    values = {**OFFLINE[act], "reason": REASON}
    shown = re.search(r"<code>(transporter .*?)</code>", person.open(act, values))
    assert shown is not None
    words = shlex.split(html.unescape(shown[1]).replace(str(folder), str(twin)))
    person.act(act, OFFLINE[act])
    assert execute(words[1:]) == 0
    assert without_author(audit_lines(folder)) == without_author(audit_lines(twin))
    assert len(audit_lines(folder)) > 2
    for route in {"out", "some"} - {"some" if "forget" in act else ""}:
        ours, theirs = (read_state(each / "log", route) for each in (folder, twin))
        assert ours == theirs


def test_the_audit_names_the_person(folder: Path) -> None:
    """It has the person, the console and the address; the process is there as the one it was by."""
    page = Person(make_console(folder), "ann@example.org").act("r/out/pause", {})
    line = next(each for each in audit_lines(folder) if each.get("action") == "route pause")
    assert (line["who"], line["via"], line["from"]) == ("ann@example.org", "console", "127.0.0.1")
    assert (line["reason"], line["known_by"]) == (REASON, "for")
    assert "Pause out: paused (no engine runs: the next run applies it)" in page


def every_post(console: Console) -> list[str]:
    """Return the addresses of all acts of *console*, by its own map of addresses."""
    rules = create_app(console).url_map.iter_rules()
    posts = {rule.rule for rule in rules if rule.methods and "POST" in rule.methods}
    acts = sorted(posts - {"/login", "/logout"})
    return [each.replace("<log>", "shop").replace("<part>", "out") for each in acts]


FIELDS = {"first": "12", "from": "1", "offsets": "3", "text": "x", "reason": "r", "typed": "out"}


@pytest.mark.parametrize(
    ("role", "access", "headers", "status"),
    [
        (None, {}, HERE, 401),
        ("viewer", {}, HERE, 403),
        ("operator", {"read_only": True}, HERE, 403),
        ("operator", {}, {"Sec-Fetch-Site": "cross-site"}, 403),
        ("operator", {}, {"Sec-Fetch-Site": "same-site"}, 403),
        ("operator", {}, {"Sec-Fetch-Site": "none"}, 403),
        ("operator", {}, {"Origin": "http://evil.example"}, 403),
        ("operator", {}, {"Origin": "null"}, 403),
        ("operator", {}, {}, 403),
        ("operator", {}, HERE | {"Host": "evil.example"}, 421),
        ("operator", {}, HERE, 409),
        ("operator", {}, HERE | {"X-Form": "spent"}, 409),
        ("operator", {}, HERE | {"X-Form": "bob"}, 409),
        ("operator", {}, HERE | {"X-Form": "elsewhere"}, 409),
    ],
)
def test_every_post_is_refused_without_its_right(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: str | None,
    access: dict[str, Any],
    headers: dict[str, str],
    status: int,
) -> None:
    """A viewer, another site, a wrong host, and a form that is missing, spent or another's."""
    done: list[object] = []
    monkeypatch.setattr(act_pages, "perform", lambda *request, **_: done.append(request))
    monkeypatch.setattr(act_pages, "run_command", lambda *words: done.append(words))
    console = make_console(folder, **access)
    before = audit_lines(folder)
    paths = every_post(console)
    assert len(paths) >= len(ACTS)
    for path in paths:
        for accept in ("text/html", "application/json"):
            client = Person(console, "ann", role).client if role else client_of(console)
            form = form_of(console, headers.get("X-Form", ""), path)
            found = client.post(path, data=FIELDS | form, headers=headers | {"Accept": accept})
            assert found.status_code == status, (path, found.text)
    assert done == []
    assert audit_lines(folder) == before


def form_of(console: Console, kind: str, path: str) -> dict[str, str]:
    """Return the field that proves a form: one that is used, another person's or another act's."""
    ann, bob = (Identity(name, "operator", "session") for name in ("ann", "bob"))
    if not kind:
        return {}
    grant = act_pages.FormGrant(bob if kind == "bob" else ann, path)
    if kind == "elsewhere":
        grant = act_pages.FormGrant(ann, f"{path}/other")
    secret = console.forms.issue(grant)
    if kind == "spent":
        console.forms.take(secret)
    return {"form": secret}


def test_every_act_has_a_form_and_a_post(folder: Path) -> None:
    """All acts of the table are addresses, and no other address but login takes a POST."""
    own = {f"/p/<log>{each.rule}" for each in ACTS} | {"/p/<log>/verify"}
    rules = create_app(make_console(folder)).url_map.iter_rules()
    posts = {rule.rule for rule in rules if rule.methods and "POST" in rule.methods}
    assert posts - {"/login", "/logout"} == own


def test_a_form_is_taken_once(folder: Path) -> None:
    """A second click does nothing, and says where to look."""
    person = Person(make_console(folder))
    fields = fields_of(person.open("r/out/pause", {}))
    assert person.send("r/out/pause", fields).status_code == 303
    lines = audit_lines(folder)
    again = person.send("r/out/pause", fields)
    assert again.status_code == 409
    assert "was sent already" in again.text
    assert audit_lines(folder) == lines


def test_an_outcome_is_shown_once_and_to_its_person(folder: Path) -> None:
    """The page after an act shows its result; neither a reload nor anybody else does."""
    console = make_console(folder)
    ann, bob = Person(console), Person(console, "bob")
    page = ann.send("r/out/pause", fields_of(ann.open("r/out/pause", {}))).location
    assert "Pause out: paused" not in ann.client.get(f"{page}&part=live").text
    assert "Pause out: paused" in ann.client.get(page).text
    assert "Pause out: paused" not in ann.client.get(page).text
    page = ann.send("r/out/pause", fields_of(ann.open("r/out/pause", {}))).location
    assert "Pause out: paused" not in bob.client.get(page).text


def test_what_needs_a_reason_or_a_word_gets_it(folder: Path) -> None:
    """Without them nothing happens, and the page says what is missing."""
    person = Person(make_console(folder))
    before = audit_lines(folder)
    assert "route some is in the pipeline" in person.open("r/some/forget", {})
    assert (
        person.send("r/some/forget", fields_of(person.open("r/out/pause", {}))).status_code == 409
    )
    leave_out(folder / "shop.yaml", "some")
    fields = fields_of(person.open("r/some/forget", {}))
    assert "give a reason" in person.send("r/some/forget", fields).text
    fields = fields_of(person.open("r/some/forget", {})) | {"typed": "out", "reason": "r"}
    assert "type some to confirm" in person.send("r/some/forget", fields).text
    fields = fields_of(person.open("r/out/replay", {"from": "2"})) | {"typed": "1", "reason": "r"}
    assert "to confirm; nothing was changed" in person.send("r/out/replay", fields).text
    assert audit_lines(folder) == before


def test_a_replay_is_counted_first(folder: Path) -> None:
    """Without a range there is no button; with one there is the count, and the range is fixed."""
    person = Person(make_console(folder))
    assert '<form method="post" class="stack"' not in person.open("r/out/replay", {})
    page = person.open("r/out/replay", {"from": "2", "to": "9", "ns": "^a"})
    assert "hold <b>4</b> entries of <code>^a</code>" in page
    assert fields_of(page).items() >= {"from": "2", "to": "9", "typed": "4"}.items()
    assert "nothing to replay" in person.open("r/out/replay", {"from": "99"})


def test_a_bulk_act_touches_what_was_seen(folder: Path) -> None:
    """The form holds the offsets that the list shows, whatever else is parked by then."""
    person = Person(make_console(folder))
    page = person.open("r/out/parked/retry", {"offsets": "0..5"})
    assert "<b>1</b> parked entry" in page
    assert fields_of(page)["offsets"] == "3"
    assert "nothing is parked at 4 any more" in person.open("r/out/parked/retry", {"offsets": "4"})


def test_a_program_acts_by_its_token(folder: Path) -> None:
    """No page can make a browser send it, so it needs no form. The answer is the command's."""
    client = client_of(make_console(folder))
    bearer = {"Authorization": f"Bearer {TOKENS['operator']}"} | JSON
    body = {"offsets": ["3"], "reason": "r", "only": True}
    found = client.post("/p/shop/r/out/parked/retry", json=body, headers=bearer)
    assert found.status_code == 200
    assert found.json["result"]["offsets"] == [3]
    assert audit_lines(folder)[-2]["who"] == "operator"
    wrong = client.post("/p/shop/r/out/ack", json={"first": "x", "reason": "r"}, headers=bearer)
    assert (wrong.status_code, wrong.json["error"]["exit_code"]) == (400, 2)
    wrong = client.post("/p/shop/r/out/ack", json=["x"], headers=bearer)
    assert wrong.status_code == 400


@pytest.mark.parametrize("read_only", [True, False])
def test_buttons_follow_the_right_to_act(folder: Path, read_only: bool) -> None:
    """They say why they do nothing, by the same rule that the server checks."""
    role = "operator" if read_only else "viewer"
    person = Person(make_console(folder, read_only=read_only), "ann", role)
    why = "this console is read-only" if read_only else "the role viewer changes nothing"
    for path in ("r/out", "parked?route=out", "log/3", "config"):
        text = person.client.get(f"/p/shop/{path}").text
        assert why in text, path
        assert not re.search(r'href="[^"]*/(pause|resume|retry|skip|reload|ack)', text)


def test_an_answer_that_did_not_come_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether it happened, and the page says so and leads to the audit."""

    def fail(*_: object, **__: object) -> None:
        raise EngineEnded("the engine did not answer within 45 s")

    person = Person(make_console(folder))
    fields = fields_of(person.open("r/out/pause", {}))
    monkeypatch.setattr(act_pages, "perform", fail)
    found = person.send("r/out/pause", fields)
    assert found.status_code == 504
    assert "Unknown whether it happened" in found.text
    assert "/p/shop/audit?who=ann" in found.text
    fields = {"form": form_of_ann(person.console, "/p/shop/r/out/pause")}
    found = person.send("r/out/pause", fields, **JSON)
    assert (found.status_code, found.json["error"]["type"]) == (504, "EngineEnded")


def form_of_ann(console: Console, path: str) -> str:
    """Return the right to send one form."""
    return console.forms.issue(act_pages.FormGrant(Identity("ann", "operator", "session"), path))


def test_engines_that_hang_leave_room_for_pages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More acts than a few at once are refused, and none of them has begun."""
    go, begun = threading.Event(), threading.Semaphore(0)

    def hang(*_: object, **__: object) -> dict[str, Any]:
        begun.release()
        assert go.wait(20)
        return {"done": "paused", "live": True}

    console = make_console(folder)
    monkeypatch.setattr(act_pages, "perform", hang)
    app = create_app(console)
    bearer = {"Authorization": f"Bearer {TOKENS['operator']}"} | JSON
    results: list[int] = []

    def post() -> None:
        results.append(app.test_client().post("/p/shop/r/out/pause", headers=bearer).status_code)

    threads = [threading.Thread(target=post) for _ in range(act_pages.AT_ONCE)]
    for each in threads:
        each.start()
    for _ in threads:
        assert begun.acquire(timeout=20)
    refused = app.test_client().post("/p/shop/r/out/pause", headers=bearer)
    assert (refused.status_code, "nothing was changed" in refused.json["error"]["message"]) == (
        503,
        True,
    )
    go.set()
    for each in threads:
        each.join()
    assert results == [200] * act_pages.AT_ONCE


def test_an_engine_that_hangs_is_waited_for_so_long(tmp_path: Path) -> None:
    """A peer that greets and then is silent leaves the outcome unknown, and not 'ended'."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET))
        listener.listen()

        def greet() -> None:
            peer, _ = listener.accept()
            with peer:
                JsonLines(peer, 1 << 20).send({"pid": 1, "accepts": ["for"]})
                peer.recv(1 << 16)
                done.wait(20)

        done = threading.Event()
        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(EngineEnded, match=r"did not answer within 0\.2 s"):
            control_client.perform(tmp_path, Pause("out"), answer_within=0.2)
        done.set()
        thread.join()


def test_a_verification_names_the_damage(folder: Path) -> None:
    """It runs in a process of its own, one at a time, and the page shows file and byte."""
    segment = next((folder / "log").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 1
    segment.write_bytes(data)
    console = make_console(folder)
    person = Person(console)
    found = person.send("verify", fields_of(person.open("health", {})))
    assert found.status_code == 303
    assert "and still reading" in person.client.get(found.location).text
    again = person.send("verify", fields_of(person.open("health", {})))
    assert (again.status_code, "wait for its end" in again.text) == (409, True)
    until(lambda: "still reading" not in person.open("health", {}))
    assert re.search(rf"{segment.name}, byte \d+: ", person.open("health", {}))
    console.close()


@pytest.mark.parametrize("act", ACTS, ids=lambda each: each.endpoint)
def test_every_act_shows_a_command_that_makes_its_request(
    act: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The words, read by the command line, make the same request again."""
    sent: list[object] = []

    def catch(_: Path, request: object) -> dict[str, Any]:
        sent.append(request)
        raise KeyboardInterrupt

    for module in ("ack", "parked", "replay", "route", "reader", "reload"):
        monkeypatch.setattr(f"transporter.cli.{module}.perform_request", catch)
    monkeypatch.setattr("transporter.cli.reload._refuse_invalid_sql", lambda _: None)
    monkeypatch.setattr("transporter.offsets.offset_log.read_state", read_nothing)
    values = FIELDS | {"reason": REASON, "last": "14", "to": "9", "partial": "1", "only": "1"}
    wanted = act.request("out", values)
    execute(command_words(wanted, str(tmp_path)))
    assert sent == [wanted]


def read_nothing(*_: object) -> RouteState:
    """Return a route that has settled nothing."""
    return RouteState()


def test_offsets_are_lists_and_ranges() -> None:
    """As forms and people write them."""
    assert parse_ranges("3, 7..9 12") == [(3, 3), (7, 9), (12, 12)]
    assert ranges_text([9, 3, 8, 7]) == "3,7..9"
    with pytest.raises(ValueError, match="not an offset range"):
        parse_ranges("3-4")
