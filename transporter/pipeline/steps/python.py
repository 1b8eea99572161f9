"""``python``: the step that passes each message to a user's function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Annotated, Final, cast

from pydantic import AfterValidator, ValidationInfo

from transporter.errors import ConfigError, StepFailed
from transporter.message import Message
from transporter.pipeline.adaptor_registry import find_function, is_under
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.problems import one_line
from transporter.pipeline.steps import python_batches
from transporter.pipeline.steps.per_message import replace_messages
from transporter.pipeline.steps.python_batches import BatchStep
from transporter.pipeline.steps.reencode import find_fault
from transporter.pipeline.steps.step import StepSettings
from transporter.units import FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from transporter.message import Entry

_OURS: Final = frozenset({__file__, python_batches.__file__})
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


def _error_text(error: BaseException, folder: Path) -> str:
    """Return *error* on one line, with its place."""
    return one_line(f"{_error_place(error, folder)}{type(error).__name__}: {error}")[:_LONGEST]


def _error_place(error: BaseException, folder: Path) -> str:
    """Return the deepest line in the pipeline file's *folder*, else that of the function."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    called = [place for place in frames if place[0] not in _OURS]
    own = [place for place in called if is_under(Path(place[0]), folder)]
    return "".join(f"{file}:{line}: " for file, line in own[-1:] or called[:1])


def _as_tuple(result: object) -> tuple[object, ...]:
    if isinstance(result, Message):
        return (result,)  # Nearly always, and looking for an iterable takes longer.
    if result is None:
        return ()
    if isinstance(result, Iterable) and not isinstance(result, str | bytes | bytearray | Mapping):
        return tuple(result)
    return (result,)
