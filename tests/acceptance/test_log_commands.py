"""The log commands as an operator uses them: beside an engine, without one, on a moved log."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING

import pytest
from acceptance_tools import TRANSPORTER, await_true, transporter
from follow_tools import Tail, check, follow
from log_tools import crash, damage, offsets_of
from pyarrow import parquet as pq

from transporter.cli import app
from transporter.errors import Corrupt
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog, proved_offset, read_state
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    Make = Callable[..., pa.RecordBatch]

HOSTILE = "\x1b]0;owned\x07\x1b[2J"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of twenty entries with hostile data, four in each segment."""
    directory = tmp_path / "log"
    with (
        CommitLog.open(directory, segment_bytes=1) as opened,
        OffsetLog(directory, "out") as out,
    ):
        for start in range(0, 20, 4):
            messages = [
                Message("orders" if n % 2 else HOSTILE, f"{n}{HOSTILE}".encode(), b"k%d" % (n % 4))
                for n in range(start, start + 4)
            ]
            opened.append(messages_to_batch(messages), "r")
        out.settle(Range(0, 12), opened.durable)
    return directory


def said(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user does, with its output in a pipe."""
    return subprocess.run(
        [*TRANSPORTER, "log", *arguments], capture_output=True, text=True, timeout=180, check=False
    )


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Run a command with its output and errors on a terminal, and return its code and output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    with subprocess.Popen(
        [*TRANSPORTER, "log", *arguments],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
    ) as process:
        os.close(theirs)
        shown = b""
        while select.select([ours], [], [], 60)[0]:
            try:
                shown += os.read(ours, 1 << 16)
            except OSError:
                break
    os.close(ours)
    return process.returncode, shown.decode()


def offsets(found: list[dict[str, object]]) -> list[object]:
    """Return the offsets of shown entries."""
    return [each["offset"] for each in found]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], list(range(10, 20))),
        (["3..5"], [3, 4, 5]),
        (["19..40"], [19]),
        (["30..40"], []),
        (["--last", "3"], [17, 18, 19]),
        (["2..11", "--last", "2"], [10, 11]),
        (["--namespace", "^ord", "--last", "3"], [15, 17, 19]),
        (["--first", "2"], [0, 1]),
        (["--namespace", "^ord", "--from", "4", "--first", "3"], [5, 7, 9]),
        (["--first", "50", "--to", "2"], [0, 1, 2]),
        (["--key", "k2", "--from", "0", "--to", "10"], [2, 6, 10]),
        (["--key", "k"], []),
        (["--from", "1h", "--last", "1"], [19]),
        (["--to", "1h"], []),
        (["--from", "2999-01-01T00:00:00Z"], []),
    ],
)
def test_show_by_offset_time_namespace_and_key(
    log: Path, options: list[str], expected: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each selection shows its entries, oldest first, and JSON and text agree."""
    assert app.execute(["log", "show", str(log), *options, "--json"]) == 0
    assert offsets(json.loads(capsys.readouterr().out)["result"]) == expected
    assert app.execute(["log", "show", str(log), *options]) == 0
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    _, *lines = shown.out.splitlines()
    assert [int(line.split()[0]) for line in lines] == expected


def test_raw_data_goes_to_a_program_and_to_no_terminal(log: Path) -> None:
    """Raw bytes go unchanged into a pipe, and are refused where a terminal would obey them."""
    assert said("show", str(log), "2..3", "--raw").stdout == f"2{HOSTILE}\n3{HOSTILE}\n"
    assert "exclude one another" in said("show", str(log), "--raw", "--json").stdout
    code, shown = on_a_terminal("show", str(log), "2..3", "--raw")
    assert (code, "\x1b" in shown, "may control a terminal" in shown) == (2, False, True)
    for command in (["show"], ["tail"], ["info"]):
        code, shown = on_a_terminal(*command, str(log))
        assert (code, "\x1b]0" in shown, "\x1b[2J" in shown) == (0, False, False)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["show", "DIR", "9..3"], 2, "not an offset range"),
        (["show", "DIR", "--from", "soon"], 2, "neither an offset nor a time"),
        (["show", "DIR", "1..2", "--from", "1"], 2, "not both"),
        (["show", "DIR", "--namespace", "("], 2, "RE2"),
        (["show", "DIR", "--last", "0"], 2, "--last"),
        (["tail", "DIR", "-n", "-1"], 2, "-n"),
        (["export", "DIR", "x.csv"], 2, "--format parquet"),
        (["export", "DIR", "DIR/x.jsonl"], 2, "into the log directory"),
        (["export", "DIR", "/dev/null", "--format", "jsonl"], 2, "regular files only"),
        (["export", "DIR", "/nowhere/x.jsonl"], 3, "/nowhere/x.jsonl: No such file"),
        (["info", "DIR/.."], 3, "no transporter log here"),
        (["tail", "DIR/.."], 3, "no transporter log here"),
    ],
)
def test_what_cannot_be_done_is_said(
    log: Path, options: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage is exit code 2, a missing log or place is 3, each with its reason."""
    command = ["log", *[option.replace("DIR", str(log)) for option in options]]
    assert app.execute(command) == code
    shown = capsys.readouterr()
    assert (shown.out, text in shown.err) == ("", True), shown.err
    assert app.execute([*command, "--json"]) == code
    assert text in json.loads(capsys.readouterr().out)["error"]["message"]


def test_info_tells_what_the_log_holds_and_who_holds_it(log: Path) -> None:
    """Info shows segments, offsets, times, bytes, the owner, and the user of the oldest entry."""
    found = transporter("log", "info", str(log))
    assert (found["first"], found["last"], found["confirmed"]) == (0, 19, 19)
    assert found["held_by"] == {"kind": "route", "route": "out", "watermark": 12, "lag": 7}
    assert found["engine_pid"] is None
    segments = found["segments"]
    assert [each["base"] for each in segments] == [0, 4, 8, 12, 16]
    assert [each["last"] for each in segments] == [3, 7, 11, 15, 19]
    assert [each["sealed"] for each in segments] == [True] * 4 + [False]
    assert found["bytes"] == sum(path.stat().st_size for path in log.glob("*.log"))
    assert found["oldest"] == segments[0]["oldest"] <= segments[-1]["newest"] == found["newest"]
    with CommitLog.open(log), OffsetLog(log, "out") as out:
        out.begin_replay(5, 9)
        found = transporter("log", "info", str(log))
        assert found["engine_pid"] == str(os.getpid())
        assert (found["held_by"]["kind"], found["held_by"]["watermark"]) == ("replay", 4)
    shown = said("info", str(log)).stdout
    assert "replay out, settled up to offset 4; 15 entries behind" in shown
    assert "8..11" in shown


def test_unconfirmed_entries_are_marked_and_not_exported(tmp_path: Path, batch: Make) -> None:
    """Invariant 12: entries above the floor of an unclean stop are marked, and not exported."""
    opened = CommitLog.open(tmp_path / "log")
    opened.append(batch(2), "r")
    opened.append(batch(2), "r")
    crash(opened)
    found = transporter("log", "show", str(tmp_path / "log"))
    assert [each["unconfirmed"] for each in found] == [False, False, True, True]
    transporter("log", "export", str(tmp_path / "log"), str(tmp_path / "x.jsonl"))
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 2


def test_damage_in_the_middle_of_a_document_is_told_in_it(log: Path) -> None:
    """A truncated document is valid JSON with the error in it, and the command fails."""
    data = (log / f"{8:020d}.log").read_bytes()
    damage(log, data.find(b"TFRM") + 400, base=8)
    done = said("show", str(log), "0..19", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"], found["error"]["type"]) == (1, False, "Corrupt")
    assert offsets(found["result"]) == list(range(8))
    done = said("show", str(log), "0..19")
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 9)
    done = said("export", str(log), str(log.parent / "x.parquet"))
    assert (done.returncode, list(log.parent.glob("x*"))) == (1, [])


def test_exports_hold_what_show_shows(log: Path) -> None:
    """JSON lines are the entries of show --json, and Parquet has the same by column."""
    shown = transporter("log", "show", str(log), "--from", "0", "--namespace", "^orders$")
    options = ["--namespace", "^orders$"]
    lines, table = log.parent / "x.jsonl", log.parent / "x.parquet"
    result = transporter("log", "export", str(log), str(lines), *options)
    assert (result["entries"], result["bytes"]) == (10, lines.stat().st_size)
    assert [json.loads(line) for line in lines.read_text().splitlines()] == shown
    transporter("log", "export", str(log), str(table), *options)
    found = pq.read_table(table)
    assert found.column("offset").to_pylist() == offsets(shown)
    assert found.column("data").to_pylist() == [each["data"] for each in shown]


def test_an_export_shows_its_progress_on_a_terminal_only(log: Path) -> None:
    """A terminal shows a bar, and a pipe gets the result only."""
    code, shown = on_a_terminal("export", str(log), str(log.parent / "x.parquet"))
    assert (code, "export" in shown, "100%" in shown) == (0, True, True)
    done = said("export", str(log), str(log.parent / "x.parquet"))
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 1)


def test_tail_shows_the_newest_and_ends(log: Path) -> None:
    """Without -f the last entries are shown, a line each, and the command ends."""
    done = said("tail", str(log), "-n", "2", "--json")
    assert offsets([json.loads(line) for line in done.stdout.splitlines()]) == [18, 19]
    assert [line.split()[0] for line in said("tail", str(log), "-n", "3").stdout.splitlines()] == [
        "17",
        "18",
        "19",
    ]
    assert said("tail", str(log), "-n", "0").stdout == ""
    assert said("tail", str(log), "--key", "k1").stdout.count("\n") == 5


def test_tail_follows_what_an_engine_appends(log: Path) -> None:
    """Tail waits for an engine, shows its appends soon after, and ends quietly on Ctrl-C."""
    with Tail(log, "-n", "1", "--namespace", "^orders", "--json") as tail:
        tail.await_error("no engine runs here; waiting")
        with CommitLog.open(log) as opened:
            for number in range(3):
                begun = time.monotonic()
                opened.append(
                    messages_to_batch([Message("orders", b"x"), Message("audit", b"y")]), "r"
                )
                tail.await_lines(2 + number)
                assert time.monotonic() - begun < 10
            assert tail.interrupt() == 130
    assert offsets([json.loads(line) for line in tail.lines]) == [19, 20, 22, 24]
    assert len(tail.errors) == 1


def test_tail_ends_at_once_when_nobody_reads_it_any_more(log: Path) -> None:
    """The end of the pipe is noticed even without appends, and is not an error."""
    with subprocess.Popen(
        [*TRANSPORTER, "log", "tail", str(log), "-f", "-n", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline()
        process.stdout.close()
        try:
            assert process.wait(20) == 0
        finally:
            process.kill()
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.exhaustive
def test_a_long_answer_may_be_cut_short(tmp_path: Path, batch: Make) -> None:
    """Show into a program that stops reading ends quietly."""
    with CommitLog.open(tmp_path / "log") as opened:
        for _ in range(20):
            opened.append(batch(1000, size=100), "r")
    for option in ("--json", "--raw", "--namespace=o"):
        with subprocess.Popen(
            [*TRANSPORTER, "log", "show", str(tmp_path / "log"), "--from", "0", option],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout.read(10)
            process.stdout.close()
            assert process.wait(30) == 0
            assert process.stderr.read() == b""


def test_waiting_costs_next_to_nothing(log: Path) -> None:
    """An idle follower looks a few times a second and does nothing else."""
    with CommitLog.open(log), Tail(log) as tail:
        tail.await_lines(10)
        begun, before = time.monotonic(), cpu_seconds(tail.process.pid)
        time.sleep(3)  # the idle time to measure
        used = cpu_seconds(tail.process.pid) - before
        assert used < 0.05 * (time.monotonic() - begun) + 0.02


def cpu_seconds(pid: int) -> float:
    """Return the processor time used by a process."""
    import psutil  # noqa: PLC0415 - only here

    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def test_tail_says_what_is_gone(log: Path) -> None:
    """A delayed follower reports the gap, as text or as an object, and continues behind it."""
    with CommitLog.open(log, segment_bytes=1) as opened, Tail(log, "-n", "1", "--json") as tail:
        with Tail(log, "-n", "1") as people:
            for each in (tail, people):
                each.await_lines(1)
                each.process.send_signal(signal.SIGSTOP)
            for _ in range(5):
                opened.append(messages_to_batch([Message("orders", b"x")]), "r")
            for path in sorted(log.glob("*.log"))[:-2]:
                path.unlink()
            for each in (tail, people):
                each.process.send_signal(signal.SIGCONT)
            found = [json.loads(line) for line in tail.await_lines(4)]
            people.await_error("offsets 20..22 are gone: the log is retained from 23")
            assert people.interrupt() == 130
        assert tail.interrupt() == 130
    assert found[0]["offset"] == 19
    assert found[1] == {"retained_from": 23, "missing": [20, 22]}
    assert offsets(found[2:]) == [23, 24]


@pytest.mark.timeout(300)
def test_tail_follows_through_rolls_compaction_and_retention(tmp_path: Path) -> None:
    """Each entry is seen once, reported missing, or obsolete, over all changes of segments."""
    writer, seen, missing = follow(tmp_path / "log", 110, seed=1)
    assert check(writer, seen, missing)["seen"] > 0
    assert missing
    assert min(writer.compacted, writer.removed, writer.restarts) > 0


def copy(source: Path, target: Path) -> None:
    """Copy a directory as in docs/log.md."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True, timeout=180)


def test_a_stopped_log_can_be_moved(log: Path, tmp_path: Path) -> None:
    """A copy of a stopped log continues elsewhere with the same id, offsets and progress."""
    before = transporter("log", "info", str(log))
    moved = tmp_path / "elsewhere" / "log"
    moved.parent.mkdir()
    copy(log, moved)
    shutil.rmtree(log)
    for path in (moved / "lock", moved / "durable", *moved.glob("*.index")):
        path.unlink()
    with CommitLog.open(moved, proved=lambda: proved_offset(moved)) as opened:
        assert (opened.log_id, opened.durable) == (before["log_id"], 19)
        assert opened.append(messages_to_batch([Message("orders", b"x")]), "r") == (20, 20)
    assert read_state(moved, "out").watermark == 12
    assert offsets_of(moved) == list(range(21))
    after = transporter("log", "info", str(moved))
    assert after["segments"][:-1] == before["segments"][:-1]


def test_a_snapshot_of_a_running_log_is_as_after_a_crash(log: Path, tmp_path: Path) -> None:
    """A snapshot of the file system opens with all acked entries, lock file or not."""
    with CommitLog.open(log) as opened, OffsetLog(log, "out") as out:
        opened.append(messages_to_batch([Message("orders", b"x")]), "r")
        out.settle(Range(13, 20), opened.durable)
        out.sync()
        copy(log, tmp_path / "copy")
        found = transporter("log", "info", str(tmp_path / "copy"))
        assert (found["engine_pid"], found["last"]) == (None, 20)
        with CommitLog.open(tmp_path / "copy", proved=lambda: proved_offset(tmp_path / "copy")):
            assert read_state(tmp_path / "copy", "out").watermark == 20
    assert offsets_of(tmp_path / "copy") == list(range(21))


def test_a_copy_whose_files_are_of_different_times_is_refused(log: Path, tmp_path: Path) -> None:
    """Offset logs newer than the segments beside them prove that entries are missing."""
    with CommitLog.open(log) as opened, OffsetLog(log, "out") as out:
        copy(log, tmp_path / "copy")
        opened.append(messages_to_batch([Message("orders", b"x")]), "r")
        out.settle(Range(13, 20), opened.durable)
        out.sync()
        shutil.rmtree(tmp_path / "copy" / "offsets")
        copy(log / "offsets", tmp_path / "copy" / "offsets")
    with pytest.raises(Corrupt, match="offset 20 was proved durable"):
        CommitLog.open(tmp_path / "copy", proved=lambda: proved_offset(tmp_path / "copy"))


def test_tail_waits_for_a_pipeline_that_never_ran(tmp_path: Path) -> None:
    """The log of a pipeline file need not exist yet."""
    pipeline = tmp_path / "p.yaml"
    pipeline.write_text(
        "log: {dir: log}\nreaders: [{name: d, adaptor: demo}]\n"
        "routes: [{name: out, writer: {adaptor: file, path: '-'}}]\n"
    )
    with Tail(pipeline, "--json") as tail:
        tail.await_error("waiting")
        with CommitLog.open(tmp_path / "log") as opened:
            opened.append(messages_to_batch([Message("orders", b"x")]), "r")
            await_true(lambda: len(tail.lines) == 1, 30, "the first entry")
        assert tail.interrupt() == 130
