"""Causes of a failed Spark job: an entry, the sink, or the configuration."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from transporter.errors import Rejected, RouteFault, SinkError, SinkUnavailable

_NAMED: Final = re.compile(r"EntryFailed: (\(\d+, .*\))")
_CRASHED: Final = "Python worker exited unexpectedly"
_GONE: Final = ("ExecutorLostFailure", "SparkContext was shut down", "cancelled because")
_PASSING: Final = (
    "java.io.IOException",
    "java.sql.SQLTransientException",
    "java.sql.SQLRecoverableException",
)
_BROKEN: Final = "transporter.errors.ConfigError: "
"""The end of a task's traceback when a step's file has become invalid."""
_WRAPPERS: Final = ("TASK_WRITE_FAILED", "WRITING_JOB_ABORTED", "FAILED_READ_FILE")
"""Conditions that only wrap another failure."""
_PAYLOADS: Final = ("badRecord", "expression")
"""Parameters of Spark's messages that may be all of an entry's data."""
_NO_CONNECTION: Final = "08"
"""The SQLSTATE class of connection errors."""
_DEEPEST: Final = 30
_NEAR: Final = 20
_PYTHON: Final = ".api.python."
_DIED: Final = "the Python process of a task died or was killed"


class EntryFailed(Exception):
    """Raised in a task for one entry, so that the driver finds its offset in the text."""

    def __init__(self, offset: int, problem: str, /) -> None:
        """Name the entry and its *problem*."""
        super().__init__(offset, problem)


def sink_error(error: Exception) -> SinkError:
    """Return the meaning of *error*, raised by a Spark job or action, as an error of the sink."""
    if isinstance(error, SinkError):
        return error
    whole = str(error)
    if (named := _named_entry(whole)) is not None:
        return named
    if isinstance(error, AnalysisException):
        return RouteFault(_first_line(whole))
    if not isinstance(error, PySparkException | Py4JError):
        return Rejected(f"{type(error).__name__}: {error}")
    if _CRASHED in whole:
        return Rejected(_DIED)
    return _error_by_cause(error, whole)


def _named_entry(text: str) -> Rejected | None:
    """Return the rejection of the entry that a task has named, if any."""
    for found in _NAMED.finditer(text):
        try:
            offset, problem = ast.literal_eval(found[1])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue  # not our text
        return Rejected(str(problem), int(offset))
    return None


def _error_by_cause(error: Exception, whole: str) -> SinkError:
    chain = _cause_chain(error)
    root = chain[-1] if chain else None
    if root is None or "PythonException" in _name(root):
        line = _last_python_line(whole)
        ours = line.removeprefix(_BROKEN)
        return RouteFault(ours) if ours != line else Rejected(line)
    if _is_of_a_python_task(root):
        return Rejected(_DIED)
    # An error with a Spark condition is about data, even if its root is a parser's IOException.
    condition = next((each for each in chain if _condition(each) not in (None, *_WRAPPERS)), None)
    text = _first_line(_without_payload(condition, _message(condition or root)))
    gone = any(sign in whole for sign in _GONE)
    if gone or (condition is None and _is_transient(root)):
        return SinkUnavailable(text)
    return Rejected(text)


def _cause_chain(error: Exception) -> list[Any]:
    """Return the Java throwable of *error* and its causes, the deepest last."""
    found: list[Any] = []
    at = error.java_exception if isinstance(error, Py4JJavaError) else None
    at = at or getattr(error, "_origin", None)
    while at is not None and len(found) < _DEEPEST:
        found.append(at)
        at = at.getCause()
    return found


def _is_of_a_python_task(root: Any) -> bool:  # noqa: ANN401 - a Java throwable
    """Return whether *root* is a broken connection to a task's Python, and not to a sink."""
    kind = root.getClass().getName()
    if not kind.startswith(("java.io.", "java.net.", "java.nio.")):
        return False
    frames = [each.getClassName() for each in root.getStackTrace()[:_NEAR]]
    return any(_PYTHON in each for each in frames)


def _condition(throwable: Any) -> str | None:  # noqa: ANN401 - a Java throwable
    """Return Spark's own name of the error, if it has one."""
    try:
        return throwable.getCondition()  # type: ignore[no-any-return]
    except Py4JError:
        return None


def _name(throwable: Any) -> str:  # noqa: ANN401 - a Java throwable
    return str(throwable.getClass().getName())


def _is_transient(root: Any) -> bool:  # noqa: ANN401 - a Java throwable
    """Return whether a retry may help: for files and connections, not for the rows written."""
    kind, kinds = root.getClass(), []
    while kind is not None:
        kinds.append(kind.getName())
        kind = kind.getSuperclass()
    if "java.sql.SQLException" in kinds and str(root.getSQLState()).startswith(_NO_CONNECTION):
        return True
    return any(passing in kinds for passing in _PASSING)


def _message(root: Any) -> str:  # noqa: ANN401 - a Java throwable
    return str(root.getMessage() or root.getClass().getName())


def _without_payload(condition: Any, text: str) -> str:  # noqa: ANN401 - a Java throwable
    """Return *text* without the record or the value that Spark quotes in it.

    Logs and events have errors. The entry itself is in the log, at its offset.
    """
    if condition is None:
        return text
    try:
        parameters = condition.getMessageParameters()
        quoted = [parameters.get(name) for name in _PAYLOADS]
    except Py4JError:
        return text
    for value in filter(None, quoted):
        text = text.replace(value, "…")
    return text


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")


def _last_python_line(text: str) -> str:
    """Return the line of a traceback that names the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"[\w.]+(Error|Exception)?: ", line)]
    return (python or lines or ["no reason given"])[-1 if python else 0]
