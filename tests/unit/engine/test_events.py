"""Every reported event and its fields are in the table, and the docs show it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import transporter
from transporter.engine.events import EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(transporter.__file__).parents[1]
TELLING = {"observe", "_observe"}
_REPORT = "_report"
PROGRESS = {"watermark", "delivered"}
_READER, _ROUTE = frozenset({"reader"}), frozenset({"route", *PROGRESS})


def told(
    source: str, subject: frozenset[str] = _READER
) -> Iterator[tuple[int, list[str], set[str]]]:
    """Yield each report of an event in *source*: its line, its names, its fields.

    ``report(event, …)`` adds the fields of *subject*: a reader's name, or a route's with its
    progress. ``_report(event, offset, …)`` adds the route and the offset. ``**self._progress()``
    adds the progress, and ``**details`` the fields of a caller.
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        plain = {each.arg for each in node.keywords if each.arg}
        for each in node.keywords:
            if each.arg is None:
                plain |= PROGRESS if "_progress" in ast.unparse(each.value) else {"**"}
        if name in TELLING and "**" not in plain:
            yield node.lineno, list(names(node.args[0])), plain
        elif name == _REPORT and len(node.args) > 1:
            yield node.lineno, list(names(node.args[0])), plain | {"route", "offset"}
        elif name == "report" and "**" not in plain:
            yield node.lineno, list(names(node.args[0])), plain | subject


def names(node: ast.expr) -> Iterator[str]:
    """Yield the texts that *node* may stand for, or nothing for a variable."""
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.IfExp):
        yield from names(node.body)
        yield from names(node.orelse)


def passed_on(source: str) -> Iterator[str]:
    """Yield the texts that *source* passes to a call, a caller or a variable, and no other texts.

    An event that is only compared with, or listed in a set or as a key, is reported by nobody.
    """
    tree = ast.parse(source)
    compared = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for each in node.comparators
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=[first, *_]) | ast.Assign(value=first):
                yield from names(first)
            case ast.Tuple(elts=[first, *_]) if id(node) not in compared:
                yield from names(first)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "event":
                        yield from names(value)


def subject_of(path: Path) -> frozenset[str]:
    """Return the fields that ``report`` adds in the file *path*."""
    if "routing" in path.parts:
        return _ROUTE
    return frozenset() if "cli" in path.parts else _READER


def all_told() -> list[tuple[str, str, set[str]]]:
    """Return every report of an event in our packages: its place, its event, its fields."""
    return [
        (f"{path.relative_to(ROOT)}:{line}", name, fields)
        for package in ("transporter", "adaptors")
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, found, fields in told(path.read_text(), subject_of(path))
        for name in found
    ]


@pytest.mark.parametrize(("place", "event", "fields"), all_told())
def test_what_is_told_is_in_the_table(place: str, event: str, fields: set[str]) -> None:
    """Each reported event is in the table, and has just the fields of the table."""
    assert event in EVENTS, f"{place}: {event}"
    assert fields == set(EVENTS[event].fields), f"{place}: {event}"


def test_what_is_in_the_table_is_told() -> None:
    """Each event of the table is reported by the code."""
    written = [*(ROOT / "transporter").rglob("*.py"), *(ROOT / "adaptors").rglob("*.py")]
    found = {name for path in written for name in passed_on(path.read_text())}
    assert EVENTS.keys() - found == set()


def test_a_wrong_telling_would_be_found() -> None:
    """The check above finds an unknown event, and a field too many or too few."""
    found = list(told('self._observe("engine-started", log="x")\nobserve("no-such-event")\n'))
    assert [names for _, names, _ in found] == [["engine-started"], ["no-such-event"]]
    reported = 'tell("a")\nb = "b" if it else "c"\nyield "d", {}\nlog(extra={"event": "e"})\n'
    other = 'it == "f" or it in ("g", "h") or it in {"i"}\nseen = {"j": 1}\n# "k"\n'
    assert sorted(passed_on(reported + other)) == [*"abcde"]
    with pytest.raises(AssertionError):
        test_what_is_told_is_in_the_table("here", "engine-started", found[0][2])
    with pytest.raises(AssertionError):
        test_what_is_told_is_in_the_table("here", "no-such-event", set())


def test_the_docs_have_a_row_for_each_event() -> None:
    """docs/events.md has a row for each event of the table."""
    rows = [
        f"| `{name}` | {event.level} | {', '.join(f'`{each}`' for each in event.fields)} "
        f"| {event.meaning} |"
        for name, event in EVENTS.items()
    ]
    text = (ROOT / "docs" / "events.md").read_text()
    shown = [line for line in text.splitlines() if line.startswith("| `")]
    assert shown == rows, "the table in docs/events.md should read:\n" + "\n".join(rows)
