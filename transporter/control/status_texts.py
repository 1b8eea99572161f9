"""Texts about the status of readers and routes, for commands and the console. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def size_text(size: int) -> str:
    """Return a log's *size* in bytes."""
    return f"{size / (1 << 20):,.1f} MiB"


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
    if route["state"] == "starting":
        parts.append("waits for its worker")
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
