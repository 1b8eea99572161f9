"""The list doubles keep the contracts that they help to test."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from transporter.message import Message
from transporter.testing import ListReader, ListWriter
from transporter.testing.contracts import ReaderContract, RefusingWriterContract

if TYPE_CHECKING:
    from transporter.testing.doubles import ListWriterConfig

EVERYTHING = tuple(field.name for field in fields(Message))


class TestListWriter(RefusingWriterContract):
    """A list that keeps every part of a message, and may refuse the fourth entry once."""

    exact = EVERYTHING

    @pytest.fixture(autouse=True)
    def _sink(self, request: pytest.FixtureRequest) -> None:
        refusing = "refused" in request.node.name
        config: ListWriterConfig = ListWriter.Config(
            failures={4: ("rejected",)} if refusing else {}
        )
        self.one = ListWriter(config)

    def make_writer(self) -> ListWriter:
        return self.one

    def refused_message(self) -> Message:
        return Message("orders", b"refused")

    def delivered(self) -> list[Message]:
        return [entry.message for entry in self.one.entries]


class TestListReader(ReaderContract):
    """A list that is read to its end in batches."""

    exact = EVERYTHING

    def make_reader(self) -> ListReader:
        return ListReader(ListReader.Config(data=[f"{n}" for n in range(10)], rows=3))

    def expected(self) -> list[Message]:
        return [Message("list", b"%d" % n) for n in range(10)]
