"""Readers whose session ends before any one of their statements: they try again, and never stop."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from cdc_tools import LOG_ID, MemoryLog, clean_slots
from outbox_tools import Log, insert
from transporter_adaptors.postgres.config import OutboxConfig
from transporter_adaptors.postgres.reader import OutboxReader
from transporter_adaptors.postgres_cdc.reader import CdcReader

from transporter.errors import SourceUnavailable
from transporter.testing import FixedResume

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.postgres import Database

pytestmark = pytest.mark.postgres

SAMPLE = 4
"""Every so manieth statement in ``make test``. All of them by ``make soak``."""
EVERY = [SAMPLE, pytest.param(1, marks=pytest.mark.exhaustive)]


class Cuts:
    """Shuts a session's socket down before its statement number *at*, as a crashed server does."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.at, self.count = at, 0
        self._execute = psycopg.Cursor.execute
        cuts = self

        def execute(cursor: psycopg.Cursor[Any], *asked: Any, **options: Any) -> Any:
            cuts.count += 1
            if cuts.count == cuts.at:
                with socket.socket(fileno=os.dup(cursor.connection.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)
            return cuts._execute(cursor, *asked, **options)

        patch.setattr(psycopg.Cursor, "execute", execute)


def assert_tried_again(
    prepare: Callable[[], object],
    life: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    every: int,
) -> int:
    """Check *life* with a cut before each statement, every *every*-th. Returns their number."""
    at, done = 1, 0
    while True:
        prepare()
        with monkeypatch.context() as patch:
            cuts = Cuts(patch, at)
            try:
                life()
            except SourceUnavailable:
                done += 1
            if cuts.count < at:
                return done
        at += every


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("stage", ["first", "next", "tables"])
def test_a_cdc_reader_tries_again(
    postgres: Database, monkeypatch: pytest.MonkeyPatch, stage: str, every: int
) -> None:
    """A session that ends while it opens, copies or takes tables up is an unavailable source."""
    postgres.execute("CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1), (2)")
    log = MemoryLog(postgres, heartbeat="1s")
    numbers = count(1)

    def prepare() -> None:
        if stage == "first":
            log.position = None
        if stage == "tables":
            number = next(numbers)
            postgres.execute(f"DROP TABLE IF EXISTS more{number - 1}")
            postgres.execute(f"CREATE TABLE more{number} (id int PRIMARY KEY)")

    def life() -> None:
        reader = CdcReader(CdcReader.Config.model_validate(log.settings))
        with closing(reader):
            resume = FixedResume(log.position, LOG_ID)
            resume.states = dict(log.states)
            reader.open(resume)
            for _ in range(6):
                reader.keep_alive()
                batch = reader.poll(0.01)
                log.append(batch)
                if batch.position is not None:
                    reader.commit(batch.position)

    with clean_slots(postgres):
        log.drain(postgres)
        log.kill()
        assert assert_tried_again(prepare, life, monkeypatch, every=every) >= 3


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("claim", ["mark", "take"])
def test_an_outbox_reader_tries_again(
    outbox: Database, monkeypatch: pytest.MonkeyPatch, claim: str, every: int
) -> None:
    """A session that ends while it opens, claims or purges is an unavailable source."""
    config = OutboxConfig.model_validate({"dsn": outbox.dsn, "claim": claim})

    def life() -> None:
        log = Log()
        with closing(OutboxReader(config)) as reader:
            reader.open(log)
            for _ in range(4):
                batch = reader.poll(0.01)
                if batch.position is not None:
                    log.append(batch)
                    reader.commit(batch.position)

    assert assert_tried_again(lambda: insert(outbox), life, monkeypatch, every=every) >= 3
