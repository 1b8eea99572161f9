"""The file adaptor keeps the contracts."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from transporter_adaptors.file.reader import FileReader
from transporter_adaptors.file.writer import FileWriter

from transporter.message import Message
from transporter.testing.contracts import (
    ReaderContract,
    StoredOffsetContract,
    UnreachableWriterContract,
)

if TYPE_CHECKING:
    from pathlib import Path


class TestFileWriter(StoredOffsetContract, UnreachableWriterContract):
    """The file writer, whose JSON lines keep everything but the content type."""

    exact = ("namespace", "key", "data", "op", "phase", "timestamp", "source_id", "headers")

    @pytest.fixture(autouse=True)
    def _sink(self, tmp_path: Path) -> None:
        self.path = tmp_path / "new" / "out.jsonl"

    def make_writer(self) -> FileWriter:
        return FileWriter(FileWriter.Config(path=self.path))

    def make_unreachable(self) -> FileWriter:
        return FileWriter(FileWriter.Config(path="/proc/no/such/file"))

    def delivered(self) -> list[Message]:
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        return [parsed(line) for line in lines]

    def shown(self, messages: Any) -> list[tuple[object, ...]]:
        """Replace line ends between the tokens of a document by blanks."""
        return [
            tuple(spaced(part) if at == 2 else part for at, part in enumerate(row))
            for row in super().shown(messages)
        ]


class TestRolledFileWriter(TestFileWriter):
    """The rolled file writer, whose numbered files together equal one file."""

    def make_writer(self) -> FileWriter:
        return FileWriter(FileWriter.Config(path=self.path, roll_bytes=1000))

    def delivered(self) -> list[Message]:
        files = sorted(self.path.parent.glob("out.*.jsonl"))
        text = b"".join(path.read_bytes() for path in files)
        return [parsed(line) for line in text.splitlines(keepends=True)]


def spaced(data: object) -> object:
    """Return *data* with line ends as blanks."""
    return data.replace(b"\r", b" ").replace(b"\n", b" ") if isinstance(data, bytes) else data


def parsed(line: bytes) -> Message:
    """Parse a line of the writer, with the document's own bytes as data."""
    assert line.endswith(b"\n")
    fields = json.loads(line)
    data: bytes | None = None
    if "data" in fields:
        data = line[line.index(b',"data":') + len(b',"data":') : -2]
    elif "text" in fields:
        data = fields["text"].encode()
    elif "base64" in fields:
        data = base64.b64decode(fields["base64"])
    moment = datetime.fromisoformat(fields["timestamp"])
    return Message(
        fields["namespace"],
        data,
        raw(fields["key"]),
        fields["op"],
        fields["phase"],
        (moment - datetime.fromisoformat("1970-01-01T00:00:00Z")) // timedelta(microseconds=1),
        fields["source_id"],
        headers=tuple((name, raw(value)) for name, value in fields["headers"]),
    )


def raw(value: Any) -> bytes | None:
    """Return the bytes of a key or a header value."""
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else value.encode()


class TestFileReader(ReaderContract):
    """The file reader on two files, the last of which has no final line feed."""

    exact = ("namespace", "key", "data", "headers", "content_type", "source_id")

    @pytest.fixture(autouse=True)
    def _source(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_bytes(b"".join(b'{"id": %d}\n' % n for n in range(7)))
        (tmp_path / "b.jsonl").write_bytes(b'{"id": "x"}\n{"id": "y"}')
        self.path = tmp_path / "*.jsonl"

    def make_reader(self) -> FileReader:
        return FileReader(FileReader.Config(path=self.path, key="id", batch_rows=3))

    def expected(self) -> list[Message]:
        numbers = range(7)
        return [
            *(
                Message("a", b'{"id": %d}' % n, b"%d" % n, source_id=f"a.jsonl:{10 * n}")
                for n in numbers
            ),
            Message("b", b'{"id": "x"}', b"x", source_id="b.jsonl:0"),
            Message("b", b'{"id": "y"}', b"y", source_id="b.jsonl:12"),
        ]
