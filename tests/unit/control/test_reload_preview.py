"""Dry runs of a reload: what would change, what would be refused, and that nothing changes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, SparklessHost, make_pipeline, offsets, until
from live_tools import Operated, lines, operated, route, sink

from transporter.audit import AUDIT
from transporter.cli import app
from transporter.control import requests
from transporter.control.server import attach_control
from transporter.engine.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def op(tmp_path: Path) -> Iterator[Operated]:
    """Run two routes, whose entries are delivered."""
    with operated(tmp_path, lines(3), out={}, other={}) as made:
        until(lambda: made.route()["watermark"] == made.route("other")["watermark"] == 2)
        yield made


def preview(op: Operated) -> dict[str, Any]:
    """Return the answer of a dry run, which changes nothing."""
    before = op.engine.pipeline
    found = op(requests.Reload(dry_run=True))
    assert op.engine.pipeline is before
    assert not (op.folder / "log" / AUDIT).exists()
    assert op.events.named("operator-acted") == op.events.named("pipeline-reloaded") == []
    return found


def test_a_dry_run_names_routes_and_settings(op: Operated) -> None:
    """It has the routes that would get new workers, new and removed ones, and each setting."""

    def edit(document: dict[str, Any]) -> None:
        document["routes"][0]["namespace"] = "^b"
        document["routes"][1] = route("new", start="latest")
        document["log"]["max_bytes"] = "8GiB"

    op.change(edit)
    found = preview(op)
    assert (found["done"], found["refusals"]) == ("would be reloaded", [])
    assert found["routes"] == ["out"]
    assert found["added"] == {"readers": [], "routes": ["new"]}
    assert found["removed"] == {"readers": [], "routes": ["other"]}
    diff = {each["setting"]: (each["before"], each["after"]) for each in found["diff"]}
    assert diff["routes.out.namespace"] == (None, "^b")
    assert diff["log.max_bytes"] == (None, "8GiB")
    assert diff["routes.new.start"] == (None, "latest")
    assert op(requests.Reload())["routes"] == found["routes"]


def test_nothing_has_changed(op: Operated, tmp_path: Path) -> None:
    """A file that is as it was has no difference; routes with the user's code are renewed."""
    found = preview(op)
    assert (found["diff"], found["refusals"]) == ([], [])
    assert found["routes"] == ["out", "other"]
    op.feed(*lines(1, 3))
    until(lambda: offsets(sink(tmp_path)) == [0, 1, 2, 3])


def test_each_refusal_has_its_line(op: Operated) -> None:
    """Settings that need a restart are refused with file and line, beside what would change."""

    def edit(document: dict[str, Any]) -> None:
        document["name"] = "another"
        document["log"]["compression"] = "none"
        document["routes"][0]["on_error"] = "park"

    op.change(edit)
    found = preview(op)
    assert found["done"] == "the reload would be refused"
    assert [each["problem"].split()[0] for each in found["refusals"]] == [
        "log.compression",
        "name",
    ]
    assert {each["file"] for each in found["refusals"]} == {str(op.engine.pipeline.file)}
    assert all(each["line"] > 1 for each in found["refusals"])
    assert "routes.out.on_error" in {each["setting"] for each in found["diff"]}


@pytest.mark.parametrize("text", ["routes: [", "{}", "routes: 7\nreaders: []\n"])
def test_a_file_that_cannot_be_used_has_refusals_only(op: Operated, text: str) -> None:
    """A broken file is a refusal with its line, not an error of the dry run."""
    (op.folder / "pipeline.yaml").write_text(text)
    found = preview(op)
    assert found["refusals"]
    assert all(each["file"].endswith("pipeline.yaml") for each in found["refusals"])
    assert (found["diff"], found["routes"]) == ([], [])


def test_a_file_that_is_gone_is_a_refusal(op: Operated) -> None:
    """A missing file is reported as a reload would report it."""
    (op.folder / "pipeline.yaml").unlink()
    (refusal,) = preview(op)["refusals"]
    assert "pipeline.yaml" in refusal["file"] + refusal["problem"]


def test_a_member_that_is_still_leaving_is_a_refusal(tmp_path: Path) -> None:
    """A route that was removed and is back in the file, but has not ended, refuses the reload."""
    slow = {"writer": {"pause_at": 1}}
    with operated(tmp_path, lines(3), out={}, slow=slow) as op:
        (tmp_path / "slow.paused").touch()
        op.feed(*lines(3, 3))
        until((tmp_path / "slow.waiting").exists)
        document = json.loads((tmp_path / "pipeline.yaml").read_text())
        op.change(lambda found: found.update(routes=found["routes"][:1]))
        op.engine.reconfigure(_read(op))
        op.change(lambda found: found.update(document))
        found = op(requests.Reload(dry_run=True))
        assert [each["problem"].partition(" was")[0] for each in found["refusals"]] == [
            "route slow"
        ]
        (tmp_path / "slow.paused").unlink()


def _read(op: Operated) -> Any:
    from transporter.pipeline.reload_changes import reread  # noqa: PLC0415 - beside its use

    return reread(op.engine.pipeline, {})


def test_running_modules_stay_as_they_are(tmp_path: Path) -> None:
    """The user's changed module is examined, and what runs keeps the one that it has."""
    module = tmp_path / "preview_sink.py"
    text = "from engine_tools import LinesWriter as Sink, LinesWriterConfig\nVERSION = {}\n"
    module.write_text(text.format(1))
    keys = {"writer": {"adaptor": "preview_sink:Sink"}}
    with operated(tmp_path, lines(1), out=keys) as op:
        running = sys.modules["preview_sink"]
        module.write_text(text.format(2))
        found = op(requests.Reload(dry_run=True))
        assert (found["routes"], found["refusals"]) == (["out"], [])
        assert sys.modules["preview_sink"] is running
        assert running.VERSION == 1
        module.write_text("raise RuntimeError('broken')\n")
        (refusal,) = op(requests.Reload(dry_run=True))["refusals"]
        assert "preview_sink" in refusal["problem"]
        assert sys.modules["preview_sink"] is running
        op.engine.stop(0)
    del sys.modules["preview_sink"]


def test_the_command_shows_changes_and_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints each setting, and has the exit code of a refused reload."""
    pipeline = make_pipeline(tmp_path, [], end=False, out={})
    engine = Engine(pipeline, SparklessHost(), Events())
    attach_control(engine, {})
    engine.start()
    try:
        document = json.loads(pipeline.file.read_text())
        document["routes"][0]["namespace"] = "^b"
        pipeline.file.write_text(json.dumps(document, indent=1))
        assert app.execute(["reload", str(pipeline.file), "--dry-run"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"{pipeline.file}: would be reloaded: routes updated: out; ")
        assert "  routes.out.namespace: not set -> ^b\n" in out
        document["name"] = "another"
        pipeline.file.write_text(json.dumps(document, indent=1))
        assert app.execute(["reload", str(pipeline.file), "--dry-run"]) == 2
        out = capsys.readouterr().out
        assert "name cannot change while the engine runs" in out
        assert f"{pipeline.file}:" in out.splitlines()[-1]
        assert app.execute(["reload", str(pipeline.file), "--dry-run", "--json"]) == 2
        found = json.loads(capsys.readouterr().out)
        assert (found["ok"], len(found["result"]["refusals"])) == (False, 1)
    finally:
        engine.stop(0)
    assert app.execute(["reload", str(tmp_path / "log"), "--dry-run"]) == 1
    assert "no engine runs on this log" in capsys.readouterr().err
