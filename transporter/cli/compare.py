"""Command ``transporter compare``: the rows of a sink that are not as expected."""

from __future__ import annotations

import sys
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - Typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.action_options import RouteName, parse_wait
from transporter.cli.app import failure_of
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson  # noqa: TC001 - as above
from transporter.cli.output import (
    count_text,
    others_print_to_stderr,
    printable,
    problem_text,
    write,
    write_json,
)
from transporter.cli.pipeline_file import load_pipeline
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.adaptor import Finding
    from transporter.comparison import ComparedTable, RowDifference, UndecidedRow
    from transporter.dry_run.compared_route import LoggedRoute
    from transporter.pipeline.config import Pipeline

_LIMIT: Final = 100
_DIFFERS: Final = 1
_KINDS: Final = {"missing": "not in the sink", "extra": "only in the sink", "different": "differs"}


class Against(StrEnum):
    """Values of ``--with``."""

    SOURCE = "source"
    LOG = "log"


def compare(  # noqa: PLR0913 - one argument an option
    pipeline: Annotated[Path, typer.Argument(help="Pipeline file.", metavar="PIPELINE")],
    route: RouteName,
    *,
    against: Annotated[
        Against | None,
        typer.Option(
            "--with",
            help="Where the expected rows are; by default the source if steps cannot have changed "
            "its rows, else the log.",
        ),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", help="Only this table of the sink; repeatable.", metavar="NAME"),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", help="End after this number of rows; 0: no limit.", min=0)
    ] = _LIMIT,
    values: Annotated[
        bool, typer.Option("--values", help="Also show the values of columns that differ.")
    ] = False,
    wait: Annotated[
        str,
        typer.Option(
            "--wait",
            help="Maximum time for a running engine to deliver a row that differs.",
            metavar="DURATION",
        ),
    ] = "2m",
    as_json: AsJson = False,
) -> int:
    """Compare a route's sink with its source.

    It names the rows that the sink lacks, those that only the sink has, and the columns
    of rows that differ. With --with log the expected rows are the last ones of each key
    in the log. It works beside a running engine, changes nothing, and needs only the
    right to read. A change that is yet to be delivered is no difference while an engine
    runs. Sinks of the writer postgres can be compared. The exit code is 1 if rows differ,
    and 3 if the comparison is not complete.

    Examples:
        transporter compare replicate.yaml target
        transporter compare replicate.yaml target --table public.orders --values
    """
    from transporter.comparison import CompareOptions  # noqa: PLC0415 - `--help` does without
    from transporter.dry_run.compared_route import LoggedRoute, find_compared  # noqa: PLC0415 - heavy

    patience = parse_wait(wait)
    found = load_pipeline(pipeline)
    config, writer = find_compared(found, route)
    report = _Report(found, limit, quiet=as_json)
    with others_print_to_stderr(when=as_json), _translated(found), _progress() as show:
        logged = LoggedRoute(found, config)
        options = CompareOptions(
            None if against is None else against.value,
            tuple(tables or ()),
            with_values=values,
            patience=patience,
            on_progress=show,
        )
        with closing(_as_generator(writer.compare(logged, options))) as results:
            for each in results:
                report.add(each)
                if report.is_full:
                    break
        report.add_remarks(logged)
    if as_json:
        write_json({"route": route, **report.as_json()}, ok=report.exit_code == 0)
    else:
        report.write_totals()
    return report.exit_code


def _as_generator(results: Iterator[Any]) -> Any:  # noqa: ANN401 - a generator, or closed by itself
    """Return *results* with a method ``close``, which ends their sessions."""
    return (each for each in results) if not hasattr(results, "close") else results


@contextmanager
def _translated(pipeline: Pipeline) -> Iterator[None]:
    """Raise errors of the block without secrets (Invariant 20), and not as exit code 1.

    That one reports rows that differ.
    """
    try:
        yield
    except Exception as error:
        failure = failure_of(error)
        pipeline.secrets.hide_in(failure)
        if failure.exit_code == _DIFFERS:
            failure = EnvironmentFault(str(failure))
        if failure is error:
            raise
        raise failure from error


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show progress on a terminal. Yield a function of a part, its amount done, and the total."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.markup import escape  # noqa: PLC0415 - the same
    from rich.progress import Progress  # noqa: PLC0415 - the same

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def show(part: str, done: int, total: int | None) -> None:
            if part not in tasks:
                tasks[part] = bar.add_task(escape(printable(part)))
            # The total is an estimate.
            bar.update(tasks[part], completed=done, total=total and max(total, done))

        yield show


@dataclass(slots=True)
class _Report:
    """The result of a comparison, which is written as it comes unless it is *quiet*."""

    pipeline: Pipeline
    limit: int
    quiet: bool
    differences: list[RowDifference] = field(default_factory=list)
    undecided: list[UndecidedRow] = field(default_factory=list)
    tables: list[ComparedTable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_full: bool = False
    has_problem: bool = False
    _count: int = 0

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        if self._count:
            return _DIFFERS
        return EnvironmentFault.exit_code if self.undecided or self.has_problem else 0

    def add(self, result: RowDifference | UndecidedRow | ComparedTable | Finding) -> None:
        """Take a result."""
        from transporter.comparison import ComparedTable, RowDifference, UndecidedRow  # noqa: PLC0415

        if isinstance(result, RowDifference):
            self._count += 1
            if self.quiet:
                self.differences.append(result)
            else:
                write(_difference_line(result))
            self.is_full = 0 < self.limit <= self._count
        elif isinstance(result, UndecidedRow):
            self.undecided.append(result)
            if not self.quiet:
                write(f"{printable(result.table)}  undecided  {_key_text(result.key)}")
        elif isinstance(result, ComparedTable):
            self.tables.append(result)
            if not self.quiet:
                rows = count_text(result.rows, "row", "rows")
                write(printable(f"{result.table}: {rows} compared with {result.source}"))
        else:
            self.has_problem |= result.level == "problem"
            mark = "" if result.level == "fine" else f"{result.level}: "
            self._add_note(mark + self.pipeline.secrets.hide(result.text))

    def add_remarks(self, route: LoggedRoute) -> None:
        """Add remarks that may explain the result."""
        if self.is_full:
            self._add_note(f"ended after {self._count} rows; --limit 0 shows all")
        if not (self._count or self.undecided):
            return
        if parked := route.count_parked():
            entries = count_text(parked, "entry is", "entries are")
            self._add_note(
                f"{entries} parked, whose rows are not in the sink; see 'transporter parked list'"
            )
        if not route.is_running():
            self._add_note("no engine runs: changes that it has yet to deliver differ, too")
        elif self.undecided:
            self._add_note(
                "undecided rows kept changing, or were not delivered in time; see 'transporter "
                "status'"
            )

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {
            "tables": [asdict(each) for each in self.tables],
            "differences": [_difference_json(each) for each in self.differences],
            "undecided": [asdict(each) for each in self.undecided],
            "limited": self.is_full,
            "notes": self.notes,
        }

    def write_totals(self) -> None:
        """Print the totals."""
        if self._count:
            write(f"{count_text(self._count, 'row differs', 'rows differ')}")
        elif not (self.undecided or self.has_problem):
            write("no row differs")

    def _add_note(self, text: str) -> None:
        self.notes.append(text)
        if not self.quiet:
            note(problem_text(text))


def _difference_line(row: RowDifference) -> str:
    parts = [printable(row.table), _KINDS[row.kind], _key_text(row.key)]
    if row.kind == "different":
        parts.append(printable(", ".join(row.columns)) or "cannot be converted")
    names = row.columns or tuple({**(row.expected or {}), **(row.found or {})})
    for name in names if row.expected is not None or row.found is not None else ():
        values = [_value_text(each, name) for each in (row.expected, row.found)]
        parts.append(printable(f"{name}: expected {values[0]}, found {values[1]}"))
    return "  ".join(parts)


def _value_text(values: Any, name: str) -> str:  # noqa: ANN401 - a mapping, or none
    if values is None or name not in values:
        return "none"
    return "NULL" if values[name] is None else repr(values[name])


def _key_text(key: Any) -> str:  # noqa: ANN401 - a mapping of texts
    return printable(" ".join(f"{name}={value}" for name, value in key.items()))


def _difference_json(row: RowDifference) -> dict[str, Any]:
    found = asdict(row)
    if row.columns and row.expected is not None and row.found is not None:
        for part in ("expected", "found"):
            found[part] = {name: found[part].get(name) for name in row.columns}
    return found
