"""Test cases in YAML: a route's input messages, and its expected output.

Only the fields that a case names are compared. ``data`` written as text is compared
byte for byte. A mapping, list or number is compared as JSON, regardless of spaces and
the order of keys.
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

from transporter.bytes_as_json import text_or_base64
from transporter.dry_run.outcome import OutputRow
from transporter.dry_run.routes import select_route, trial_routes
from transporter.errors import ConfigError, EnvironmentFault
from transporter.message import JSON, Message, messages_to_batch, with_offsets
from transporter.pipeline.json_schema import DIALECT, schema_of
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.route_options import Model, NotEmpty, Text
from transporter.pipeline.validation_errors import Section, validate
from transporter.pipeline.yaml_document import read
from transporter.units import FOLDER, LocalPath

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from transporter.dry_run.on_spark import DryRunSpark
    from transporter.dry_run.outcome import DryRunResult
    from transporter.dry_run.routes import DryRunRoute
    from transporter.pipeline.yaml_document import Document

Op = Literal["insert", "update", "delete", "command", "noop", "skip"]


def _check_base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("is not base64") from error
    return text


class CaseMessage(Model):
    """Input message of a case."""

    namespace: Text = "test"
    op: Op = "insert"
    phase: Literal["copy", "sync", "complete"] = "sync"
    key: str | None = None
    source_id: Text | None = None
    timestamp: Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)] = 0
    content_type: Text | None = JSON
    headers: dict[Text, str | None] = Field(default={})
    data: Any = None
    base64: Annotated[str | None, BeforeValidator(_check_base64)] = None

    @model_validator(mode="after")
    def _refuse_data_and_base64(self) -> Self:
        if {"data", "base64"} <= self.model_fields_set:
            raise ValueError("has data and base64; give one of them")
        return self

    def message(self) -> Message:
        """Return the input message."""
        return Message(
            namespace=self.namespace,
            data=self._data_bytes(),
            key=_encode(self.key),
            op=self.op,
            phase=self.phase,
            timestamp=self.timestamp,
            source_id=self.source_id,
            content_type=self.content_type,
            headers=tuple((name, _encode(value)) for name, value in self.headers.items()),
        )

    def _data_bytes(self) -> bytes | None:
        if self.base64 is not None:
            return base64.b64decode(self.base64)
        if self.data is None or isinstance(self.data, str):
            return _encode(self.data)
        return json.dumps(self.data, ensure_ascii=False, separators=(",", ":")).encode()


class CaseOutput(CaseMessage):
    """Expected output: a message, or a row for a sink of Spark's, with the fields to compare."""

    row: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _refuse_message_and_row(self) -> Self:
        if self.row is not None and len(self.model_fields_set) > 1:
            raise ValueError("has a row and keys of a message; a sink of Spark's gets rows only")
        return self

    def expected_fields(self) -> dict[str, Any]:
        """Return the fields to compare, in the form of :meth:`actual_fields`."""
        return self.model_dump(include=self.model_fields_set)

    def actual_fields(self, output: Message | OutputRow) -> dict[str, Any]:
        """Return the fields of *output* that this expectation names, in the same form."""
        if isinstance(output, OutputRow):
            named = output.columns if self.row is None else self.row
            return {"row": {name: value for name, value in output.columns.items() if name in named}}
        values = _message_fields(output)
        if self.data is not None and not isinstance(self.data, str):
            values["data"] = _parse_document(output.data)
        names = self.model_fields_set if self.row is None else values.keys() - {"base64"}
        return {name: values[name] for name in names}


def _encode(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _message_fields(message: Message) -> dict[str, Any]:
    return {
        "namespace": message.namespace,
        "op": message.op,
        "phase": message.phase,
        "key": text_or_base64(message.key),
        "source_id": message.source_id,
        "timestamp": message.timestamp,
        "content_type": message.content_type,
        "headers": {name: text_or_base64(value) for name, value in message.headers},
        "data": text_or_base64(message.data),
        "base64": None if message.data is None else base64.b64encode(message.data).decode(),
    }


def _parse_document(data: bytes | None) -> object:
    """Return *data* as a JSON document, or as text if it is not JSON."""
    try:
        return json.loads(data or b"null")
    except (ValueError, RecursionError):
        return text_or_base64(data)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, dict) else value


def _allow_single_item(schema: dict[str, Any]) -> None:
    """Allow a single item in place of a list in its *schema*."""
    several = {key: schema.pop(key) for key in ("type", "items")}
    schema["anyOf"] = [several["items"], several]


_OneOrMore = (BeforeValidator(_as_list), Field(json_schema_extra=_allow_single_item))
Messages = Annotated[tuple[CaseMessage, ...], *_OneOrMore]
Outputs = Annotated[tuple[CaseOutput, ...], *_OneOrMore]


class Case(Model):
    """Input of a route, with the expected outcome.

    ``output`` is the complete output in order, and ``skipped`` means that there is none.
    ``error`` is a part of the error text of the first entry that fails. The output of
    the entries before it can be given as ``output`` too.
    """

    name: str
    route: str | None = None
    input: Annotated[Messages, NotEmpty]
    output: Outputs | None = None
    skipped: Literal[True] | None = None
    error: str | None = None

    @model_validator(mode="after")
    def _require_outcome(self) -> Self:
        if self.skipped and (self.output or self.error):
            raise ValueError("has skipped, so it can have neither output nor error")
        if self.output is None and self.skipped is None and self.error is None:
            raise ValueError("has no expected outcome: add output, skipped or error")
        return self

    def expected_outputs(self) -> list[CaseOutput] | None:
        """Return the complete expected output, or ``None`` if the case leaves it open."""
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
class CaseResult:
    """Result of a case. ``problems`` are lines about unexpected outcomes.

    ``not_run`` is the reason why its route could not be run here.
    """

    case: str
    file: str
    line: int
    problems: tuple[str, ...]
    not_run: str = ""

    @property
    def ok(self) -> bool:
        """Whether the outcome was as expected."""
        return not (self.problems or self.not_run)


def run_cases(
    path: Path, environ: Mapping[str, str], spark: DryRunSpark | None = None
) -> Iterator[CaseResult]:
    """Run every case of the file at *path*, those of routes with ``sql`` steps on *spark*.

    Raises:
        ConfigError: the file, or the pipeline that it names, is wrong; with file and line.

    """
    document = read(path, environ, only=lambda _: False)
    if isinstance(document.root, dict) and {"readers", "routes"} <= document.root.keys():
        raise ConfigError("is a pipeline; cases are in a file of their own", str(path), 1)
    cases, problems = validate(_Cases, document.root, Section(document), {FOLDER: path.parent})
    if cases is None:
        raise InvalidPipeline(*problems)
    routes = trial_routes(cases.pipeline, environ, spark)
    for index, case in enumerate(cases.cases):
        yield _run_case(case, document, index, routes)


def _run_case(
    case: Case, document: Document, index: int, routes: Mapping[str, DryRunRoute]
) -> CaseResult:
    line = document.line(("cases", index, "route"))
    route = select_route(routes, case.route, document.file, line)
    entries = messages_to_batch([each.message() for each in case.input])
    place = (case.name, document.file, document.line(("cases", index)))
    try:
        results = route.run(with_offsets(entries, 0, time.time_ns() // 1000))
    except EnvironmentFault as error:
        return CaseResult(*place, (), str(error))
    return CaseResult(*place, (*_error_problems(case, results), *_output_problems(case, results)))


def _error_problems(case: Case, results: Sequence[DryRunResult]) -> Iterator[str]:
    """Compare the first failure, or its absence, with the expected error."""
    failed = next(((place, each.error) for place, each in enumerate(results) if each.error), None)
    if failed is None and case.error is not None:
        yield f"nothing failed, but an error with {case.error!r} was expected"
    elif failed is not None and (case.error is None or case.error not in failed[1]):
        expected = "" if case.error is None else f"; expected was an error with {case.error!r}"
        yield f"input {failed[0]} failed: {failed[1]}{expected}"


def _output_problems(case: Case, results: Sequence[DryRunResult]) -> Iterator[str]:
    """Compare the output line by line, as JSON."""
    expected = case.expected_outputs()
    if expected is None:
        return
    found = [output for each in results for output in each.outputs]
    wanted = [_json_text(each.expected_fields()) for each in expected]
    # Unexpected outputs are shown with every field.
    every = CaseOutput.model_construct(set(CaseMessage.model_fields) - {"base64"}, data={})
    seen = [
        _json_text((expected[place] if place < len(expected) else every).actual_fields(output))
        for place, output in enumerate(found)
    ]
    if wanted != seen:
        noun = "rows" if any(isinstance(each, OutputRow) for each in found) else "messages"
        yield f"expected {len(wanted)} {noun} (-), got {len(seen)} (+):"
        yield from (line for line in ndiff(_lines(wanted), _lines(seen)) if line[0] != "?")


def _json_text(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


def _lines(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in text.splitlines()]
