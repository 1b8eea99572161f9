"""A log made by an attacker, with every checksum right, is refused and never trusted."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from transporter.cli import app
from transporter.errors import Corrupt, TransporterError
from transporter.log import format as layout
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.format import FrameHeader, SegmentHeader, Source
from transporter.log.maintenance import read_maintenance
from transporter.log.meta import read_meta
from transporter.log.reader import LogReader
from transporter.log.segment import write_segment
from transporter.message import ENTRY_SCHEMA, Message, messages_to_batch, with_offsets
from transporter.offsets.parked import ParkedEntry

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

COUNT = 3
SOURCE = Source("in", "17").encode()
LARGE = 1 << 30
ZSTD = b"\x28\xb5\x2f\xfd"
MESSAGES = [
    Message("orders", b'{"id": %d}' % number, b"k", headers=(("trace", b"1"),))
    for number in range(COUNT)
]


def honest() -> pa.RecordBatch:
    """Return honest entries, which the hostile ones replace."""
    return with_offsets(messages_to_batch(MESSAGES), 0, 1_700_000_000_000_000)


def packed(message: bytes, claimed: int | None = None) -> bytes:
    """Return *message* as an LZ4 block that states *claimed* bytes."""
    block = pa.Codec("lz4_raw").compress(message, asbytes=True)
    return struct.pack("<4sI", b"LZ4B", len(message) if claimed is None else claimed) + block


def message(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    """Return *batch* as an Arrow message."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = pa.ipc.MessageReader.open_stream(sink.getvalue())
    stream.read_next_message()
    return bytes(stream.read_next_message().serialize())


def with_column(name: str, column: pa.Array) -> pa.RecordBatch:
    """Return the entries with another *column* in the place of *name*, whatever its type."""
    batch = honest()
    at = batch.schema.get_field_index(name)
    return pa.RecordBatch.from_arrays(
        [*batch.columns[:at], column, *batch.columns[at + 1 :]], schema=ENTRY_SCHEMA
    )


def strange(*ends: int) -> bytes:
    """Return entries whose data end at other places than where they were put."""
    made = message(with_column("data", pa.array([b"x" * 11, b"y" * 23, b"z" * 37])))
    right = struct.pack("<4i", 0, 11, 34, 71)
    assert made.count(right) == 1
    return made.replace(right, struct.pack("<4i", *ends))


def misspelt(name: str, text: bytes) -> bytes:
    """Return entries in which the column *name* holds the bytes *text* as text."""
    made = message(with_column(name, pa.array(["abcdefg"] * COUNT)))
    assert made.count(b"abcdefg" * COUNT) == 1
    return made.replace(b"abcdefg" * COUNT, text * COUNT)


def offsets(*values: int | None) -> pa.RecordBatch:
    """Return the entries with other offsets."""
    return with_column("offset", pa.array(values, pa.int64()))


def large() -> pa.RecordBatch:
    """Return entries that take more than a frame allows."""
    return with_column("data", pa.array([bytes(layout.MAX_PAYLOAD), b"", b""]))


def claiming(claimed: int) -> bytes:
    """Return entries whose data state a length of *claimed* bytes."""
    data = bytearray(message(with_column("data", pa.array([bytes(70_000)] * COUNT)), "zstd"))
    real = struct.pack("<q", 3 * 70_000)
    at = data.index(real + ZSTD)
    data[at : at + 8] = struct.pack("<q", claimed)
    return bytes(data)


def of_length(length: int) -> bytes:
    """Return a message whose batch states *length* rows, and so does each column."""
    return message(honest()).replace(struct.pack("<q", COUNT), struct.pack("<q", length))


def nameless() -> pa.RecordBatch:
    """Return entries with a header that has no name."""
    inner = pa.StructArray.from_arrays(
        [pa.array([None], pa.string()), pa.array([b"v"])],
        fields=[pa.field("name", pa.string()), pa.field("value", pa.binary())],
    )
    ends = pa.array([0, 1, 1, 1], pa.int32())
    made = pa.ListArray.from_arrays(ends, inner)
    buffers = made.buffers()
    kind = ENTRY_SCHEMA.field("headers").type
    child = pa.Array.from_buffers(
        kind.value_type,
        1,
        buffers[2:3],
        children=[inner.field(0), inner.field(1)],
    )
    return with_column("headers", pa.Array.from_buffers(kind, COUNT, buffers[:2], children=[child]))


PAYLOADS: dict[str, bytes] = {
    "nothing": b"",
    "three bytes": b"abc",
    "text": b"no Arrow message, but long enough to be taken for one" * 9,
    "zeros": bytes(4096),
    "a schema": bytes(ENTRY_SCHEMA.serialize()),
    "half a message": message(honest())[:-64],
    "only the head": message(honest())[:8],
    "a head that claims": message(honest())[:4] + b"\xff" * 4 + message(honest())[8:],
    "another schema": bytes(pa.record_batch({"a": [1, 2, 3]}).serialize()),
    "an LZ4 bomb": packed(message(honest()), LARGE),
    "LZ4 that is none": struct.pack("<4sI", b"LZ4B", 100) + b"\xff" * 30,
    "less than it claims": packed(message(honest()), len(message(honest())) + 4096),
    "more than it claims": packed(message(honest()), len(message(honest())) - 8),
    "a large batch": packed(message(honest()) + bytes(8), layout.MAX_PAYLOAD + 1),
    "buffers of 16 MiB": message(large(), "lz4"),
    "buffers of 16 MiB, packed": packed(message(large(), "zstd")),
    "a buffer of a GiB": claiming(LARGE),
    "a buffer of less than nothing": claiming(-2),
    "a buffer that is not full": claiming(3 * 70_000 + 1),
    "no rows": message(honest().slice(0, 0)),
    "two rows": message(honest().slice(0, 2)),
    "less than no rows": of_length(-1),
    "all rows there are": of_length((1 << 63) - 1),
    "data before its buffer": strange(-5, 11, 34, 71),
    "data of a negative length": strange(0, 34, 11, 71),
    "data behind its buffer": strange(0, 11, 34, 1 << 20),
    "no UTF-8": misspelt("namespace", b"abc\xffefg"),
    "half a character": misspelt("op", b"abcdef\xc3"),
    "a header without a name": message(nameless()),
    "offsets out of order": message(offsets(0, 2, 1)),
    "offsets twice": message(offsets(0, 0, 2)),
    "offsets of others": message(offsets(100, 101, 102)),
    "no offset": message(offsets(0, None, 2)),
    "no namespace": message(with_column("namespace", pa.array(["a", None, "b"]))),
}  # fmt: skip


EXTENSIONS = [
    b"",
    b"{",
    b"[1]",
    b"17",
    b'{"reader": 1}',
    b'{"position": "x"}',
    b'{"reader": "in", "position": 5}',
    b'{"reader": "in", "other": 1}',
    b'{"reader": "in", "term": "x"}',
    b'{"reader": "in", "checkpoint": [1]}',
    b'{"reader": "in", "checkpoint": {"in": 1}}',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"reader":' * 50_000,
]
HEADERS: list[dict[str, Any]] = [
    {"positions": [1]},
    {"positions": {"in": 1}},
    {"positions": "[" * 100_000},
    {"previous": 5},
    {"previous": -2},
    {"next_offset": 1 << 63},
    {"base": 1 << 62, "next_offset": (1 << 62) + 5},
]
BODIES = [
    b"{",
    b"[]",
    b'{"format": 1}',
    b"[" * 100_000,
    b'{"format": 1, "log_id": "../..", "epoch": 1, "proved": 1, "clean": null}',
    b'{"format": 1, "log_id": 5, "epoch": 1, "proved": 1, "clean": null}',
    b'{"format": 1, "log_id": "%s", "epoch": "x", "proved": 1, "clean": null}' % (b"0" * 32),
    b'{"format": 1, "log_id": "%s", "epoch": 1, "proved": 1, "clean": 7}' % (b"0" * 32),
    b'{"format": 1, "log_id": "%s", "epoch": 1, "proved": 1, "clean": null, "runs": 7}'
    % (b"0" * 32),
]


def frame_of(payload: bytes, extension: bytes = SOURCE, last: int = COUNT - 1) -> FrameHeader:
    """Return the header of a frame of these entries, with their checksums."""
    return FrameHeader(
        extension_length=len(extension),
        payload_length=len(payload),
        entries_bytes=100,
        segment_id=7,
        byte=0,
        first=0,
        last=last,
        count=COUNT,
        extension_crc=crc32c(extension),
        logged_at=1_700_000_000_000_000,
        epoch=1,
        durable=last,
        payload_crc=crc32c(payload),
    )


def hostile_log(
    folder: Path,
    payload: bytes = b"",
    extension: bytes = SOURCE,
    last: int = COUNT - 1,
    **header: Any,
) -> Path:
    """Write a log whose only frame holds *payload* and *extension*, or whose header is false."""
    with CommitLog.open(folder) as log:
        log.append(messages_to_batch(MESSAGES), "in", "17")
    meta = read_meta(RealFileSystem(), folder)
    assert meta is not None
    (folder / "meta").write_bytes(replace(meta, clean=None, proved=last).encode())
    begun = SegmentHeader(
        bytes.fromhex(meta.log_id.replace("-", "")), 7, 0, -1, 0, 1, 1_700_000_000_000_000
    )
    begun = replace(begun, **header)
    frame = replace(frame_of(payload, extension, last), byte=len(begun.encode()))
    write_segment(RealFileSystem(), folder, begun, [layout.encode_frame(frame, extension, payload)])
    return folder


def put_beside(folder: Path, file: str, body: bytes) -> None:
    """Put *body* with its checksum into the log in *folder*."""
    (folder / file).write_bytes(b"%s\n%08x\n" % (body, crc32c(body)))


def engine_opens(folder: Path) -> None:
    """Open the log in *folder* as an engine does, and append or fail with an error of ours."""
    with suppress(TransporterError), CommitLog.open(folder) as log:
        log.append(messages_to_batch(MESSAGES), "in", "18")


def each(cases: Iterable[Any], quick: int) -> list[Any]:
    """Return every case as a parameter, and leave all but the first *quick* to make soak."""
    return [
        pytest.param(case, marks=() if at < quick else pytest.mark.exhaustive)
        for at, case in enumerate(cases)
    ]


COMMANDS = ["show", "verify", "info", "export"]
ENTRIES = sorted(
    PAYLOADS, key=lambda name: name not in {"an LZ4 bomb", "data of a negative length"}
)


@pytest.mark.parametrize(
    "log",
    [
        *each([{"payload": PAYLOADS[name]} for name in ENTRIES], 2),
        *each([{"extension": extension} for extension in EXTENSIONS], 1),
        *each([{"header": header} for header in HEADERS], 1),
        *each([{"body": body} for body in BODIES], 1),
        *each([{"body": body, "file": "maintenance"} for body in BODIES], 1),
    ],
    ids=str,
)
def test_commands_meet_a_log_of_a_stranger_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: dict[str, Any]
) -> None:
    """Commands print no traceback and no "None", and fail where entries cannot be read."""
    folder = hostile_log(
        tmp_path / "log",
        log.get("payload", message(honest())),
        log.get("extension", SOURCE),
        **log.get("header", {}),
    )
    if "body" in log:
        put_beside(folder, log.get("file", "meta"), log["body"])
    for command in COMMANDS:
        more = ["--output", str(tmp_path / "out.jsonl")] if command == "export" else []
        code = app.execute(["log", command, str(folder), *more])
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out, command
        assert "None" not in said.err, command
        if command != "info" and ("payload" in log or "header" in log):
            assert code, command
            assert said.err.strip() or said.out.strip(), command
    engine_opens(folder)


@pytest.mark.parametrize("name", PAYLOADS)
def test_entries_of_a_stranger_are_refused(tmp_path: Path, name: str) -> None:
    """Hostile entries are Corrupt with cause and place, and memory stays within a frame's."""
    payload = PAYLOADS[name]
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(Corrupt, match=r"cannot be decoded: .+ \(at byte 0, offset 0\)"):
        layout.decode_entries(payload, frame_of(payload), "segment")
    folder = hostile_log(tmp_path / "log", payload)
    with LogReader(folder) as reader, pytest.raises(Corrupt, match=r"cannot be decoded: ."):
        list(reader.read(0, COUNT - 1))
    engine_opens(folder)
    assert pa.default_memory_pool().max_memory() - before < 4 * layout.MAX_PAYLOAD


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_positions_of_a_stranger_are_refused(tmp_path: Path, extension: bytes) -> None:
    """A forged position of a frame is Corrupt, and its entries are read all the same."""
    folder = hostile_log(tmp_path / "log", message(honest()), extension)
    with LogReader(folder) as reader:
        (found,) = reader.frames(0, COUNT - 1)
        assert found.entries().num_rows == COUNT
        if extension:
            with pytest.raises(Corrupt, match=r"position cannot be read: ."):
                found.source()
    engine_opens(folder)


@pytest.mark.parametrize("header", HEADERS)
def test_headers_of_a_stranger_are_refused(tmp_path: Path, header: dict[str, Any]) -> None:
    """An impossible segment header is Corrupt."""
    folder = hostile_log(tmp_path / "log", message(honest()), **header)
    with LogReader(folder) as reader, pytest.raises(Corrupt, match=r"."):
        list(reader.read(0, COUNT - 1))
    engine_opens(folder)


def test_a_header_whose_positions_lie_outside_is_refused(tmp_path: Path) -> None:
    """The header's own length and that of its positions are checked."""
    data = bytearray(SegmentHeader(bytes(16), 7, 0, -1, 0, 1, 0, {"in": "17"}).encode())
    for size in (0, 5, 1 << 31):
        data[84:88] = struct.pack("<I", size)
        data[-4:] = struct.pack("<I", crc32c(bytes(data[:-4])))
        with pytest.raises(Corrupt, match=r"positions cannot be read: ."):
            SegmentHeader.decode(bytes(data), "segment")


@pytest.mark.parametrize(
    "fields",
    [
        {"last": (1 << 64) - 1},
        {"last": (1 << 62) + 1},
        {"logged_at": (1 << 63)},
        {"first": 5, "last": 4},
        {"count": 4},
    ],
)
def test_a_frame_that_cannot_be_is_none(fields: dict[str, int]) -> None:
    """A frame with impossible offsets or times is not accepted."""
    frame = replace(frame_of(b""), **fields)
    assert FrameHeader.decode(frame.encode(), 7, 0) is None


@pytest.mark.parametrize("body", BODIES)
def test_the_files_beside_the_segments_are_refused(tmp_path: Path, body: bytes) -> None:
    """Forged files beside the segments are refused in spite of a valid checksum."""
    folder = hostile_log(tmp_path / "log", message(honest()))
    put_beside(folder, "maintenance", body)
    with pytest.raises(Corrupt, match="maintenance record cannot be read; remove the file"):
        read_maintenance(RealFileSystem(), folder)
    put_beside(folder, "meta", body)
    with pytest.raises(Corrupt, match="meta file cannot be read"):
        CommitLog.open(folder)


@pytest.mark.parametrize(
    ("payload", "extension"),
    [
        (PAYLOADS["offsets twice"], json.dumps({"error": "x", "attempts": 1, "parked_at": 1})),
        (PAYLOADS["an LZ4 bomb"], json.dumps({"error": "x", "attempts": 1, "parked_at": 1})),
        (message(honest()), "[1]"),
        (message(honest()), "7"),
        (message(honest()), json.dumps({"error": 1, "attempts": 1, "parked_at": 1})),
        (message(honest()), json.dumps({"error": "x", "attempts": "1", "parked_at": 1})),
        (message(honest()), "[" * 100_000),
    ],
)
def test_a_parked_entry_of_a_stranger_is_refused(payload: bytes, extension: str) -> None:
    """A forged parked entry and a forged reason are refused."""
    frame = replace(frame_of(payload, extension.encode()), segment_id=0)
    with pytest.raises(Corrupt, match=r"cannot be (read|decoded): ."):
        ParkedEntry.decode(layout.encode_frame(frame, extension.encode(), payload), "0.entry")


def test_what_arrow_compressed_is_still_read() -> None:
    """Arrow's own buffer compression is read, up to the size of a payload."""
    for compression in (None, "lz4", "zstd"):
        payload = message(with_column("data", pa.array([bytes(90_000)] * COUNT)), compression)
        assert layout.decode_entries(payload, frame_of(payload), "").num_rows == COUNT
        payload = packed(payload)
        assert layout.decode_entries(payload, frame_of(payload), "").num_rows == COUNT


def test_only_what_this_run_wrote_is_believed(tmp_path: Path) -> None:
    """Entries from before this run are checked as if an attacker had written them."""
    folder = hostile_log(tmp_path / "log", PAYLOADS["offsets twice"])
    with LogReader(folder, trusted_from=COUNT) as reader, pytest.raises(Corrupt):
        list(reader.read(0, COUNT - 1))
    with CommitLog.open(tmp_path / "own") as log:
        log.append(messages_to_batch(MESSAGES), "in", "17")
        assert log.runs.first_own_offset == 0
        for own in (0, None):
            with LogReader(tmp_path / "own", trusted_from=own) as reader:
                (found,) = reader.frames(0, COUNT - 1)
                assert found.trusted is (own == 0)
                assert found.entries().column("data").to_pylist() == [
                    each.data for each in MESSAGES
                ]


def test_repair_declares_the_entries_of_a_stranger_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A repair declares hostile entries lost, and an engine goes on behind them."""
    folder = hostile_log(tmp_path / "log", PAYLOADS["data of a negative length"], b"[1]")
    assert app.execute(["log", "verify", str(folder)]) != 0
    assert app.execute(["log", "repair", str(folder), "--yes"]) == 0, capsys.readouterr()
    assert app.execute(["log", "verify", str(folder)]) == 0
    with CommitLog.open(folder) as log, LogReader(folder) as reader:
        assert log.append(messages_to_batch(MESSAGES), "in", "18")[0] == COUNT
        assert reader.first_offset() in (0, COUNT)
        assert reader.lost_gap(0, COUNT - 1) is not None
