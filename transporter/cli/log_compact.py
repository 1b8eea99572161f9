"""``transporter log compact``: compact a log of which no engine runs."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.output import printable, table, write, write_json
from transporter.cli.target import AsJson, Target, log_directory

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.compaction import CompactionSettings, Report
    from transporter.offsets.holds import Hold


def compact(
    target: Target,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would go; needs no lock.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Drop what later entries made obsolete, as log.compaction says; no engine may be running.

    A running engine does this by itself. With a log directory instead of a pipeline
    file the defaults apply. Nothing that a route still needs goes.

    Example: transporter log compact pipeline.yaml --dry-run
    """
    from transporter.control.offline import locked  # noqa: PLC0415 - imports pyarrow
    from transporter.log.inspect import inspect  # noqa: PLC0415 - imports pyarrow

    directory, settings = log_directory(target), _settings(target)
    if dry_run:
        inspect(directory)
        hold, report = _compacted(directory, settings, dry_run=True)
    else:
        with locked(directory):
            hold, report = _compacted(directory, settings, dry_run=False)
    if as_json:
        write_json(_as_json(hold, report, dry_run=dry_run))
    else:
        _show(hold, report, dry_run=dry_run)


def _settings(target: Path) -> CompactionSettings:
    from transporter.log.compaction import CompactionSettings  # noqa: PLC0415 - imports pyarrow

    if target.is_dir():
        return CompactionSettings()
    from transporter.pipeline.config import load  # noqa: PLC0415 - heavy

    log = load(target, os.environ).log
    config = log.compaction
    # Asked for by hand, it is done whether or not the engine would.
    after = CompactionSettings().after if config.after is None else config.after
    return CompactionSettings(after, config.keep, config.tombstones, log.codec)


def _compacted(
    directory: Path, settings: CompactionSettings, *, dry_run: bool
) -> tuple[Hold | None, Report]:
    from transporter.log.compaction import compact as run  # noqa: PLC0415 - imports pyarrow
    from transporter.offsets.holds import least_hold  # noqa: PLC0415

    hold = least_hold(directory, locked=not dry_run)
    through = -1 if hold is None else hold.through
    now = time.time_ns() // 1000
    report = run(directory, watermark=lambda: through, settings=settings, now=now, dry_run=dry_run)
    return hold, report


def _as_json(hold: Hold | None, report: Report, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "held_by": None if hold is None else str(hold),
        "below": -1 if hold is None else hold.through,
        "looked_at": report.looked_at,
        "dropped": report.dropped,
        "freed": report.freed,
        "segments": [asdict(each) for each in report.segments],
        "problems": list(report.problems),
    }


def _show(hold: Hold | None, report: Report, *, dry_run: bool) -> None:
    for problem in report.problems:
        write(f"not compacted: {printable(problem)}")
    holder = "no route has run here, so nothing may go"
    if hold is not None:
        holder = f"everything beyond offset {hold.through} is held by {printable(str(hold))}"
    write(holder)
    doing = "would drop" if dry_run else "dropped"
    write(f"{doing} {report.dropped} entries of {len(report.segments)} segments")
    columns = ("segment", "entries", "kept", "bytes", "bytes now")
    rows = [
        (each.name, each.entries, each.kept, f"{each.before:,}", _bytes(each.after))
        for each in report.segments
    ]
    if rows:
        table(columns, rows)


def _bytes(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
