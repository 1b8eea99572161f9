"""Command ``transporter ready``, for the probes of whoever runs an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transporter.cli.action_options import perform_request
from transporter.cli.log_target import AsJson, Target  # noqa: TC001 - Typer reads the annotations at run time
from transporter.cli.output import printable, write, write_json
from transporter.control.requests import Readiness
from transporter.control.status_texts import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def ready(target: Target, *, as_json: AsJson = False) -> int:
    """Show whether the engine is ready.

    The rule is that of /readyz: every reader and route makes progress, or has nothing to
    do. If not, or if the engine is about to end, the exit code is 1, and the reasons are
    printed. A reader or route that an operator has paused is not a reason. Exit code 3 means
    that no engine runs.

    Example:
        transporter ready pipeline.yaml
    """
    found = perform_request(target, Readiness())
    if as_json:
        write_json(found, ok=found["ready"])
    else:
        for line in report_lines(found):
            write(line)
    return 0 if found["ready"] else 1


def report_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report as text: the answer, and a line for each reason and each pause."""
    yield "ready" if found["ready"] else "not ready"
    for reason in found["reasons"]:
        part = f"{reason['kind']} {printable(reason['name'])}".rstrip()
        lasts = "for" if reason["kind"] == "engine" else "no progress for"
        still = f"{lasts} {duration_text(reason['seconds'])}"
        yield f"  {part}: {reason['state']}, {reason['why']}; {still}"
    for name in found["paused"]:
        yield f"  {printable(name)}: paused by an operator"
