"""The strict history, for seconds: keys of many types, DDL, and crashes of reader and server."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from cdc_crashes import FORGETFUL, crash
from cdc_history import (
    ACTS,
    TABLES,
    Crowd,
    create_tables,
    last_values,
    read_histories,
    real_histories,
    stored_values,
)
from cdc_tools import MemoryLog, clean_slots, wrong_keys
from services.postgres import fresh_database, served

from transporter.errors import SourceError, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdc_history import KeyedTable
    from services.postgres import Database

pytestmark = pytest.mark.postgres

SECONDS = 15.0
KILLS = 3
"""Kills of the reader at least, also on a host with much else to do."""
PATTERNS = ["public.*", "!public.history"]


def follow(
    database: Database,
    seed: int,
    seconds: float,
    crashes: Sequence[Callable[[Database], None]],
    tables: Sequence[KeyedTable] = TABLES,
    acts: Sequence[str] = ACTS,
    *,
    repeats: bool = True,
) -> tuple[MemoryLog, Counter[str]]:
    """Copy and follow *tables* beside a crowd; return the log at rest, and what has happened.

    If it *repeats*, tables are copied once more. If all others are new then, the slot is, too.
    """
    rng, done = random.Random(seed), Counter[str]()
    log = MemoryLog(
        database, tables=PATTERNS, watch=1, copy_rows=7, batch_rows=rng.choice((3, 20, 200))
    )
    with Crowd(database, seed, crashes, tables, acts) as crowd:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends or done["kill"] < KILLS:
            act = "poll"
            if rng.random() < 0.02:
                act = rng.choice(("lost poll", "kill", "kill", "repeat" if repeats else "kill"))
            try:
                take_step(log, act, rng, tables)
            except SourceUnavailable:
                act = "lost server"
                log.kill()
            except SourceError as error:
                act = "begin anew"
                begin_anew(log, error)
            done[act] += 1
            assert crowd.failures == []
    done.update(crowd.acts)
    come_to_rest(log, database, tables)
    return log, done


def take_step(log: MemoryLog, act: str, rng: random.Random, tables: Sequence[KeyedTable]) -> None:
    """Poll, or kill the reader between two of its calls, or have a table copied once more."""
    match act:
        case "poll":
            log.poll(0.01)
        case "lost poll":
            log.reader().poll(0.01)
            log.kill()
        case "kill":
            log.kill()
        case _:
            log.kill()
            log.settings |= {
                "tables": raised(log.settings["tables"], rng.choice(tables).name),
                "copy_from_empty": rng.random() < 0.7,
            }


def raised(items: list[Any], name: str) -> list[Any]:
    """Return *items* with a higher run of the table *name*."""
    table = f"public.{name}"
    runs = {each["table"]: each["copy_run"] for each in items if isinstance(each, dict)}
    runs[table] = runs.get(table, 1) + 1
    return [*PATTERNS, *({"table": name, "copy_run": run} for name, run in runs.items())]


def begin_anew(log: MemoryLog, error: SourceError) -> None:
    """Do what helps if the server forgot a change of a table from while it created the slot."""
    assert "cannot decode its log" in str(error), error
    log.kill()
    runs = [each["copy_run"] for each in log.settings["tables"] if isinstance(each, dict)]
    log.settings |= {
        "copy_run": max([log.settings.get("copy_run", 1), *runs]) + 1,
        "copy_from_empty": True,
    }


def come_to_rest(log: MemoryLog, database: Database, tables: Sequence[KeyedTable]) -> None:
    """Follow to the end, also of tables that the reader has not noticed yet."""
    ends = time.monotonic() + 120
    expected = [f"public.{table.name}" for table in tables]
    query = "SELECT n::regclass::oid::bigint FROM unnest(%s::text[]) n"
    wanted = {oid for (oid,) in database.execute(query, [expected])}
    while True:
        try:
            while log.reader()._open_parts._translator.state.tables.keys() != wanted:
                assert time.monotonic() < ends, "the reader does not notice all tables"
                log.poll()
            log.drain(database)
        except SourceUnavailable:
            # What was read ahead may have met a table that was going away.
            assert time.monotonic() < ends, "the source stays away"
            log.kill()
        except SourceError as error:
            begin_anew(log, error)
        else:
            log.kill()
            return


def judge(database: Database, log: MemoryLog, tables: Sequence[KeyedTable] = TABLES) -> None:
    """Check each key's whole history, its end, and that nothing came twice."""
    real, logged = real_histories(database), read_histories(log.messages)
    ends = [last_values(logged.events), last_values(real), stored_values(database, tables)]
    assert ends[0] == ends[1] == ends[2], {
        key: (logged.events.get(key), real.get(key))
        for key in {key for each in ends for key in each}
        if len({each.get(key) for each in ends}) > 1
    }
    strict = {key: each for key, each in logged.events.items() if key[0] not in logged.loose}
    theirs = {key: each for key, each in real.items() if key[0] not in logged.loose}
    assert wrong_keys(theirs, strict) == {}
    ids = [each.source_id for each in log.messages if each.phase == "sync" and each.source_id]
    assert len(ids) == len({*ids})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(1))
@pytest.mark.exhaustive
def test_each_keys_history_is_exact_across_crashes_of_the_server(seed: int) -> None:
    """Beside savepoints, DDL, TRUNCATE, hanging commits, repeated copies, kills and crashes."""
    with served(**FORGETFUL) as server, fresh_database(server) as database:
        create_tables(database)
        with clean_slots(database):
            log, done = follow(database, seed, SECONDS, [crash])
        judge(database, log)
    assert done["crash"] > 0
    assert sum(each.phase == "copy" for each in log.messages) > 100
    assert sum(each.phase == "sync" for each in log.messages) > 100
