"""Applies a rewriter to the JSON documents of a batch."""

from __future__ import annotations

from dataclasses import dataclass
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
        import pyarrow.compute as pc  # noqa: PLC0415 - 60 ms that a pipeline without steps saves

        documents = entries.column(_DATA)
        chosen = self._chosen(entries)
        some = not pc.all(chosen).as_py()
        old = (documents.filter(chosen) if some else documents).to_pylist()
        new = self._rewritten(old, entries, chosen)
        if all(one is other for one, other in zip(old, new, strict=True)):
            return entries
        made = pa.array(new, pa.binary())
        if some:
            made = pc.replace_with_mask(documents, chosen, made)
        return entries.set_column(_DATA, ENTRY_SCHEMA.field(_DATA), made)

    def _chosen(self, entries: pa.RecordBatch) -> pa.BooleanArray:
        import pyarrow.compute as pc  # noqa: PLC0415 - as above

        types = entries.column("content_type")
        if not pc.all(json := pc.fill_null(pc.equal(types, JSON), False)).as_py():  # noqa: FBT003
            json = pc.fill_null(pc.match_substring_regex(types, _JSON_TYPE), False)  # noqa: FBT003
        chosen = pc.and_(json, entries.column(_DATA).is_valid())
        return pc.and_(chosen, self.namespace.mask(entries.column("namespace")))

    def _rewritten(
        self, old: list[bytes], entries: pa.RecordBatch, chosen: pa.BooleanArray
    ) -> list[bytes]:
        new: list[bytes] = []
        rewrite, add = self.rewriter, new.append
        try:
            for document in old:
                add(rewrite(document))
        except (NotJson, FieldTaken) as error:
            offset = entries.column("offset").filter(chosen)[len(new)].as_py()
            raise StepFailed(f"{self.name}: {error}", offset) from error
        return new
