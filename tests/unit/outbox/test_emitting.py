"""Tests of records as logical messages: the statement, and cursors of the other kind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from transporter.outbox import Record, emit, emit_async, emit_many, emit_many_async

RECORD = Record("orders", "7", '{"total": 9.90}', [("a", "1"), ("a", "ä")])


class Statements:
    """A DB-API cursor that keeps its statements."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Any]] = []

    def execute(self, query: str, parameters: Any) -> None:
        self.given.append((query, parameters))


class AsyncStatements(Statements):
    """The same cursor for async code."""

    async def execute(self, query: str, parameters: Any) -> None:  # type: ignore[override]
        self.given.append((query, parameters))


def test_a_record_is_a_document_in_one_statement() -> None:
    """The value stays a text, so its digits are those of the application."""
    cursor = Statements()
    emit(cursor, RECORD, prefix="shop")
    ((query, (prefix, document)),) = cursor.given
    assert query.count("%s") == 2
    assert prefix == "shop"
    assert json.loads(document) == {
        "namespace": "orders",
        "key": "7",
        "value": '{"total": 9.90}',
        "headers": [["a", "1"], ["a", "ä"]],
    }


def test_sync_and_async_write_the_same() -> None:
    """The sync and async functions pass the same statements to the driver."""
    cursor, awaited = Statements(), AsyncStatements()

    async def both() -> int:
        await emit_async(awaited, RECORD)
        return await emit_many_async(awaited, [RECORD, RECORD])

    emit(cursor, RECORD)
    assert emit_many(cursor, [RECORD, RECORD]) == asyncio.run(both()) == 2
    assert cursor.given == awaited.given


def test_a_cursor_or_record_of_another_kind_is_refused() -> None:
    """A coroutine that nobody awaits would lose the record."""
    with pytest.raises(TypeError, match="await emit_async"):
        emit(AsyncStatements(), RECORD)
    with pytest.raises(TypeError, match=r"takes a transporter\.outbox\.Record, not dict"):
        emit(Statements(), {"topic": "orders"})  # type: ignore[arg-type]
