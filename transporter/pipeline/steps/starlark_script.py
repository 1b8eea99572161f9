"""A Starlark script: loaded once, and called with whole batches of messages."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transporter.errors import ConfigError
from transporter.pipeline.problems import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlark_go import Starlark

_PRELUDE: Final = Path(__file__).with_name("prelude.star")
_OVERRIDES: Final = "print = _print\nfail = _fail\n"
_SCRIPT, _BATCH = "script", "batch"
"""Names of places in a traceback: the user's file, and the text of a batch."""
_FRAME: Final = re.compile(rf"^  ({_SCRIPT}|{_BATCH}):(\d+):\d+: in ", re.MULTILINE)
_REASON: Final = re.compile(r"^Error(?: in \S+)?: (.*)", re.MULTILINE | re.DOTALL)
_LONGEST: Final = 500
"""Letters of an error, or of a printed line, to report. It may hold a whole document."""


class ScriptFailed(Exception):
    """A failure of the script's ``transform`` at the message of this index."""

    def __init__(self, problem: str, index: int) -> None:
        """Keep the *problem*, with its line, and the message's *index*."""
        super().__init__(problem, index)
        self.problem, self.index = problem, index


@dataclass(frozen=True, slots=True)
class Script:
    """A script that has run once, so that its ``transform`` can be called.

    ``name`` is its file, or the name of its text where it has none. Used by one thread.
    """

    name: str
    interpreter: Starlark

    def results(self, sources: Sequence[str]) -> list[str]:
        """Call ``transform`` with each message of *sources* in one crossing.

        Return each result as Starlark's ``repr`` writes it. Raise :class:`ScriptFailed` at the
        first message at which it fails.
        """
        if not sources:
            return []
        calls = ",\n".join(f"_written(transform({source}))" for source in sources)
        try:
            text = self.interpreter.eval(f'"\\n".join([\n{calls}\n])', filename=_BATCH)
        except MemoryError:
            raise
        except Exception as error:
            if len(sources) == 1:
                raise ScriptFailed(_error_text(error, self.name), 0) from error
            index = _failed_index(error)
            if index is None:
                return self._results_singly(sources)
            raise ScriptFailed(_error_text(error, self.name), index) from error
        return str(text).split("\n")

    def _results_singly(self, sources: Sequence[str]) -> list[str]:
        """Do as :meth:`results` where an error does not give its place."""
        made: list[str] = []
        for index, source in enumerate(sources):
            try:
                made += self.results([source])
            except ScriptFailed as error:
                raise ScriptFailed(error.problem, index) from error
        return made


def load_script(code: str, name: str) -> Script:
    """Run the script *code*, so that its ``transform`` can be called.

    Raise :class:`ConfigError`, without a place, with the problem and its line in *name*. Printed
    text goes to standard error.
    """
    if "\0" in code:
        line = code.count("\n", 0, code.index("\0")) + 1
        raise ConfigError(f"{name}:{line}: holds a NUL character")
    # Here, not above: Go's runtime does not survive Spark's fork of a worker.
    from starlark_go import Starlark  # noqa: PLC0415 - see above

    interpreter = Starlark(print=partial(_print_line, name))
    interpreter.exec(_PRELUDE.read_text(encoding="utf-8"))
    interpreter.exec(_OVERRIDES)
    try:
        interpreter.exec(code, filename=_SCRIPT)
    except MemoryError:
        raise
    except Exception as error:
        raise ConfigError(_error_text(error, name)) from error
    _check_script(interpreter, name)
    return Script(name, interpreter)


def _check_script(interpreter: Starlark, name: str) -> None:
    names = interpreter.globals()
    if "transform" not in names:
        raise ConfigError(f"{name} has no function transform; write def transform(message):")
    kind = interpreter.eval("_kind(transform)")
    if kind != "function":
        raise ConfigError(f"{name}: transform is not a function but {kind}")
    if interpreter.eval("_written([null, true, false])") != "[None, True, False]":
        raise ConfigError(f"{name} redefines null, true or false; use another name")


def _print_line(name: str, text: str) -> None:
    # Nothing may be raised into the interpreter, which does not expect it.
    with suppress(OSError, ValueError):
        sys.stderr.write(f"starlark {name}: {one_line(text)[:_LONGEST]}\n")


def _failed_index(error: Exception) -> int | None:
    """Return the index of the message at which *error* came up, if its traceback has one."""
    frames = _FRAME.findall(getattr(error, "backtrace", ""))
    # The first line of a batch opens its list.
    lines = [int(line) - 2 for file, line in frames[:1] if file == _BATCH]
    return lines[0] if lines else None


def _error_text(error: Exception, name: str) -> str:
    """Return on one line the text of *error*, and the place in the script where it came up."""
    line, reason = _error_place(error)
    place = f"{name}:{line}: " if line else f"{name}: "
    return one_line(f"{place}{reason}")[: _LONGEST + len(place)]


def _error_place(error: Exception) -> tuple[int, str]:
    from starlark_go import EvalError, ResolveError, SyntaxError  # noqa: A004, PLC0415 - as above

    match error:
        case SyntaxError():
            return error.line, error.msg
        case ResolveError():
            return error.errors[0].line, "; ".join(each.msg for each in error.errors[:3])
        case EvalError():
            own = [int(line) for file, line in _FRAME.findall(error.backtrace) if file == _SCRIPT]
            found = _REASON.search(error.backtrace)
            return (own or [0])[-1], found[1] if found else error.error
        case TypeError():
            # The binding cannot make its own error of such a text.
            return 0, "fails with a text that is not UTF-8"
    return 0, f"{type(error).__name__}: {error}"
