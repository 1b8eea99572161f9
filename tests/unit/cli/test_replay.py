"""Command ``transporter replay`` on a log without a running engine."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from compaction_tools import LATE, SECOND

from transporter.cli import app
from transporter.log.commit_log import CommitLog
from transporter.log.compaction import CompactionSettings, compact
from transporter.log.reader import LogReader
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog, read_state
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from pathlib import Path

PIPELINE = """
log: {dir: log}
readers: [{name: in, adaptor: file, path: in.jsonl}]
routes:
  - name: some
    namespace: ^orders$
    steps: [{only: {field: paid, operator: "==", value: true}}, {python: {function: "split:split"}}]
    writer: {adaptor: kafka, bootstrap_servers: "${KAFKA:?set KAFKA}"}
  - {name: none, namespace: ^nothing$, writer: {adaptor: file, path: none.jsonl}}
  - name: frames
    steps: [{sql: "SELECT * FROM entries"}]
    writer: {adaptor: file, path: frames.jsonl}
"""
SPLIT = """
from dataclasses import replace


def split(message):
    if b"two" in message.data:
        return [message, replace(message, key=b"second")]
    if b"bad" in message.data:
        raise ValueError("bad")
    return message
"""


@pytest.fixture(name="folder")
def _folder(folder: Path) -> Path:
    """Return the folder of a pipeline whose routes have delivered all ten entries of its log."""
    (folder / "p.yaml").write_text(PIPELINE)
    (folder / "split.py").write_text(SPLIT)
    texts = [
        b'{"paid":false}',
        b'{"paid":true}',
        b'{"paid":true,"two":2}',
        b'{"paid":true,"bad":1}',
    ]
    messages = [Message("orders", text, b"k") for text in (*texts, texts[1])]
    others = [Message("users", b"{}", b"u")] * 4
    with CommitLog.open(folder / "log", compression=None, clock=lambda: 0) as log:
        log.append(messages_to_batch([*messages, *others]), "in")
        log._segment_bytes = 1
        log.append(messages_to_batch([Message("orders", texts[1], b"k")]), "in")
        for route in ("some", "none", "frames"):
            with OffsetLog(folder / "log", route) as offsets:
                offsets.settle(Range(0, log.durable), log.durable)
    return folder


def compacted(folder: Path) -> None:
    """Compact the sealed segment of nine entries down to the last of each namespace."""
    settings = CompactionSettings(0.0, compression=None)
    compact(folder / "log", watermark=lambda: 9, settings=settings, now=LATE * SECOND)


def result(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Return the result that a command has printed as JSON."""
    assert app.execute([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["result"]


def test_a_replay_over_what_compaction_dropped_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error counts the dropped entries, and --partial replays the others."""
    compacted(folder)
    words = ["replay", str(folder / "p.yaml"), "some", "--from", "0"]
    for more in ([], ["--dry-run"]):
        assert app.execute([*words, *more]) == 1
        assert (
            "route some: of 0..9 compaction has dropped 7 entries; add --partial to replay the rest"
        ) in capsys.readouterr().err
    assert read_state(folder / "log", "some").replay is None
    assert app.execute([*words, "--partial", "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert "offsets 0..9: compaction has dropped 7 entries" in captured.err
    assert "3 entries would be read" in captured.out
    assert result(capsys, *words, "--partial")["dropped"] == 7
    assert read_state(folder / "log", "some").replay is not None


def test_a_replay_of_what_is_whole_needs_no_more(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the range counts, not the rest of the log."""
    compacted(folder)
    told = result(capsys, "replay", str(folder / "p.yaml"), "some", "--from", "8")
    assert (told["first"], told["last"], told["dropped"]) == (8, 9, 0)


def test_output_of_the_users_code_is_not_the_result(folder: Path) -> None:
    """What a step prints goes to stderr, so that --json is one object."""
    (folder / "split.py").write_text(f"print('loaded')\n{SPLIT}")
    words = ["replay", str(folder / "p.yaml"), "some", "--from", "0", "--dry-run", "--json"]
    command = [sys.executable, "-m", "transporter", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["ok"]
    assert "loaded" in done.stderr


def test_a_time_reaches_to_what_may_have_been_logged_then(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A range by time includes adjacent dropped entries, whose times are lost."""
    compacted(folder)
    words = ["replay", str(folder / "p.yaml"), "some", "--from", "1970-01-01T00:00Z"]
    assert app.execute(words) == 1
    assert "of 0..9 compaction has dropped 7 entries" in capsys.readouterr().err


def test_a_dry_run_counts_what_the_route_would_deliver(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Entries are counted as delivered, left out, failing or parked, after the route's steps."""
    with LogReader(folder / "log") as reader:
        entry = next(reader.read(4, 4))
    ParkedStore(folder / "log" / "offsets" / "some").park(
        ParkedEntry(4, entry, ParkReason("no", 1, 1))
    )
    words = ["replay", str(folder / "p.yaml"), "some", "--from", "0", "--dry-run"]
    told = result(capsys, *words)
    assert told["entries"] == 10
    assert told["deliveries"] == {
        "delivered": 3,
        "messages": 4,
        "left_out": 5,
        "failing": 1,
        "parked": 1,
    }
    assert app.execute(words) == 0
    out = capsys.readouterr().out
    assert "0..9 would be replayed" in out
    assert "10 entries would be read" in out
    assert (
        "3 of them would be delivered, as 4 messages; 5 are left out by the route's namespace and "
        "steps, 1 would fail, 1 stays parked"
    ) in out
    assert "0..9 would be replayed; watermark 9\n" in out, "nothing is left to a next run"


def test_one_of_each_is_counted_as_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The words of a dry run follow its numbers."""
    words = ["replay", str(folder / "p.yaml"), "some", "--from", "0", "--to", "1", "--dry-run"]
    assert app.execute(words) == 0
    told = "1 of them would be delivered; 1 is left out by the route's namespace and steps\n"
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("writer", "warning"),
    [
        ('{adaptor: file, path: "${UNSET}"}', None),
        ('{adaptor: lmdb, path: "${UNSET}"}', "older values overwrite newer ones until"),
        ('{adaptor: "none:None"}', "if the sink keeps the newest value of a key: older"),
    ],
)
def test_the_warning_is_that_of_the_sink_in_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str], writer: str, warning: str | None
) -> None:
    """Without an engine the file decides what a replay does to its sink, without variables."""
    (folder / "p.yaml").write_text(PIPELINE.replace("{adaptor: file, path: none.jsonl}", writer))
    told = result(capsys, "replay", str(folder / "p.yaml"), "none", "--from", "0", "--dry-run")
    assert (told["warning"] or "").startswith(warning or "\0") == bool(warning)


def test_a_dry_run_of_a_route_that_takes_nothing_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A route that delivers nothing is reported, apart from the replay's own filter."""
    words = ["--namespace", "^users$", "--dry-run"]
    assert app.execute(["replay", str(folder / "p.yaml"), "none", "--from", "0", *words]) == 0
    out = capsys.readouterr().out
    assert "4 entries would be read" in out
    assert "0 of them would be delivered; 4 are left out" in out


def test_a_log_directory_has_no_steps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number of entries is shown without the steps."""
    words = ["frames", "--from", "0", "--dry-run"]
    found = result(capsys, "replay", str(folder / "log"), *words)
    assert found["entries"] == 10
    assert "give the pipeline file" in found["deliveries"]["unknown"]


@pytest.mark.parametrize("words", [[], ["--json"], ["0..9", "--json"], ["--metadata"]])
def test_show_names_what_was_dropped(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Dropped entries are reported on stderr, beside the remaining ones."""
    compacted(folder)
    assert app.execute(["log", "show", str(folder / "p.yaml"), *words]) == 0
    assert "offsets 0..9: compaction has dropped 7 entries" in capsys.readouterr().err


def test_a_dry_run_of_the_log_names_what_was_dropped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dropped entries are reported, because the output would look like a short history."""
    compacted(folder)
    app.execute(["dry-run", str(folder / "p.yaml"), "none", "--from", "0"])
    assert "offsets 0..9: compaction has dropped 7 entries" in capsys.readouterr().err


def test_info_counts_what_was_dropped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dropped entries are counted in all, and of each segment."""
    compacted(folder)
    told = result(capsys, "log", "info", str(folder / "log"))
    assert told["dropped"] == 7
    assert [each["dropped"] for each in told["segments"]] == [7, 0]
    assert app.execute(["log", "info", str(folder / "log")]) == 0
    assert "dropped     7" in capsys.readouterr().out
