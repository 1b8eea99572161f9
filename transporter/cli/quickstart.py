"""Command ``transporter quickstart``: a first pipeline without any other service."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FOLDER: Final = Path("transporter-quickstart")
_PLACE: Final = re.compile(r"\$\{QUICKSTART_DIR:-[^}]*\}")


def quickstart(
    *,
    postgres: Annotated[
        bool,
        typer.Option("--postgres", help="Use an embedded PostgreSQL with a shop's outbox table."),
    ] = False,
    cdc: Annotated[
        bool,
        typer.Option("--cdc", help="Use an embedded PostgreSQL with a shop's tables, no outbox."),
    ] = False,
    folder: Annotated[
        Path, typer.Option("--dir", help="Folder of the pipeline file, its log and its sinks.")
    ] = _FOLDER,
) -> int:
    """Run a small demo pipeline.

    It goes from a source through the log and Spark into LMDB and onto the terminal. The
    pipeline file stays in the folder, so you can read and change it. Its log and its
    sinks are in a folder of the same name beside it.

    Examples:
        transporter quickstart
        transporter quickstart --postgres
        transporter quickstart --cdc
    """
    from transporter.cli.run import run_pipeline  # noqa: PLC0415 - heavy; `--help` does without
    from transporter.distribution import refuse_other_distribution  # noqa: PLC0415 - the same
    from transporter.pipeline.config import load  # noqa: PLC0415

    refuse_other_distribution()
    if postgres and cdc:
        raise typer.BadParameter("choose one of --postgres and --cdc")
    source = "postgres" if postgres else "cdc" if cdc else "demo"
    if source != "demo":
        from transporter.quickstart.postgres import require_wheel  # noqa: PLC0415 - optional

        # Before anything is written.
        require_wheel()
    again = ["transporter", "quickstart", *([f"--{source}"] if source != "demo" else [])]
    again += ["--dir", str(folder)] if folder != _FOLDER else []
    folder = folder.absolute()
    file = _pipeline_file(folder, f"{source}.yaml")
    environ = dict(os.environ)
    hints: list[str] = []
    with ExitStack() as services:
        if source != "demo":
            shop = _run_shop(folder / source, outbox=postgres)
            dsn = services.enter_context(shop)
            environ["ORDERS_DSN"] = dsn
            hints = _database_hints(file, dsn, cdc=cdc)
            _note_database(hints)
        code = run_pipeline(load(file, environ), environ, hints=hints)
    if postgres and code == 0:
        from transporter.quickstart.sales import show_sales  # noqa: PLC0415 - as above

        # The run's live table is gone from the terminal by now.
        show_sales(["transporter", "run", str(file)], environ)
    if code == 0:
        _note_next(file, again)
    return code


def _database_hints(file: Path, dsn: str, *, cdc: bool) -> list[str]:
    """Return lines for another terminal, in which commands find the database while it runs."""
    from transporter.cli.run import short_path  # noqa: PLC0415 - heavy; `--help` does without
    from transporter.quickstart.shop import export_line  # noqa: PLC0415 - optional

    name = shlex.quote(short_path(file))
    status = f"  transporter cdc status {name}    # the slot, and the copy of each table"
    return [export_line(dsn), *([status] if cdc else [])]


def _note_database(hints: Sequence[str]) -> None:
    from transporter.cli.entry_output import note  # noqa: PLC0415 - `--help` does without

    note("Commands in another terminal find the database by its variable:")
    for line in hints:
        note(line)


def _note_next(file: Path, again: Sequence[str]) -> None:
    from transporter.cli.entry_output import note  # noqa: PLC0415 - `--help` does without
    from transporter.cli.run import short_path  # noqa: PLC0415

    name = shlex.quote(short_path(file))
    note(f"The pipeline file is {name}: change it, and run {shlex.join(again)} again.")
    note(f"  transporter top {name}      # readers and routes, live, while it runs")
    note(f"  transporter shell {name}    # the log as a table of Spark, at any time")


def _pipeline_file(folder: Path, name: str) -> Path:
    """Return the pipeline file in *folder*, and create it if it is missing."""
    file = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        packaged = files("transporter.quickstart").joinpath(name).read_text(encoding="utf-8")
        # The file lies beside its own log and sinks, so it needs no variable for their folder.
        file.write_text(_PLACE.sub(f"./{file.stem}", packaged), encoding="utf-8")
    return file


@contextmanager
def _run_shop(folder: Path, *, outbox: bool) -> Iterator[str]:
    """Run a database and a client that places orders in it. Yield the database's DSN."""
    from transporter.quickstart.postgres import embedded_postgres  # noqa: PLC0415 - optional
    from transporter.quickstart.shop import open_for_orders  # noqa: PLC0415

    # Without an outbox the changes of the tables are read from the server's log.
    settings = {} if outbox else {"wal_level": "logical"}
    with embedded_postgres(folder, settings) as dsn, open_for_orders(dsn, outbox=outbox):
        yield dsn
