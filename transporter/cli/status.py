"""``transporter status``: how everything is, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transporter.cli.acting import act
from transporter.cli.output import printable, table, write, write_json
from transporter.cli.target import AsJson, Target  # noqa: TC001 - Typer reads the annotations at run time
from transporter.control.requests import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COLUMNS = ("", "state", "watermark", "lag", "parked", "doing")


def status(target: Target, *, as_json: AsJson = False) -> None:
    """Show each reader and route: its state, how far it has come, what it waits for.

    Asks the running engine; without one, tells what the disk says.

    Example: transporter status pipeline.yaml
    """
    found = act(target, Status())
    if as_json:
        write_json(found)
        return
    write(headline(found))
    table(COLUMNS, rows(found))
    for line in problems(found):
        write(line)


def headline(found: dict[str, Any]) -> str:
    """Return what there is to say of the log and its engine."""
    silent = f"engine {found['pid']} does not answer" if found["pid"] else "no engine runs"
    engine = f"engine {found['pid']} runs" if found["running"] else silent
    if found["running"] and not found["spark"]:
        engine += ", Spark is starting"
    size = f"{found['size'] / (1 << 20):,.1f} MiB"
    place = printable(found["directory"])
    return f"{engine} · log {place} · last offset {found['last']:,} · {size}"


def rows(found: dict[str, Any]) -> Iterator[tuple[object, ...]]:
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
            doing(route),
        )


def source_lag(measured: Mapping[Any, float]) -> str:
    """Return what is known to wait at a reader's source: messages, and for how long."""
    backlog, seconds = measured.get("backlog_messages"), measured.get("lag_seconds")
    if backlog is None:
        return ""
    return f"{backlog:,.0f} ({about(seconds)})" if seconds and backlog else f"{backlog:,.0f}"


def doing(route: dict[str, Any]) -> str:
    """Return what an operator has asked of a route, and what it waits for."""
    parts = [] if route.get("waiting") is None else [patience(**route["waiting"])]
    if limited := route.get("limited"):
        parts.append(held(limited))
    if (replay := route["replay"]) is not None:
        only = f" of {replay['namespace']}" if replay["namespace"] else ""
        parts.append(f"replays {replay['next']:,}..{replay['last']:,}{only}")
    if route["retries"]:
        parts.append(f"{route['retries']:,} retries asked for")
    if route["step"] is not None and route["step"] >= route["next"]:
        parts.append(f"steps to {route['step']:,}")
    if route["paused"] and route["state"] != "paused":
        parts.append("paused")
    return ", ".join(parts)


def held(limited: float) -> str:
    """Return what a route waits for that may deliver *limited* entries a second."""
    units = (("s", 1), ("m", 60), ("h", 3600))
    rate = min((f"{limited * seconds:.6g}/{unit}" for unit, seconds in units), key=len)
    return f"held to {rate} by max_rate"


def patience(since: float, left: float) -> str:
    """Return for how many seconds a route has failed, and in how many it tries again."""
    upcoming = f"next try in {about(left)}" if left else "tries now"
    return f"failing for {about(since)}, {upcoming}"


def about(seconds: float) -> str:
    """Return *seconds* in the largest unit of which there are two."""
    for unit, width in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * width:
            return f"{seconds / width:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"


def problems(found: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each problem."""
    for each in (*found["readers"], *found["routes"]):
        if each.get("problem"):
            yield printable(f"{each['name']}: {each['problem']}")
