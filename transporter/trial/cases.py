"""Cases: which messages go into a route, and what must come out; a file of them is YAML.

Only the fields that a case names are compared. ``data`` written as text is
compared byte for byte; a mapping, list or number as JSON, whatever its spaces
and the order of its keys.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from dataclasses import dataclass
from difflib import ndiff
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from transporter.errors import EnvironmentFault
from transporter.message import JSON, Message, messages_to_batch, with_offsets
from transporter.pipeline.document import read
from transporter.pipeline.explain import Section, validate
from transporter.pipeline.options import Model, NotEmpty
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.schema import DIALECT, schema_of
from transporter.shown import text_of
from transporter.trial.routes import chosen, trial_routes
from transporter.trial.tried import Row
from transporter.units import FOLDER, LocalPath

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from transporter.pipeline.document import Document
    from transporter.trial.on_spark import TrialSpark
    from transporter.trial.routes import TrialRoute
    from transporter.trial.tried import Tried

Op = Literal["insert", "update", "delete", "command", "noop", "skip"]


def _bytes(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("is no base64") from error
    return text


class CaseMessage(Model):
    """A message that goes in, as a case writes it."""

    namespace: str = "test"
    op: Op = "insert"
    phase: Literal["copy", "sync", "complete"] = "sync"
    key: str | None = None
    source_id: str | None = None
    timestamp: Annotated[int, Field(strict=True)] = 0
    content_type: str | None = JSON
    headers: dict[str, str | None] = Field(default={})
    data: Any = None
    base64: Annotated[str | None, BeforeValidator(_bytes)] = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if {"data", "base64"} <= self.model_fields_set:
            raise ValueError("has data and base64; give one of them")
        return self

    def message(self) -> Message:
        """Return the message that goes in."""
        return Message(
            namespace=self.namespace,
            data=self._data(),
            key=_encoded(self.key),
            op=self.op,
            phase=self.phase,
            timestamp=self.timestamp,
            source_id=self.source_id,
            content_type=self.content_type,
            headers=tuple((name, _encoded(value)) for name, value in self.headers.items()),
        )

    def _data(self) -> bytes | None:
        if self.base64 is not None:
            return base64.b64decode(self.base64)
        if self.data is None or isinstance(self.data, str):
            return _encoded(self.data)
        return json.dumps(self.data, ensure_ascii=False, separators=(",", ":")).encode()


class CaseOutput(CaseMessage):
    """A message, or a row for a sink of Spark's, that must come out, in so far as it is named."""

    row: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _message_or_row(self) -> Self:
        if self.row is not None and len(self.model_fields_set) > 1:
            raise ValueError(
                "has a row and keys of a message; a sink of Spark's is given rows only"
            )
        return self

    def wanted(self) -> dict[str, Any]:
        """Return the fields that are named, as :func:`seen` gives those of an output."""
        return self.model_dump(include=self.model_fields_set)

    def seen(self, output: Message | Row) -> dict[str, Any]:
        """Return of *output* the fields that are named here, written as here."""
        if isinstance(output, Row):
            named = output.columns if self.row is None else self.row
            return {"row": {name: value for name, value in output.columns.items() if name in named}}
        values = _plain(output)
        if self.data is not None and not isinstance(self.data, str):
            values["data"] = _document(output.data)
        names = self.model_fields_set if self.row is None else values.keys() - {"base64"}
        return {name: values[name] for name in names}


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _plain(message: Message) -> dict[str, Any]:
    return {
        "namespace": message.namespace,
        "op": message.op,
        "phase": message.phase,
        "key": text_of(message.key),
        "source_id": message.source_id,
        "timestamp": message.timestamp,
        "content_type": message.content_type,
        "headers": {name: text_of(value) for name, value in message.headers},
        "data": text_of(message.data),
        "base64": None if message.data is None else base64.b64encode(message.data).decode(),
    }


def _document(data: bytes | None) -> object:
    """Return *data* as a document, or where it is none as text."""
    try:
        return json.loads(data or b"null")
    except (ValueError, RecursionError):
        return text_of(data)


def _listed(value: object) -> object:
    return [value] if isinstance(value, dict) else value


def _or_one(schema: dict[str, Any]) -> None:
    """Say in the schema of a list that one item may stand alone."""
    several = {key: schema.pop(key) for key in ("type", "items")}
    schema["anyOf"] = [several["items"], several]


_OneOrMore = (BeforeValidator(_listed), Field(json_schema_extra=_or_one))
Messages = Annotated[tuple[CaseMessage, ...], *_OneOrMore]
Outputs = Annotated[tuple[CaseOutput, ...], *_OneOrMore]


class Case(Model):
    """What goes into a route, and what must become of it.

    ``output`` is all that must come out, in order; ``skipped`` says that nothing
    does. ``error`` is a part of what the first entry that fails must say; what
    came before it can be given as ``output`` too.
    """

    name: str
    route: str | None = None
    input: Annotated[Messages, NotEmpty]
    output: Outputs | None = None
    skipped: Literal[True] | None = None
    error: str | None = None

    @model_validator(mode="after")
    def _expects_something(self) -> Self:
        if self.skipped and (self.output or self.error):
            raise ValueError("says skipped, so it can have neither output nor error")
        if self.output is None and self.skipped is None and self.error is None:
            raise ValueError("says nothing of what must come out: add output, skipped or error")
        return self

    def expected(self) -> list[CaseOutput] | None:
        """Return all that must come out; ``None`` when the case does not say."""
        if self.output is None and self.skipped is None:
            return None
        return list(self.output or ())


class _Cases(Model):
    pipeline: LocalPath
    cases: Annotated[tuple[Case, ...], NotEmpty]


def cases_schema() -> dict[str, Any]:
    """Return the JSON Schema of a file of cases."""
    return schema_of(_Cases) | {"$schema": DIALECT, "title": "Cases of a transporter pipeline"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a case went: ``problems`` are lines that say what is not as expected.

    ``not_run`` is the reason why its route could not be run here.
    """

    case: str
    file: str
    line: int
    problems: tuple[str, ...]
    not_run: str = ""

    @property
    def passed(self) -> bool:
        """Whether all was as expected."""
        return not (self.problems or self.not_run)


def judged(
    path: Path, environ: Mapping[str, str], spark: TrialSpark | None = None
) -> Iterator[Verdict]:
    """Run every case of the file at *path*, those of routes with ``sql`` steps on *spark*.

    Raise :class:`ConfigError`, with file and line, when the file or the
    pipeline that it names is wrong.
    """
    document = read(path, environ, only=lambda _: False)
    cases, problems = validate(_Cases, document.root, Section(document), {FOLDER: path.parent})
    if cases is None:
        raise InvalidPipeline(*problems)
    routes = trial_routes(cases.pipeline, environ, spark)
    for index, case in enumerate(cases.cases):
        yield _judge(case, document, index, routes)


def _judge(case: Case, document: Document, index: int, routes: Mapping[str, TrialRoute]) -> Verdict:
    line = document.line(("cases", index, "route"))
    route = chosen(routes, case.route, document.file, line)
    entries = messages_to_batch([each.message() for each in case.input])
    place = (case.name, document.file, document.line(("cases", index)))
    try:
        tried = route.run(with_offsets(entries, 0, time.time_ns() // 1000))
    except EnvironmentFault as error:
        return Verdict(*place, (), str(error))
    return Verdict(*place, (*_errors(case, tried), *_differences(case, tried)))


def _errors(case: Case, tried: Sequence[Tried]) -> Iterator[str]:
    """Say what is wrong with the first failure, or with there being none."""
    failed = next(((place, each.error) for place, each in enumerate(tried) if each.error), None)
    if failed is None and case.error is not None:
        yield f"nothing failed, but an error with {case.error!r} was expected"
    elif failed is not None and (case.error is None or case.error not in failed[1]):
        expected = "" if case.error is None else f"; expected was an error with {case.error!r}"
        yield f"input {failed[0]} failed: {failed[1]}{expected}"


def _differences(case: Case, tried: Sequence[Tried]) -> Iterator[str]:
    """Compare what came out, line by line of its JSON."""
    expected = case.expected()
    if expected is None:
        return
    found = [output for each in tried for output in each.outputs]
    wanted = [_text(each.wanted()) for each in expected]
    # Beyond what was expected every field is shown.
    every = CaseOutput.model_construct(set(CaseMessage.model_fields) - {"base64"}, data={})
    seen = [
        _text((expected[place] if place < len(expected) else every).seen(output))
        for place, output in enumerate(found)
    ]
    if wanted != seen:
        noun = "rows" if any(isinstance(each, Row) for each in found) else "messages"
        yield f"expected (-) {len(wanted)} {noun}, and {len(seen)} came (+):"
        yield from (line for line in ndiff(_lines(wanted), _lines(seen)) if line[0] != "?")


def _text(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


def _lines(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in text.splitlines()]
