"""The JSON documents of a batch: which entries hold them, and a step that rewrites each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from operator import is_not
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from transporter.errors import StepFailed
from transporter.message import ENTRY_SCHEMA, JSON
from transporter.pipeline.steps.json_edits import is_document
from transporter.pipeline.steps.json_grammar import UnsupportedJson

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.pipeline.namespace_filter import NamespaceFilter

_DATA: Final = ENTRY_SCHEMA.get_field_index("data")
_TYPE: Final = ENTRY_SCHEMA.get_field_index("content_type")
_JSON_TYPE: Final = re.compile(r"\s*[^;\s]+/(?:[^;\s]+\+)?json\s*(?:;|$)", re.IGNORECASE)


def is_json(content_type: str | None) -> bool:
    """Return whether data of *content_type* is a JSON document."""
    return content_type == JSON or bool(content_type and _JSON_TYPE.match(content_type))


def document_mask(entries: pa.RecordBatch, namespace: NamespaceFilter) -> pa.BooleanArray | None:
    """Return a mask of the entries of *namespace* that hold documents, or ``None`` for all entries.

    Entries without data, and those whose content type is not JSON, hold none.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - 60 ms that a pipeline without steps saves

    masks = []
    types = entries.column(_TYPE)
    known = types.unique().to_pylist()
    if known != [JSON]:
        documents = pa.array([each for each in known if is_json(each)], pa.string())
        masks.append(pc.is_in(types, value_set=documents))
    if entries.column(_DATA).null_count:
        masks.append(entries.column(_DATA).is_valid())
    if not namespace.matches_all:
        masks.append(namespace.mask(entries.column("namespace")))
    return reduce(pc.and_, masks) if masks else None


def clear_false_json(
    entries: pa.RecordBatch, namespace: NamespaceFilter, given: pa.RecordBatch | None = None
) -> pa.RecordBatch:
    """Return *entries* without the content type of data that is not JSON as claimed.

    Only entries of *namespace* are checked. If they were made of *given*, only data that is still
    the same is checked.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - see holding

    chosen = document_mask(entries, namespace)
    if given is not None and given is not entries:
        before, offsets = given.column(_DATA), given.column("offset")
        if not offsets.equals(entries.column("offset")):
            before = before.take(pc.index_in(entries.column("offset"), value_set=offsets))
        same = pc.equal(entries.column(_DATA), before).fill_null(fill_value=False)
        chosen = same if chosen is None else pc.and_(chosen, same)
    documents = entries.column(_DATA)
    if chosen is not None:
        documents = documents.filter(chosen)
    wrong = [not is_document(each) for each in documents.to_pylist()]
    if not any(wrong):
        return entries
    mask = pa.array(wrong, pa.bool_())
    if chosen is not None:
        mask = replace_chosen(mask, pa.repeat(pa.scalar(value=False), entries.num_rows), chosen)
    types = pc.if_else(mask, pa.scalar(None, pa.string()), entries.column(_TYPE))
    return entries.set_column(_TYPE, ENTRY_SCHEMA.field(_TYPE), types)


def replace_chosen(made: pa.Array, column: pa.Array, chosen: pa.BooleanArray) -> pa.Array:
    """Return *column* with *made* in the *chosen* places."""
    import pyarrow.compute as pc  # noqa: PLC0415 - see holding

    return pc.replace_with_mask(column, chosen, made)


@dataclass(frozen=True, slots=True)
class DocumentStep:
    """A :class:`Step` that rewrites every document of the namespaces that *namespace* matches.

    Entries without a document stay as they are. The *rewriter* returns a document itself where
    nothing changes. A *thorough* one raises :class:`UnsupportedJson` for every document that it
    cannot read. Any other returns data that it need not read as it is.
    """

    name: str
    namespace: NamespaceFilter
    rewriter: Callable[[bytes], bytes]
    thorough: bool = True

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return *entries* with their documents rewritten."""
        documents, offsets = entries.column(_DATA), entries.column("offset")
        chosen = document_mask(entries, self.namespace)
        if chosen is not None:
            documents, offsets = documents.filter(chosen), offsets.filter(chosen)
        old = documents.to_pylist()
        new = self._rewrite(old, offsets)
        if not any(map(is_not, new, old)):
            return entries
        made = pa.array(new, pa.binary())
        if chosen is not None:
            made = replace_chosen(made, entries.column(_DATA), chosen)
        return entries.set_column(_DATA, ENTRY_SCHEMA.field(_DATA), made)

    def _rewrite(self, old: list[bytes], offsets: pa.Array) -> list[bytes]:
        new: list[bytes] = []
        rewrite, add = self.rewriter, new.append
        try:
            for document in old:
                add(rewrite(document))
        except UnsupportedJson as error:
            raise StepFailed(f"{self.name}: {error}", offsets[len(new)].as_py()) from error
        return new
