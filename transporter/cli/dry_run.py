"""Command ``transporter dry-run``: a preview of deliveries from the log."""

from __future__ import annotations

import json
import os
from pathlib import Path  # noqa: TC003 - Typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.entry_output import display_text, note
from transporter.cli.entry_selection import (
    From,
    KeyFilter,
    NamespaceFilter,
    To,
    inspect_log,
    open_selection,
    parse_filters,
    select_entries,
)
from transporter.cli.log_target import AsJson, log_directory
from transporter.cli.output import (
    count_text,
    others_print_to_stderr,
    printable,
    problem_text,
    value_text,
    write,
    write_json,
    write_table,
)
from transporter.cli.spark_process import trial_spark
from transporter.control.entry_values import message_json
from transporter.errors import ConfigError, EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from transporter.dry_run.outcome import DryRunResult, OutputRow
    from transporter.dry_run.routes import DryRunRoute
    from transporter.log.inspection import LogInfo
    from transporter.message import Message

    Result = list[DryRunResult] | EnvironmentFault

LAST = 20
MOST = 10_000
"""Maximum number of entries, because all of them are in memory (Invariant 17)."""
_MOST_BYTES: Final = 1 << 28
"""Their maximum size together."""


def dry_run(  # noqa: PLR0913 - one argument an option
    pipeline: Annotated[Path, typer.Argument(help="Pipeline file.", metavar="PIPELINE")],
    routes: Annotated[
        list[str] | None, typer.Argument(help="Routes; all by default.", metavar="ROUTE")
    ] = None,
    *,
    last: Annotated[
        int, typer.Option("--last", help="Only the last N entries.", metavar="N", min=1, max=MOST)
    ] = LAST,
    start: From = None,
    end: To = None,
    namespace: NamespaceFilter = "",
    key: KeyFilter = None,
    as_json: AsJson = False,
) -> int:
    """Preview deliveries without sending them.

    It shows each entry of the log beside the messages that a route would deliver. It
    works beside a running engine and uses the pipeline file as it is now, so you can
    try a change before you load it. Spark starts only for `sql` steps. The exit code is
    1 when an entry would fail, and 3 when a route cannot be run.

    Example:
        transporter dry-run pipeline.yaml events --last 5
    """
    from transporter.dry_run.routes import select_route, trial_routes  # noqa: PLC0415 - imports pyarrow

    with others_print_to_stderr(), trial_spark() as spark:
        known = trial_routes(pipeline, os.environ, spark)
        wanted = [select_route(known, name, str(pipeline)) for name in routes or known]
        found = inspect_log(log_directory(pipeline))
        entries = _read_entries(found, last, start, end, namespace, key)
        results = {route.name: _run_route(route, entries) for route in wanted}
    not_run = {name: each for name, each in results.items() if isinstance(each, EnvironmentFault)}
    code = _exit_code(results.values())
    if as_json:
        values = {name: _result_json(each) for name, each in results.items()}
        write_json(values, ok=code == 0)
    else:
        for name, result in results.items():
            if not isinstance(result, EnvironmentFault):
                _write_route(name, result)
        for name, error in not_run.items():
            note(f"error: route {name} was not run: {error}")
    return code


def _run_route(route: DryRunRoute, entries: pa.RecordBatch) -> Result:
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


def _read_entries(
    found: LogInfo, last: int, start: str | None, end: str | None, namespace: str, key: str | None
) -> pa.RecordBatch:
    """Return the entries that the options select, at most *last* of them."""
    from transporter.message import concat  # noqa: PLC0415 - imports pyarrow

    picked = select_entries(found, found.last, None, start, end, parse_filters(namespace, key))
    with open_selection(found, picked, last) as batches:
        return concat(_refuse_large(batches))


def _refuse_large(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield *batches*, as long as they are not too large together for memory (Invariant 17)."""
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > _MOST_BYTES:
            raise ConfigError(
                f"the selected entries take more than {_MOST_BYTES >> 20} MiB; select fewer with "
                "--last, --from and --to"
            )
        yield batch


def _write_route(name: str, results: list[DryRunResult]) -> None:
    outputs = sum(len(each.outputs) for each in results)
    failed = sum(each.error is not None for each in results)
    skipped = sum(not (each.outputs or each.error) for each in results)
    write(
        printable(
            f"route {name}: {count_text(len(results), 'entry', 'entries')} would give "
            f"{count_text(outputs, 'message', 'messages')};"
            f" {skipped} would be skipped, {failed} would fail"
        )
    )
    write_table(
        ("offset", "namespace", "key", "in", "out"),
        [row for each in results for row in _entry_rows(each)],
    )
    write()


def _entry_rows(result: DryRunResult) -> list[tuple[str, ...]]:
    message = result.entry.message
    came = (
        str(result.entry.offset),
        message.namespace,
        display_text(message.key),
        display_text(message.data),
    )
    first, *others = _output_cells(result)
    return [(*came, first), *(("", "", "", "", each) for each in others)]


def _output_cells(result: DryRunResult) -> list[str]:
    """Return the outcome of an entry, one text for each message."""
    if result.error is not None:
        return [f"fails: {problem_text(result.error)}"]
    if not result.outputs:
        return ["skipped"]
    return [_output_cell(result.entry.message, each) for each in result.outputs]


def _output_cell(before: Message, after: Message | OutputRow) -> str:
    """Return the data of an output, behind the other fields that have changed."""
    from transporter.dry_run.outcome import OutputRow  # noqa: PLC0415 - imports pyarrow

    if isinstance(after, OutputRow):
        return display_text(json.dumps(after.columns, ensure_ascii=False).encode())
    if after == before:
        return "the same"
    names = ("namespace", "op", "key", "content_type", "headers", "timestamp", "source_id", "phase")
    old, new = message_json(before), message_json(after)
    changed = [f"{name}={value_text(new[name])}" for name in names if new[name] != old[name]]
    return " ".join([*changed, display_text(after.data)])


def _result_json(result: Result) -> Any:  # noqa: ANN401 - a JSON value
    if isinstance(result, EnvironmentFault):
        return {"unknown": str(result)}
    return [_entry_json(each) for each in result]


def _entry_json(result: DryRunResult) -> dict[str, Any]:
    return {
        "offset": result.entry.offset,
        "input": message_json(result.entry.message),
        "output": [_output_json(each) for each in result.outputs],
        "error": result.error,
    }


def _output_json(output: Message | OutputRow) -> dict[str, Any]:
    from transporter.dry_run.outcome import OutputRow  # noqa: PLC0415 - imports pyarrow

    return {"row": output.columns} if isinstance(output, OutputRow) else message_json(output)
