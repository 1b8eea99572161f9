"""Tests of the results and errors that ``transporter shell`` prints."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import Row, VariantVal

from transporter.spark.shell import brief_text
from transporter.table.cells import to_json_value


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (None, None),
        (b"text", "text"),
        (bytearray(b"\xff"), {"base64": "/w=="}),
        (Row(name="h", value=b"v"), {"name": "h", "value": "v"}),
        ([Row(n=1), None], [{"n": 1}, None]),
        ({b"k": [1]}, {"k": [1]}),
        (datetime(2030, 1, 31, 8, tzinfo=UTC), "2030-01-31T08:00:00+00:00"),
        (date(2030, 1, 31), "2030-01-31"),
        (Decimal("1.50"), "1.50"),
        (VariantVal(bytes([12, 1]), bytes([1, 0, 0])), 1),
    ],
)
def test_a_cell_as_json(cell: object, expected: object) -> None:
    """Every Spark type becomes a JSON value, with bytes as everywhere else."""
    assert to_json_value(cell) == expected
    json.dumps(to_json_value(cell))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Job aborted: x\ntransporter.errors.Corrupt: /log/0.log: bad (at byte 3)\n\nat",
            "/log/0.log: bad (at byte 3)",
        ),
        ("[PARSE] near 'x'. SQLSTATE: 1\n\n== SQL ==\n…", "[PARSE] near 'x'. SQLSTATE: 1"),
        ("[UNRESOLVED] no; line 1 pos 7;\n'Project ['x]\n+- Rel", "[UNRESOLVED] no; line 1 pos 7"),
    ],
)
def test_an_error_in_brief(text: str, expected: str) -> None:
    """Our own errors are shown unchanged, and Spark's without its plan."""
    assert brief_text(PySparkException(text)) == expected
