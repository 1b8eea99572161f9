"""What the readers and writers of a pipeline find when they look at their sources and sinks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from transporter.adaptor import Finding, Probe
from transporter.errors import TransporterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.pipeline.config import Pipeline, WriterConfig

_PATIENCE: Final = 45.0
"""Seconds after which a probe counts as hanging; each of its waits should take ten at most."""


@dataclass(slots=True)
class Look:
    """What one reader or writer has found; *kind* is ``reader`` or ``route``."""

    kind: str
    name: str
    adaptor: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def wrong(self) -> bool:
        """Whether there is a problem among the findings."""
        return any(each.level == "problem" for each in self.findings)


def looks(pipeline: Pipeline) -> Iterator[Look]:
    """Have every reader and writer of *pipeline* look, all at once, and yield them in its order.

    Whatever a probe raises is its last finding. No secret is in any text.
    """
    begun = [_Probing("reader", each.name, each) for each in pipeline.readers]
    begun += [_Probing("route", each.name, each.writer) for each in pipeline.routes]
    deadline = monotonic() + _PATIENCE
    for each in begun:
        yield each.look(max(0.0, deadline - monotonic()))


class _Probing:
    """A probe under way, in a thread that is left behind when it hangs."""

    def __init__(self, kind: str, name: str, part: WriterConfig) -> None:
        self._look, self._part = Look(kind, name, part.adaptor), part
        self._thread = threading.Thread(target=self._run, name=f"probe-{name}", daemon=True)
        self._thread.start()

    def look(self, seconds: float) -> Look:
        """Return what was found within *seconds*."""
        self._thread.join(seconds)
        found = list(self._look.findings)
        if self._thread.is_alive():
            found.append(Finding(f"there was no answer within {_PATIENCE:g} s", "problem"))
        hide = self._part.secrets.hide
        self._look.findings = [Finding(hide(each.text), each.level) for each in found]
        return self._look

    def _run(self) -> None:
        found = self._look.findings
        try:
            made: Any = self._part.cls(self._part.config)
            if isinstance(made, Probe):
                found.extend(made.probe())
            else:
                found.append(Finding("not looked at: this adaptor has no probe", "warning"))
        except TransporterError as error:
            found.append(Finding(str(error), "problem"))
        except Exception as error:  # noqa: BLE001 - an adaptor's author may raise anything
            found.append(Finding(f"{type(error).__name__}: {error}", "problem"))
