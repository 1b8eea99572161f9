"""``transporter plan``: its figures against logs that were really written."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from transporter.cli import app
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch
from transporter.pipeline.config import LogConfig, build
from transporter.sizing import Load, batch_of, made_up_data, make_plan, memory_need, message_bytes

if TYPE_CHECKING:
    from transporter.pipeline.config import Pipeline

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
WORDS = ("leave", "it", "with", "the", "neighbours", "please", "ring", "twice", "at", "noon")


def orders(count: int, size: int) -> list[bytes]:
    """Return JSON documents of about *size* bytes: a shop's orders with a number of items."""
    chance = random.Random(size + 1)
    found = []
    for number in range(count):
        items: list[dict[str, object]] = []
        order = {"order": number, "state": chance.choice(WORDS), "items": items}
        while len(json.dumps(order)) < size - 40:
            note = " ".join(chance.choices(WORDS, k=3))
            trace = f"{chance.getrandbits(64):016x}"
            items.append({"sku": chance.randrange(10**6), "note": note, "trace": trace})
        found.append(json.dumps(order).encode())
    return found


def noise(count: int, size: int) -> list[bytes]:
    """Return data that no codec makes smaller."""
    chance = random.Random(size)
    return [chance.randbytes(size) for _ in range(count)]


def written_bytes(folder: Path, data: list[bytes], batch: int, codec: str | None) -> float:
    """Return the bytes for each message of a log that holds *data*, appended as by a reader."""
    with CommitLog.open(folder / "log", compression=codec) as log:
        for first in range(0, len(data), batch):
            messages = [
                Message(
                    "shop.orders",
                    each,
                    f"customer-{number % 997}".encode(),
                    timestamp=time.time_ns() // 1000,
                    source_id=f"public.outbox/{number}",
                )
                for number, each in enumerate(data[first : first + batch], start=first)
            ]
            log.append(messages_to_batch(messages), "orders-outbox", f"{first + batch}")
    files = (folder / "log").glob("*.log")
    return sum(each.stat().st_size for each in files) / len(data)


@pytest.mark.parametrize("codec", [None, "lz4"])
@pytest.mark.parametrize("batch", [1, 10, 500])
@pytest.mark.parametrize("size", [100, 400, 4000])
def test_disk_with_a_sample_is_that_of_a_log(
    tmp_path: Path, size: int, batch: int, codec: str | None
) -> None:
    """By a sample of its data, the bytes of a message are those of a log within 20 %."""
    half = min(1000, 50 * batch)
    data = orders(2 * half, size)
    planned = message_bytes(Load(1.0, batch, data[:half]), codec)
    assert planned == pytest.approx(written_bytes(tmp_path, data[half:], batch, codec), rel=0.2)


@pytest.mark.parametrize("codec", [None, "lz4"])
@pytest.mark.parametrize("size", [200, 400, 1500])
def test_disk_of_made_up_data_is_that_of_a_log(
    tmp_path: Path, size: int, codec: str | None
) -> None:
    """By the size alone, the bytes of a message of JSON are those of a log within 20 %."""
    data = orders(500, size)
    mean = round(sum(map(len, data)) / len(data))
    planned = message_bytes(Load(1.0, 10, made_up_data(mean)), codec)
    assert planned == pytest.approx(written_bytes(tmp_path, data, 10, codec), rel=0.2)


@pytest.mark.parametrize("codec", [None, "lz4"])
def test_disk_of_data_that_cannot_be_compressed(tmp_path: Path, codec: str | None) -> None:
    """A sample of random bytes has the size of a log with such data, whatever the codec is."""
    data = noise(1000, 500)
    planned = message_bytes(Load(1.0, 10, data[:500]), codec)
    assert planned == pytest.approx(written_bytes(tmp_path, data[500:], 10, codec), rel=0.05)
    assert planned > 500


def pipeline(folder: Path, **log: Any) -> Pipeline:
    """Return a pipeline with two routes, one of them with three workers."""
    values = {
        "log": {"dir": "log", **log},
        "readers": [{"name": "in", "adaptor": "demo"}],
        "routes": [
            {"name": "a", "writer": {"adaptor": "file", "path": "a.jsonl"}},
            {"name": "b", "parallelism": 3, "writer": {"adaptor": "file", "path": "b.jsonl"}},
        ],
    }
    return build(values, folder)


LOAD = Load(1000.0, 10, made_up_data(400))


def test_the_sums(tmp_path: Path) -> None:
    """An hour, an outage, and what retention adds are the rate by the time."""
    found = make_plan(LOAD, 24 * 3600, pipeline(tmp_path, compression="none"))
    pace = 1000 * found.message
    assert found.hour == pytest.approx(pace * 3600)
    assert found.outage == pytest.approx(pace * 86_400)
    # Seven days of retention, of which the outage is one, and a segment's day.
    assert found.retention == pytest.approx(pace * 7 * 86_400)
    assert found.log == pytest.approx(found.outage + found.retention, rel=0.001)
    assert found.segments == pytest.approx(found.log / GIB, abs=1)
    assert found.max_bytes * 0.8 >= found.log
    assert found.max_bytes % GIB == 0
    assert found.disk > found.max_bytes


def test_without_retention_the_outage_counts(tmp_path: Path) -> None:
    """A log that keeps entries for ever has no greatest size, but still a budget."""
    found = make_plan(LOAD, 86_400, pipeline(tmp_path, retention={"age": "off"}))
    assert (found.retention, found.log, found.segments) == (None, None, None)
    assert found.max_bytes * 0.8 >= found.outage


def test_retention_by_bytes_alone(tmp_path: Path) -> None:
    """A log that keeps entries up to a size has that size, and its budget is larger."""
    keep = {"age": "off", "bytes": "10GiB"}
    found = make_plan(Load(1.0, 1, made_up_data(400)), 3600, pipeline(tmp_path, retention=keep))
    assert found.retention == pytest.approx(11 * GIB, rel=0.01)
    assert found.max_bytes * 0.8 >= 11 * GIB


def test_a_short_sample_is_not_repeated_in_a_frame() -> None:
    """Data that cannot be compressed takes its own size, however few messages show it."""
    for count in (1, 10, 100):
        assert message_bytes(Load(1.0, 500, noise(count, 500)), "lz4") > 500


def test_made_up_data_is_bounded() -> None:
    """Large documents are fewer, so that a plan for them takes little memory."""
    assert [len(made_up_data(size)) for size in (400, 1 << 20, 8 << 20)] == [1000, 8, 1]


def test_the_budget_is_one_that_a_pipeline_accepts(tmp_path: Path) -> None:
    """Even a small load gets four segments, which ``log.max_bytes`` requires."""
    small = Load(0.1, 1, made_up_data(100))
    found = make_plan(small, 60, pipeline(tmp_path, segment_bytes="64MiB"))
    assert found.max_bytes == 256 << 20
    LogConfig.model_validate(
        {"dir": tmp_path, "segment_bytes": 64 << 20, "max_bytes": found.max_bytes}
    )


def test_memory_and_descriptors_count_workers(tmp_path: Path) -> None:
    """Each worker of a route takes memory and descriptors."""
    one, four = memory_need(routes=1), memory_need(pipeline(tmp_path))
    assert four.workers == 4 * one.workers
    assert four.engine == one.engine
    plans = [make_plan(LOAD, 3600, routes=count) for count in (1, 4)]
    assert plans[1].descriptors - plans[0].descriptors == 9


def test_a_busy_reader_logs_more_at_once() -> None:
    """Messages of one append grow with the rate, from one to a thousand."""
    assert [batch_of(rate) for rate in (0.5, 2000, 1e9)] == [1, 10, 1000]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the command, and return its code and texts."""
    code = app.execute(["plan", *words])
    written = capsys.readouterr()
    return code, written.out, written.err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text and JSON have the same figures, and a sample takes the place of a size."""
    words = ("--rate", "2000", "--size", "400", "--outage", "24h")
    code, out, _ = run(capsys, *words)
    assert code == 0
    for name in ("disk per hour", "an outage of 24h", "retention adds", "log.max_bytes", "memory"):
        assert f"\n{name} " in out
    result = json.loads(run(capsys, *words, "--json")[1])["result"]
    assert f"{result['max_bytes'] // GIB}GiB" in out
    assert result["batch"] == 10
    assert result["memory"]["total"] == memory_need().total
    sample = tmp_path / "sample.jsonl"
    sample.write_bytes(b"\n".join(orders(100, 400)))
    code, out, error = run(capsys, "--rate", "2000", "--sample", str(sample), "--json")
    assert (code, json.loads(out)["result"]["outage"] > GIB, error) == (0, True, "")
    error = run(capsys, "--rate", "50000", "--sample", str(sample))[2]
    assert "warning: the sample has 100 messages, fewer than are logged at once (250)" in error


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--size", "400"), "Missing option '--rate'"),
        (("--rate", "5"), "give either --size or --sample"),
        (("--rate", "5", "--size", "4", "--sample", "x"), "give either --size or --sample"),
        (("--rate", "5", "--size", "big"), "is not a size"),
        (("--rate", "5", "--size", "0"), "from 1 byte to 8MiB"),
        (("--rate", "5", "--size", "1GiB"), "from 1 byte to 8MiB"),
        (("--rate", "nan", "--size", "1"), "--rate"),
        (("--rate", "inf", "--size", "1"), "--rate"),
        (("--rate", "5", "--size", "9", "--outage", "1"), "is not a duration"),
        (("--rate", "5", "--sample", "absent"), "absent: cannot be read"),
        (("absent.yaml", "--rate", "5", "--size", "9"), "absent.yaml"),
    ],
)
def test_wrong_words(words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong option, file or number is a usage error that names it."""
    code, _, error = run(capsys, *words)
    assert (code, text in error) == (2, True), error


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/sizing.md shows what the command prints."""
    page = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
    line, _, rest = page.partition("```console\n$ transporter plan ")[2].partition("\n")
    assert run(capsys, *line.split()) == (0, rest.partition("```")[0], "")
