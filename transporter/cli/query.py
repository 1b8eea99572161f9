"""Command ``transporter query``: SQL over the log without Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from transporter.cli.entry_selection import From, NamespaceFilter, To, inspect_log
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import ignore_closed_stdout
from transporter.cli.table_output import TableOptions, table_options, write_rows
from transporter.errors import ConfigError, EnvironmentFault


def query(
    target: Target,
    statement: Annotated[
        str, typer.Argument(help="One SQL statement over the table log.", metavar="SQL")
    ],
    *,
    start: From = None,
    end: To = None,
    namespace: NamespaceFilter = "",
    option: TableOptions = None,
    as_json: AsJson = False,
) -> int:
    """Query the log with SQL, by DuckDB.

    It works with and without a running engine, and needs no Java. The statement reads
    the table `log` and can access no file and no network.

    Example:
        transporter query pipeline.yaml "SELECT count(*) FROM log"
    """
    directory = inspect_log(log_directory(target)).directory
    _, options = table_options(directory, start, end, namespace, option)
    if options.push_down:
        raise ConfigError(
            "pushDown is an option of Spark; here a condition on offset is always pushed down"
        )
    try:
        from transporter.table.query import run_query  # noqa: PLC0415 - an extra, and pyarrow
    except ModuleNotFoundError as error:
        if error.name != "duckdb":
            raise
        raise EnvironmentFault(
            "query needs DuckDB, which is not installed: pip install 'transporter-engine[query]'; "
            "transporter shell -e runs Spark's SQL instead"
        ) from error
    with ignore_closed_stdout(), run_query(statement, options) as answer:
        return write_rows(answer.columns, answer.rows(), as_json=as_json)
    return 0
