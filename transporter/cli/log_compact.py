"""Command ``transporter log compact`` for a log without a running engine."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.action_options import Reason  # noqa: TC001 - Typer reads the annotations
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import (
    count_text,
    printable,
    problem_text,
    write,
    write_json,
    write_table,
)
from transporter.cli.pipeline_file import load_pipeline
from transporter.errors import ConfigError, EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.audit import AuditFile
    from transporter.log.compaction import CompactionSettings, Report
    from transporter.log.maintenance import MaintenanceRecord
    from transporter.offsets.retention_holds import Hold


def compact(
    target: Target,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report the entries to drop; needs no lock.")
    ] = False,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Drop entries that later ones supersede.

    The settings are those of log.compaction in the pipeline file, or with a log
    directory those of the last engine that ran on it. No engine may be running. An
    engine whose file asks for compaction compacts by itself. Entries that a route or a
    reader's source still needs are kept.

    Example:
        transporter log compact pipeline.yaml --dry-run
    """
    from transporter.control.stopped_log import lock_log  # noqa: PLC0415 - imports pyarrow
    from transporter.log.inspection import inspect  # noqa: PLC0415 - imports pyarrow

    directory = log_directory(target)
    if dry_run:
        inspect(directory)
        hold, report = _preview_compaction(target, directory)
    else:
        with lock_log(directory) as audit:
            hold, report = _compact_locked(target, directory, audit, reason)
    if as_json:
        write_json(_report_json(hold, report, dry_run=dry_run))
    else:
        _write_report(hold, report, dry_run=dry_run)


def _settings(target: Path, record: MaintenanceRecord | None) -> CompactionSettings:
    """Return the compaction settings of the log that *target* names.

    Args:
        target: the pipeline file or the log directory.
        record: the maintenance record of the log's last engine.

    Raises:
        ConfigError: the pipeline file does not ask for compaction.
        EnvironmentFault: the settings, or the sources' progress, are not on record.

    """
    from transporter.log.compaction import CompactionSettings  # noqa: PLC0415 - imports pyarrow

    if target.is_dir():
        if record is None or record.rules is None:
            raise EnvironmentFault(
                f"{target}: no engine has recorded the compaction settings of this log; "
                "give its pipeline file instead of the directory"
            )
        after, keep, tombstones, compression = record.rules
        if after is None:
            raise EnvironmentFault(
                f"{target}: the last engine on this log did not compact it; give its pipeline "
                "file instead of the directory"
            )
    else:
        from transporter.pipeline.config import load_log  # noqa: PLC0415 - heavy

        log = load_log(target, os.environ)
        after, keep, tombstones = (
            log.compaction.manual_after,
            log.compaction.keep,
            log.compaction.tombstones,
        )
        if after is None:
            raise ConfigError(
                "log.compaction does not allow any entries to be dropped; set 'keep: key' or "
                "'keep: namespace' there, with 'after: off' if the engine must not compact",
                str(target),
            )
        if record is None:
            _refuse_unknown_sources(target)
        compression = log.codec
    return CompactionSettings(after, keep, tombstones, compression)


def _refuse_unknown_sources(file: Path) -> None:
    """Refuse if the sources' progress is unknown, which no record holds.

    Then only a clean stop proves that every entry is acknowledged to its source
    (Invariant 11).
    """
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415 - as above
    from transporter.log.meta import read_meta  # noqa: PLC0415 - as above

    pipeline = load_pipeline(file)
    directory = pipeline.log.dir
    meta = read_meta(RealFileSystem(), directory)
    waiting = any(reader.waits_for_delivery for reader in pipeline.readers)
    if waiting or meta is None or meta.clean is None:
        raise EnvironmentFault(
            f"{directory}: no engine has recorded the progress of its sources, which may still "
            "need logged entries; start the pipeline once and stop it, then compact"
        )


def _preview_compaction(target: Path, directory: Path) -> tuple[Hold | None, Report]:
    from transporter.log.compaction import preview  # noqa: PLC0415 - imports pyarrow
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415
    from transporter.log.maintenance import read_maintenance  # noqa: PLC0415
    from transporter.offsets.retention_holds import least_hold  # noqa: PLC0415

    settings = _settings(target, read_maintenance(RealFileSystem(), directory))
    hold = least_hold(directory)
    return hold, preview(directory, watermark=_hold_offset(hold), settings=settings, now=_now_us())


def _compact_locked(
    target: Path, directory: Path, audit: AuditFile, reason: str
) -> tuple[Hold | None, Report]:
    from transporter.audit import this_operator  # noqa: PLC0415 - only commands that act
    from transporter.log.compaction import compact as run  # noqa: PLC0415 - imports pyarrow
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415
    from transporter.log.maintenance import read_maintenance  # noqa: PLC0415
    from transporter.offsets.retention_holds import least_hold  # noqa: PLC0415

    record = read_maintenance(RealFileSystem(), directory)
    settings = _settings(target, record)
    hold = least_hold(directory, has_lock=True)
    through = _hold_offset(hold)
    details = {"through": through, "settings": asdict(settings), "reason": reason}
    with audit.change("log compact", this_operator(), **details) as results:
        report = run(directory, watermark=lambda: through, settings=settings, now=_now_us())
        results |= {"dropped": report.dropped_entries, "freed": report.freed_bytes}
        if record is not None:
            _record_extent(directory, record, report.through, settings)
    return hold, report


def _hold_offset(hold: Hold | None) -> int:
    return -1 if hold is None else hold.through


def _now_us() -> int:
    return time.time_ns() // 1000


def _record_extent(
    directory: Path, record: MaintenanceRecord, through: int, settings: CompactionSettings
) -> None:
    """Record the compacted range, so that the next engine does not repeat the work."""
    from transporter.log.filesystem import RealFileSystem, translate_os_errors  # noqa: PLC0415
    from transporter.log.maintenance import extent_of, write_maintenance  # noqa: PLC0415

    through = max(through, record.compacted_through(settings))
    with translate_os_errors(directory):
        compacted = extent_of(through, settings)
        write_maintenance(RealFileSystem(), directory, replace(record, compacted=compacted))


def _report_json(hold: Hold | None, report: Report, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "held_by": None if hold is None else str(hold),
        "below": -1 if hold is None else hold.through,
        "looked_at": report.looked_at,
        "dropped": report.dropped_entries,
        "freed": report.freed_bytes,
        "segments": [asdict(each) for each in report.segments],
        "problems": list(report.problems),
    }


def _write_report(hold: Hold | None, report: Report, *, dry_run: bool) -> None:
    for problem in report.problems:
        write(f"not compacted: {problem_text(problem)}")
    holder = "no route has run here, so nothing may be dropped"
    if hold is not None:
        holder = f"everything beyond offset {hold.through} is held by {printable(str(hold))}"
    write(holder)
    doing = "would drop" if dry_run else "dropped"
    entries = count_text(report.dropped_entries, "entry", "entries")
    write(f"{doing} {entries} of {count_text(len(report.segments), 'segment', 'segments')}")
    columns = ("segment", "entries", "kept", "bytes", "bytes now")
    rows = [
        (each.name, each.entries, each.kept, f"{each.before:,}", _bytes_text(each.after))
        for each in report.segments
    ]
    if rows:
        write_table(columns, rows)


def _bytes_text(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
