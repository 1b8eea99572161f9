"""Commands ``transporter log verify`` and ``log repair``, which find and repair damage."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.action_options import Reason  # noqa: TC001 - Typer reads the annotations
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import confirm, printable, write, write_json, write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transporter.log.verify import Damage
    from transporter.offsets.verify_repair import OffsetLogHealth, OffsetLogRepair


def verify(target: Target, *, as_json: AsJson = False) -> int:
    """Check a log's files for damage.

    It checks every frame of every segment, the offset logs and the parked entries. It
    changes nothing and works beside a running engine. The exit code is 1 if anything is
    damaged.

    Example:
        transporter log verify pipeline.yaml
    """
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415 - imports pyarrow
    from transporter.log.segment import stray_files  # noqa: PLC0415
    from transporter.offsets.verify_repair import verify as look  # noqa: PLC0415

    directory = log_directory(target)
    with _progress(directory) as advance:
        health = look(directory, advance)
    ignored = stray_files(RealFileSystem(), directory)
    if as_json:
        strays = [asdict(each) for each in ignored]
        values = {"directory": directory, **_health_json(health), "ignored": strays}
        write_json(values, ok=health.is_sound)
    else:
        _write_health(health)
        for each in ignored:
            write(f"ignored: {printable(each.name)}: {each.problem}")
        if not health.is_sound:
            command = f"transporter log repair {printable(target)}"
            write(f"damaged: stop the engine and run '{command}'")
    return 0 if health.is_sound else 1


def repair(
    target: Target,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Repair a damaged log.

    It copies damaged files to the log's quarantine/ first, and keeps all intact data.
    No engine may be running. Routes that had not passed lost entries halt there until
    you ack these offsets. Routes whose offset log was damaged deliver everything again.
    A damaged list of paused readers is removed, so that no reader is paused.

    Example:
        transporter log repair pipeline.yaml
    """
    from transporter.audit import AuditFile, this_operator  # noqa: PLC0415 - only commands that act
    from transporter.log.commit_log import wall_clock  # noqa: PLC0415 - imports pyarrow
    from transporter.log.lock import DirectoryLock  # noqa: PLC0415
    from transporter.offsets import verify_repair as health  # noqa: PLC0415

    directory = log_directory(target)
    health.require_log(directory)
    with DirectoryLock(directory):
        with _progress(directory) as advance:
            found = health.verify(directory, advance)
        if found.is_sound:
            _report_sound(directory, found, as_json=as_json)
            return
        if not as_json:
            _write_health(found)
        if not yes:
            confirm("Repair this log?")
        details = {**_damage_details(found), "reason": reason}
        with AuditFile(directory).change("log repair", this_operator(), **details) as results:
            mended = health.repair_log(directory, found, wall_clock())
            results["quarantine"] = str(mended.quarantine)
    _report_repair(directory, target, mended, as_json=as_json)


def _damage_details(found: OffsetLogHealth) -> dict[str, Any]:
    """Return the files that a repair will change, and the lost offsets."""
    damages = [*found.damages, *(damage for _, damage in (*found.routes, *found.parked))]
    lost = [[each.first, each.last] for each in found.damages if not each.is_empty]
    return {"files": sorted({str(each.file) for each in damages}), "lost": lost}


def _report_sound(directory: Path, health: OffsetLogHealth, *, as_json: bool) -> None:
    if as_json:
        write_json({"directory": directory, **_health_json(health), "quarantine": None})
    else:
        _write_health(health)


def _report_repair(
    directory: Path, target: Path, mended: OffsetLogRepair, *, as_json: bool
) -> None:
    if as_json:
        result = _health_json(mended.health)
        parked = [{"route": route, "offset": offset} for route, offset in mended.parked_lost]
        write_json(
            {
                "directory": directory,
                **result,
                "quarantine": mended.quarantine,
                "quarantined": list(mended.kept),
                "parked_lost": parked,
            }
        )
        return
    write(f"repaired; copies of the damaged files are in {printable(mended.quarantine)}")
    for damage in mended.health.damages:
        if not damage.is_empty:
            offsets = f"{damage.first}..{damage.last}"
            write(f"lost: offsets {offsets}; a route that had not passed them halts there until")
            write(f"  transporter ack {printable(target)} ROUTE {offsets} --reason '…'")
    for route, _ in mended.health.routes:
        write(f"route {printable(route)} starts again at the oldest entry of the log")
    for route, offset in mended.parked_lost:
        write(f"route {printable(route)}: parked entry {offset} is lost, here and in the log")


def _write_health(health: OffsetLogHealth) -> None:
    for first, last in health.lost:
        write(f"offsets {first}..{last} were lost before; an earlier repair recorded that")
    if health.is_sound:
        segments = "1 segment" if health.segments == 1 else f"{health.segments} segments"
        write(f"{segments}, whole through offset {health.through}")
        return
    rows = [_damage_row("", damage) for damage in health.damages]
    rows += [_damage_row(route, damage) for route, damage in (*health.routes, *health.parked)]
    write_table(("file", "byte", "route", "lost offsets", "problem"), rows)
    write()


def _damage_row(route: str, damage: Damage) -> tuple[object, ...]:
    lost = "none" if damage.is_empty else f"{damage.first}..{damage.last}"
    return damage.file, damage.byte, route, lost, damage.problem


def _health_json(health: OffsetLogHealth) -> dict[str, Any]:
    routes = [*health.routes, *health.parked]
    return {
        "sound": health.is_sound,
        "segments": health.segments,
        "through": health.through,
        "damages": [
            *(_damage_json(None, damage) for damage in health.damages),
            *(_damage_json(route, damage) for route, damage in routes),
        ],
        "declared_lost": [list(each) for each in health.lost],
    }


def _damage_json(route: str | None, damage: Damage) -> dict[str, Any]:
    return {
        "file": damage.file,
        "byte": damage.byte,
        "route": route,
        "problem": damage.problem,
        "lost": None if damage.is_empty else [damage.first, damage.last],
    }


@contextmanager
def _progress(directory: Path) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal while the log is read."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - only for a bar on a terminal
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn  # noqa: PLC0415

    from transporter.log.inspection import segments_size  # noqa: PLC0415

    columns = ("verifying", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("verify", total=segments_size(directory))
        yield lambda size: bar.advance(task, size)
