"""Command ``transporter check``: validation and summary of a pipeline file."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - Typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson  # noqa: TC001 - Typer reads the annotations
from transporter.cli.output import (
    align_columns,
    count_text,
    others_print_to_stderr,
    printable,
    text_lines,
    write,
    write_json,
)
from transporter.cli.pipeline_file import load_pipeline_with_lines
from transporter.errors import ConfigError, EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Collection

    from transporter.dry_run.connection_checks import ProbeResult
    from transporter.pipeline.config import Pipeline, RouteConfig
    from transporter.pipeline.yaml_document import Document


def check(
    pipeline: Annotated[Path, typer.Argument(help="Pipeline file.", metavar="PIPELINE")],
    *,
    connect: Annotated[
        bool,
        typer.Option("--connect", help="Also check every source and sink: rights, tables, topics."),
    ] = False,
    without_env: Annotated[
        bool,
        typer.Option(
            "--without-env",
            help="Accept missing variables and secret files, and list them; for CI.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Validate a pipeline file.

    It checks every key, every adaptor's settings, every SQL query, and whether the routes
    fit those with offsets in the log, if it is on this host. It connects to
    nothing, but with --connect to every source and sink, where it changes nothing. With
    --without-env variables, secret files and paths need not exist.

    Examples:
        transporter check pipeline.yaml --connect
        transporter check pipeline.yaml --without-env --json
    """
    from transporter.distribution import refuse_other_distribution  # noqa: PLC0415 - `--help` does without

    refuse_other_distribution()
    if without_env:
        if connect:
            raise ConfigError("--connect needs all variables and files; leave out --without-env")
        return _check_without_env(pipeline, as_json=as_json)
    from transporter.cli.check_sql import sql_problems  # noqa: PLC0415 - heavy
    from transporter.observe.span_export import refuse_without_extra  # noqa: PLC0415 - the same
    from transporter.pipeline.path_checks import path_problems  # noqa: PLC0415 - the same
    from transporter.pipeline.problems import InvalidPipeline  # noqa: PLC0415 - the same

    found, document = load_pipeline_with_lines(pipeline)
    in_sql = sql_problems(found.spark, document, on_start=_note_parsing)
    if problems := [*path_problems(found, document), *_route_problems(found, document), *in_sql]:
        raise InvalidPipeline(*sorted(problems, key=lambda problem: problem.line))
    refuse_without_extra(found.observe.tracing)
    _warn_of_open_secrets(found, document)
    if not as_json:
        _write_summary(found, document.defaulted)
    with others_print_to_stderr(when=as_json):
        results = _probe_connections(found, quiet=as_json) if connect else []
    wrong = any(each.has_problem for each in results)
    if as_json:
        summary = _summary(found) | {"defaulted": sorted(document.defaulted)}
        if connect:
            summary["connections"] = [asdict(each) for each in results]
        write_json(summary, ok=not wrong)
    elif connect:
        write(_verdict(results))
    return EnvironmentFault.exit_code if wrong else 0


def _route_problems(pipeline: Pipeline, document: Document) -> list[ConfigError]:
    """Return the problems of the routes beside those of the log, if there is one to read."""
    from transporter.offsets.offset_log import declared_routes  # noqa: PLC0415 - heavy
    from transporter.pipeline.route_changes import changed_routes_problems  # noqa: PLC0415 - the same

    try:
        declared = declared_routes(pipeline.log.dir)
    except OSError:
        return []  # It belongs to another user, or is not a directory.
    return [
        document.problem(place, text) for place, text in changed_routes_problems(pipeline, declared)
    ]


def _note_parsing() -> None:
    """Explain the wait for Spark's parser to a person at a terminal."""
    if sys.stderr.isatty():
        note("parsing sql steps by Spark …")


def _check_without_env(file: Path, *, as_json: bool) -> int:
    from transporter.pipeline.config import load_without_environment  # noqa: PLC0415 - heavy

    with others_print_to_stderr():
        found, unchecked = load_without_environment(file, os.environ)
    if as_json:
        summary = {"file": file.absolute()} if found is None else _summary(found)
        write_json(summary | {"unchecked": [each._asdict() for each in unchecked]})
        return 0
    if found is not None:
        _write_summary(found)
    else:
        write(printable(f"{file} has no errors in the parts that were checked; not checked:"))
        for each in unchecked:
            write(printable(f"  {file}:{each.line}: {each.key}: {each.reason}"))
        write("  whether these settings are compatible with the others around them")
    write("not checked: whether the paths can be used, which depends on the host")
    return 0


def _probe_connections(pipeline: Pipeline, *, quiet: bool) -> list[ProbeResult]:
    """Probe every source and sink of *pipeline* and Spark's master; print unless *quiet*."""
    from transporter.dry_run.connection_checks import ProbeResult, probe_all  # noqa: PLC0415 - the same
    from transporter.embed import cache_directory  # noqa: PLC0415 - heavy
    from transporter.spark.preflight import probe_spark  # noqa: PLC0415 - the same

    spark = pipeline.spark
    host = ProbeResult("spark", spark.master, "")
    host.findings = list(probe_spark(spark.master, cache_directory(), local=spark.local))
    found = []
    for result in (*probe_all(pipeline), host):
        found.append(result)
        if quiet:
            continue
        adaptor = f" ({result.adaptor})" if result.adaptor else ""
        write(printable(f"{result.kind} {result.name}{adaptor}"))
        for each in result.findings:
            mark = "" if each.level == "fine" else f"{each.level}: "
            for line in text_lines(mark + each.text):
                write(f"  {line}")
    return found


def _verdict(results: Collection[ProbeResult]) -> str:
    levels = [each.level for result in results for each in result.findings]
    problems, warnings = levels.count("problem"), levels.count("warning")
    return (
        f"connections: {count_text(problems, 'problem', 'problems')}, "
        f"{count_text(warnings, 'warning', 'warnings')}"
    )


def _warn_of_open_secrets(pipeline: Pipeline, document: Document) -> None:
    """Warn of secret files that every user may read. Outside of containers that is a mistake."""
    from transporter.pipeline.secret_files import (  # noqa: PLC0415 - as above
        is_readable_by_all,
        secret_files,
    )

    for file in secret_files(pipeline, document):
        if is_readable_by_all(file):
            note(f"warning: every user of this host may read {file}; run 'chmod 600 {file}'")


def _summary(pipeline: Pipeline) -> dict[str, Any]:
    """Return the parts of *pipeline*, without any adaptor's settings."""
    return {
        "name": pipeline.name,
        "file": pipeline.file,
        "log": pipeline.log.model_dump(),
        "readers": [{"name": each.name, "adaptor": each.adaptor} for each in pipeline.readers],
        "routes": [
            each.model_dump(exclude={"writer", "steps", "start"})
            | {
                "start": each.start._asdict(),
                "steps": [step.name for step in each.steps],
                "writer": each.writer.adaptor,
            }
            for each in pipeline.routes
        ],
        "spark": {"master": pipeline.spark.master},
        "commit_interval": pipeline.commit_interval,
        "shutdown_timeout": pipeline.shutdown_timeout,
    }


def _write_summary(pipeline: Pipeline, defaulted: Collection[str] = ()) -> None:
    from transporter.pipeline.retention_config import history_text  # noqa: PLC0415 - imports pydantic
    from transporter.units import format_size  # noqa: PLC0415 - the same

    log = pipeline.log
    cut = f"(segments of {format_size(log.segment_bytes)}, {log.compression})"
    write(printable(f"{pipeline.name}: the file is valid: {pipeline.file}"))
    rows = [
        *(["reader", each.name, each.adaptor] for each in pipeline.readers),
        ["log", "", f"{log.dir} {cut}"],
        ["history", "", history_text(log.compaction, log.retention, log.max_bytes)],
        *(["route", each.name, _route_path(each)] for each in pipeline.routes),
        ["spark", "", pipeline.spark.master],
    ]
    if defaulted:
        rows.append(["unset", "", f"{', '.join(sorted(defaulted))}: the file's default counts"])
    for line in align_columns([[printable(cell) for cell in row] for row in rows]):
        write(f"  {line}")


def _route_path(route: RouteConfig) -> str:
    steps = [step.name for step in route.steps]
    way = " -> ".join([route.namespace, *steps, route.writer.adaptor])
    return f"{way} (after {route.after})" if route.after else way
