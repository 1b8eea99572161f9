"""The page of entries: rows with what became of each, and how far a search came. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from transporter.console.formats import (
    bytes_text,
    count_text,
    head_text,
    iso_text,
    one_line,
    size_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from transporter.console.fate import Fate
    from transporter.console.search import Found, Query, Span
    from transporter.message import Entry

_DATA: Final = 200
_KEY: Final = 60


@dataclass(frozen=True, slots=True)
class EntryRow:
    """One entry, or with ``gap`` a range of offsets that the log does not hold."""

    offset: int
    logged_at: str = ""
    namespace: str = ""
    op: str = ""
    key: str = ""
    size: str = ""
    data: str = ""
    unconfirmed: bool = False
    fates: tuple[tuple[str, Fate], ...] = ()
    gap: str = ""


@dataclass(frozen=True, slots=True)
class EntriesPage:
    """The result of a search as a page shows it."""

    rows: tuple[EntryRow, ...]
    routes: tuple[str, ...]
    summary: str
    finished: bool
    go_on: Mapping[str, str]
    problem: str = ""
    hidden: bool = False


def entry_row(
    entry: Entry, confirmed: int, fates: Iterable[tuple[str, Fate]], *, payloads: bool
) -> EntryRow:
    """Return the row of *entry*, without key and data unless *payloads* may be seen."""
    message = entry.message
    return EntryRow(
        offset=entry.offset,
        logged_at=iso_text(entry.logged_at / 1e6),
        namespace=one_line(message.namespace, 80),
        op=message.op,
        key=one_line(bytes_text(message.key), _KEY) if payloads else "",
        size=size_text(len(message.data or b"")),
        data=one_line(head_text(message.data, 4 * _DATA), _DATA) if payloads else "",
        unconfirmed=entry.offset > confirmed,
        fates=tuple(fates),
    )


def entries_page(
    query: Query, span: Span, found: Found, rows: Iterable[EntryRow], routes: Iterable[str]
) -> EntriesPage:
    """Return the page of a search. Lost ranges stand between the rows, where they were."""
    newest = query.direction == "newest"
    gaps = [
        EntryRow(last if newest else first, gap=_gap_text(first, last))
        for first, last in found.lost
    ]
    ordered = sorted([*rows, *gaps], key=lambda each: each.offset, reverse=newest)
    return EntriesPage(
        rows=tuple(ordered),
        routes=tuple(routes),
        summary=_summary(span, found),
        finished=found.finished,
        go_on=_go_on(query, span, found),
        problem=one_line(found.problem),
    )


def _gap_text(first: int, last: int) -> str:
    return f"{count_text(first)} .. {count_text(last)} were lost: a repair could not save them"


def _summary(span: Span, found: Found) -> str:
    """Return how far the search came."""
    if span.last < span.first:
        return "the log holds no entries in this range"
    if found.looked_to < found.looked_from:
        return "nothing was looked at"
    cost = f"in {found.seconds:.1f} s ({size_text(found.size)})"
    place = f"looked at {count_text(found.looked_from)} .. {count_text(found.looked_to)} {cost}"
    if found.finished or found.problem:
        return place
    older = found.looked_from > span.first
    rest = span.first if older else found.looked_to + 1
    end = found.looked_from - 1 if older else span.last
    return f"{place}; {count_text(rest)} .. {count_text(end)} not looked at yet"


def _go_on(query: Query, span: Span, found: Found) -> Mapping[str, str]:
    """Return the query that goes on where this one ended, empty if there is nothing left."""
    if found.finished or found.problem:
        return {}
    fields = {
        "from": query.start,
        "to": query.end,
        "ns": query.namespace,
        "key": query.key,
        "has": query.contains,
        "dir": query.direction,
    }
    if query.direction == "newest":
        if found.looked_from <= span.first:
            return {}
        fields["to"] = str(found.looked_from - 1)
    else:
        if found.looked_to >= span.last:
            return {}
        fields["from"] = str(found.looked_to + 1)
    return {name: value for name, value in fields.items() if value}
