"""The demo reader keeps the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter_adaptors.demo.reader import DemoReader, order_message

from transporter.testing.contracts import ReaderContract

if TYPE_CHECKING:
    from transporter.message import Message


class TestDemoReader(ReaderContract):
    """The demo reader, whose orders are the same in every run."""

    exact = ("namespace", "key", "data", "op", "source_id")

    def make_reader(self) -> DemoReader:
        return DemoReader(DemoReader.Config(rate=500, count=20, seed=7))

    def expected(self) -> list[Message]:
        return [order_message(7, number) for number in range(20)]
