"""Applies a rewriter to the JSON documents of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import is_not
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from transporter.errors import StepFailed
from transporter.message import ENTRY_SCHEMA, JSON
from transporter.pipeline.steps.edits import FieldTaken
from transporter.pipeline.steps.grammar import NotJson

if TYPE_CHECKING:
    from transporter.pipeline.namespace import Namespace
    from transporter.pipeline.steps.rewrite import Rewriter

_DATA: Final = ENTRY_SCHEMA.get_field_index("data")
_JSON_TYPE: Final = r"(?i)^\s*[^;\s]+/([^;\s]+\+)?json\s*(;|$)"


@dataclass(frozen=True, slots=True)
class DocumentStep:
    """Rewrites every document of the namespaces that *namespace* takes; see :class:`Step`.

    Entries without data, and those whose content type is not JSON, stay as they are.
    """

    name: str
    namespace: Namespace
    rewriter: Rewriter

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return *entries* with their documents rewritten."""
        documents, offsets = entries.column(_DATA), entries.column("offset")
        chosen = self._chosen(entries)
        if chosen is not None:
            documents, offsets = documents.filter(chosen), offsets.filter(chosen)
        old = documents.to_pylist()
        new = self._rewritten(old, offsets)
        if not any(map(is_not, new, old)):
            return entries
        made = pa.array(new, pa.binary())
        if chosen is not None:
            made = _put(made, entries.column(_DATA), chosen)
        return entries.set_column(_DATA, ENTRY_SCHEMA.field(_DATA), made)

    def _chosen(self, entries: pa.RecordBatch) -> pa.BooleanArray | None:
        """Tell which entries hold documents of this step; ``None``: all of them."""
        import pyarrow.compute as pc  # noqa: PLC0415 - 60 ms that a pipeline without steps saves

        masks = []
        types = entries.column("content_type")
        if types.unique().to_pylist() != [JSON]:
            masks.append(pc.match_substring_regex(types, _JSON_TYPE).fill_null(False))  # noqa: FBT003
        if entries.column(_DATA).null_count:
            masks.append(entries.column(_DATA).is_valid())
        if not self.namespace.matches_all:
            masks.append(self.namespace.mask(entries.column("namespace")))
        return reduce(pc.and_, masks) if masks else None

    def _rewritten(self, old: list[bytes], offsets: pa.Array) -> list[bytes]:
        new: list[bytes] = []
        rewrite, add = self.rewriter, new.append
        try:
            for document in old:
                add(rewrite(document))
        except (NotJson, FieldTaken) as error:
            raise StepFailed(f"{self.name}: {error}", offsets[len(new)].as_py()) from error
        return new


def _put(made: pa.Array, documents: pa.Array, chosen: pa.BooleanArray) -> pa.Array:
    """Return *documents* with *made* in the *chosen* places."""
    import pyarrow.compute as pc  # noqa: PLC0415 - see _chosen

    return pc.replace_with_mask(documents, chosen, made)
