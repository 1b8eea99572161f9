"""The trial of an entry in the console: what a route would make of it, by the real command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from child_paths import python_path
from console_tools import TOKENS, client_of, make_console, make_shop
from engine_tools import until

from transporter.console.child import run_command
from transporter.console.guard import Identity

if TYPE_CHECKING:
    from pathlib import Path

    from werkzeug.test import TestResponse

    from transporter.console.state import Console

STEPS = """
import atexit, dataclasses, os, subprocess, time

print("steps are imported")
atexit.register(print, "the process ends")

def loud(message):
    print("loud is called")
    os.system("echo a process of it")
    if message.data == b"2":
        subprocess.Popen(["sleep", "618"])
        time.sleep(60)
    if message.data == b"10" and os.fork() == 0:
        os.execvp("sleep", ["sleep", "618"])
    if message.data == b"6":
        raise ValueError("no six here")
    if message.data == b"8":
        return None
    return dataclasses.replace(message, data=message.data + b"!", key=b"<b>")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a pipeline that has run, and whose file has got a step since then."""
    found = make_shop(tmp_path_factory.mktemp("shop"))
    document = json.loads((found / "shop.yaml").read_text())
    document["routes"][1]["steps"] = [{"python": {"function": "loud_steps:loud"}}]
    (found / "shop.yaml").write_text(json.dumps(document))
    (found / "loud_steps.py").write_text(STEPS)
    return found


@pytest.fixture(autouse=True)
def adaptors_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command find the adaptors of the pipeline."""
    monkeypatch.setenv("PYTHONPATH", python_path())


def as_program(console: Console, offset: int, route: str, role: str = "operator") -> TestResponse:
    """Try an entry with the token of *role*."""
    headers = {"Authorization": f"Bearer {TOKENS[role]}", "Accept": "application/json"}
    return client_of(console).post(
        f"/p/shop/log/{offset}/try", json={"route": route}, headers=headers
    )


def test_a_person_sees_what_a_route_would_make_of_an_entry(folder: Path) -> None:
    """By the form on its page, which is good for several; what is shown is escaped."""
    console = make_console(folder)
    client = client_of(console)
    client.set_cookie(console.cookie, console.sessions.issue(Identity("a", "operator", "session")))
    page = client.get("/p/shop/log/4").text
    found = re.search(r'action="/p/shop/log/4/try".*?name="form" value="(.*?)"', page, re.DOTALL)
    assert found is not None
    sent: dict[str, Any] = {
        "data": {"form": found[1], "route": "some"},
        "headers": {"Sec-Fetch-Site": "same-origin"},
    }
    tried = client.post("/p/shop/log/4/try", **sent)
    assert tried.status_code == 200
    assert "<code>4!</code>" in tried.text
    assert "&lt;b&gt;" in tried.text
    assert "<b>" not in tried.text.replace("<b>out", "").replace("<b>some", "")
    assert client.post("/p/shop/log/4/try", **sent).status_code == 200


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"row": {"city": "Köln"}}, "Köln"),
        ({"namespace": "n", "op": "insert", "key": None, "headers": [], "data": {"base64": "/w=="}},
         "base64: /w=="),
        ({"namespace": "n", "op": "delete", "key": "k", "headers": [], "data": None}, "tombstone"),
    ],
)  # fmt: skip
def test_each_kind_of_output_is_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, output: dict[str, Any], text: str
) -> None:
    """A row for a sink of Spark's, data that are not text, and none."""
    found = {"out": [{"offset": 4, "input": {}, "output": [output], "error": None}]}
    monkeypatch.setattr("transporter.console.entry_pages.run_command", lambda *_: found)
    headers = {"Authorization": f"Bearer {TOKENS['operator']}", "Accept": "text/html"}
    shown = client_of(make_console(folder)).post(
        "/p/shop/log/4/try", data={"route": "out"}, headers=headers
    )
    assert (shown.status_code, text in shown.text) == (200, True), shown.text


def test_what_a_program_gets(folder: Path) -> None:
    """The result of the command: output, an error of the user's code, or that it is left out."""
    console = make_console(folder)
    (tried,) = as_program(console, 4, "out").get_json()["result"]["out"]
    assert [each["data"] for each in tried["output"]] == ["4"]
    for offset, data in ((10, ["10!"]), (8, []), (5, [])):
        (tried,) = as_program(console, offset, "some").get_json()["result"]["some"]
        assert [each["data"] for each in tried["output"]] == data
    (tried,) = as_program(console, 6, "some").get_json()["result"]["some"]
    assert "no six here" in tried["error"]
    until(lambda: sleepers() == [])
    for offset, route, text in ((4, "nothere", "nothere"), (10**6, "some", "")):
        refused = as_program(console, offset, route)
        assert (refused.status_code, text in refused.text) == (409, True), refused.text


@pytest.mark.exhaustive
def test_code_that_hangs_ends_with_its_deadline_and_with_the_console(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do the processes that it has started; those of a console that is killed as well."""
    monkeypatch.setattr(
        "transporter.console.entry_pages.run_command", partial(run_command, seconds=4)
    )
    refused = as_program(make_console(folder), 2, "some")
    assert (refused.status_code, "took longer" in refused.text) == (503, True)
    until(lambda: sleepers() == [])
    code = (
        "import sys; from transporter.console.child import run_command; run_command(*sys.argv[1:])"
    )
    words = ["dry-run", str(folder / "shop.yaml"), "some", "--from", "2", "--to", "2"]
    with subprocess.Popen([sys.executable, "-c", code, *words]) as console:
        until(sleepers)
        console.kill()
    until(lambda: sleepers() == [])


def sleepers() -> list[int]:
    """Return the processes that the step has started."""
    found = psutil.process_iter(["cmdline"])
    return [each.pid for each in found if each.info["cmdline"] == ["sleep", "618"]]


def test_only_those_who_may_act_and_see_payloads_try(folder: Path) -> None:
    """Viewers, a read-only console and one that shows no payloads run nobody's code."""
    for role, access in (
        ("viewer", {}),
        ("operator", {"read_only": True}),
        ("operator", {"payloads": "nobody"}),
    ):
        console = make_console(folder, **access)
        assert as_program(console, 4, "some", role).status_code == 403
        bearer = {"Authorization": f"Bearer {TOKENS[role]}"}
        assert "/try" not in client_of(console).get("/p/shop/log/4", headers=bearer).text
