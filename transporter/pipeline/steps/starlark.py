"""``starlark``: the step that passes the messages of a batch to a Starlark script.

A script is loaded once, and called with whole batches.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from pydantic import AfterValidator, model_validator

from transporter.errors import ConfigError, StepFailed
from transporter.message import Message
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.problems import one_line
from transporter.pipeline.steps.documents import is_json
from transporter.pipeline.steps.json_grammar import UnsupportedJson
from transporter.pipeline.steps.per_message import find_fault, replace_messages
from transporter.pipeline.steps.starlark_literals import (
    Given,
    document_text,
    given_of,
    parse_value,
    restore_spelling,
)
from transporter.pipeline.steps.step import StepSettings
from transporter.units import LocalPath  # noqa: TC001 - pydantic reads it

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from starlark_go import Starlark

    from transporter.message import Entry

_MAX_BYTES: Final = 1024 * 1024
_CODE: Final = "code"
"""The name in errors of a script that stands in the pipeline file itself."""
_NAMES: Final = tuple(Message.__dataclass_fields__)
_FIELDS: Final = frozenset(_NAMES)
_EXPECTED: Final = "a message (a dict), a list of them, or None"
_ABSENT: Final = object()
_PRELUDE: Final = Path(__file__).with_name("prelude.star")
_OVERRIDES: Final = "print = _print\nfail = _fail\n"
_SCRIPT, _BATCH = "script", "batch"
"""Names of places in a traceback: the user's file, and the text of a batch."""
_FRAME: Final = re.compile(rf"^  ({_SCRIPT}|{_BATCH}):(\d+):\d+: in ", re.MULTILINE)
_REASON: Final = re.compile(r"^Error(?: in \S+)?: (.*)", re.MULTILINE | re.DOTALL)
_LONGEST: Final = 500
"""Letters of an error, or of a printed line, to report. It may hold a whole document."""


def _load_file(file: Path) -> Script:
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
        code = content.decode()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: is not UTF-8 text") from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{file} is larger than {_MAX_BYTES} bytes; no script needs that")
    return _load_script(code, str(file))


def _load_code(code: str) -> Script:
    return _load_script(code, _CODE)


def _script_validator(load: Callable[[Any], Script]) -> AfterValidator:
    """Return a validator that turns a setting into the script that it names."""

    def loaded(value: object) -> Script:
        try:
            return load(value)
        except ConfigError as error:
            raise ValueError(f"cannot be used: {error.problem}") from error

    return AfterValidator(loaded)


class StarlarkSettings(StepSettings):
    """The script to call, in a file or in the pipeline file itself."""

    file: Annotated[LocalPath, _script_validator(_load_file)] | None = None
    code: Annotated[str, _script_validator(_load_code)] | None = None

    @property
    def script(self) -> Script:
        """The script that validation has loaded. Loading takes time, so it is not repeated."""
        return cast("Script", self.file or self.code)

    @model_validator(mode="after")
    def _check_one_script(self) -> StarlarkSettings:
        if (self.file is None) == (self.code is None):
            raise ValueError("needs either file or code, and not both")
        return self


def starlark(settings: StarlarkSettings, folder: Path) -> StarlarkStep:  # noqa: ARG001 - as every step
    """Return the step that calls the script of *settings*."""
    return StarlarkStep(settings.script, NamespaceFilter(settings.namespace))


@dataclass(frozen=True, slots=True)
class StarlarkStep:
    """A :class:`Step` that calls ``transform`` of *script* for every message of its namespaces.

    All messages of a batch cross into the interpreter at once. A result takes the message's place:
    a message, several, or with ``None`` nothing.
    """

    script: Script
    namespace: NamespaceFilter

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return *entries* with messages replaced by the script's results."""
        return replace_messages(entries, self.namespace, self._transform)

    def _transform(self, entries: Iterable[Entry]) -> Iterator[tuple[Message, ...]]:
        queue = [*entries]
        givens, failed = _givens(queue)
        sources = [each.source for each in givens]
        try:
            made = self.script.results(sources)
        except _ScriptFailed as error:
            failed = _failure(error.problem, queue[error.index])
            # An earlier result may still prove not to be a message.
            made = self.script.results(sources[: error.index])
        for entry, given, text in zip(queue, givens, made, strict=False):
            try:
                yield tuple(_parse_messages(entry.message, given, text))
            except UnsupportedJson as error:
                problem = f"{self.script.name}: transform returned {error}"
                raise _failure(problem, entry) from error
        if failed is not None:
            raise failed


def _failure(problem: str, entry: Entry) -> StepFailed:
    return StepFailed(f"starlark: {problem}", entry.offset)


def _givens(entries: list[Entry]) -> tuple[list[Given], StepFailed | None]:
    """Return the messages before the first that no script can be given, and that one's failure."""
    givens: list[Given] = []
    for entry in entries:
        try:
            givens.append(given_of(entry.message))
        except UnsupportedJson as error:
            return givens, _failure(str(error), entry)
    return givens, None


def _parse_messages(original: Message, given: Given, text: str) -> Iterator[Message]:
    """Yield the messages that a script returned as *text*, or raise :class:`UnsupportedJson`."""
    returned = parse_value(text)
    if returned is None:
        return
    for each in returned if isinstance(returned, list) else [returned]:
        if not isinstance(each, dict):
            raise UnsupportedJson(f"{type(each).__name__}; it may return {_EXPECTED}")
        yield _make_message(original, given, each)


def _make_message(original: Message, given: Given, fields: dict[str, Any]) -> Message:
    if not fields.keys() <= _FIELDS:
        raise UnsupportedJson(f"a message with a field that is not one of {', '.join(_NAMES)}")
    data = fields.pop("data", _ABSENT)
    made = _apply_changes(original, fields)
    problem = find_fault(original, [made])
    if problem:
        raise UnsupportedJson(problem)
    content = original.data if data is _ABSENT else _encode_data(original, made, given, data)
    if content is not original.data:
        return replace(made, data=content)
    if is_json(made.content_type) and not is_json(original.content_type):
        given_of(made)  # refuses data that is not a document
    return made


def _apply_changes(original: Message, fields: dict[str, Any]) -> Message:
    """Return *original* with those of *fields* that differ, or itself where none does."""
    if "key" in fields:
        fields["key"] = _as_bytes(fields["key"])
    if "headers" in fields:
        fields["headers"] = _parse_headers(fields["headers"])
    changes = {name: new for name, new in fields.items() if new != getattr(original, name)}
    return replace(original, **changes) if changes else original


def _parse_headers(value: object) -> object:
    if not isinstance(value, list):
        return value  # it is reported as every wrong field is
    return tuple(
        (pair[0], _as_bytes(pair[1])) if isinstance(pair, list) and len(pair) == 2 else pair  # noqa: PLR2004 - a name and a value
        for pair in value
    )


def _as_bytes(value: object) -> object:
    return value.encode() if isinstance(value, str) else value


def _encode_data(original: Message, made: Message, given: Given, value: object) -> bytes | None:
    """Return *value* as the data of *made*. Equal data is the very same object as before."""
    content = _as_bytes(value)
    # Bytes are not JSON, and fail below where they must be.
    text = None if given.data is None or isinstance(value, bytes) else document_text(value)
    if text == given.data if text is not None else content == original.data:
        return original.data
    if value is None:
        return None
    if is_json(made.content_type):
        return restore_spelling(text or document_text(value), given.spelt)
    if not isinstance(content, bytes):
        raise UnsupportedJson(
            "data that is neither text nor bytes, with a content type that is not JSON"
        )
    return content


class _ScriptFailed(Exception):
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

        Return each result as Starlark's ``repr`` writes it. Raise :class:`_ScriptFailed` at the
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
                raise _ScriptFailed(_error_text(error, self.name), 0) from error
            index = _failed_index(error)
            if index is None:
                return self._results_singly(sources)
            raise _ScriptFailed(_error_text(error, self.name), index) from error
        return str(text).split("\n")

    def _results_singly(self, sources: Sequence[str]) -> list[str]:
        """Do as :meth:`results` where an error does not give its place."""
        made: list[str] = []
        for index, source in enumerate(sources):
            try:
                made += self.results([source])
            except _ScriptFailed as error:
                raise _ScriptFailed(error.problem, index) from error
        return made


def _load_script(code: str, name: str) -> Script:
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
