"""Command ``transporter status``: the present state of readers and routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transporter.cli.action_options import perform_request
from transporter.cli.log_target import AsJson, Target  # noqa: TC001 - Typer reads the annotations at run time
from transporter.cli.output import printable, problem_text, write, write_json, write_table
from transporter.control.requests import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COLUMNS = ("", "state", "watermark", "lag", "parked", "doing")


def status(target: Target, *, as_json: AsJson = False) -> None:
    """Show the state of each reader and route.

    It includes their progress, and the reason if one waits. The running engine answers,
    or without one the command reads the disk.

    Example:
        transporter status pipeline.yaml
    """
    found = perform_request(target, Status())
    if as_json:
        write_json(found)
        return
    write(headline(found))
    write_table(COLUMNS, status_rows(found))
    for line in problem_lines(found):
        write(line)


def headline(found: dict[str, Any]) -> str:
    """Return a line about the log and its engine."""
    silent = f"engine {found['pid']} does not answer" if found["pid"] else "no engine runs"
    engine = f"engine {found['pid']} runs" if found["running"] else silent
    if found["running"] and not found["spark"]:
        engine += ", Spark is starting"
    size = f"{found['size'] / (1 << 20):,.1f} MiB"
    place = printable(found["directory"])
    return f"{engine} · log {place} · last offset {found['last']:,} · {size}"


def status_rows(found: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each reader and route."""
    for reader in found["readers"]:
        yield (
            f"reader {reader['name']}",
            reader["state"],
            "",
            source_lag(reader.get("measured", {})),
            "",
            f"{reader['logged']:,} logged",
        )
    for route in found["routes"]:
        yield (
            f"route {route['name']}",
            route["state"],
            f"{route['watermark']:,}",
            f"{route['lag']:,}",
            f"{route['parked']:,}",
            activity(route),
        )


def source_lag(measured: Mapping[Any, float]) -> str:
    """Return the measured backlog of a reader's source: messages, and the age of the oldest."""
    backlog, seconds = measured.get("backlog_messages"), measured.get("lag_seconds")
    if backlog is None:
        return ""
    return (
        f"{backlog:,.0f} ({duration_text(seconds)})" if seconds and backlog else f"{backlog:,.0f}"
    )


def activity(route: dict[str, Any]) -> str:
    """Return the operators' requests to a route, and the reason if it waits."""
    parts = [] if route.get("waiting") is None else [retry_text(**route["waiting"])]
    if limited := route.get("limited"):
        parts.append(rate_limit_text(limited))
    if (replay := route["replay"]) is not None:
        only = f" of {replay['namespace']}" if replay["namespace"] else ""
        parts.append(f"replays {replay['next']:,}..{replay['last']:,}{only}")
    if route["retries"]:
        parts.append(f"{route['retries']:,} retries requested")
    if route["step"] is not None and route["step"] >= route["next"]:
        parts.append(f"steps to {route['step']:,}")
    if route["paused"] and route["state"] != "paused":
        parts.append("paused")
    return ", ".join(parts)


def rate_limit_text(limited: float) -> str:
    """Return the state of a route that is limited to *limited* entries per second."""
    units = (("s", 1), ("m", 60), ("h", 3600))
    rate = min((f"{limited * seconds:.6g}/{unit}" for unit, seconds in units), key=len)
    return f"limited to {rate} by max_rate"


def retry_text(since: float, left: float) -> str:
    """Return the time for which a route has failed, and the time until its next retry."""
    upcoming = f"next try in {duration_text(left)}" if left else "tries now"
    return f"failing for {duration_text(since)}, {upcoming}"


def duration_text(seconds: float) -> str:
    """Return *seconds* in the largest unit that fits at least twice."""
    for unit, width in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * width:
            return f"{seconds / width:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"


def problem_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each problem."""
    for each in (*found["readers"], *found["routes"]):
        if each.get("problem"):
            yield problem_text(f"{each['name']}: {each['problem']}")
