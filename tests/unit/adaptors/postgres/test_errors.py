"""Errors of PostgreSQL's driver, as the outbox reader and the outbox tools report them."""

from __future__ import annotations

import psycopg
import pytest
from transporter_adaptors.postgres.session import translate_error

from transporter.errors import SourceUnavailable
from transporter.outbox.database import _translate_error

SERVER = 'connection failed: connection to server at "db", port 5432 failed: '


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ('FATAL:  role "cdc_reader" does not exist', "check the dsn"),
        ('FATAL:  database "shop" does not exist', "check the dsn"),
        ('FATAL:  password authentication failed for user "ada"', "check the dsn"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "ada"', "check the dsn"),
        ("Connection refused\n\tIs the server running on that host?", "again"),
        ("FATAL:  the database system is starting up", "again"),
    ],
)
def test_only_what_may_pass_is_to_be_tried_again(text: str, advice: str) -> None:
    """A mistake in the setup is not said to end by itself. Each error is one line."""
    error = psycopg.OperationalError(SERVER + text)
    for found in (translate_error(error, "cannot connect"), _translate_error(error, "no")):
        assert isinstance(found, SourceUnavailable), "a server may be set up meanwhile"
        tail = str(found).rpartition("; ")[2]
        assert tail in (
            {advice} if advice != "again" else {"trying again may help", "a retry may help"}
        )
        assert "\n" not in str(found)
