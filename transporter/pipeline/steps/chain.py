"""A route's steps, one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from pydantic import ValidationError

from transporter.errors import ConfigError, StepFailed
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.steps.documents import DocumentStep, clear_false_json
from transporter.pipeline.steps.only_skip import ChoiceStep
from transporter.pipeline.steps.registry import KINDS
from transporter.units import FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from transporter.pipeline.steps.step import Step, StepConfig

_OF_DOCUMENTS: Final = (DocumentStep, ChoiceStep)


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a route, in order. Used by one thread. Shares nothing with other routes."""

    empty: ClassVar[Steps]
    """No step: every batch passes unchanged."""

    steps: tuple[Step, ...] = ()

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return the result of all steps for *entries*, whose offsets ascend. These are unchanged.

        The result has ENTRY_SCHEMA too, and its offsets ascend. An entry that is skipped has no row
        in it. One that became several has several rows with its offset.

        Raise :class:`StepFailed` for the first entry that fails in any step. The entries before it
        go through.
        """
        made, failed = self.apply_before_failure(entries)
        if failed is not None:
            raise failed
        return made

    def apply_before_failure(
        self, entries: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, StepFailed | None]:
        """Return the result for the entries before the first that fails, and that one's failure.

        Data that has passed as a JSON document, but is not JSON, loses its content type. This is
        done last, because a later step may have to detect such data, and fail.
        """
        made, failed = self.run_through(entries)
        for namespace in self._unread_namespaces:
            made = clear_false_json(made, namespace, entries)
        return made, failed

    @property
    def _unread_namespaces(self) -> set[NamespaceFilter]:
        """The namespaces whose data may have passed without having been read."""
        steps = [step for step in self.steps if isinstance(step, _OF_DOCUMENTS)]
        found = {step.namespace for step in steps if not step.thorough}
        # Others may change namespaces.
        whole = len(steps) < len(self.steps) or any(each.matches_all for each in found)
        return {NamespaceFilter()} if found and whole else found

    def run_through(self, entries: pa.RecordBatch) -> tuple[pa.RecordBatch, StepFailed | None]:
        """Run all steps, and leave every content type as it is, because other steps follow."""
        failed: StepFailed | None = None
        for step in self.steps:
            entries, error = _apply_step(step, entries)
            # A later step may fail at an earlier entry, so the ones before this go on.
            failed = error or failed
        return entries, failed


Steps.empty = Steps()


def _apply_step(step: Step, entries: pa.RecordBatch) -> tuple[pa.RecordBatch, StepFailed | None]:
    """Return the result of *step* for the entries before the first that fails, and that failure.

    A user's function may fail at another entry when it is called again.
    """
    failed: StepFailed | None = None
    while True:
        try:
            return step.apply(entries), failed
        except StepFailed as error:
            failed, entries = error, _entries_before(entries, error.offset)


def _entries_before(entries: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    offsets = entries.column("offset").to_pylist()
    return entries.slice(0, sum(each < offset for each in offsets))


def compile_steps(configs: Sequence[StepConfig], folder: Path) -> Steps:
    """Make the steps of a route. Functions are imported from *folder*, the pipeline file's folder.

    Takes some ten milliseconds a step. Raise :class:`ConfigError` when settings that were valid at
    load no longer are, as when a module has been changed since.
    """
    return Steps(tuple(_make_step(config, folder) for config in configs))


def _make_step(config: StepConfig, folder: Path) -> Step:
    kind = KINDS[config.name]
    try:
        settings = kind.settings.model_validate(config.settings, context={FOLDER: folder})
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise ConfigError(f"step {config.name}: {reason}") from error
    return kind.make(settings, folder)
