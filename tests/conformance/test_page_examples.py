"""The examples of docs/adaptors.md, run from the page."""

from __future__ import annotations

import re
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from http_tools import Receiver

from transporter.errors import RouteFault
from transporter.message import Message
from transporter.testing import RecordingAck, entries
from transporter.testing.contracts import (
    CONTEXT,
    RefusingWriterContract,
    StoredOffsetContract,
    numbered,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.adaptor import Entries, StoredOffset, WriterContext

PAGE = (Path(__file__).parents[2] / "docs" / "adaptors.md").read_text()


def example(word: str) -> dict[str, Any]:
    """Run the one example of the page that holds *word*, and return its names."""
    (found,) = [
        text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if word in text
    ]
    module = ModuleType("example")
    sys.modules["example"] = module  # Dataclasses and pydantic look there.
    exec(compile(found, "docs/adaptors.md", "exec"), vars(module))  # noqa: S102 - our own page
    return vars(module)


class TestOnceWriter(StoredOffsetContract):
    """The page's writer that stores its offset keeps the contract."""

    @pytest.fixture(autouse=True)
    def _sink(self, tmp_path: Path) -> None:
        self.path = tmp_path / "once.db"
        self.kind = example("class OnceWriter:")["OnceWriter"]

    def make_writer(self) -> Any:
        return self.kind(self.kind.Config(path=self.path))

    def delivered(self) -> list[Message]:
        with closing(sqlite3.connect(self.path)) as database:
            return [
                Message(*row) for row in database.execute("SELECT namespace,data,key FROM entries")
            ]

    def test_a_transaction_of_unknown_outcome_is_not_done_twice(self) -> None:
        """A slice written again, by the same writer or the next, adds missing entries only."""
        writer = self.make_writer()
        for again in range(2):
            assert writer.open(CONTEXT) == (None if again == 0 else CONTEXT.stored(0, 5))
            for count in (3, 5):
                assert write(writer, entries(numbered(count))).complete
            writer.close()
        self.check(numbered(5))


class Refusing(RefusingWriterContract):
    """A writer of the page whose sink is an SQLite table."""

    name = ""

    @pytest.fixture(autouse=True)
    def _sink(self, tmp_path: Path) -> None:
        self.path = tmp_path / "entries.db"
        self.kind = example(f"class {self.name}")[self.name]

    def make_writer(self) -> Any:
        return self.kind(self.kind.Config(path=self.path))

    def delivered(self) -> list[Message]:
        with closing(sqlite3.connect(self.path)) as database:
            rows = database.execute("SELECT namespace, data, key FROM entries ORDER BY offset")
            return [Message(*row) for row in rows]


class TestPrefixWriter(Refusing):
    """The page's writer that commits the beginning of a slice keeps the contract."""

    name = "PrefixWriter"

    def refused_message(self) -> Message:
        return Message("orders", b"x" * 1_000_000)


class TestChoosyWriter(Refusing):
    """The page's writer that judges messages keeps the contract, without keyless messages."""

    name = "ChoosyWriter"

    @pytest.fixture(autouse=True)
    def _beside(self, monkeypatch: pytest.MonkeyPatch) -> None:
        beside = SimpleNamespace(**example("class MySinkWriter:"))
        monkeypatch.setitem(sys.modules, "my_sink", beside)

    def refused_message(self) -> Message:
        return Message("orders.internal", b"secret", b"key")

    def test_hostile_values_arrive_exactly_and_in_order(self, writer: Any) -> None:
        batch = entries([Message("orders", b"without a key")])
        ack = RecordingAck(batch)
        writer.write(batch, ack)
        assert [(str(error), offset) for error, offset in ack.failures] == [
            ("ChoosyWriter does not accept this message", 1)
        ]


def test_the_example_of_a_lost_answer_holds() -> None:
    """The test on the page passes on a real receiver."""
    test: Callable[[tuple[str, int]], None] = example("FaultyProxy(server)")[
        "test_a_lost_answer_is_no_ack"
    ]
    with Receiver() as receiver:
        test(("127.0.0.1", receiver.port))
        assert len(receiver.requests) == 2


def variant(
    path: Path, *, at_open: bool = False, fence: bool = True, keeps: bool = True
) -> Callable[[], Any]:
    """Return a maker of the page's writer, with changed fencing or stored offsets."""
    kind = example("class OnceWriter:")["OnceWriter"]

    class Variant(kind):  # type: ignore[misc]
        def open(self, context: WriterContext) -> StoredOffset | None:
            stored: StoredOffset | None = super().open(context)
            if at_open and stored is not None and stored.epoch > context.epoch:
                raise RouteFault("a newer epoch has taken over")
            if not fence:
                self._context = replace(context, epoch=1_000)
            return stored

        def _put(self, batch: Entries) -> None:
            super()._put(batch if keeps else replace(batch, generation=max(0, batch.generation)))

    return lambda: Variant(kind.Config(path=path))


@pytest.mark.parametrize(
    ("changed", "test", "passes"),
    [
        ({}, "test_an_older_epoch_is_fenced", True),
        ({"at_open": True}, "test_an_older_epoch_is_fenced", True),
        ({"at_open": True}, "test_a_retry_fences_too", True),
        ({"fence": False}, "test_an_older_epoch_is_fenced", False),
        ({"fence": False}, "test_a_retry_fences_too", False),
        ({"keeps": False}, "test_a_retry_leaves_the_stored_offset", False),
        ({"keeps": False}, "test_a_retry_alone_claims_nothing", False),
    ],
)
def test_the_contract_knows_a_good_writer_from_a_bad_one(
    tmp_path: Path, changed: dict[str, bool], test: str, *, passes: bool
) -> None:
    """A fault may come from open or write, and a writer without fence or memory fails."""
    path = tmp_path / "once.db"

    class Contract(StoredOffsetContract):
        make_writer = staticmethod(variant(path, **changed))

        def delivered(self) -> list[Message]:
            with closing(sqlite3.connect(path)) as database:
                rows = database.execute("SELECT namespace, data, key FROM entries")
                return [Message(*row) for row in rows]

    contract = Contract()
    writer = contract.make_writer()
    writer.open(CONTEXT)
    if passes:
        getattr(contract, test)(writer)
    else:
        with pytest.raises((AssertionError, IndexError)):
            getattr(contract, test)(writer)
