"""Electors on a real PostgreSQL: one leads, and another takes over soon after its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
import pytest
from election_tools import BUSY, GAP, TERM, Pooler, Watch, child, elector, tell, until
from psycopg.conninfo import make_conninfo
from services.postgres import PASSWORD, free_port

from transporter.election.postgres import lock_key
from transporter.election.state_machine import Standing, StandingChange
from transporter.quickstart.postgres import embedded_postgres
from transporter.testing import FaultyProxy

if TYPE_CHECKING:
    from pathlib import Path

    from services.postgres import Database


def lock_holder(postgres: Database, name: str = "orders") -> int | None:
    """Return the server process that holds the lock of *name*."""
    rows = postgres.execute(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND (classid::bigint << 32) | objid::bigint = %s",
        [lock_key(name)],
    )
    return rows[0][0] if rows else None


@pytest.mark.postgres
def test_one_of_three_leads_over_many_takeovers(postgres: Database) -> None:
    """After a close or missed pulses another elector leads within two terms, never two at once."""
    took = []
    with Watch() as watch:
        for _ in range(3):
            watch.add(elector(postgres.dsn), GAP * 2)
        for turn in range(6):
            leader = watch.leader()
            began = time.monotonic()
            if turn % 2:
                watch.engines.remove(leader)
                leader.stop()
                watch.leader()
                watch.add(elector(postgres.dsn), GAP)
            else:
                leader.pulsing.clear()
                watch.successor(leader)
                leader.pulsing.set()
                until(
                    lambda made=leader: made.changes[-1][1] is StandingChange.FENCED, "it is told"
                )
            took.append(time.monotonic() - began)
    tell(f"takeovers: {sorted(round(each, 3) for each in took)}")
    assert max(took) < 2 * TERM


@pytest.mark.exhaustive
@pytest.mark.postgres
def test_a_leader_whose_session_is_ended_is_revoked_at_its_next_pulse(postgres: Database) -> None:
    """A leader whose session ends is revoked at its next pulse, and then competes again."""
    took = []
    with Watch() as watch:
        leader = watch.add(elector(postgres.dsn, term=9.0))
        for _ in range(3):
            watch.leader()
            began = time.monotonic()
            postgres.execute("SELECT pg_terminate_backend(%s)", [lock_holder(postgres)])
            until(lambda: leader.changes[-1][1] is StandingChange.REVOKED, "revoked", 2)
            took.append(time.monotonic() - began)
            assert not leader.leads
    tell(f"session ended: revoked after {sorted(round(each, 3) for each in took)} s")
    assert max(took) < GAP + BUSY


@pytest.mark.postgres
def test_a_clean_close_hands_over_at_once(postgres: Database) -> None:
    """A candidate tries five times a term, so a clean close needs no time-out."""
    with Watch() as watch:
        leader = watch.add(elector(postgres.dsn, term=5.0))
        watch.leader()
        watch.add(elector(postgres.dsn, term=5.0))
        time.sleep(0.5)
        began = time.monotonic()
        assert leader.stop() < 0.5
        watch.successor(leader)
        took = time.monotonic() - began
    tell(f"handed over after {took:.3f} s; term 5 s")
    assert took < 1.25 + BUSY


@pytest.mark.postgres
@pytest.mark.exhaustive
def test_a_stopped_leader_loses_its_lock_within_a_term(postgres: Database) -> None:
    """The server frees it, another leads within two terms, and the stopped one is fenced first."""
    freed, took = [], []
    for _ in range(3):
        with child({"kind": "postgres", "term": "1s"}, postgres.dsn) as leader, Watch() as watch:
            held = lock_holder(postgres)
            stopped = leader.stop()
            until(lambda held=held: lock_holder(postgres) != held, "the server frees the lock")
            freed.append(time.monotonic() - stopped)
            watch.add(elector(postgres.dsn))
            watch.leader()
            _, standing, changes = leader.resume()
            assert changes[0] == "fenced"
            assert standing != "leader"
            assert len(watch.leaders) == 1
        with child({"kind": "postgres", "term": "1s"}, postgres.dsn) as leader, Watch() as watch:
            watch.add(elector(postgres.dsn))
            time.sleep(0.3)
            stopped = leader.stop()
            watch.leader()
            took.append(time.monotonic() - stopped)
    tell(f"term 1 s: lock freed after {[round(each, 3) for each in sorted(freed)]} s")
    tell(f"term 1 s: takeover after {[round(each, 3) for each in sorted(took)]} s")
    assert max(freed) < TERM + BUSY
    assert max(took) < 2 * TERM


@pytest.mark.exhaustive
@pytest.mark.postgres
def test_a_leader_behind_a_pulled_cable_is_fenced_and_waits_for_nothing(
    postgres: Database,
) -> None:
    """Pulses return, the leadership ends within a term, and the leader becomes a candidate."""
    with FaultyProxy(("127.0.0.1", postgres.server.port)) as proxy, Watch() as watch:
        through = make_conninfo(postgres.tcp_dsn(), port=proxy.port)
        leader = watch.add(elector(through))
        watch.leader()
        watch.add(elector(postgres.dsn))
        time.sleep(0.5)
        proxy.hang()
        began = time.monotonic()
        watch.successor(leader)
        took = time.monotonic() - began
        until(
            lambda: leader.changes[-1][1] is StandingChange.FENCED, "it is told at the next pulse"
        )
        time.sleep(2 * TERM)  # Long enough for the missing answer to be noticed.
        assert leader.problems
        proxy.heal()
        until(lambda: leader.elector.standing(0) is Standing.CANDIDATE, "a candidate again")
        tell(f"cable pulled: takeover after {took:.3f} s; longest pulse {leader.longest:.3f} s")
        assert took < 2 * TERM
        assert leader.longest < 0.1 + BUSY
        assert not leader.leads


@pytest.mark.postgres
def test_a_cut_connection_revokes_and_is_made_again(postgres: Database) -> None:
    """The reason is reported without the password, and the only elector leads again."""
    with FaultyProxy(("127.0.0.1", postgres.server.port)) as proxy, Watch() as watch:
        leader = watch.add(elector(make_conninfo(postgres.tcp_dsn(), port=proxy.port)))
        watch.leader()
        proxy.refuse()
        until(lambda: leader.changes[-1][1] is StandingChange.REVOKED, "revoked", TERM)
        proxy.heal()
        watch.leader(3 * TERM)
    assert leader.problems
    assert not [each for each in leader.problems if PASSWORD in each]
    assert [each for _, each in leader.changes] == [
        StandingChange.ACQUIRED,
        StandingChange.REVOKED,
        StandingChange.ACQUIRED,
    ]


@pytest.mark.exhaustive
@pytest.mark.postgres
def test_a_restart_of_the_server_is_survived(tmp_path: Path) -> None:
    """Electors report the problem, and one leads soon after the server is back."""
    settings = {"listen_addresses": "127.0.0.1", "port": str(free_port()), "fsync": "off"}
    dsn = f"host=127.0.0.1 port={settings['port']} user=postgres dbname=postgres"
    with Watch() as watch:
        with embedded_postgres(tmp_path / "server", settings):
            engines = [watch.add(elector(dsn)) for _ in range(2)]
            watch.leader()
        until(lambda: not watch.leaders, "nobody leads without a server", TERM + BUSY)
        until(lambda: all(each.problems for each in engines), "the problem is told")
        with embedded_postgres(tmp_path / "server", settings):
            began = time.monotonic()
            watch.leader()
            took = time.monotonic() - began
    tell(f"leads {took:.3f} s after the server's return")
    assert took < 2 * TERM


@pytest.mark.postgres
def test_elections_of_other_names_do_not_meet(postgres: Database) -> None:
    """Two outboxes of one database have one leader each."""
    with Watch() as one, Watch() as other:
        one.add(elector(postgres.dsn, "orders"))
        other.add(elector(postgres.dsn, "payments"))
        one.leader()
        other.leader()


@pytest.mark.postgres
def test_who_may_not_connect_stays_a_candidate_and_says_why(postgres: Database) -> None:
    """A wrong password is reported but never quoted, and the elector stays a candidate."""
    with Watch() as watch:
        engine = watch.add(elector(postgres.tcp_dsn("wrong horse")))
        until(lambda: engine.problems, "the problem is told")
        assert "password authentication failed" in engine.problems[0]
        assert "wrong horse" not in engine.problems[0]
        assert engine.error is None


@pytest.mark.exhaustive
@pytest.mark.postgres
def test_a_pooler_that_shares_a_session_is_refused(tmp_path: Path) -> None:
    """Two electors in one session would both get the re-entrant lock, so the second refuses."""
    settings = {"listen_addresses": "127.0.0.1", "port": str(free_port()), "fsync": "off"}
    with embedded_postgres(tmp_path / "server", settings) as direct:
        pooler = Pooler(int(settings["port"]))
        dsn = f"host=127.0.0.1 port={pooler.port} user=postgres dbname=postgres"
        with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn) as other:
            for each in (one, other):
                rows = each.execute("SELECT pg_try_advisory_lock(%s)", [lock_key("orders")])
                assert rows.fetchone() == (True,)
            one.execute("SELECT pg_advisory_unlock_all()")
        with Watch() as watch:
            first = watch.add(elector(dsn))
            watch.leader()
            second = watch.add(elector(dsn))
            until(lambda: second.error, "the second one refuses")
            assert "PgBouncer" in str(second.error)
            assert first.leads
            third = watch.add(elector(direct))
            time.sleep(TERM)
            assert not third.leads
        pooler.close()


@pytest.mark.postgres
def test_a_lock_that_others_free_is_noticed(postgres: Database) -> None:
    """The leader checks that it still holds its lock, not only that the server answers."""
    made = elector(postgres.dsn)
    assert made.pulse(time.monotonic()).standing is Standing.LEADER
    session = made._session  # type: ignore[attr-defined]
    session.send_query("SELECT pg_advisory_unlock_all()::text", [])
    assert session.receive_row(time.monotonic() + 5) == ("",)
    time.sleep(TERM / 3)
    found = made.pulse(time.monotonic())
    assert [each.change for each in found.transitions] == [StandingChange.REVOKED]
    made.close()
