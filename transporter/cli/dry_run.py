"""``transporter dry-run``: what routes would make of entries that are in the log."""

from __future__ import annotations

import json
import os
from pathlib import Path  # noqa: TC003 - Typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.log_entries import message_json, note, shown
from transporter.cli.log_range import (
    From,
    KeyFilter,
    NamespaceFilter,
    To,
    choose,
    look,
    reading,
    wanted_of,
)
from transporter.cli.output import printable, table, write, write_json
from transporter.cli.spark_process import trial_spark
from transporter.cli.target import AsJson, log_directory
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from transporter.log.inspect import LogInfo
    from transporter.message import Message
    from transporter.trial.routes import TrialRoute
    from transporter.trial.tried import Row, Tried

    Result = list[Tried] | EnvironmentFault

LAST = 20
MOST = 10_000
"""Entries that are looked at in one go: all of them are held (Invariant 17)."""


def dry_run(  # noqa: PLR0913 - one argument an option
    pipeline: Annotated[Path, typer.Argument(help="The pipeline file.", metavar="PIPELINE")],
    routes: Annotated[
        list[str] | None, typer.Argument(help="Only these routes.", metavar="[ROUTE]...")
    ] = None,
    *,
    last: Annotated[
        int, typer.Option("--last", help="The last N entries.", metavar="N", min=1, max=MOST)
    ] = LAST,
    start: From = None,
    end: To = None,
    namespace: NamespaceFilter = "",
    key: KeyFilter = None,
    as_json: AsJson = False,
) -> int:
    """Show what routes would deliver of entries in the log, beside what went in; send nothing.

    Works beside a running engine, with the pipeline file as it is now, so a change
    can be tried before it is loaded. Spark is started only for `sql` steps. Exit code 1 when an
    entry would fail, 3 when a route cannot be run.

    Example: transporter dry-run pipeline.yaml events --last 5
    """
    from transporter.trial.routes import chosen, trial_routes  # noqa: PLC0415 - imports pyarrow

    with trial_spark() as spark:
        known = trial_routes(pipeline, os.environ, spark)
        wanted = [chosen(known, name, str(pipeline)) for name in routes or known]
        found = look(log_directory(pipeline))
        entries = _entries(found, last, start, end, namespace, key)
        results = {route.name: _result(route, entries) for route in wanted}
    not_run = {name: each for name, each in results.items() if isinstance(each, EnvironmentFault)}
    if as_json:
        values = {name: _result_json(each) for name, each in results.items()}
        write_json(values, ok=not not_run)
    else:
        for name, result in results.items():
            if not isinstance(result, EnvironmentFault):
                _show(name, result)
        for name, error in not_run.items():
            note(f"error: route {name} was not run: {error}")
    return _exit_code(results.values())


def _result(route: TrialRoute, entries: pa.RecordBatch) -> Result:
    """Return what becomes of *entries*, or why *route* cannot be run here."""
    try:
        return route.run(entries)
    except EnvironmentFault as error:
        return error


def _exit_code(results: Iterable[Result]) -> int:
    codes = {
        result.exit_code
        if isinstance(result, EnvironmentFault)
        else int(any(each.error for each in result))
        for result in results
    }
    return min(codes - {0}, default=0)


def _entries(
    found: LogInfo, last: int, start: str | None, end: str | None, namespace: str, key: str | None
) -> pa.RecordBatch:
    """Return the entries that are meant, at most *last* of them."""
    from transporter.message import concat  # noqa: PLC0415 - imports pyarrow

    picked = choose(found, found.last, None, start, end, wanted_of(namespace, key))
    with reading(found, picked, last) as batches:
        return concat(batches)


def _show(name: str, tried: list[Tried]) -> None:
    outputs = sum(len(each.outputs) for each in tried)
    failed = sum(each.error is not None for each in tried)
    skipped = sum(not (each.outputs or each.error) for each in tried)
    write(
        printable(
            f"route {name}: of {len(tried)} entries {outputs} messages,"
            f" {skipped} skipped, {failed} would fail"
        )
    )
    table(
        ("offset", "namespace", "key", "in", "out"), [row for each in tried for row in _rows(each)]
    )
    write()


def _rows(tried: Tried) -> list[tuple[str, ...]]:
    message = tried.entry.message
    came = (
        str(tried.entry.offset),
        message.namespace,
        shown(message.key),
        shown(message.data),
    )
    first, *others = _outs(tried)
    return [(*came, first), *(("", "", "", "", each) for each in others)]


def _outs(tried: Tried) -> list[str]:
    """Return what became of an entry, a text for each message."""
    if tried.error is not None:
        return [f"fails: {tried.error}"]
    if not tried.outputs:
        return ["skipped"]
    return [_out(tried.entry.message, each) for each in tried.outputs]


def _out(before: Message, after: Message | Row) -> str:
    """Return the data that came out, behind the other fields that have changed."""
    from transporter.trial.tried import Row  # noqa: PLC0415 - imports pyarrow

    if isinstance(after, Row):
        return shown(json.dumps(after.columns, ensure_ascii=False).encode())
    if after == before:
        return "the same"
    names = ("namespace", "op", "key", "content_type", "headers", "timestamp", "source_id", "phase")
    old, new = message_json(before), message_json(after)
    changed = [f"{name}={new[name]}" for name in names if new[name] != old[name]]
    return " ".join([*changed, shown(after.data)])


def _result_json(result: Result) -> Any:  # noqa: ANN401 - a value that JSON has
    if isinstance(result, EnvironmentFault):
        return {"unknown": str(result)}
    return [_as_json(each) for each in result]


def _as_json(tried: Tried) -> dict[str, Any]:
    return {
        "offset": tried.entry.offset,
        "input": message_json(tried.entry.message),
        "output": [_output_json(each) for each in tried.outputs],
        "error": tried.error,
    }


def _output_json(output: Message | Row) -> dict[str, Any]:
    from transporter.trial.tried import Row  # noqa: PLC0415 - imports pyarrow

    return {"row": output.columns} if isinstance(output, Row) else message_json(output)
