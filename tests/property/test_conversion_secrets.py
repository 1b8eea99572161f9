"""Secrets in files of other programs, which no conversion copies."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from transporter.errors import ConfigError
from transporter.scaffold.conversion import convert_file

PASSWORDS = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1)
HIDDEN = "Hidden"
"""In the middle of each password, so that no part of it can be there by chance."""


def conversion(name: str, text: str) -> str:
    """Return all that a conversion produces: the file and the warnings, or the error."""
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder, name)
        old.write_text(text, encoding="utf-8")
        try:
            found = convert_file(old)
        except ConfigError as error:
            return str(error)
        return "\n".join([found.text, *found.warnings])


@settings(max_examples=50, deadline=None)
@given(PASSWORDS, PASSWORDS)
def test_goharvest(first: str, last: str) -> None:
    """No password of the database or of Kafka is in the result."""
    secret = first + HIDDEN + last
    harvest = {
        "dataSource": make_conninfo("", host="db", password=secret),
        "baseKafkaConfig": {"sasl.password": secret, "ssl.key.password": secret},
        "leaderTopic": "election",
    }
    assert HIDDEN not in conversion("reaper.yaml", json.dumps({"harvest": harvest}))


@settings(max_examples=50, deadline=None)
@given(PASSWORDS, PASSWORDS)
def test_compose(first: str, last: str) -> None:
    """No password of an address is in the result, also if it is not encoded as it should be."""
    secret = first + HIDDEN + last
    source = json.dumps({"uri": f"postgres://shop:{secret}@db/shop", "password": secret})
    sink = json.dumps({"uri": f"http://shop:{secret}@search:9200/", "aws_access_secret": secret})
    text = f"t.Source(postgres({source})).Save(elasticsearch({sink}))"
    assert HIDDEN not in conversion("pipeline.js", text)
