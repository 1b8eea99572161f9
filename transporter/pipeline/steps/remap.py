"""``remap``: the step that gives entries another namespace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import pyarrow as pa
from pydantic import ValidationInfo, field_validator, model_validator

from transporter.message import ENTRY_SCHEMA
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.route_options import NotEmpty, Text
from transporter.pipeline.steps.step import StepSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NAMESPACE: Final = ENTRY_SCHEMA.get_field_index("namespace")


class RemapSettings(StepSettings):
    r"""The new namespaces.

    Either by their whole names, or with *to*: the replacement of the part that the step's
    *namespace* matches, where ``\1`` is its first group.
    """

    namespaces: Annotated[dict[Text, Text], NotEmpty] | None = None
    to: Text | None = None

    @field_validator("to")
    @classmethod
    def _check_template(cls, to: str | None, info: ValidationInfo) -> str | None:
        # A pattern that is wrong itself is not in `data`, and reported itself.
        if to is not None and "namespace" in info.data:
            _replace(pa.array([""]), info.data["namespace"], to)
        return to

    @model_validator(mode="after")
    def _check_either(self) -> RemapSettings:
        if (self.namespaces is None) == (self.to is None):
            raise ValueError("needs either namespaces, or namespace and to")
        return self


def remap(settings: RemapSettings, folder: Path) -> RemapStep:  # noqa: ARG001 - as every step
    """Return the step that gives the namespaces of *settings*."""
    return RemapStep(NamespaceFilter(settings.namespace), settings.namespaces or {}, settings.to)


@dataclass(frozen=True, slots=True)
class RemapStep:
    """A :class:`Step` that gives entries of *namespace* another one.

    By *names*, or by the template *to*. Each namespace of a batch is looked at once.
    """

    namespace: NamespaceFilter
    names: Mapping[str, str]
    to: str | None

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return *entries* with their new namespaces."""
        encoded = entries.column(_NAMESPACE).dictionary_encode()
        old = encoded.dictionary
        new = self._rename(old) if self.to is None else self._replace_match(old, self.to)
        if new.equals(old):
            return entries
        column = new.take(encoded.indices)
        return entries.set_column(_NAMESPACE, ENTRY_SCHEMA.field(_NAMESPACE), column)

    def _rename(self, old: pa.Array) -> pa.Array:
        taken = zip(old.to_pylist(), self.namespace.mask(old).to_pylist(), strict=True)
        names = [self.names.get(name, name) if mine else name for name, mine in taken]
        return pa.array(names, pa.string())

    def _replace_match(self, old: pa.Array, to: str) -> pa.Array:
        return _replace(old, self.namespace.pattern, to)


def _replace(names: pa.Array, pattern: str, to: str) -> pa.Array:
    """Return *names* with *to* in the place of the first match of *pattern* in each.

    Raise :class:`ValueError` when *to* refers to groups that do not exist.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - 60 ms that a pipeline without steps saves

    whole = "(?s)^.*$" if NamespaceFilter(pattern).matches_all else pattern
    try:
        return pc.replace_substring_regex(names, whole, to, max_replacements=1)
    except pa.ArrowInvalid as error:
        text = r"is not a template for this namespace; use \1 for its first group, \\ for a \ "
        raise ValueError(text.rstrip()) from error
