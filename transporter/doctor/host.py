"""Checks of a host: Python and its packages, limits of processes, memory, network and clock."""

from __future__ import annotations

import platform
import resource
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution, version
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier

from transporter.adaptor import Finding
from transporter.distribution import NAME, other_distribution_problem
from transporter.log.clocks import uptime
from transporter.process_limits import (
    CGROUP,
    MEMINFO,
    MOST_DESCRIPTORS,
    available_memory,
    read_number,
)
from transporter.units import display_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FEW_DESCRIPTORS: Final = 4096
_TOO_FEW_DESCRIPTORS: Final = 256
_FEW_PROCESSES: Final = 1024
"""A JVM alone has some hundred threads, which count."""
_SECONDS: Final = 5.0
_RELEASED: Final = datetime(2026, 11, 28, tzinfo=UTC).timestamp()
"""The date of this version. No right clock is before it."""
_JUMP: Final = 0.5
"""Seconds. A synchronised clock is slewed by less in a minute."""


def problem(text: str) -> Finding:
    """Return a finding that keeps an engine from working."""
    return Finding(text, "problem")


def check_python() -> Iterator[Finding]:
    """Yield a finding about the Python that runs this."""
    yield Finding(f"{platform.python_implementation()} {platform.python_version()}")


def check_packages() -> Iterator[Finding]:
    """Yield findings about the installed packages: those required, and a foreign one."""
    if text := other_distribution_problem():
        yield problem(text)
    try:
        lines = distribution(NAME).requires or []
    except PackageNotFoundError:
        yield problem(f"{NAME} is not installed in this Python; run: pip install {NAME}")
        return
    wrong = [text for line in lines if (text := _requirement_problem(Requirement(line)))]
    for text in wrong:
        yield problem(f"{text}; run: pip install --upgrade {NAME}")
    if not wrong:
        yield Finding(f"{NAME} {version(NAME)} with all that it requires")


def _requirement_problem(wanted: Requirement) -> str:
    """Return the reason why an unconditional requirement is not met, or an empty text."""
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return ""
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return f"{wanted.name} is not installed"
    with suppress(InvalidSpecifier):
        if wanted.specifier.contains(found, prereleases=True):
            return ""
    return f"{wanted.name} {found} is installed, but {wanted.specifier} is needed"


def check_limits(cgroup: Path = CGROUP) -> Iterator[Finding]:
    """Yield findings about the descriptors and processes that this user may have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    advice = "raise the hard limit (LimitNOFILE=65536 in a unit, 'ulimit -Hn 65536')"
    if files < _TOO_FEW_DESCRIPTORS:
        yield problem(f"{files} open files are too few for an engine and Spark: {advice}")
    elif files < _FEW_DESCRIPTORS:
        yield Finding(f"{files} open files suffice for few routes only: {advice}", "warning")
    else:
        yield Finding(f"{files} open files")
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    counts = [] if most == resource.RLIM_INFINITY else [most]
    if (pids := read_number(cgroup / "pids.max")) is not None:
        counts.append(pids)
    if not counts:
        yield Finding("no limit of processes and threads")
    elif min(counts) < _FEW_PROCESSES:
        yield Finding(
            f"{min(counts)} processes and threads are few for Java and the workers: raise the "
            "limit (TasksMax= in a unit, 'ulimit -u', --pids-limit of a container)",
            "warning",
        )
    else:
        yield Finding(f"{min(counts)} processes and threads")


def check_memory(need: int, meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> Iterator[Finding]:
    """Yield a finding about the memory that is available, of which an engine has *need* bytes."""
    free = available_memory(meminfo, cgroup)
    if free is None:
        yield Finding("the available memory is not known on this system", "warning")
        return
    text = f"{display_size(free)} are available, an engine takes about {display_size(need)}"
    if free < need:
        yield Finding(
            f"{text}: give the host or the container more, or run fewer routes; an engine that "
            "runs already is not counted as available",
            "warning",
        )
    else:
        yield Finding(text)


def check_network(*, local: bool) -> Iterator[Finding]:
    """Yield findings about loopback, and about the names by which Spark finds this host."""
    try:
        _call_loopback()
    except OSError as error:
        yield problem(
            f"a connection to 127.0.0.1 failed ({error.strerror or error}): Spark needs loopback; "
            "bring up the interface lo, and allow local connections"
        )
    else:
        yield Finding("a port of 127.0.0.1 takes connections")
    yield _localhost_finding()
    if not local:
        yield _host_name_finding()


def _call_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), _SECONDS).close()


def _localhost_finding() -> Finding:
    advice = "add '127.0.0.1 localhost' to /etc/hosts"
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo("localhost", None)}
    except OSError as error:
        return problem(f"localhost has no address ({error.strerror}), and Spark uses it: {advice}")
    if foreign := sorted(
        each for each in found if not ip_address(each.partition("%")[0]).is_loopback
    ):
        return problem(f"localhost is {', '.join(foreign)}, which is not loopback: {advice}")
    return Finding(f"localhost is {', '.join(sorted(found))}")


def _host_name_finding() -> Finding:
    name = socket.gethostname()
    advice = "add it to /etc/hosts or DNS, or set spark.advertise"
    try:
        found = sorted({str(each[4][0]) for each in socket.getaddrinfo(name, None)})
    except OSError as error:
        return problem(f"the host's name {name} has no address ({error.strerror}): {advice}")
    if all(ip_address(each.partition("%")[0]).is_loopback for each in found):
        text = f"{name} is {', '.join(found)}, where executors on other hosts find nothing"
        return Finding(f"{text}: {advice}", "warning")
    return Finding(f"{name} is {', '.join(found)}")


class ClockReading(NamedTuple):
    """Wall clock and uptime at one moment, in seconds."""

    wall: float
    uptime: float


def read_clocks() -> ClockReading:
    """Read both clocks."""
    return ClockReading(time.time(), uptime())


def check_clock(since: ClockReading, now: ClockReading) -> Iterator[Finding]:
    """Yield findings about the wall clock, from two readings some time apart."""
    date = datetime.fromtimestamp(now.wall, UTC).strftime("%Y-%m-%d %H:%M UTC")
    passed = now.uptime - since.uptime
    moved = now.wall - since.wall - passed
    if now.wall < _RELEASED:
        yield Finding(
            f"it is {date}, before this version was made: set the clock, and synchronise it "
            "(chrony, systemd-timesyncd)",
            "problem",
        )
    elif abs(moved) > _JUMP:
        yield Finding(
            f"it moved by {moved:+.1f} s against the uptime within {passed:.1f} s: entries get "
            "such log times; let chrony or systemd-timesyncd slew it instead of setting it",
            "warning",
        )
    else:
        yield Finding(f"{date}, steady against the uptime over {passed:.1f} s")
