"""Command ``transporter shell``: PySpark with the log as a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.entry_output import note
from transporter.cli.entry_selection import From, NamespaceFilter, To, inspect_log
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import ignore_closed_stdout, printable
from transporter.cli.spark_process import spark_environment
from transporter.cli.table_output import TableOptions, parse_pairs, table_options, write_rows
from transporter.errors import ActionRefused, HostFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.log.inspection import LogInfo

_MODULE: Final = "transporter.spark.shell"
_REQUEST: Final = "TRANSPORTER_SHELL"
_NOISE: Final = 2000
"""Characters of Spark's own output in the error if it does not start."""


def shell(  # noqa: PLR0913 - one argument an option
    target: Target,
    *,
    sql: Annotated[bool, typer.Option("--sql/--python", help="Language of the shell.")] = False,
    statement: Annotated[
        str | None,
        typer.Option(
            "--execute", "-e", metavar="SQL", help="Run one SQL statement and print its result."
        ),
    ] = None,
    start: From = None,
    end: To = None,
    namespace: NamespaceFilter = "",
    spark_conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Spark setting; repeatable.")
    ] = None,
    option: TableOptions = None,
    as_json: AsJson = False,
) -> int:
    """Open a Spark shell with the log as a table.

    The table is `log`. The shell works with and without a running engine.

    Examples:
        transporter shell pipeline.yaml
        transporter shell pipeline.yaml -e "SELECT count(*) FROM log"
    """
    if as_json and statement is None:
        raise typer.BadParameter("--json requires --execute")
    found = inspect_log(log_directory(target))
    options, _ = table_options(found.directory, start, end, namespace, option)
    request = {
        "directory": str(found.directory),
        "kind": "sql" if sql else "python",
        "options": options,
        "conf": parse_pairs("--spark-conf", spark_conf),
        "about": _description(found),
    }
    if statement is None:
        return _open_shell(request)
    return _execute({**request, "kind": "execute", "statement": statement}, as_json=as_json)


def _description(found: LogInfo) -> str:
    reach = (
        f"offsets {found.first}..{found.confirmed}" if found.confirmed >= found.first else "empty"
    )
    return f"{printable(found.directory)}: {reach}"


def _environment(request: dict[str, Any]) -> dict[str, str]:
    return {**spark_environment(), _REQUEST: json.dumps(request)}


def _open_shell(request: dict[str, Any]) -> int:
    environment = _environment(request)
    sys.stdout.flush()
    # Spark's shell replaces this process, so it owns the terminal, signals and exit code.
    os.execve(sys.executable, [sys.executable, "-m", _MODULE], environment)  # noqa: S606 - no shell


def _execute(request: dict[str, Any], *, as_json: bool) -> int:
    note("starting Spark …")
    with ignore_closed_stdout(), _run_statement(_environment(request)) as (answers, noise):
        columns = _next_answer(answers, noise)["columns"]
        return write_rows(columns, _read_rows(answers, noise), as_json=as_json)
    return 0


@contextmanager
def _run_statement(environment: dict[str, str]) -> Iterator[tuple[IO[str], IO[str]]]:
    """Run the statement. Yield its answers and Spark's other output."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as noise,
        subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=environment,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            yield process.stdout, noise
        except BaseException:
            process.terminate()
            raise


def _read_rows(answers: IO[str], noise: IO[str]) -> Iterator[list[Any]]:
    while "row" in (answer := _next_answer(answers, noise)):
        yield answer["row"]


def _next_answer(answers: IO[str], noise: IO[str]) -> dict[str, Any]:
    """Read the next answer. The last one is an error or marks the end."""
    line = answers.readline()
    if not line:
        noise.seek(0)
        output = noise.read()[-_NOISE:].strip()
        raise HostFailed(f"Spark ended without an answer; its output:\n{output}")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise ActionRefused(answer["error"])
    return answer
