"""Changes that are encoded column by column: the same messages as those encoded one by one."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
from cdc_oracle import SESSION, Oracle
from cdc_stream import FixedStream, RandomStream, StreamTable
from cdc_values import LITERALS, MADE, MADE_LITERALS
from transporter_adaptors.postgres_cdc import pending, row_columns, run_batches
from transporter_adaptors.postgres_cdc.changes import ChangeTranslator
from transporter_adaptors.postgres_cdc.columns import LoggedColumn
from transporter_adaptors.postgres_cdc.config import CdcConfig
from transporter_adaptors.postgres_cdc.handover import Handover
from transporter_adaptors.postgres_cdc.messages import ProtocolError
from transporter_adaptors.postgres_cdc.pending import PendingChanges
from transporter_adaptors.postgres_cdc.plan import Names
from transporter_adaptors.postgres_cdc.state import FollowedTable, TablesState
from transporter_adaptors.postgres_cdc.transactions import TransactionReader
from transporter_adaptors.postgres_cdc.types import TypeCatalog

if TYPE_CHECKING:
    import pyarrow as pa
    from services.postgres import Database
    from transporter_adaptors.postgres_cdc.position import Inside
    from transporter_adaptors.postgres_cdc.wire import SlotStream

pytestmark = pytest.mark.postgres
NEVER = 1 << 30
Fewest = tuple[int, int]
ALONE, BY_ROWS, BY_COLUMNS = (NEVER, NEVER), (1, NEVER), (1, 1)
WAYS = (BY_ROWS, BY_COLUMNS, (20, 40))
Place = tuple[int, "Inside | None"]


class FixedTypes(TypeCatalog):
    """Types that were loaded before."""

    def load(self, *_: Any) -> None:
        """Load nothing."""


class Source:
    """Texts of values of every type, as the server writes them."""

    def __init__(self, database: Database) -> None:
        database.execute(MADE)
        self.types = FixedTypes()
        self.columns: list[tuple[int, list[bytes]]] = []
        with database.connect(options=SESSION, client_encoding="utf8") as connection:
            oracle = Oracle(connection)
            for number, (kind, texts) in enumerate({**LITERALS, **MADE_LITERALS}.items()):
                table = f"public.s{number}"
                with suppress(psycopg.errors.FeatureNotSupported):
                    self._add_columns(oracle, table, kind, texts)

    def _add_columns(self, oracle: Oracle, table: str, kind: str, texts: list[str]) -> None:
        """Add a column of the type *kind*, and one of arrays of it."""
        connection = oracle.connection
        connection.execute(f"CREATE TABLE {table} (v {kind}, a {kind}[])")  # type: ignore[call-overload]
        connection.execute(
            f"INSERT INTO {table} SELECT x::{kind}, ARRAY[x::{kind}, NULL, x::{kind}]"  # type: ignore[call-overload]
            " FROM unnest(%s::text[]) AS x",
            [texts],
        )
        _, columns = oracle.load(table)
        TypeCatalog.load(self.types, connection, [oid for _, oid in columns])
        rows = oracle.copied(table)
        for place, (_, oid) in enumerate(columns):
            values = [row[place] for row in rows]
            self.columns.append((oid, [value for value in values if value is not None]))

    def random_table(self, oid: int, rng: random.Random) -> StreamTable:
        """Return a table with random columns and a random key."""
        count = rng.randint(1, 9)
        columns = [rng.choice(self.columns) for _ in range(count)]
        names = [f"{rng.choice(('c', 'é', 'a b', chr(34)))}{place}" for place in range(count)]
        key = sorted(rng.sample(range(count), rng.choice((1, 1, min(2, count)))))
        oids, texts = zip(*columns, strict=True)
        return StreamTable(oid, names, list(oids), list(texts), key)


class Follower:
    """A reader of one stream, without its sessions."""

    def __init__(
        self, source: Source, stream: RandomStream, config: CdcConfig, place: Place, seed: int
    ) -> None:
        tables = {
            table.oid: FollowedTable(
                table.oid,
                "public",
                f"t{table.oid}",
                1,
                tuple(table.names[at] for at in table.key),
                columns=tuple(LoggedColumn(name, 0, -1) for name in table.names),
            )
            for table in stream.tables
            if table.is_followed
        }
        state = TablesState({}, tables, ())
        self.at, self.inside = place
        rng = random.Random(seed)
        self._rng, self._stream = rng, FixedStream(stream.after(self.at), rng)
        report = lambda *_, **__: None  # noqa: E731 - of values that are logged as texts
        translator = ChangeTranslator(
            cast("Any", None), config, source.types, state, report, Names("p", "s")
        )
        translator.schema_log.compare = lambda *_: None  # type: ignore[method-assign]
        translator._reselect = lambda _, values, __: values  # type: ignore[method-assign]
        self._pending = PendingChanges(translator, Handover(), lambda _: [])
        self._reader = TransactionReader(cast("SlotStream", self._stream), self.inside)

    def next(self) -> pa.RecordBatch | None:
        """Return what one poll gives."""
        if not self._pending:
            size = self._rng.choice((1000, 10_000, NEVER))
            rows = self._rng.choice((1, 100, 5000))
            self._pending.add(self._reader.receive(rows, size, 0.0))
        batch, self.at, self.inside = self._pending.take(self.at, self.inside)
        return batch

    def all(self) -> tuple[list[dict[str, Any]], list[tuple[int, Place]]]:
        """Return all messages to the end, and the places behind each number of them."""
        found, places = list[dict[str, Any]](), list[tuple[int, Place]]()
        while self._stream.left or self._pending:
            if (batch := self.next()) is not None:
                batch.validate(full=True)
                found += batch.to_pylist()
            places.append((len(found), (self.at, self.inside)))
        return found, places


@pytest.fixture
def source(postgres: Database) -> Source:
    """Return texts of values of every type."""
    return Source(postgres)


def random_stream(source: Source, rng: random.Random, count: int) -> tuple[RandomStream, CdcConfig]:
    """Return transactions of random tables, and settings for them."""
    tables = [source.random_table(oid, rng) for oid in range(7, 7 + rng.choice((1, 2, 4)))]
    # One of several is published, but not followed.
    tables[0].is_followed = len(tables) == 1
    stream = RandomStream(tables, rng, rng.choice((1, 20, 300)))
    while len(stream.messages) < count:
        stream.add_transaction()
    config = CdcConfig.model_validate(
        {
            "dsn": "host=nowhere",
            "tables": ["public.*"],
            "key": rng.choice(("value", "json")),
            "old": rng.random() < 0.3,
            "transaction": rng.random() < 0.3,
        }
    )
    return stream, config


def follow(
    follower: Follower, fewest: Fewest, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[dict[str, Any]], list[tuple[int, Place]]]:
    """Return what *follower* gives if *fewest* rows of a table are encoded together, or columns."""
    together, columns = fewest
    monkeypatch.setattr(run_batches, "FEWEST", together)
    monkeypatch.setattr(row_columns, "FEWEST", columns)
    return follower.all()


@pytest.mark.exhaustive
def test_columns_give_what_rows_give(
    source: Source, exhaustive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random changes of random tables become the same messages either way, cut anywhere."""
    count = 0
    for seed in range(400 if exhaustive else 16):
        rng = random.Random(seed)
        monkeypatch.setattr(pending, "LARGEST", rng.choice((3000, 7 << 20)))
        stream, config = random_stream(source, rng, 600)
        begin: Place = (0, None)
        expected, _ = follow(Follower(source, stream, config, begin, seed), ALONE, monkeypatch)
        fewest = WAYS[seed % len(WAYS)]
        found, places = follow(Follower(source, stream, config, begin, seed), fewest, monkeypatch)
        count += len(expected)
        assert found == expected, seed
        # A reader that goes on from any of the positions repeats nothing and leaves nothing out.
        for done, place in rng.sample(places, min(4, len(places))):
            follower = Follower(source, stream, config, place, seed + 1)
            rest, _ = follow(follower, rng.choice((*WAYS, ALONE)), monkeypatch)
            assert found[:done] + rest == expected, (seed, place)
    assert count > 5000


@pytest.mark.timeout(1800)  # enough for all seeds on a busy machine
@pytest.mark.parametrize("seeds", [50, pytest.param(1500, marks=pytest.mark.exhaustive)])
def test_malformed_rows_are_refused_either_way(
    source: Source, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message with any wrong byte gives the same messages, or the same kind of error."""
    outcomes = set[type]()
    for seed in range(seeds):
        rng = random.Random(seed)
        stream, config = random_stream(source, rng, 100)
        del stream.messages[150:]
        sent = [place for place, each in enumerate(stream.messages) if each.startswith(b"w")]
        place = rng.choice(sent)
        message = bytearray(stream.messages[place])
        message[rng.randrange(25, min(len(message), 60))] = rng.randrange(256)
        stream.messages[place] = bytes(message)
        # What nobody follows is not looked at.
        for table in stream.tables:
            table.is_followed = True
        stream.ends = stream.ends[: len(stream.messages)]
        found = [outcome(source, stream, config, way, monkeypatch) for way in (ALONE, *WAYS)]
        assert found == found[:1] * len(found), seed
        outcomes.add(type(found[0]) if isinstance(found[0], list) else found[0])
    assert {list, ProtocolError} <= outcomes


def outcome(
    source: Source,
    stream: RandomStream,
    config: CdcConfig,
    fewest: Fewest,
    monkeypatch: pytest.MonkeyPatch,
) -> list[dict[str, Any]] | type[Exception]:
    """Return the messages of *stream*, or the type of the error."""
    try:
        return follow(Follower(source, stream, config, (0, None), 1), fewest, monkeypatch)[0]
    except Exception as error:  # noqa: BLE001 - compared
        return type(error)
