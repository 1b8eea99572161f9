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
from transporter.console.child import run_command
from transporter.console.formats import count_text
from transporter.console.guard import Identity
from transporter.console.sources import Look
from transporter.control import client as control_client
from transporter.control.client import EngineEnded
from transporter.control.request_arguments import command_words
from transporter.control.requests import Pause
from transporter.control.wire import SOCKET, JsonLines
from transporter.errors import ActionRefused, EngineUnreachable, EnvironmentFault
from transporter.message import Message, messages_to_batch, with_offsets
from transporter.offsets.offset_log import read_state, route_folder
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason, parked_path
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
    "r/out/replay": {"from": "2", "to": "9", "namespace": "^a"},
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
        self.secret = console.sessions.issue(Identity(name, role, "session"))
        self.client.set_cookie(console.cookie, self.secret)

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
    values = {"<log>": "shop", "<part>": "out", "<int:offset>": "4"}
    return [re.sub("<.*?>", lambda found: values[found.group()], each) for each in acts]


BEARER = {"Authorization": f"Bearer {TOKENS['operator']}"} | JSON
FORM = '<form method="post" class="stack"'
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
    own = {f"/p/<log>{each.rule}" for each in ACTS}
    own |= {"/p/<log>/verify", "/p/<log>/log/<int:offset>/try"}
    rules = create_app(make_console(folder)).url_map.iter_rules()
    posts = {rule.rule for rule in rules if rule.methods and "POST" in rule.methods}
    assert posts - {"/login", "/logout"} == own


def test_a_form_is_taken_once(folder: Path) -> None:
    """A second click does nothing, and leads to the result of the first."""
    console = make_console(folder)
    person = Person(console)
    fields = fields_of(person.open("r/out/pause", {}))
    assert person.send("r/out/pause", fields).status_code == 303
    lines = audit_lines(folder)
    again = person.send("r/out/pause", fields)
    assert again.status_code == 303
    assert "Pause out: paused" in person.client.get(again.location).text
    for other in (Person(console, "bob"), person):
        act = "r/out/pause" if other is not person else "r/some/pause"
        refused = other.send(act, fields)
        assert (refused.status_code, "was sent already" in refused.text) == (409, True)
    assert audit_lines(folder) == lines


@pytest.mark.parametrize("patience", [5.0, 0.0])
def test_a_second_click_waits_for_the_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    """It leads to the result, or says that there is none yet, and changes nothing."""
    monkeypatch.setattr(act_pages, "SECOND_CLICK", patience)
    person = Person(make_console(folder))
    fields = fields_of(person.open("r/out/pause", {}))
    begun, go_on, done = threading.Event(), threading.Event(), []

    def perform(*_: object, **__: object) -> dict[str, Any]:
        done.append(begun.set())
        assert go_on.wait(20)
        return {"done": "paused", "live": True}

    monkeypatch.setattr(act_pages, "perform", perform)
    first = threading.Thread(target=Person(person.console).send, args=("r/out/pause", fields))
    first.start()
    assert begun.wait(20)
    timer = threading.Timer(0.3 if patience else 1.0, go_on.set)
    timer.start()
    again = person.send("r/out/pause", fields)
    assert go_on.is_set() == bool(patience)
    timer.join()
    first.join()
    text = person.client.get(again.location).text
    assert ("Pause out: paused" if patience else "It is being carried out") in text
    assert len(done) == 1


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ActionRefused("the route steps"), 409, "the route steps"),
        (OSError(28, "No space left on device"), 500, "it has failed; the audit page"),
    ],
)
def test_a_second_click_has_the_error_of_the_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, text: str
) -> None:
    """What the browser shows is the answer to the last click."""

    def perform(*_: object, **__: object) -> None:
        raise error

    person = Person(make_console(folder))
    fields = fields_of(person.open("r/out/pause", {}))
    monkeypatch.setattr(act_pages, "perform", perform)
    assert person.send("r/out/pause", fields).status_code == status
    again = person.send("r/out/pause", fields)
    assert f"Pause out: {text}" in person.client.get(again.location).text


def test_clicks_without_end_leave_room_for_pages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few wait for the first one, and the others are told at once."""
    person = Person(make_console(folder))
    fields = fields_of(person.open("r/out/pause", {}))
    begun, go_on = threading.Event(), threading.Event()

    def perform(*_: object, **__: object) -> dict[str, Any]:
        begun.set()
        assert go_on.wait(60)
        return {"done": "paused", "live": True}

    def click() -> None:
        client = person.client.application.test_client()
        client.set_cookie(person.console.cookie, person.secret)
        found = client.post("/p/shop/r/out/pause", data=fields, headers=HERE)
        sent.append(found.status_code)

    monkeypatch.setattr(act_pages, "SECOND_CLICK", 20.0)
    monkeypatch.setattr(act_pages, "perform", perform)
    sent: list[int] = []
    clicks = [threading.Thread(target=click) for _ in range(7)]
    clicks[0].start()
    assert begun.wait(20)
    for each in clicks[1:]:
        each.start()
    until(lambda: len(sent) == 4)
    go_on.set()
    for each in clicks:
        each.join()
    assert sent == [303] * 7


def test_a_verification_that_cannot_begin_blocks_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it fails of, its end is known."""

    def fail(*_: object, **__: object) -> None:
        raise EnvironmentFault("no process")

    verifier = make_console(folder).verifier
    monkeypatch.setattr("transporter.console.child.run_command", fail)
    assert verifier.start("shop", "log")
    until(lambda: not verifier.is_running)
    found = verifier.state("shop")
    assert found is not None
    assert found.problem == "no process"


def test_no_descriptor_is_left_for_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is an error of the environment, and not a bug."""

    def fail() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("os.pipe", fail)
    with pytest.raises(EnvironmentFault, match="cannot be started: Too many open files"):
        run_command("log", "verify", "log")


def test_a_form_can_be_corrected(folder: Path) -> None:
    """A wrong value is no use of it."""
    person = Person(make_console(folder))
    fields = fields_of(person.open("r/out/ack", {"first": "12"})) | {"first": "12"}
    assert "give a reason" in person.send("r/out/ack", fields).text
    wrong = person.send("r/out/ack", fields | {"reason": "r", "last": "1"})
    assert "not an offset range" in wrong.text
    assert person.send("r/out/ack", fields | {"reason": "r"}).status_code == 303


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
    page = person.open("r/out/replay", {"from": "2", "to": "9", "namespace": "^a"})
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


def test_a_form_that_reached_no_engine_is_good_for_another_try(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page says: nothing was changed, try again."""

    def fail(*_: object, **__: object) -> None:
        raise EngineUnreachable("4 acts still wait; nothing was changed, try again")

    person = Person(make_console(folder))
    fields = fields_of(person.open("r/out/pause", {}))
    with monkeypatch.context() as patch:
        patch.setattr(act_pages, "perform", fail)
        assert person.send("r/out/pause", fields).status_code == 503
    assert person.send("r/out/pause", fields).status_code == 303


def test_a_program_that_sends_zero_means_zero(folder: Path) -> None:
    """A number of JSON is what its digits are, also where it is the smallest."""
    client = client_of(make_console(folder))
    found = client.post(
        "/p/shop/r/out/replay", json={"from": "0", "to": 0, "reason": "r"}, headers=BEARER
    )
    result = found.json["result"]
    assert (result["replay"]["first"], result["replay"]["last"]) == (0, 0)
    found = client.post("/p/shop/r/out/ack", json={"first": 0, "reason": "r"}, headers=BEARER)
    assert "give a value" not in found.text


@pytest.mark.parametrize(
    ("act", "fields"),
    [
        ("parked/retry", {"offsets": ","}),
        ("parked/retry", {"offsets": ["", ""]}),
        ("parked/skip", {"offsets": [None]}),
        ("parked/retry", {"offsets": "3", "only": "perhaps"}),
        ("parked/skip", {"offsets": "3", "offset": "7"}),
        ("replay", {"from": "0", "ns": "^zzz"}),
        ("replay", {"from": "0", "dry_run": "si"}),
        ("replay", {"from": "0", "partial": 2}),
        ("replay", {"from": "1" * 5000}),
        ("ack", {"first": "9" * 30}),
        ("pause", {"until": "tomorrow"}),
    ],
)
def test_nothing_that_a_program_sends_is_read_loosely(
    folder: Path, act: str, fields: dict[str, Any]
) -> None:
    """An unknown field, an empty list and anything but a boolean are refused, not passed over."""
    client = client_of(make_console(folder))
    before = audit_lines(folder)
    found = client.post(f"/p/shop/r/out/{act}", json=fields | {"reason": "r"}, headers=BEARER)
    assert (found.status_code, found.json["error"]["exit_code"]) == (400, 2), found.text
    assert audit_lines(folder) == before


def test_false_is_false(folder: Path) -> None:
    """The word, too, as forms and command lines send it."""
    client = client_of(make_console(folder))
    fields = {"offsets": "3", "only": "false", "reason": "r"}
    assert client.post("/p/shop/r/out/parked/retry", data=fields, headers=BEARER).status_code == 200
    assert audit_lines(folder)[-2]["only"] is False
    fields = {"from": "0", "to": "5", "dry_run": "false", "reason": "r"}
    assert client.post("/p/shop/r/out/replay", data=fields, headers=BEARER).status_code == 200
    assert audit_lines(folder)[-2]["action"] == "replay"


def test_a_body_that_is_nested_too_deeply_is_refused(folder: Path) -> None:
    """It is the sender's mistake, and no bug."""
    headers = BEARER | {"Content-Type": "application/json"}
    client = client_of(make_console(folder))
    found = client.post("/p/shop/r/out/pause", data="[" * 60_000, headers=headers)
    assert (found.status_code, "nested too deeply" in found.text) == (400, True)


def test_nothing_is_skipped_or_retried_that_was_not_seen(folder: Path) -> None:
    """There is no form without its preview, and one takes no other offsets than it has shown."""
    person = Person(make_console(folder))
    before = audit_lines(folder)
    for act in ("r/out/parked/skip", "r/out/parked/retry"):
        assert FORM not in person.open(act, {})
        fields = fields_of(person.open(act, {"offsets": "3"})) | {"reason": "r"}
        found = person.send(act, fields | {"offsets": "0..99"})
        assert (found.status_code, "look again" in found.text) == (409, True)
    assert audit_lines(folder) == before


def test_what_is_behind_is_left_parked_by_the_form_itself(folder: Path) -> None:
    """Its box stands beside the button, so that nobody ticks it in vain."""
    person = Person(make_console(folder))
    page = person.open("r/out/parked/skip", {"offsets": "3"})
    assert page.index(FORM) < page.index('type="checkbox" name="only"')
    sent = fields_of(page) | {"only": "1", "reason": "r"}
    assert person.send("r/out/parked/skip", sent).status_code == 303
    assert audit_lines(folder)[-2]["only"] is True


def test_a_route_is_forgotten_by_its_name_only(folder: Path) -> None:
    """There is no form for a route that the file names, nor if the file cannot be read."""
    person = Person(make_console(folder))
    assert FORM not in person.open("r/some/forget", {})
    leave_out(folder / "shop.yaml", "some")
    fields = fields_of(person.open("r/some/forget", {})) | {"reason": "r"}
    (folder / "shop.yaml").write_text("a: [")
    page = person.open("r/some/forget", {})
    assert FORM not in page
    assert "nobody knows whether it names route some" in page
    assert person.send("r/some/forget", fields).status_code == 409
    assert (folder / "log/offsets/some").exists()


def park(folder: Path, first: int, last: int, size: int = 1) -> None:
    """Park entries of route ``out``, each with data of *size* bytes."""
    messages = [Message("a", b"x" * size, b"k%d" % offset) for offset in range(first, last + 1)]
    batch = with_offsets(messages_to_batch(messages), first, 1_700_000_000_000_000)
    reason = ParkReason("no", 1, 1_700_000_000_000_000)
    ParkedStore(route_folder(folder / "log", "out")).park_all(
        [ParkedEntry(first + row, batch.slice(row, 1), reason) for row in range(last - first + 1)]
    )


def test_an_entry_beyond_those_of_a_page_is_parked_all_the_same(folder: Path) -> None:
    """A preview counts and names all that is parked, and lists the oldest."""
    person = Person(make_console(folder))
    park(folder, 20, 1_050)
    page = person.open("r/out/parked/skip", {"offsets": "1040"})
    assert ("nothing is parked" in page, FORM in page) == (False, True)
    page = person.open("r/out/parked/skip", {"offsets": "0..5000"})
    assert f"<b>{count_text(1_033)}</b> parked entries" in page
    assert fields_of(page)["offsets"] == "3,7,20..1050"
    assert f"; the oldest {count_text(1_000)} are shown" in person.open("parked", {"route": "out"})


def test_a_damaged_copy_is_parked_and_can_be_skipped(folder: Path) -> None:
    """Only delivering it is refused."""
    person = Person(make_console(folder))
    parked_path(route_folder(folder / "log", "out"), 7).write_bytes(b"x")
    page = person.open("parked", {"route": "out"})
    assert (f"{count_text(2)} parked" in page, "Skip 7…" in page) == (True, True)
    assert "Skip…" in person.open("log/7", {})
    assert "not a parked entry" in person.open("r/out/parked/retry", {"offsets": "7"})
    page = person.open("r/out/parked/retry", {"offsets": "3,7"})
    assert ("7 cannot be delivered" in page, fields_of(page)["offsets"]) == (True, "3")
    person.act("r/out/parked/skip", {"offsets": "3,7"})
    assert audit_lines(folder)[-2]["offsets"] == [3, 7]
    assert "Route out has parked nothing" in person.open("parked", {"route": "out"})


def test_a_preview_names_what_waits_behind(folder: Path) -> None:
    """Also what is beyond the rows that it lists."""
    person = Person(make_console(folder))
    batch = with_offsets(messages_to_batch([Message("a", b"x", b"k")]), 9, 1_700_000_000_000_000)
    reason = ParkReason("no", 0, 1_700_000_000_000_000, behind=3)
    ParkedStore(route_folder(folder / "log", "out")).park(ParkedEntry(9, batch, reason))
    assert "Parked behind them: 9." in person.open("r/out/parked/retry", {"offsets": "3"})
    assert "Parked behind them" not in person.open("r/out/parked/retry", {"offsets": "7"})


RELOAD = {
    "done": "would be reloaded",
    "refusals": [],
    "routes": [],
    "readers": [],
    "diff": [{"setting": "routes.out.slice_rows", "before": "1", "after": "2"}],
}


class Reloading:
    """An engine that would reload its file, as far as a console sees."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.preview: dict[str, Any] = RELOAD | {"file": str(folder / "shop.yaml")}
        self.result: dict[str, Any] = {"done": "reloaded", "live": True}
        self.sent: list[object] = []
        monkeypatch.setattr(act_pages, "run_command", lambda *_: self.preview)
        monkeypatch.setattr(act_pages, "perform", self.perform)
        look = Look("live", None, 0.0)
        monkeypatch.setattr("transporter.console.sources.LogSource.look", lambda _: look)

    def perform(self, _: Path, wanted: object, **__: object) -> dict[str, Any]:
        """Take the request, and return the result."""
        self.sent.append(wanted)
        return self.result


@pytest.fixture
def reloading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Reloading:
    """Return an engine that would reload its file."""
    return Reloading(folder, monkeypatch)


def test_a_reload_takes_up_what_was_shown(folder: Path, reloading: Reloading) -> None:
    """If the file has changed meanwhile, the form is refused until somebody has looked again."""
    person = Person(make_console(folder))
    page = person.open("reload", {})
    assert str(folder / "shop.yaml") in page
    fields = fields_of(page) | {"reason": "r"}
    reloading.preview = {**reloading.preview, "diff": []}
    found = person.send("reload", fields)
    assert (found.status_code, "look again" in found.text, reloading.sent) == (409, True, [])
    assert person.send("reload", fields_of(person.open("reload", {}))).status_code == 303
    assert len(reloading.sent) == 1


def test_a_reload_of_another_file_is_refused(folder: Path, reloading: Reloading) -> None:
    """A console shows one file, and the engine may run another one on the same log."""
    console = make_console(folder)
    reloading.preview = {**reloading.preview, "file": str(folder / "other.yaml")}
    page = Person(console).open("reload", {})
    assert (FORM in page, f"the engine runs {folder}/other.yaml" in page) == (False, True)
    assert client_of(console).post("/p/shop/reload", headers=BEARER).status_code == 409
    assert reloading.sent == []


def test_a_reload_passes_the_check_of_its_command(folder: Path, reloading: Reloading) -> None:
    """That is the one of SQL, in a process of its own, for people and programs."""
    console = make_console(folder)
    fields = fields_of(Person(console).open("reload", {}))
    reloading.preview = {"type": "InvalidPipeline", "message": "shop.yaml:9: SELEC is no SQL"}
    page = Person(console).open("reload", {})
    assert (FORM in page, "SELEC is no SQL" in page) == (False, True)
    assert "SELEC is no SQL" in Person(console).send("reload", fields).text
    found = client_of(console).post("/p/shop/reload", headers=BEARER)
    assert (found.status_code, "SELEC is no SQL" in found.text) == (409, True)
    assert reloading.sent == []


def test_a_reload_after_which_a_reader_fails_is_no_success(
    folder: Path, reloading: Reloading
) -> None:
    """The page names the reader and its problem, and is not green."""
    person = Person(make_console(folder))
    reloading.result = {"done": "reloaded", "live": True, "problems": {"in": "no such file"}}
    found = person.send("reload", fields_of(person.open("reload", {})))
    page = person.client.get(found.location).text
    assert re.search(r'<p class="note warn"[^>]*>.*reloaded; reader in: no such file', page)


def test_a_count_that_takes_too_long_leaves_the_form(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at what would happen has changed nothing, and the page says so."""

    def fail(*_: object, **__: object) -> None:
        raise EngineEnded("the engine did not answer within 45 s")

    monkeypatch.setattr(act_pages, "perform", fail)
    page = Person(make_console(folder)).open("r/out/replay", {"from": "0"})
    assert "Nothing was changed. Name a shorter range" in page
    assert (FORM in page, "Count first" in page) == (False, True)


def test_previews_of_reloads_leave_room_for_pages(
    folder: Path, reloading: Reloading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes one of the few places of acts, because its process may take half a minute."""
    monkeypatch.setattr(act_pages, "AT_ONCE", 0)
    page = Person(make_console(folder)).open("reload", {})
    assert (FORM in page, "try again" in page) == (False, True)
    assert reloading.sent == []


@pytest.mark.parametrize("payloads", ["operators", "nobody"])
def test_the_error_of_an_act_is_shown_to_those_who_may_see_payloads(
    folder: Path, monkeypatch: pytest.MonkeyPatch, payloads: str
) -> None:
    """A refusal may quote why a reader has stopped, and that may quote a message."""

    def fail(*_: object, **__: object) -> None:
        raise ActionRefused("reader in has stopped: card 4111")

    monkeypatch.setattr(act_pages, "perform", fail)
    client = client_of(make_console(folder, payloads=payloads))
    found = client.post("/p/shop/reader/in/resume", headers=BEARER)
    assert found.status_code == 409
    assert ("4111" in found.text) == (payloads == "operators")


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
    first = console.verifier.state("shop")
    fields = fields_of(person.open("health", {}))
    assert [person.send("verify", fields).status_code for _ in range(2)] == [303, 303]
    assert console.verifier.state("shop") == first
    assert not console.verifier.start("another", "log")
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
    every = FIELDS | {"last": "14", "to": "9", "partial": "1", "only": "1"}
    values = {each.name: every.get(each.name, "") for each in act.inputs} | {"reason": REASON}
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
