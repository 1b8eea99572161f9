"""The HTTP writer keeps the contract, in each of its formats."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from http_tools import OK, Receiver, Reply, messages_of
from transporter_adaptors.http.writer import HttpWriter

from transporter.message import Message
from transporter.testing.contracts import (
    RefusingWriterContract,
    UnreachableWriterContract,
    WriterContract,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from http_tools import Request

EVERYTHING = tuple(field.name for field in fields(Message))


class HttpContract(WriterContract):
    """The common part of all formats."""

    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _sink(self) -> Iterator[None]:
        with Receiver() as self.receiver:
            yield

    def make_writer(self) -> HttpWriter:
        return HttpWriter(HttpWriter.Config(url=self.receiver.url, **self.settings))

    def delivered(self) -> list[Message]:
        return self.receiver.messages


class Enveloped(HttpContract):
    """The formats with whole entries, which keep everything."""

    exact = EVERYTHING

    def shown(self, messages: Any) -> list[tuple[object, ...]]:
        """Replace line ends between the tokens of a document by blanks."""
        at = self.exact.index("data")
        rows = super().shown(messages)
        return [(*row[:at], spaced(row[at]), *row[at + 1 :]) for row in rows]


class TestEntries(Enveloped, UnreachableWriterContract):
    """Arrays of two entries a request at most."""

    settings: ClassVar[dict[str, Any]] = {"batch_rows": 2}

    @pytest.fixture(autouse=True)
    def _nowhere(self, tmp_path: Path) -> None:
        self.nowhere = tmp_path / "no.pem"

    def make_unreachable(self) -> HttpWriter:
        url = self.receiver.url.replace("http:", "https:")
        return HttpWriter(HttpWriter.Config(url=url, ca_file=self.nowhere))


class TestLines(Enveloped):
    """Entries as lines, cut by their bytes."""

    settings: ClassVar[dict[str, Any]] = {"format": "lines", "batch_bytes": 600}


class Refusing(HttpContract, RefusingWriterContract):
    """A receiver that refuses requests with a certain word."""

    @pytest.fixture(autouse=True)
    def _sink(self) -> Iterator[None]:
        with Receiver(refused_only) as self.receiver:
            yield

    def refused_message(self) -> Message:
        return Message("orders", b'"refuse me"', b"refused")

    def delivered(self) -> list[Message]:
        return [
            message
            for request in self.receiver.requests
            if refused_only(request) is OK
            for message in messages_of(request)
        ]


class TestData(Refusing):
    """The data of one entry a request, byte for byte."""

    settings: ClassVar[dict[str, Any]] = {"format": "data"}
    exact = ("namespace", "key", "data", "op", "phase")


class TestEntriesAlone(Refusing):
    """Whole entries, one a request, so that a refused one can be named."""

    settings: ClassVar[dict[str, Any]] = {"batch_rows": 1}
    exact = ("namespace", "key", "op")


def spaced(data: object) -> object:
    """Return *data* with line ends as blanks."""
    return data.replace(b"\r", b" ").replace(b"\n", b" ") if isinstance(data, bytes) else data


def refused_only(request: Request) -> Reply:
    """Refuse a request that holds the word."""
    return Reply(422, body=b"no") if b"refuse me" in request.body else OK
