"""Tests of the options of a query over a log, and of the errors for invalid ones."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from transporter.errors import ConfigError
from transporter.table.options import (
    EARLIEST,
    LATEST,
    NAMES,
    Moment,
    Options,
    read_options,
    refuse_options,
)

NOW = datetime(2030, 1, 31, 8, tzinfo=UTC)
SECONDS = 1_896_076_800
DEFAULTS = Options(Path("/log"))
SAID: list[tuple[str, str, str, Any]] = [
    ("from", "1200", "start", 1200),
    ("from", "2030-01-31T08:00:00+00:00", "start", Moment(SECONDS * 10**6)),
    ("to", "10m ago", "end", Moment((SECONDS - 600) * 10**6)),
    ("to", "1s", "end", Moment((SECONDS - 1) * 10**6)),
    ("namespace", "^orders", "namespace", "^orders"),
    ("columns", "offset , data", "columns", ("offset", "data")),
    ("data", "BINARY", "text", frozenset()),
    ("key", "string", "text", frozenset({"data", "key"})),
    ("invalidUtf8", "null", "lenient", True),
    ("failOnDataLoss", "false", "fail_on_loss", False),
    ("partitionBytes", "2MiB", "partition_bytes", 2 << 20),
    ("pushDown", "true", "push_down", True),
    ("startingOffsets", "Latest", "starting", LATEST),
    ("startingOffsets", "earliest", "starting", EARLIEST),
    ("startingOffsets", "7", "starting", 7),
    ("maxOffsetsPerTrigger", "10", "max_rows", 10),
    ("maxBytesPerTrigger", "1KiB", "max_bytes", 1024),
]


def read(**given: str) -> Options:
    """Read the options of a query of ``/log``."""
    return read_options({"path": "/log", **given}, NOW)


@pytest.mark.parametrize(("name", "text", "field", "value"), SAID)
def test_each_option_changes_one_thing(name: str, text: str, field: str, value: object) -> None:
    """An option sets its own field, and nothing else."""
    found = read(**{name: text})
    changed = {
        each for each in Options.__slots__ if getattr(found, each) != getattr(DEFAULTS, each)
    }
    assert getattr(found, field) == value
    assert changed <= {field}


def test_every_option_is_tried_here() -> None:
    """No option is missing from the list above."""
    assert {name for name, *_ in SAID} == set(NAMES) - {"path"}


def test_the_page_names_every_option() -> None:
    """The table of options in docs/spark.md has each of them."""
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    listed = page.partition("## All options")[2]
    rows = [line.split("|")[1] for line in listed.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(NAMES)


def test_case_and_underscores_do_not_matter() -> None:
    """Options may be in lower case, as from Spark, or with underscores."""
    assert read(partitionbytes="1MiB") == read(partition_bytes="1MiB") != read()


@pytest.mark.parametrize(
    ("path", "directory"),
    [("/a b", "/a b"), ("file:///a%20b", "/a b"), ("file:/x", "/x"), ("x", str(Path.cwd() / "x"))],
)
def test_a_directory(path: str, directory: str) -> None:
    """A path may be relative, or a URI, and becomes absolute."""
    assert read_options({"path": path}, NOW).directory == Path(directory)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"from": "soon"}, "option from: 'soon' is neither an offset nor a time"),
        ({"namespace": "("}, "option namespace: '(' is not a regular expression that RE2 reads"),
        ({"columns": "offset,nope"}, "names an unknown column; the columns are offset, logged_at"),
        ({"columns": "data,data"}, "names a column twice"),
        ({"data": "json"}, "option data: 'json' is neither string nor binary"),
        ({"invalidUtf8": "x"}, "neither null nor fail"),
        ({"pushDown": "yes"}, "neither true nor false"),
        ({"partitionBytes": "0"}, "must be at least 1"),
        ({"partitionBytes": "64 mega"}, "is not a size"),
        ({"maxOffsetsPerTrigger": "-1"}, "is not a whole number"),
        ({"maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"}, "Spark takes one limit"),
        ({"namespaces": "x"}, "there is no option 'namespaces'; did you mean namespace?"),
        ({"zzz": "x"}, "there is no option 'zzz'; the options are path, namespace"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], problem: str) -> None:
    """An error names the option, its value, and the valid forms."""
    with pytest.raises(ConfigError) as error:
        read(**given)
    assert problem in str(error.value)


def test_a_query_without_a_log() -> None:
    """A query without a path is refused."""
    with pytest.raises(ConfigError, match=r"use load\(DIRECTORY\) or the option path"):
        read_options({}, NOW)


def test_options_of_the_other_kind() -> None:
    """A stream refuses ``to``, and a batch query refuses the start of a stream."""
    with pytest.raises(ConfigError, match="to is not an option of a stream; give startingOffsets"):
        refuse_options({"path": "/log", "to": "3"}, streaming=True)
    with pytest.raises(ConfigError, match="startingOffsets is not an option of a batch query"):
        refuse_options({"startingoffsets": "3"}, streaming=False)
    refuse_options({"path": "/log", "namespace": "x"}, streaming=True)
