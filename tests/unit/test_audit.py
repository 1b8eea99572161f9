"""Tests of the audit file: its content, its order of writes, and its operators."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from compaction_tools import Frame, letters, write_log
from engine_tools import make_pipeline
from log_tools import damage
from root_tools import need_root

from transporter.audit import AUDIT, AuditFile, Operator, read_audit, this_operator
from transporter.cli import app, commands
from transporter.errors import ActionRefused, EnvironmentFault
from transporter.log.filesystem import RealFileSystem
from transporter.log.maintenance import MaintenanceRecord, write_maintenance
from transporter.log.operator_pauses import PausedReaders, read_paused
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import OffsetLog, declared_routes, read_state, route_folder
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import typer

ME = Operator("somebody", 7, 42)
LOGIN = 12_345

READ_ONLY = {
    *("schema", "check", "compare", "test", "dry-run", "status", "top", "audit", "shell", "query"),
    *("doctor", "plan", "events", "history", "ready", "ui"),
    *("log info", "log show", "log tail", "log export", "log verify"),
    *("offsets list", "offsets show", "offsets given-up", "parked list", "parked show"),
    *("adaptors list", "adaptors show", "queue peek", "queue stats", "cdc check", "cdc status"),
}
ELSEWHERE = {
    *("run", "quickstart", "init pipeline", "init adaptor"),
    *("outbox init", "outbox pump", "outbox reset", "outbox drop"),
    *("queue init", "queue send", "queue tracker", "cdc init", "cdc drop"),
}
"""Commands that run an engine, write new files, or change a database or a broker, but no log."""
ONLINE = {
    "reload": ("reload",),
    "route step": ("route", "step", "out"),
    "reader restart": ("reader", "restart", "in"),
}
OFFLINE: dict[str, tuple[str, ...]] = {
    "ack": ("ack", "out", "4"),
    "replay": ("replay", "out", "--from", "0"),
    "replay --cancel": ("replay", "out", "--cancel"),
    "route pause": ("route", "pause", "out"),
    "route resume": ("route", "resume", "out"),
    "route forget": ("route", "forget", "old", "--yes"),
    "reader pause": ("reader", "pause", "in"),
    "reader resume": ("reader", "resume", "paused"),
    "parked retry": ("parked", "retry", "out"),
    "parked skip": ("parked", "skip", "out", "3"),
    "parked note": ("parked", "note", "out", "3", "waits for ACME"),
    "offsets rename": ("offsets", "rename", "old", "new"),
    "offsets delete": ("offsets", "delete", "old", "--yes"),
    "log compact": ("log", "compact"),
    "log repair": ("log", "repair", "--yes"),
}
_GROUPS = {"route", "reader", "parked", "offsets", "log"}
AUDITED_AS = {"replay --cancel": "replay cancel"}


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """Return a pipeline file with a log that every command of :data:`OFFLINE` changes."""
    make_pipeline(tmp_path, [], out={})
    path, log = tmp_path / "pipeline.yaml", tmp_path / "log"
    document = json.loads(path.read_text())
    document["log"]["compaction"] = {"after": "1us"}
    path.write_text(json.dumps(document))
    last = write_log(log, [[Frame(letters("AAAB"))], [Frame(letters("A"))]])
    with OffsetLog(log, "out") as route, LogReader(log) as reader:
        route.settle(Range(0, 3), last)
        (entry,) = reader.read(3, 3)
        ParkedStore(route.folder).park(ParkedEntry(3, entry, ParkReason("no", 1, 1)))
    with OffsetLog(log, "old") as route:
        route.settle(Range(0, 3), last)
    write_maintenance(RealFileSystem(), log, MaintenanceRecord(readers={"in": 3}))
    PausedReaders(log).set_paused("paused", paused=True)
    return path


def prepared(command: str, pipeline: Path) -> list[str]:
    """Prepare the log for *command* to have an effect, and return its words."""
    log = pipeline.parent / "log"
    if command == "replay --cancel":
        with OffsetLog(log, "out") as route:
            route.begin_replay(0, 3)
    if command == "log repair":
        damage(log, 300)
        shutil.rmtree(route_folder(log, "old"))
    words = OFFLINE[command]
    place = 2 if command.split(maxsplit=1)[0] in _GROUPS else 1
    return [*words[:place], str(pipeline), *words[place:]]


def changes(log: Path) -> list[dict[str, Any]]:
    """Return the changes in the audit file of *log*."""
    with (log / AUDIT).open("rb") as lines:
        return list(read_audit(lines))


def segments(log: Path) -> dict[str, bytes]:
    """Return the content of each segment of *log*."""
    return {path.name: path.read_bytes() for path in sorted(log.glob("*.log"))}


def progress(log: Path) -> dict[str, object]:
    """Return the states of the offset logs of *log*, parked offsets and paused readers."""
    routes = {
        name: (read_state(log, name), ParkedStore(route_folder(log, name)).offsets())
        for name in declared_routes(log)
    }
    return routes | {"paused": read_paused(log)}


def names(group: typer.Typer, before: str = "") -> Iterator[str]:
    """Yield the full names of the commands of *group*."""
    for each in group.registered_commands:
        yield f"{before}{each.name}"
    for below in group.registered_groups:
        assert below.typer_instance is not None
        yield from names(below.typer_instance, f"{before}{below.name} ")


def test_every_command_is_known_to_change_the_log_or_not() -> None:
    """Every command is in one of the lists above, and those that change a log are audited."""
    audited = {each for each in (*OFFLINE, *ONLINE) if " --" not in each}
    assert set(names(commands.build())) == READ_ONLY | ELSEWHERE | audited


@pytest.mark.parametrize("command", OFFLINE)
def test_every_command_is_audited(command: str, pipeline: Path) -> None:
    """A command's line has its reason, its operator, its arguments and its outcome."""
    log = pipeline.parent / "log"
    assert app.execute([*prepared(command, pipeline), "--reason", "ticket 7"]) == 0
    (line,) = changes(log)
    me = this_operator()
    assert line["action"] == AUDITED_AS.get(command, command)
    assert line | me.fields() == line
    assert (line["reason"], line["outcome"]) == ("ticket 7", "done")
    if "old" in OFFLINE[command]:
        assert line["route"] == "old"
        assert "old" not in declared_routes(log)
    assert stat.S_IMODE((log / AUDIT).stat().st_mode) == 0o600


def test_no_command_erases_a_line(pipeline: Path) -> None:
    """The changes to a route stay in the file after the route is removed."""
    file = str(pipeline)
    app.execute(["ack", file, "out", "4"])
    app.execute(["route", "forget", file, "old", "--yes"])
    app.execute(["offsets", "delete", file, "out", "--yes"])
    found = [(each["action"], each["route"]) for each in changes(pipeline.parent / "log")]
    assert found == [("ack", "out"), ("route forget", "old"), ("offsets delete", "out")]


@pytest.mark.parametrize("command", OFFLINE)
def test_nothing_is_changed_before_it_is_audited(
    command: str, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that cannot write the audit file fails and changes nothing."""
    words = prepared(command, pipeline)
    log = pipeline.parent / "log"
    before, known = segments(log), progress(log)
    (log / AUDIT).mkdir()
    assert app.execute(words) == 3
    assert AUDIT in capsys.readouterr().err
    assert (segments(log), progress(log)) == (before, known)


def test_a_refused_command_leaves_no_line(pipeline: Path) -> None:
    """A command that changes nothing is not audited."""
    file = str(pipeline)
    for words in (
        ("ack", file, "out", "99"),
        ("offsets", "rename", file, "old", "out"),
        ("offsets", "rename", file, "gone", "new"),
        ("route", "forget", file, "out", "--yes"),
        ("parked", "skip", file, "out", "1"),
        ("log", "repair", file, "--yes"),
        ("log", "compact", file, "--dry-run"),
        ("replay", file, "out", "--from", "0", "--dry-run"),
    ):
        app.execute(list(words))
    assert not (pipeline.parent / "log" / AUDIT).exists()


def test_an_outcome_has_no_text_of_an_error(tmp_path: Path) -> None:
    """A failure is recorded by its class, because its text may hold a secret."""
    audit = AuditFile(tmp_path)
    with pytest.raises(ActionRefused), audit.change("ack", ME, first=3):
        raise ActionRefused("the password is hunter2")
    with audit.change("ack", ME, first=4) as results:
        results["skipped"] = 2
    failed, done = changes(tmp_path)
    assert (failed["first"], failed["outcome"]) == (3, "failed: ActionRefused")
    assert (done["first"], done["outcome"], done["skipped"]) == (4, "done", 2)
    assert b"hunter2" not in (tmp_path / AUDIT).read_bytes()


def test_threads_do_not_overwrite_one_another(tmp_path: Path) -> None:
    """All threads of an engine write to one file, and every line stays whole."""
    audit = AuditFile(tmp_path)

    def write(name: str) -> None:
        for number in range(25):
            with audit.change("ack", ME, name=name, number=number):
                pass

    threads = [threading.Thread(target=write, args=(str(name),)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = changes(tmp_path)
    assert len(found) == 200
    assert {each["outcome"] for each in found} == {"done"}


def test_a_file_that_was_moved_aside_is_begun_anew(tmp_path: Path) -> None:
    """An audit file that was moved aside is created again, so that it can be rotated."""
    audit = AuditFile(tmp_path)
    audit.record("ack", ME)
    (tmp_path / AUDIT).rename(tmp_path / "old.jsonl")
    audit.record("replay", ME)
    assert [each["action"] for each in changes(tmp_path)] == ["replay"]


def test_a_full_disk_refuses_the_action(tmp_path: Path) -> None:
    """A block is not run if its line cannot be written."""
    (tmp_path / AUDIT).mkdir()
    with pytest.raises(EnvironmentFault), AuditFile(tmp_path).change("ack", ME):
        pytest.fail("it was done without a line")


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    """Torn and foreign lines are skipped, and whole lines are shown."""
    audit = AuditFile(tmp_path)
    audit.record("ack", ME)
    with (tmp_path / AUDIT).open("ab") as file:
        file.write(b'\n[1]\n"x"\n\xff\n{"of": 3}\n' + b"[" * 100_000 + b'\n{"action": "torn')
    audit.record("replay", ME)
    assert [each["action"] for each in changes(tmp_path)] == ["ack", "replay"]


@pytest.mark.parametrize(
    ("content", "login"),
    [("1000", 1000), ("4294967295", None), ("", None), ("x", None), (None, None)],
)
def test_the_login_user_counts_where_it_is_set(
    tmp_path: Path, content: str | None, login: int | None
) -> None:
    """The login uid counts if it is set, else the process's user, and the line records which."""
    (tmp_path / "42").mkdir()
    if content is not None:
        (tmp_path / "42" / "loginuid").write_text(content)
    found = Operator.of_process(42, 0, tmp_path)
    assert found.loginuid == login
    assert found.fields()["known_by"] == ("uid" if login is None else "loginuid")
    assert found.uid == 0


def test_a_user_who_became_root_is_named(pipeline: Path) -> None:
    """The login uid, which outlives sudo and su, is in the line beside the uid."""
    script = (
        "import pathlib, sys; from transporter.cli import app;"
        f"pathlib.Path('/proc/self/loginuid').write_text('{LOGIN}');"
        "sys.exit(app.execute(sys.argv[1:]))"
    )
    need_root("to set a login uid needs root")
    words = ["ack", str(pipeline), "out", "4"]
    subprocess.run([sys.executable, "-c", script, *words], check=True, capture_output=True)
    (line,) = changes(pipeline.parent / "log")
    assert (line["known_by"], line["loginuid"], line["uid"]) == ("loginuid", LOGIN, 0)
    assert line["who"] == str(LOGIN)


def test_the_command_shows_the_newest(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``transporter audit`` shows the newest changes, bounded by --last, in full with --json."""
    file = str(pipeline)
    assert app.execute(["audit", file]) == 0
    assert "no changes were made" in capsys.readouterr().err
    for number in range(3):
        app.execute(["route", "pause", file, "out", "--reason", f"try\n{number}"])
    AuditFile(pipeline.parent / "log").record("ack", Operator("alice", 0, 1, 1000), first=1)
    capsys.readouterr()
    assert app.execute(["audit", file, "--last", "2"]) == 0
    head, pause, ack = capsys.readouterr().out.splitlines()
    assert head.split() == ["AT", "WHO", "ACTION", "ROUTE", "WHAT", "REASON", "OUTCOME"]
    assert "route pause" in pause
    assert "try\\n2" in pause
    assert pause.endswith("done")
    assert "alice (as uid 0)" in ack
    assert "first=1" in ack
    assert ack.endswith("unknown")
    assert app.execute(["audit", file, "--last", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["result"]
    assert [each["action"] for each in found] == ["route pause"] * 3 + ["ack"]
    assert app.execute(["audit", str(pipeline.parent)]) == 3
