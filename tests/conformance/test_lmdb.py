"""The LMDB writer keeps the contract, in both layouts."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
from transporter_adaptors.lmdb.writer import LmdbWriter

from transporter.message import Message
from transporter.testing.contracts import (
    RefusingWriterContract,
    StoredOffsetContract,
    UnreachableWriterContract,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


DUMP = """
import base64, json, sys, lmdb
with lmdb.open(sys.argv[1], max_dbs=3, readonly=True) as environment:
    with environment.begin() as transaction:
        database = environment.open_db(sys.argv[2].encode(), transaction, create=False)
        rows = [[base64.b64encode(part).decode() for part in row]
                for row in transaction.cursor(database)]
print(json.dumps(rows))
"""


def dump(path: Path, database: str) -> list[tuple[bytes, bytes]]:
    """Return the rows of *database*, read by another process."""
    command = [sys.executable, "-c", DUMP, str(path), database]
    answer = subprocess.run(command, capture_output=True, check=True, timeout=60)
    return [
        (base64.b64decode(key), base64.b64decode(value)) for key, value in json.loads(answer.stdout)
    ]


class LmdbContract(StoredOffsetContract, UnreachableWriterContract):
    """The common part of both layouts."""

    layout = "key"

    @pytest.fixture(autouse=True)
    def _sink(self, tmp_path: Path) -> None:
        self.path = tmp_path / "new" / "db"

    def make_writer(self) -> LmdbWriter:
        return LmdbWriter(LmdbWriter.Config(path=self.path, layout=self.layout))

    def make_unreachable(self) -> LmdbWriter:
        return LmdbWriter(LmdbWriter.Config(path="/proc/no/such/folder"))

    def rows(self, database: str) -> list[tuple[bytes, bytes]]:
        """Return the rows that another process reads in *database* while the writer has it open."""
        return dump(self.path, database)


class TestLmdbOffsetLayout(LmdbContract):
    """The layout offset, which keeps every entry whole."""

    layout = "offset"
    exact = tuple(field.name for field in fields(Message))

    def delivered(self) -> list[Message]:
        return [parsed(value) for _, value in self.rows("entries/route")]


class TestLmdbKeyLayout(LmdbContract, RefusingWriterContract):
    """The layout key, which keeps the newest data of each key, and entries without a key whole."""

    def delivered(self) -> list[Message]:
        latest = [(*key.split(b"\0", 1), data) for key, data in self.rows("latest")]
        keyless = [parsed(value) for _, value in self.rows("entries/route")]
        return [Message(name.decode(), data, key) for name, key, data in latest] + keyless

    def held(self, messages: Sequence[Message]) -> list[Message]:
        latest = {(one.namespace, one.key): one for one in messages if one.key is not None}
        kept = [one for one in latest.values() if one.data is not None]
        keyless = [one for one in messages if one.key is None]
        return sorted(kept, key=lambda one: (one.namespace, one.key)) + keyless

    def refused_message(self) -> Message:
        return Message("zero\0character", b"{}", b"k")


def raw(value: Any) -> bytes | None:
    """Return the bytes of a JSON value."""
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else value.encode()


def parsed(text: bytes) -> Message:
    """Parse a whole entry as the layout writes it."""
    found = json.loads(text)
    return Message(
        found["namespace"],
        raw(found["data"]),
        raw(found["key"]),
        found["op"],
        found["phase"],
        found["timestamp"],
        found["source_id"],
        found["content_type"],
        tuple((name, raw(value)) for name, value in found["headers"]),
    )
