"""``only`` and ``skip``: steps that pass or skip entries by a field of their document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
from pydantic import AfterValidator, ValidationInfo, WithJsonSchema, field_validator

from transporter.errors import StepFailed
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.problems import suggestion
from transporter.pipeline.steps.conditions import OPERATORS, Condition, WrongType, make_condition
from transporter.pipeline.steps.documents import document_mask, replace_chosen
from transporter.pipeline.steps.json_grammar import UnsupportedJson
from transporter.pipeline.steps.json_rewrite import Finder
from transporter.pipeline.steps.paths import FieldPath, path_text
from transporter.pipeline.steps.step import StepSettings

if TYPE_CHECKING:
    import pathlib


def _check_operator(operator: str) -> str:
    if operator not in OPERATORS:
        raise ValueError(f"is not an operator{suggestion(operator, OPERATORS, 'operators')}")
    return operator


class ChoiceSettings(StepSettings):
    """The field, the operator and the value to compare with."""

    field: FieldPath
    operator: Annotated[
        str, AfterValidator(_check_operator), WithJsonSchema({"enum": list(OPERATORS)})
    ]
    value: Annotated[Any, WithJsonSchema({"type": ["string", "number", "boolean", "null"]})]

    @field_validator("value")
    @classmethod
    def _check_value(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str | int | float | None):
            raise ValueError("must be text, a number, a boolean or null")  # noqa: TRY004 - pydantic reports ValueError
        if "operator" in info.data:  # else the operator is wrong, and reported itself
            make_condition(info.data["operator"], value)
        return value


def only(settings: ChoiceSettings, folder: pathlib.Path) -> ChoiceStep:  # noqa: ARG001 - as every step
    """Return the step that lets through the documents for which *settings* hold."""
    return _make_step("only", settings, passing=True)


def skip(settings: ChoiceSettings, folder: pathlib.Path) -> ChoiceStep:  # noqa: ARG001 - as every step
    """Return the step that leaves out the documents for which *settings* hold."""
    return _make_step("skip", settings, passing=False)


def _make_step(name: str, settings: ChoiceSettings, *, passing: bool) -> ChoiceStep:
    namespace, field = NamespaceFilter(settings.namespace), path_text(settings.field)
    # Data that is not a document must not vanish like a document without the field.
    finder = Finder(settings.field, check=passing)
    compared = make_condition(settings.operator, settings.value)
    return ChoiceStep(name, namespace, field, finder, compared, passing)


@dataclass(frozen=True, slots=True)
class ChoiceStep:
    """A :class:`Step` that passes documents of *namespace* for which *condition* is *passing*.

    Entries that hold no document pass.
    """

    name: str
    namespace: NamespaceFilter
    field: str
    finder: Finder
    condition: Condition
    passing: bool

    @property
    def thorough(self) -> bool:
        """True if data that is not a document fails, also where it cannot hold the field."""
        return self.passing

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return the *entries* that pass."""
        documents, offsets = entries.column("data"), entries.column("offset")
        chosen = document_mask(entries, self.namespace)
        if chosen is not None:
            documents, offsets = documents.filter(chosen), offsets.filter(chosen)
        holds = self.condition.holds(self._find_values(documents.to_pylist(), offsets))
        if holds.count(self.passing) == len(holds):
            return entries
        passes = pa.array([each is self.passing for each in holds], pa.bool_())
        if chosen is not None:
            every = pa.repeat(pa.scalar(value=True), entries.num_rows)
            passes = replace_chosen(passes, every, chosen)
        return entries.filter(passes)

    def _find_values(self, documents: list[bytes], offsets: pa.Array) -> list[list[Any]]:
        """Return the values read from each document."""
        found: list[list[Any]] = []
        find, read = self.finder, self.condition.read
        try:
            for document in documents:
                found.append([*map(read, find(document))])  # noqa: PERF401 - its length marks the failed document
        except WrongType as error:
            text = f"{self.name}: {self.field!r} {error}"
            raise StepFailed(text, offsets[len(found)].as_py()) from error
        except UnsupportedJson as error:
            raise StepFailed(f"{self.name}: {error}", offsets[len(found)].as_py()) from error
        return found
