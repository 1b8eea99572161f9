"""``transporter queue``, and the program of docs/queue.md, on a real broker."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from queue_tools import PATIENCE, fresh, until

from transporter.cli import app
from transporter.queue import QueueConsumer, QueueProducer, QueueSettings, Tracker

if TYPE_CHECKING:
    from services.kafka import Broker

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[2] / "docs" / "queue.md"


def options(settings: QueueSettings, folder: Path) -> list[str]:
    """Return the options that name *settings*, as a file."""
    file = folder / "queue.yaml"
    names = ("bootstrap_servers", "queue_topic", "markers_topic", "dead_letter_topic")
    lines = [f"{name}: {getattr(settings, name)}" for name in names]
    file.write_text("\n".join([*lines, "max_redeliveries: 0", "redeliver_after: 400ms"]))
    return ["--settings", str(file)]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Run a command with --json and return its result."""
    code = app.execute(["queue", *arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["ok"]) == (0, True), found
    return found["result"]


def test_the_program_of_the_page_runs(kafka_broker: Broker) -> None:
    """The first program of docs/queue.md runs as described."""
    kafka_broker.start()
    program = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    text = f"servers = {kafka_broker.bootstrap_servers!r}\n{program[1]}"
    found = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, found.stderr
    assert sorted(found.stdout.splitlines()) == [
        "sent to: anna 0",
        "sent to: ben 1",
        "sent to: carl 0",
    ]


def test_every_setting_is_on_the_page() -> None:
    """The table of docs/queue.md names all settings with their defaults, and no others."""
    text = PAGE.read_text(encoding="utf-8").split("## Settings")[1].split("## Commands")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(QueueSettings.model_fields)


def test_init_makes_the_topics_once(
    kafka_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Existing topics stay unchanged, and are reported."""
    settings = fresh(kafka_broker)
    where = options(settings, tmp_path)
    assert answer(capsys, "init", *where) == {
        "made": [],
        "topics": list(settings.topics),
        "problems": [],
    }
    more = ["--queue-topic", f"{settings.queue_topic}-2", "--partitions", "3"]
    assert answer(capsys, "init", *where, *more)["made"] == [f"{settings.queue_topic}-2"]


def test_what_is_sent_is_seen_and_stays(
    kafka_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Peek shows waiting messages without consuming them, and stats count them by queue."""
    settings = fresh(kafka_broker)
    where = options(settings, tmp_path)
    sent = answer(capsys, "send", "jobs", "a", "b", "--key", "k", "--header", "h=1", *where)
    assert sent == {"queue": "jobs", "sent": 2}
    answer(capsys, "send", "mails", "c", *where)
    for _ in range(2):
        seen = answer(capsys, "peek", "jobs", *where)
        assert {each["value"] for each in seen} == {"a", "b"}
        assert [(each["key"], each["headers"]) for each in seen] == [("k", [["h", "1"]])] * 2
    assert len(answer(capsys, "peek", "jobs", "--first", "1", *where)) == 1
    counted = answer(capsys, "stats", *where)
    assert [(each["queue"], each["depth"]) for each in counted] == [("jobs", 2), ("mails", 1)]
    assert counted[0]["oldest_waiting"] >= 0
    assert answer(capsys, "stats", "none", *where)[0]["depth"] == 0


def test_stats_tell_what_waits_what_is_in_progress_and_what_is_dead(
    kafka_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message is counted in one place at a time."""
    settings = fresh(
        kafka_broker, partitions=1, redeliver_after=60.0, max_redeliveries=0, in_flight=2
    )
    where = options(settings, tmp_path)
    with QueueProducer(settings) as producer:
        producer.send_many("jobs", [b"0", b"1", b"2", b"3"])
    with Tracker(settings) as tracker, QueueConsumer(settings, "jobs") as consumer:
        (first,) = consumer.receive_many(1, PATIENCE)
        consumer.nack(first, reason="broken")
        until(lambda: tracker.metrics().dead_lettered == 1, "dead")
        until(lambda: consumer.metrics().in_progress == 2, "two are begun")
        until(lambda: tracker.metrics().in_progress == 2, "and that was seen")
        (found,) = answer(capsys, "stats", "jobs", *where)
        counts = (found["depth"], found["in_progress"], found["dead_letters"])
        assert counts == (1, 2, 1)
        assert found["oldest_in_progress"] >= 0
    (letter,) = answer(capsys, "peek", "jobs", "--dead", *where)
    assert letter["value"] == "0"
    assert letter["provenance"]["transporter-reason"] == "broken"
    assert app.execute(["queue", "peek", "jobs", "--dead", *where]) == 0
    assert "broken" in capsys.readouterr().out


def test_an_estimate_of_what_waits(
    kafka_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An estimate has depth and oldest age, of named queues or of all queues with consumers."""
    settings = fresh(kafka_broker)
    where = options(settings, tmp_path)
    answer(capsys, "send", "jobs", "a", "b", *where)
    (found,) = answer(capsys, "stats", "jobs", "--estimate", *where)
    assert found.pop("oldest_waiting") >= 0
    assert found == {
        "queue": "jobs",
        "depth": 2,
        "in_progress": None,
        "dead_letters": None,
        "oldest_in_progress": None,
    }
    assert answer(capsys, "stats", "--estimate", *where) == []
    with QueueConsumer(settings, "jobs") as consumer:
        until(lambda: consumer.metrics().in_progress == 2, "begun")
        (found,) = answer(capsys, "stats", "--estimate", *where)
        assert (found["queue"], found["depth"], found["oldest_waiting"]) == ("jobs", 0, None)
    assert app.execute(["queue", "stats", "jobs", "--estimate", *where]) == 0
    assert "jobs" in capsys.readouterr().out


def test_a_tracker_works_until_it_is_interrupted(kafka_broker: Broker, tmp_path: Path) -> None:
    """Ctrl-C ends it with exit code 0, and it reports its counts."""
    settings = fresh(kafka_broker)
    command = [sys.executable, "-m", "transporter.cli.app", "queue", "tracker", "--json"]
    with subprocess.Popen(
        [*command, *options(settings, tmp_path), "--max-redeliveries", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        with QueueProducer(settings) as producer, QueueConsumer(settings, "q") as consumer:
            producer.send("q", b"v")
            for number in range(2):
                message = consumer.receive(PATIENCE)
                assert message is not None
                assert message.redeliveries == number
            consumer.ack(message)
            consumer.flush()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert json.loads(out)["result"]["redelivered"] == 1
    assert err.startswith(f"tracking {settings.markers_topic}")
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [["stats"], ["peek", "q"], ["send", "q", "v"], ["tracker"]])
def test_a_missing_topic_is_the_environments_fault(
    kafka_broker: Broker, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command fails with exit code 3 and the remedy."""
    kafka_broker.start()
    where = ["--bootstrap-servers", kafka_broker.bootstrap_servers, "--queue-topic", "nix"]
    assert app.execute(["queue", *command, *where]) == 3
    error = capsys.readouterr().err
    assert "has no topic nix" in error
    assert "transporter queue init" in error
