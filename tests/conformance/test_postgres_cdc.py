"""The reader's contract on ``postgres-cdc``: a copy, and changes whose transactions are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from cdc_tools import clean_slots
from transporter_adaptors.postgres_cdc.lsn import parse_lsn
from transporter_adaptors.postgres_cdc.reader import CdcReader

from transporter.adaptor import EndOfSource
from transporter.message import NOOP, Message
from transporter.testing import FixedResume
from transporter.testing.contracts import ReaderContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

    from transporter.adaptor import Batch

pytestmark = pytest.mark.postgres


class EndingReader(CdcReader):
    """A reader that ends where the server's log ended when it was made."""

    end = 0

    def poll(self, timeout: float) -> Batch:
        batch = super().poll(timeout)
        opened = self._open_parts
        if not len(batch.messages) and not opened._pending and not opened._handover.copies:
            at = opened._position.at
            if opened._position.inside is None and at >= self.end:
                raise EndOfSource
        return batch


def row(number: int, name: str, op: str = "insert") -> Message:
    """Return the message of a row."""
    data = b'{"id":%d,"name":"%s"}' % (number, name.encode())
    return Message("public.items", data, b"%d" % number, op)


class CdcContract(ReaderContract):
    """One table and one slot for all readers of a test."""

    settings: ClassVar[dict[str, object]]
    exact = ("namespace", "key", "data", "op")

    @pytest.fixture(autouse=True)
    def _source(self, postgres: Database) -> Iterator[None]:
        self.database = postgres
        postgres.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
        with clean_slots(postgres):
            self.prepare()
            yield

    def prepare(self) -> None:
        """Fill the table."""
        self.database.execute("INSERT INTO items SELECT n, 'old' FROM generate_series(1, 10) n")

    def make_reader(self) -> CdcReader:
        # The session of the last reader may have the slot yet.
        active = "SELECT 1 FROM pg_replication_slots WHERE active AND database = current_database()"
        while self.database.execute(active):
            self.database.execute("SELECT pg_sleep(0.01)")
        slot = f"contract_{self.database.name[-8:]}"
        settings = {"dsn": self.database.dsn, "tables": ["items"], "slot": slot, **self.settings}
        reader = EndingReader(CdcReader.Config.model_validate(settings))
        ((end,),) = self.database.execute("SELECT pg_current_wal_lsn()::text")
        reader.end = parse_lsn(end)
        return reader


class TestCdcCopy(CdcContract):
    """A table that is copied in several chunks."""

    settings: ClassVar[dict[str, object]] = {"copy_rows": 4}

    def expected(self) -> list[Message]:
        completion = Message("public.items", b'{"copied": 10, "run": 1}', None, NOOP)
        return [*(row(number, "old") for number in range(1, 11)), completion]


class TestCdcStream(CdcContract):
    """Changes in batches that cut transactions."""

    settings: ClassVar[dict[str, object]] = {"copy": "none", "batch_rows": 3}

    def prepare(self) -> None:
        super().prepare()
        reader = self.make_reader()
        reader.open(FixedResume())
        reader.close()
        self.database.execute("UPDATE items SET name = 'new' WHERE id <= 7; DELETE FROM items")
        self.database.execute("INSERT INTO items VALUES (11, 'new')")

    def expected(self) -> list[Message]:
        return [
            *(row(number, "new", "update") for number in range(1, 8)),
            # Rows that were updated are behind the others in the table.
            *(
                Message("public.items", None, b"%d" % number, "delete")
                for number in (8, 9, 10, *range(1, 8))
            ),
            row(11, "new"),
        ]
