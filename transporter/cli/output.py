"""Output of results and errors: text for people, one JSON object with ``--json``.

Results go to stdout and errors to stderr. With ``--json`` both go to stdout as one
object, and nothing else does. Heavy modules are imported only when they are needed, so
that ``--help`` stays fast.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
from contextlib import contextmanager, redirect_stdout
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from transporter.errors import TransporterError


_LINE_END: Final = re.compile(r"\s*[\n\r\t\v\f]\s*")


def printable(text: object) -> str:
    """Return *text* with control and other unprintable characters escaped.

    Text from messages, files or other systems can then neither move the cursor nor
    forge lines.
    """
    return "".join(
        letter
        if letter.isprintable()
        else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in str(text)
    )


def value_text(value: object) -> str:
    """Return a plain *value* as people write it: ``yes``, ``no``, ``none``, text or JSON."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def problem_text(text: object) -> str:
    """Return the *text* of a problem on one line, with unprintable characters escaped.

    Errors of other systems, such as those of PostgreSQL, have several lines.
    """
    return printable(_LINE_END.sub(" ", str(text).strip()))


def text_lines(text: object) -> list[str]:
    """Return the lines of *text* with their indentation, made :func:`printable`."""
    return [printable(line.expandtabs(4)) for line in str(text).split("\n")]


def count_text(count: int, one: str, many: str) -> str:
    """Return *count* with the word for *one*, or for *many*."""
    return f"{count:,} {one if count == 1 else many}"


def confirm(question: str) -> None:
    """Put *question* to the user on stderr, and return only if the answer is yes.

    Raises:
        ConfigError: standard input is not a terminal and holds no answer.
        typer.Abort: the user declines.

    """
    import typer  # noqa: PLC0415 - `--help` of a result does without

    try:
        agreed = typer.confirm(printable(question), err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        raise ConfigError(
            "standard input has no answer; add --yes to continue without one"
        ) from None
    if not agreed:
        raise typer.Abort


def write(line: str = "") -> None:
    """Print one line of a result to stdout."""
    sys.stdout.write(f"{line}\n")


def write_json(result: object, *, ok: bool = True) -> None:
    """Print *result* as the one object of ``--json``, with paths and the like as text.

    *ok* is ``False`` for a result that reports a problem, as the exit code does.
    """
    _write_object({"ok": ok, "result": result})


def write_json_list(items: Iterable[object]) -> int:
    """Print *items* as they come, as the result of the one object of ``--json``.

    An error behind the first item becomes part of that object, whose last fields are
    ``ok`` and the error.

    Returns:
        The exit code: 0, or that of the error.

    """
    remaining = iter(items)
    first = list(islice(remaining, 1))  # an error before any output is reported as usual
    sys.stdout.write('{"result": [')
    try:
        for number, item in enumerate(chain(first, remaining)):
            sys.stdout.write(f"{', ' if number else ''}{json.dumps(item, default=str)}")
    except BrokenPipeError:
        raise  # nobody reads the end of the object
    except Exception as error:  # noqa: BLE001 - whatever it is, the object is to be complete
        from transporter.cli.app import failure_of  # noqa: PLC0415 - it imports this module

        failure = failure_of(error)
        sys.stdout.write(f'], "ok": false, "error": {json.dumps(_error_object(failure))}}}\n')
        return failure.exit_code
    sys.stdout.write('], "ok": true}\n')
    return 0


@contextmanager
def others_print_to_stderr(*, when: bool = True) -> Iterator[None]:
    """Redirect output to stdout in the block, such as that of user code, to stderr."""
    if not when:
        yield
        return
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


@contextmanager
def ignore_closed_stdout() -> Iterator[None]:
    """Run a block that writes to stdout. It ends quietly when the reader of stdout closes it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Keep the interpreter from flushing again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_left_within(seconds: float) -> bool:
    """Wait *seconds*. Return true at once when the reader of stdout closes it."""
    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)
    return bool(watch.poll(seconds * 1000))


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, by rich on a terminal (respecting ``NO_COLOR``), else as aligned text.

    Cells and names of columns are made :func:`printable`.
    """
    names, *cells = [[printable(cell) for cell in row] for row in chain([columns], rows)]
    if sys.stdout.isatty():
        _print_rich_table(names, cells)
    else:
        for line in align_columns([[name.upper() for name in names], *cells]):
            write(line)


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return *rows* (of equal length) as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _print_rich_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - only for a table on a terminal
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415 - as text, they hold no markup

    drawn = Table(box=SIMPLE_HEAD)
    for column in columns:
        drawn.add_column(Text(column))
    for row in rows:
        drawn.add_row(*map(Text, row))
    Console(file=sys.stdout).print(drawn)


def write_error(error: TransporterError, *, as_json: bool) -> None:
    """Report *error* as text to stderr, or as the one object of ``--json``."""
    if as_json:
        _write_object({"ok": False, "error": _error_object(error)})
        return
    mark = "" if getattr(error, "file", "") else "error: "
    for line in text_lines(error):
        # An indented line belongs to the one before, such as SQL to copy.
        sys.stderr.write(f"{'' if line.startswith(' ') else mark}{line}\n")


def _error_object(error: TransporterError) -> dict[str, Any]:
    found = {
        "type": type(error).__name__,
        "message": str(error),
        "file": getattr(error, "file", None) or None,
        "line": getattr(error, "line", None) or None,
        "exit_code": error.exit_code,
    }
    problems = getattr(error, "problems", None)
    if problems is not None:
        found["problems"] = [
            {"message": each.problem, "file": each.file, "line": each.line} for each in problems
        ]
    return found


def _write_object(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content, default=str) + "\n")
