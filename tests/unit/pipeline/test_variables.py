"""Variables inside texts."""

from __future__ import annotations

import pytest

from transporter.pipeline.variables import substitute

ENVIRON = {"HOST": "db", "PORT": "5432", "EMPTY": "", "ODD": "${HOST}"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("${HOST}", "db"),
        ("${HOST}:${PORT}", "db:5432"),
        ("${EMPTY}", ""),
        ("${NONE:-none}", "none"),
        ("${EMPTY:-default}", "default"),
        ("${NONE:-}", ""),
        ("${HOST:-x}", "db"),
        ("${HOST:?needed}", "db"),
        ("$${HOST}", "${HOST}"),
        ("$$${HOST}", "$${HOST}"),
        ("cost $5 $HOST ^a$", "cost $5 $HOST ^a$"),
        ("${ODD}", "${HOST}"),
    ],
)
def test_substitute(text: str, result: str) -> None:
    """Every form is replaced once, and a value is never replaced again."""
    assert substitute(text, ENVIRON).text == result


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${NONE}", r"NONE is not set: set it, or give a default"),
        ("${NONE:?set it to the database}", r"NONE is not set: set it to the database"),
        ("${EMPTY:?not empty please}", r"EMPTY is not set: not empty please"),
        ("${NONE:?}", r"NONE is not set: set it"),
        ("${}", r"does not begin a variable"),
        ("${1X}", r"does not begin a variable"),
        ("${HOST", r"does not begin a variable"),
        ("${HOST-x}", r"does not begin a variable"),
    ],
)
def test_substitute_refuses(text: str, problem: str) -> None:
    """An unset variable and a malformed one are errors with a remedy."""
    with pytest.raises(ValueError, match=problem):
        substitute(text, ENVIRON)


def test_substitute_tells_what_came_from_outside() -> None:
    """Values of variables are separate from defaults, and an escape is not a variable."""
    assert substitute("${HOST}${NONE:-x}", ENVIRON).values == {"db"}
    assert substitute("${NONE:-x}", ENVIRON)[1:3] == (True, frozenset())
    assert not substitute("$${HOST}", ENVIRON).replaced
