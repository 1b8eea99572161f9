"""A route's steps, one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from pydantic import ValidationError

from transporter.errors import ConfigError, StepFailed
from transporter.pipeline.namespace_filter import Namespace
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
    """What a route does to its entries. Used by one thread; shares nothing with other routes."""

    empty: ClassVar[Steps]
    """No step: every batch stays what it is."""

    steps: tuple[Step, ...] = ()

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return what becomes of *entries*, whose offsets ascend; they stay as they are.

        The result has ENTRY_SCHEMA too. An entry that is skipped has no row in
        it, one that became several has several with its offset; offsets ascend.
        Raise :class:`StepFailed` for the first entry that fails in any step;
        the entries before it go through.
        """
        made, failed = self.apply_before_failure(entries)
        if failed is not None:
            raise failed
        return made

    def apply_before_failure(
        self, entries: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, StepFailed | None]:
        """Return what becomes of the entries before the first that fails, and how that one does.

        Data that has passed as a JSON document and is none loses its content type. Only now:
        a later step was to find that out, and fail.
        """
        made, failed = self.run_through(entries)
        for namespace in self._unread:
            made = clear_false_json(made, namespace, entries)
        return made, failed

    @property
    def _unread(self) -> set[Namespace]:
        """The namespaces whose data may have passed without having been read."""
        steps = [step for step in self.steps if isinstance(step, _OF_DOCUMENTS)]
        found = {step.namespace for step in steps if not step.thorough}
        # Others may change namespaces.
        whole = len(steps) < len(self.steps) or any(each.matches_all for each in found)
        return {Namespace()} if found and whole else found

    def run_through(self, entries: pa.RecordBatch) -> tuple[pa.RecordBatch, StepFailed | None]:
        """Do the same where other steps follow, and leave every content type as it is."""
        failed: StepFailed | None = None
        for step in self.steps:
            entries, error = _applied(step, entries)
            # A later step may fail at an earlier entry, so the ones before this go on.
            failed = error or failed
        return entries, failed


Steps.empty = Steps()


def _applied(step: Step, entries: pa.RecordBatch) -> tuple[pa.RecordBatch, StepFailed | None]:
    """Return what *step* makes of the entries before the first that fails, and how that does.

    A function of the user's may fail elsewhere when it is called again.
    """
    failed: StepFailed | None = None
    while True:
        try:
            return step.apply(entries), failed
        except StepFailed as error:
            failed, entries = error, _before(entries, error.offset)


def _before(entries: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    offsets = entries.column("offset").to_pylist()
    return entries.slice(0, sum(each < offset for each in offsets))


def compile_steps(configs: Sequence[StepConfig], folder: Path) -> Steps:
    """Make the steps of a route; functions are imported from *folder*, the pipeline file's.

    Takes some ten milliseconds a step. Raise :class:`ConfigError` when what was
    valid at load is no longer, as when a module has been changed since.
    """
    return Steps(tuple(_step(config, folder) for config in configs))


def _step(config: StepConfig, folder: Path) -> Step:
    kind = KINDS[config.name]
    try:
        settings = kind.settings.model_validate(config.settings, context={FOLDER: folder})
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise ConfigError(f"step {config.name}: {reason}") from error
    return kind.make(settings, folder)
