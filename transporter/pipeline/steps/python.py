"""``python``: the step that passes each message, or a whole batch, to a user's function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Annotated, Final, cast

import pyarrow as pa
from pydantic import AfterValidator, ValidationInfo

from transporter.errors import ConfigError, StepFailed
from transporter.message import ENTRY_SCHEMA, MESSAGE_SCHEMA, OPS, PHASES, Message
from transporter.pipeline.adaptor_registry import find_function, is_under
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.problems import one_line
from transporter.pipeline.steps.per_message import find_fault, replace_messages
from transporter.pipeline.steps.step import StepSettings
from transporter.units import FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.message import Entry

_ONE_OF: Final = (("op", OPS), ("phase", PHASES))
_LONGEST: Final = 500
"""Letters of an exception's text that an error repeats. The text may hold a whole document."""


def _check_importable(reference: str, info: ValidationInfo) -> str:
    try:
        find_function(reference, Path((info.context or {}).get(FOLDER, ".")))
    except ConfigError as error:
        raise ValueError(error.problem) from error
    return reference


class PythonSettings(StepSettings):
    """The function to call, with one message or with a whole batch of entries."""

    function: Annotated[str, AfterValidator(_check_importable)]
    batch: bool = False


def python(settings: PythonSettings, folder: Path) -> PythonStep | BatchStep:
    """Return the step that calls the function of *settings*, from *folder* or installed."""
    function, namespace = (
        find_function(settings.function, folder),
        NamespaceFilter(settings.namespace),
    )
    if settings.batch:
        return BatchStep(
            settings.function, function, namespace, partial(_error_text, folder=folder)
        )
    return PythonStep(settings.function, function, namespace, folder)


@dataclass(frozen=True, slots=True)
class PythonStep:
    """A :class:`Step` that calls *function* once for every message of its namespaces.

    The result takes the message's place: a message, several, or with ``None`` nothing. The function
    may be called again for the same message.
    """

    reference: str
    function: Callable[[Message], Message | Iterable[Message] | None]
    namespace: NamespaceFilter
    folder: Path

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return *entries* with messages replaced by the function's results."""
        return replace_messages(entries, self.namespace, self._transform)

    def _transform(self, entries: Iterable[Entry]) -> Iterator[tuple[Message, ...]]:
        return (self._call(message, offset) for offset, _, message in entries)

    def _call(self, message: Message, offset: int) -> tuple[Message, ...]:
        """Return the messages that take the place of *message*."""
        try:
            returned = _as_tuple(self.function(message))
        except MemoryError:
            raise  # the worker's limit, which anything in the process may have reached
        except (Exception, SystemExit) as error:
            text = _error_text(error, self.folder)
            raise StepFailed(f"python {self.reference}: {text}", offset) from error
        problem = find_fault(message, returned)
        if problem:
            raise StepFailed(f"python: {self.reference} returned {problem}", offset)
        return cast("tuple[Message, ...]", returned)


def _as_tuple(result: object) -> tuple[object, ...]:
    if isinstance(result, Message):
        return (result,)  # Nearly always, and looking for an iterable takes longer.
    if result is None:
        return ()
    if isinstance(result, Iterable) and not isinstance(result, str | bytes | bytearray | Mapping):
        return tuple(result)
    return (result,)


class _WrongBatch(ValueError):
    """A function's result that cannot take the place of its batch, with the reason."""


@dataclass(frozen=True, slots=True)
class BatchStep:
    """A :class:`Step` that calls *function* with all entries of its namespaces at once.

    Where the function fails, bisection finds the first entry that it fails at: it is called again
    with the entries before the middle. *reason* describes an exception on one line.
    """

    reference: str
    function: Callable[[pa.RecordBatch], object]
    namespace: NamespaceFilter
    reason: Callable[[BaseException], str]

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return *entries*, those of the namespaces replaced by the function's result."""
        if self.namespace.matches_all:
            return self._apply_function(entries)
        mask = self.namespace.mask(entries.column("namespace"))
        mine = entries.filter(mask)
        made = self._apply_function(mine)
        return entries if made is mine else _merge(entries, mask, made)

    def _apply_function(self, given: pa.RecordBatch) -> pa.RecordBatch:
        if not given.num_rows:
            return given
        try:
            return self._call(given)
        except StepFailed as error:
            failed = error
        # Invariant: it works on the entries before the one at `good`, and not with that at `bad`.
        offsets = given.column("offset").unique().to_pylist()
        good, bad = 0, len(offsets) - 1
        while good < bad:
            middle = (good + bad) // 2
            try:
                self._call(_entries_through(given, offsets[middle]))
                good = middle + 1
            except StepFailed as error:
                failed, bad = error, middle
        raise StepFailed(failed.problem, offsets[bad]) from failed.__cause__

    def _call(self, given: pa.RecordBatch) -> pa.RecordBatch:
        """Return the function's result for *given*, which has rows."""
        try:
            returned = self.function(given)
            return given if returned is given else _check_batch(returned, given)
        except MemoryError:
            raise  # the worker's limit, which anything in the process may have reached
        except _WrongBatch as error:
            problem = f"python: {self.reference} returned {error}"
            raise StepFailed(problem, 0) from error
        except (Exception, SystemExit) as error:
            raise StepFailed(f"python {self.reference}: {self.reason(error)}", 0) from error


def _entries_through(entries: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    """Return the entries through the one at *offset*."""
    offsets = entries.column("offset").to_pylist()
    return entries.slice(0, sum(each <= offset for each in offsets))


def _check_batch(returned: object, given: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch that a function *returned* for *given* as entries.

    Raise :class:`_WrongBatch` where it is not as docs/steps.md requires.
    """
    if isinstance(returned, pa.Table):
        batches = returned.combine_chunks().to_batches()
        empty = pa.RecordBatch.from_pylist([], returned.schema)
        returned = batches[0] if batches else empty
    if not isinstance(returned, pa.RecordBatch):
        raise _WrongBatch(f"{type(returned).__name__}; it may return a RecordBatch or a Table")
    columns = {name: _take_column(returned, name) for name in ("offset", *MESSAGE_SCHEMA.names)}
    columns["logged_at"] = _log_times(columns["offset"], given)
    made = pa.RecordBatch.from_arrays(
        [columns[name] for name in ENTRY_SCHEMA.names], schema=ENTRY_SCHEMA
    )
    try:
        made.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _WrongBatch(f"a batch that is not valid: {error}") from error
    _check_values(made)
    return made


def _take_column(returned: pa.RecordBatch, name: str) -> pa.Array:
    field = ENTRY_SCHEMA.field(name)
    places = returned.schema.get_all_field_indices(name)
    if len(places) != 1:
        raise _WrongBatch(f"a batch with {len(places) or 'no'} columns {name!r}")
    column = returned.column(places[0])
    if column.type != field.type:
        column = _cast(column, name, field.type)
    if column.null_count and not field.nullable:
        raise _WrongBatch(f"a null in column {name!r}")
    return column


def _cast(column: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    """Return *column* as *kind* where it is only another layout of the same values."""
    found = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not _has_same_values(found, kind):
        raise _WrongBatch(f"a batch whose column {name!r} is {column.type}, not {kind}")
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _WrongBatch(f"a batch whose column {name!r} cannot be {kind}") from error


def _has_same_values(found: pa.DataType, wanted: pa.DataType) -> bool:
    types = pa.types
    kinds = [types.is_null]
    if wanted == pa.string():
        kinds += [types.is_string, types.is_large_string, types.is_string_view]
    elif wanted == pa.binary():
        kinds += [types.is_binary, types.is_large_binary, types.is_binary_view]
    elif types.is_list(wanted):
        kinds += [types.is_large_list]
    elif types.is_timestamp(wanted) and types.is_timestamp(found):
        return found.tz is not None
    return any(kind(found) for kind in kinds)


def _log_times(offsets: pa.Array, given: pa.RecordBatch) -> pa.Array:
    """Return the log times of the entries at *offsets*, which must all be *given*, and ascend."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 60 ms that a pipeline without steps saves

    if len(offsets) > 1 and pc.any(pc.less(offsets[1:], offsets[:-1])).as_py():
        raise _WrongBatch("offsets that do not ascend")
    rows = pc.index_in(offsets, value_set=given.column("offset"))
    if rows.null_count:
        raise _WrongBatch("an offset that it was not given")
    return given.column("logged_at").take(rows)


def _check_values(made: pa.RecordBatch) -> None:
    for name, known in _ONE_OF:
        if not set(made.column(name).unique().to_pylist()) <= set(known):
            raise _WrongBatch(f"a value in column {name!r} that is not one of {', '.join(known)}")


def _merge(entries: pa.RecordBatch, mask: pa.BooleanArray, made: pa.RecordBatch) -> pa.RecordBatch:
    """Return *made* and the *entries* that were not given, by offset."""
    import pyarrow.compute as pc  # noqa: PLC0415 - see _log_times

    table = pa.Table.from_batches([entries.filter(pc.invert(mask)), made]).combine_chunks()
    # Entries of one offset keep their order: this sort is stable.
    table = table.take(pc.sort_indices(table["offset"])).combine_chunks()
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches[0] if batches else made


def _error_text(error: BaseException, folder: Path) -> str:
    """Return *error* on one line, with its place."""
    return one_line(f"{_error_place(error, folder)}{type(error).__name__}: {error}")[:_LONGEST]


def _error_place(error: BaseException, folder: Path) -> str:
    """Return the deepest line in the pipeline file's *folder*, else that of the function."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    called = [place for place in frames if place[0] != __file__]
    own = [place for place in called if is_under(Path(place[0]), folder)]
    return "".join(f"{file}:{line}: " for file, line in own[-1:] or called[:1])
