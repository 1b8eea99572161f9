"""``transporter log tail``: the newest entries, and those that come."""

from __future__ import annotations

import json
import select
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.log_entries import Lines, entries_of, entry_json, note, note_lost, row_of
from transporter.cli.log_range import KeyFilter, NamespaceFilter, look, wanted_of
from transporter.cli.output import until_closed, write
from transporter.cli.target import AsJson, Target, log_directory

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.follow import Follower, Retained
    from transporter.log.inspect import LogInfo
    from transporter.log.reader import Gap
    from transporter.log.search import Wanted

POLL: Final = 0.1
"""Seconds between two looks for new entries: nothing can be waited for across processes."""


def tail(
    target: Target,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    count: Annotated[
        int, typer.Option("--lines", "-n", help="Begin with the last N entries.", min=0)
    ] = 10,
    namespace: NamespaceFilter = "",
    key: KeyFilter = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest entries that are confirmed, one a line; with -f also those that come.

    Works beside a running engine and waits for one that is not running. Every
    entry is shown once; where entries were removed before they could be shown,
    that is told. With --json each line is one object.

    Example: transporter log tail pipeline.yaml -f --namespace ^orders
    """
    from transporter.log.follow import Follower  # noqa: PLC0415 - imports pyarrow

    directory, wanted = log_directory(target), wanted_of(namespace, key)
    found = look(directory) if not follow or _begun(directory) else None
    first = _start(found, count, wanted) if found else 0
    confirmed = found.confirmed if found else -1
    screen = Screen(wanted, as_json=as_json)
    with ExitStack() as stack:
        follower = stack.enter_context(Follower(directory, first, confirmed))
        stack.enter_context(until_closed())
        screen.show(follower)
        if follow and (found is None or found.owner is None):
            note(f"{directory}: no engine runs here; waiting for one")
        while follow and not _closed_within(POLL):
            screen.show(follower)


class Screen:
    """Where news of the log go: stdout, and stderr for what people should know besides."""

    def __init__(self, wanted: Wanted, *, as_json: bool) -> None:
        """Show what is *wanted*, as lines or as objects."""
        self._wanted, self._as_json, self._lines = wanted, as_json, Lines()

    def show(self, follower: Follower) -> None:
        """Show all that *follower* has for now."""
        from transporter.log.follow import Retained  # noqa: PLC0415 - imports pyarrow
        from transporter.log.reader import Gap  # noqa: PLC0415

        for news in follower.poll():
            if isinstance(news, Retained):
                self._removed(news)
            elif isinstance(news, Gap):
                self._lost(news)
            else:
                self._entries(self._wanted.of(news))
        sys.stdout.flush()

    def _entries(self, batch: pa.RecordBatch) -> None:
        for entry in entries_of([batch]):
            if self._as_json:
                _object(entry_json(entry, confirmed=entry.offset))
            else:
                self._lines.write(row_of(entry, entry.offset))

    def _removed(self, missing: Retained) -> None:
        first, last = missing
        if self._as_json:
            _object({"retained_from": last + 1, "missing": [first, last]})
        else:
            note(f"offsets {first}..{last} are gone: the log is retained from {last + 1}")

    def _lost(self, gap: Gap) -> None:
        if self._as_json:
            _object({"lost": [gap.first, gap.last]})
        else:
            note_lost(gap)


def _begun(directory: Path) -> bool:
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415 - only here
    from transporter.log.meta import read_meta  # noqa: PLC0415 - imports pyarrow

    return read_meta(RealFileSystem(), directory) is not None


def _start(found: LogInfo, count: int, wanted: Wanted) -> int:
    from transporter.log.reader import LogReader  # noqa: PLC0415 - imports pyarrow
    from transporter.log.search import start_of_last  # noqa: PLC0415

    if not count:
        return found.confirmed + 1
    with LogReader(found.directory) as reader:
        return start_of_last(reader, found.first, found.confirmed, count, wanted)


def _closed_within(seconds: float) -> bool:
    """Wait; tell at once when whoever reads stdout has gone."""
    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)
    return bool(watch.poll(seconds * 1000))


def _object(content: dict[str, Any]) -> None:
    write(json.dumps(content))
