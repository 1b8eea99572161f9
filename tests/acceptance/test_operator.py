"""An operator at the real command line, on a running engine."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from acceptance_tools import TRANSPORTER, await_true, page, running, transporter
from engine_tools import offsets, until
from hammering import hammer
from operator_tools import ENVIRONMENT, command, done, feed, operated, refused, route, write_file
from promql_tools import firing

from transporter.log.segment import segment_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEP = """
from dataclasses import replace


def change(message):
    return replace(message, data=b"%d" % ({expression}))
"""


def route_status(pipeline: Path, name: str = "out") -> dict[str, Any]:
    """Return the ``status`` of a route."""
    return next(each for each in done("status", str(pipeline))["routes"] if each["name"] == name)


def told(pipeline: Path, *words: str) -> Any:
    """Run the command *words* on *pipeline*, and insert the file behind the command's name."""
    names = 2 if words[0] in ("route", "parked", "log", "offsets") else 1
    return done(*words[:names], str(pipeline), *words[names:])


def data(path: Path) -> list[str]:
    """Return the data that a sink got, in order."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["data"] for line in lines]


@pytest.mark.exhaustive
def test_a_poison_entry_is_set_aside_mended_and_delivered_in_order(tmp_path: Path) -> None:
    """The entry is parked with those behind it, and a fix and a retry deliver all in order."""
    (tmp_path / "mystep.py").write_text(STEP.format(expression="100 // int(message.data)"))
    steps = [{"python": {"function": "mystep:change"}}]
    pipeline = write_file(tmp_path, [route(on_error="park", steps=steps)])
    feed(tmp_path, "orders 1", "orders 0", "orders 4")
    with operated(pipeline) as engine:
        engine.await_event("entry-parked", offset=1)
        until(lambda: data(tmp_path / "out.jsonl") == ["100", "25"])
        shown = told(pipeline, "parked", "show", "out", "1")
        assert "ZeroDivisionError" in shown["error"]
        assert (shown["entry"]["data"], shown["attempts"]) == ("0", 2)
        (tmp_path / "mystep.py").write_text(
            STEP.format(expression="100 // (int(message.data) or 1)")
        )
        assert told(pipeline, "reload", "--reason", "no division by zero")["routes"] == ["out"]
        told(pipeline, "parked", "retry", "out", "1", "--reason", "mended")
        until(lambda: data(tmp_path / "out.jsonl") == ["100", "25", "100"])
        feed(tmp_path, "orders 0")
        until(lambda: data(tmp_path / "out.jsonl")[3:] == ["100"])
        until(lambda: route_status(pipeline)["parked"] == 0)
        assert told(pipeline, "parked", "list", "out") == []
        audit = told(pipeline, "audit")
    assert [each["action"] for each in audit] == ["reload", "parked retry"]


@pytest.mark.exhaustive
def test_readers_and_routes_come_and_go_while_it_runs(tmp_path: Path) -> None:
    """The command names new, removed and unopened readers and routes, and entries keep flowing."""
    pipeline = write_file(tmp_path, [route()])
    feed(tmp_path, "orders 1")
    (tmp_path / "more.txt").write_text("users 2\n")
    document = json.loads(pipeline.read_text())
    lines = document["readers"][0]
    more = lines | {"name": "more", "path": "more.txt"}
    bad = lines | {"name": "bad", "path": "not_there.txt"}
    with operated(pipeline) as engine:
        until(lambda: data(tmp_path / "out.jsonl") == ["1"])
        late = route("late", start="earliest")
        write_file(tmp_path, [route(), late], readers=[lines, more, bad])
        said = command("reload", str(pipeline))
        assert said.returncode == 0
        for name in ("routes updated: out", "readers reopened: in", "reader more", "route late"):
            assert name in said.stdout
        assert "reader bad: " in said.stderr
        until(lambda: sorted(data(tmp_path / "late.jsonl")) == ["1", "2"])
        write_file(tmp_path, [late], readers=[more])
        gone = told(pipeline, "reload", "--reason", "moved away")
        assert gone["removed"] == {"readers": ["in", "bad"], "routes": ["out"]}
        assert gone["leaving"] == []
        engine.await_event("offset-log-unused", route="out")
        (tmp_path / "more.txt").write_text("users 2\nusers 3\n")
        until(lambda: sorted(data(tmp_path / "late.jsonl")) == ["1", "2", "3"])
        write_file(tmp_path, [route("renamed")], readers=[more])
        refusal = command("reload", str(pipeline))
        assert refusal.returncode != 0
        assert "offsets rename" in refusal.stderr
        unasked = command("route", "forget", str(pipeline), "out")
        assert (unasked.returncode, "add --yes" in unasked.stderr) == (2, True)
        told(pipeline, "route", "forget", "out", "--yes")
    assert sorted(data(tmp_path / "out.jsonl")) == ["1", "2"]


@pytest.mark.exhaustive
def test_a_wrong_step_is_replayed_from_a_time(tmp_path: Path) -> None:
    """A replay delivers one namespace again, from a time on, with the fixed step."""
    steps = [{"omit": {"fields": ["total"]}}]
    pipeline = write_file(tmp_path, [route(steps=[])])
    feed(tmp_path, 'orders {"total":1}', 'users {"total":2}')
    with operated(pipeline):
        until(lambda: len(data(tmp_path / "out.jsonl")) == 2)
        write_file(tmp_path, [route(steps=steps)])
        told(pipeline, "reload")
        since = time.time()
        # Log times are in milliseconds.
        until(lambda: time.time() > since + 0.01)
        feed(tmp_path, 'orders {"total":3}', 'users {"total":4}', 'orders {"total":5}')
        until(lambda: data(tmp_path / "out.jsonl")[2:] == ["{}", "{}", "{}"])
        until(lambda: route_status(pipeline)["watermark"] == 4)
        write_file(tmp_path, [route(steps=[])])
        told(pipeline, "reload")
        start = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since)) + f"{since % 1:.6f}"[1:] + "Z"
        )
        words = ("replay", "out", "--from", start, "--namespace", "^orders$")
        assert told(pipeline, *words, "--dry-run")["entries"] == 2
        assert told(pipeline, *words, "--reason", "omitted too much")["replay"]["first"] == 2
        until(lambda: data(tmp_path / "out.jsonl")[5:] == ['{"total":3}', '{"total":5}'])
        until(lambda: route_status(pipeline)["replay"] is None)


@pytest.mark.exhaustive
def test_a_dead_sink_is_paused_and_what_it_shall_not_get_is_acked(tmp_path: Path) -> None:
    """A failing route is paused, two entries are acked, and the rest arrives once, in order."""
    (tmp_path / "out.down").write_text("write")
    pipeline = write_file(tmp_path, [route(), route("other")])
    feed(tmp_path, *(f"orders {number}" for number in range(5)))
    with operated(pipeline) as engine:
        engine.await_event("route-retrying", route="out")
        assert told(pipeline, "route", "pause", "out", "--reason", "it is down")["in_effect"]
        told(pipeline, "ack", "out", "0..1", "--reason", "too old by now")
        (tmp_path / "out.down").unlink()
        assert route_status(pipeline)["state"] == "paused"
        until(lambda: offsets(tmp_path / "other.jsonl") == [0, 1, 2, 3, 4])
        told(pipeline, "route", "resume", "out")
        until(lambda: offsets(tmp_path / "out.jsonl") == [2, 3, 4])
        assert route_status(pipeline)["state"] == "running"


def test_a_corrupt_segment_is_verified_repaired_and_acked(tmp_path: Path) -> None:
    """Damage is found, set aside with its entries, acked, and the run continues behind it."""
    pipeline = write_file(
        tmp_path, [route()], log={"dir": "log", "segment_bytes": "64KiB", "compression": "none"}
    )
    noise = "x" * 3000
    feed(tmp_path, *(f"orders {number}{noise}" for number in range(60)))
    with operated(pipeline) as engine:
        until(lambda: len(offsets(tmp_path / "out.jsonl")) == 60)
        told(pipeline, "route", "pause", "out")
        feed(tmp_path, *(f"orders {number}{noise}" for number in range(60, 200)))
        until(lambda: done("status", str(pipeline))["last"] == 199)
        assert engine.stop() == 0
    bases = [each["base"] for each in done("log", "info", str(pipeline))["segments"]]
    base = next(each for each in bases if each > 60)
    path = tmp_path / "log" / segment_name(base)
    content = bytearray(path.read_bytes())
    content[2000:2100] = bytes(100)
    path.write_bytes(content)
    verified = command("log", "verify", str(pipeline), "--json")
    assert verified.returncode == 1
    assert json.loads(verified.stdout)["result"]["sound"] is False
    (damage,) = done("log", "repair", str(pipeline), "--yes")["damages"]
    first, last = damage["lost"]
    told(pipeline, "route", "resume", "out")
    with operated(pipeline) as engine:
        engine.await_event("route-stopped", route="out")
        assert route_status(pipeline)["watermark"] == first - 1
        told(pipeline, "ack", "out", f"{first}..{last}", "--reason", "lost with the disk")
        until(lambda: route_status(pipeline)["watermark"] == 199)
    lost = set(range(first, last + 1))
    assert offsets(tmp_path / "out.jsonl") == [each for each in range(200) if each not in lost]


@pytest.mark.exhaustive
@pytest.mark.spark
def test_an_operator_on_a_real_run_with_spark(tmp_path: Path) -> None:
    """Alert, pause, step, reload by SIGHUP, retry and replay work on ``run`` and Spark."""
    (tmp_path / "mystep.py").write_text(STEP.format(expression="100 // int(message.data)"))
    steps = [{"python": {"function": "mystep:change"}}]
    observe = {"listen": "127.0.0.1:0"}
    pipeline = write_file(tmp_path, [route(on_error="park", steps=steps)], observe=observe)
    feed(tmp_path, "orders 1", "orders 0", "orders 4")
    with running(pipeline, PYTHONPATH=ENVIRONMENT["PYTHONPATH"]) as engine:
        metrics = engine.await_event("endpoint-opened")["url"] + "/metrics"
        engine.await_event("entry-parked", timeout=120, offset=1)
        (alert,) = firing(page(metrics)[1])["TransporterEntriesParked"]
        assert alert["route"] == "out"
        shown = told(pipeline, "parked", "show", "out", "1")
        assert "ZeroDivisionError" in shown["error"]
        until(lambda: data(tmp_path / "out.jsonl") == ["100", "25"])
        assert told(pipeline, "route", "pause", "out")["in_effect"]
        feed(tmp_path, "orders 5", "orders 10")
        until(lambda: route_status(pipeline)["lag"] == 2)
        told(pipeline, "route", "step", "out")
        until(lambda: data(tmp_path / "out.jsonl") == ["100", "25", "20"])
        (tmp_path / "mystep.py").write_text(
            STEP.format(expression="100 // (int(message.data) or 1)")
        )
        engine.process.send_signal(1)
        engine.await_event("pipeline-reloaded")
        told(pipeline, "route", "resume", "out")
        told(pipeline, "parked", "retry", "out")
        until(lambda: sorted(data(tmp_path / "out.jsonl")[3:]) == ["10", "100"])
        until(lambda: "TransporterEntriesParked" not in firing(page(metrics)[1]))
        told(pipeline, "replay", "out", "--from", "0", "--to", "1")
        until(lambda: data(tmp_path / "out.jsonl")[5:] == ["100", "100"])
        # The first query of a Spark that was started without any, in a new route.
        query = {"sql": "SELECT * FROM entries WHERE data <> '0'"}
        asked = route("asked", steps=[query], start="earliest")
        write_file(tmp_path, [asked], observe=observe)
        answer = told(pipeline, "reload")
        assert (answer["added"]["routes"], answer["removed"]["routes"]) == (["asked"], ["out"])
        await_true(lambda: data(tmp_path / "asked.jsonl") == ["1", "4", "5", "10"], 90, "a query")
        assert engine.stop() == 0


def test_a_step_reports_a_parked_entry_as_parked(tmp_path: Path) -> None:
    """The command reports the entry's outcome and its reason, in its text and as JSON."""
    keys = {"on_error": "park", "writer": {"reject": [1, 2]}}
    pipeline = write_file(tmp_path, [route(**keys)])
    feed(tmp_path, "orders 1")
    with operated(pipeline):
        until(lambda: offsets(tmp_path / "out.jsonl") == [0])
        told(pipeline, "route", "pause", "out")
        feed(tmp_path, "orders 2", "orders 3")
        until(lambda: route_status(pipeline)["lag"] == 2)
        said = command("route", "step", str(pipeline), "out")
        assert (said.returncode, said.stderr) == (0, "")
        assert said.stdout.startswith("route out: offset 1 is parked: ")
        assert "no 1 here" in said.stdout
        stepped = told(pipeline, "route", "step", "out")
        assert (stepped["outcome"], stepped["through"]) == ("parked", 2)
        assert "no 2 here" in stepped["reason"]


@pytest.mark.exhaustive
def test_a_reader_is_paused_restarted_and_resumed(tmp_path: Path) -> None:
    """The commands report their outcome, beside a running engine and without one."""
    # With a single reader, a stopped one would end the engine.
    lines = {"adaptor": "engine_tools:LinesReader", "end": False}
    readers = [lines | {"name": "in", "path": "source.txt"}]
    readers += [lines | {"name": "other", "path": "other.txt"}]
    (tmp_path / "other.txt").touch()
    pipeline = write_file(tmp_path, [route()], readers=readers)
    with operated(pipeline) as engine:
        said = command("reader", "pause", str(pipeline), "in", "--reason", "upgrade")
        assert (said.stdout, said.stderr) == ("reader in: paused\n", "")
        feed(tmp_path, "orders 1")
        assert engine.stop() == 0
    assert "reader in" in command("status", str(pipeline)).stdout
    said = command("reader", "resume", str(pipeline), "in")
    assert said.stdout == "reader in: resumed (no engine runs: the next run applies it)\n"
    assert refused("reader", "restart", str(pipeline), "in")["exit_code"] == 1
    with operated(pipeline):
        until(lambda: offsets(tmp_path / "out.jsonl") == [0])
        (tmp_path / "source.txt").rename(tmp_path / "aside.txt")
        until(lambda: done("status", str(pipeline))["readers"][0]["state"] == "stopped")
        said = command("reader", "pause", str(pipeline), "in")
        assert (said.returncode, "has stopped: FileNotFound" in said.stderr) == (1, True)
        said = command("reader", "restart", str(pipeline), "in")
        assert said.stdout == "reader in: restarted\n"
        assert "the reader is stopped: FileNotFound" in said.stderr
        (tmp_path / "aside.txt").rename(tmp_path / "source.txt")
        feed(tmp_path, "orders 2")
        assert done("reader", "restart", str(pipeline), "in")["state"] == "running"
        until(lambda: offsets(tmp_path / "out.jsonl") == [0, 1])


def test_a_file_that_is_wrong_is_told_at_a_hang_up(tmp_path: Path) -> None:
    """A refused reload is exit code 2 with file and line, changes nothing, and can be fixed."""
    pipeline = write_file(tmp_path, [route()])
    feed(tmp_path, "orders 1")
    with operated(pipeline):
        until(lambda: offsets(tmp_path / "out.jsonl") == [0])
        write_file(tmp_path, [route("renamed")])
        error = refused("reload", str(pipeline))
        assert (error["exit_code"], error["file"]) == (2, str(pipeline))
        (problem,) = error["problems"]
        assert problem["line"] > 1
        assert "offsets rename" in str(problem)
        write_file(tmp_path, [route(namespace="^none")])
        assert told(pipeline, "reload")["routes"] == ["out"]
        feed(tmp_path, "orders 2")
        until(lambda: route_status(pipeline)["watermark"] == 1)
        assert offsets(tmp_path / "out.jsonl") == [0]


@pytest.mark.exhaustive
@pytest.mark.spark
def test_a_reload_refuses_sql_that_does_not_parse(tmp_path: Path) -> None:
    """Such a query is refused with its line, as ``check`` does, and the route goes on as it was.

    The log directory stands for the file of the engine that runs on it.
    """
    pipeline = write_file(tmp_path, [route()])
    with operated(pipeline):
        steps = [{"sql": "SELECT CAST(data AS DECIMALX(10,2)) AS data FROM entries"}]
        write_file(tmp_path, [route(steps=steps)])
        for target in (pipeline, tmp_path / "log"):
            error = refused("reload", str(target))
            assert (error["exit_code"], error["file"]) == (2, str(pipeline))
            assert "routes[0].steps[0].sql.query does not parse: " in error["message"]
            assert "DECIMALX" in error["message"]
        write_file(tmp_path, [route(steps=[{"sql": "SELECT * FROM entries ${UNSET:?x}"}])])
        said = command("reload", str(pipeline))
        assert "sql steps were not parsed: " in said.stderr.splitlines()[0]
        assert said.returncode == 2
    assert [each["action"] for each in done("audit", str(tmp_path / "log"))] == []


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Return both ends of a terminal."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    for end in (ours, theirs):
        with suppress(OSError):
            os.close(end)


def test_top_is_drawn_until_q(tmp_path: Path, terminal: tuple[int, int]) -> None:
    """On a terminal top shows every route, with errors made harmless, and q ends it."""
    ours, theirs = terminal
    pipeline = write_file(tmp_path, [route(writer={"reject": [0]})])
    feed(tmp_path, "orders 1")
    with operated(pipeline) as engine:
        engine.await_event("route-stopped")
        top = subprocess.Popen(
            [*TRANSPORTER, "top", str(pipeline), "--every", "0.2"],
            stdin=theirs,
            stdout=theirs,
            env=ENVIRONMENT | {"TERM": "xterm", "COLUMNS": "120"},
        )
        seen = b""
        deadline = time.monotonic() + 30
        while b"no 0 here" not in seen and time.monotonic() < deadline:
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 65536)
        assert b"route out" in seen
        assert b"no 0 here" in seen
        os.write(ours, b"q")

        def ended() -> bool:
            if select.select([ours], [], [], 0)[0]:
                os.read(ours, 65536)
            return top.poll() is not None

        until(ended)
        assert top.returncode == 0


def test_top_outlives_its_engine(tmp_path: Path) -> None:
    """After the engine is killed top continues with the state on disk."""
    pipeline = write_file(tmp_path, [route()])
    feed(tmp_path, "orders 1")
    with operated(pipeline) as engine:
        until(lambda: offsets(tmp_path / "out.jsonl") == [0])
        top = subprocess.Popen(
            [*TRANSPORTER, "top", str(pipeline), "--every", "0.1", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
        )
        with top:
            assert top.stdout is not None
            assert json.loads(top.stdout.readline())["result"]["running"] is True
            engine.kill()
            until(lambda: json.loads(top.stdout.readline())["result"]["running"] is False)
            psutil.Process(top.pid).kill()


def test_without_an_engine_actions_wait_for_the_next_run(tmp_path: Path) -> None:
    """The next engine applies a pause and a replay requested while none ran."""
    pipeline = write_file(tmp_path, [route()])
    feed(tmp_path, "orders 1", "orders 2")
    with operated(pipeline) as engine:
        until(lambda: offsets(tmp_path / "out.jsonl") == [0, 1])
        assert engine.stop() == 0
    assert told(pipeline, "route", "pause", "out")["live"] is False
    assert told(pipeline, "replay", "out", "--from", "1")["live"] is False
    assert [each["paused"] for each in done("offsets", "list", str(pipeline))] == [True]
    with operated(pipeline):
        until(lambda: route_status(pipeline)["state"] == "paused")
        told(pipeline, "route", "resume", "out")
        until(lambda: offsets(tmp_path / "out.jsonl") == [0, 1, 1])


@pytest.mark.exhaustive
def test_only_a_route_that_the_file_does_not_name_is_forgotten(tmp_path: Path) -> None:
    """With the engine or without, a route of the pipeline is kept and an older one is removed."""
    pipeline = write_file(tmp_path, [route("old"), route("out")])
    with operated(pipeline) as engine:
        assert (
            "running"
            in refused("route", "forget", str(tmp_path / "log"), "old", "--yes")["message"]
        )
        assert engine.stop() == 0
    named = refused("route", "forget", str(pipeline), "old", "--yes")["message"]
    assert f"{pipeline}:" in named
    write_file(tmp_path, [route("out")])
    with operated(pipeline):
        told(pipeline, "route", "forget", "old", "--yes")
        assert [each["route"] for each in done("offsets", "list", str(pipeline))] == ["out"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_complete_themselves(shell: str) -> None:
    """Each shell gets a script, whose completions are our commands."""
    script = subprocess.run(
        [*TRANSPORTER, "--show-completion", shell],
        # Without it the shell above the test decides.
        env=ENVIRONMENT | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (script.returncode, script.stderr) == (0, "")
    assert "_TRANSPORTER_COMPLETE" in script.stdout
    asked = subprocess.run(
        [*TRANSPORTER, "route"],
        env=ENVIRONMENT
        | {
            "_TRANSPORTER_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": "transporter route pa",
            "COMP_CWORD": "2",
            "_TYPER_COMPLETE_ARGS": "transporter route pa",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert "pause" in asked.stdout


@pytest.mark.parametrize(
    "words",
    [
        "ack", "replay", "reload", "status", "ready", "top", "route pause", "route resume",
        "route step", "route forget", "reader pause", "reader resume", "reader restart",
        "parked list", "parked show", "parked retry", "parked skip",
    ],
)  # fmt: skip
def test_every_command_has_an_example_and_speaks_json(words: str) -> None:
    """The help of each operator command shows an example, and offers --json."""
    shown = command(*words.split(), "--help").stdout
    assert f"transporter {words} pipeline.yaml" in " ".join(shown.split())
    assert "--json" in shown


@pytest.mark.exhaustive
def test_operators_at_once_and_kills_leave_what_a_model_says(tmp_path: Path) -> None:
    """Four operators act on an engine that is killed meanwhile, and no action is lost or undone."""
    hammer(tmp_path, seed=7, rounds=4, kills=2)


def test_transporter_tells_of_itself_with_json() -> None:
    """A missing place is an error without a traceback, with exit code 2 or 3."""
    with pytest.raises(subprocess.CalledProcessError) as raised:
        transporter("status", "/nowhere")
    assert raised.value.returncode in (2, 3)


@pytest.mark.exhaustive
def test_a_probe_reads_readiness_by_the_exit_code(tmp_path: Path) -> None:
    """The code is 3 without an engine, 0 while it is ready, and 1 with the reason printed."""
    pipeline = write_file(tmp_path, [route(on_error="stop", writer={"reject": [1]})])
    absent = command("ready", str(pipeline))
    assert (absent.returncode, absent.stdout) == (3, "")
    with operated(pipeline):
        feed(tmp_path, "a 0")
        until(lambda: command("ready", str(pipeline)).returncode == 0)
        assert done("ready", str(tmp_path / "log"))["reasons"] == []
        feed(tmp_path, "a 1")
        until(lambda: command("ready", str(pipeline)).returncode == 1)
        shown = command("ready", str(pipeline)).stdout.splitlines()
        assert shown[0] == "not ready"
        assert shown[1].startswith("  route out: stopped, it waits for an operator")
        told = json.loads(command("ready", str(pipeline), "--json").stdout)
        assert (told["ok"], told["result"]["ready"]) == (False, False)
    after = command("ready", str(pipeline))
    assert (after.returncode, "no engine runs on this log" in after.stderr) == (3, True)
