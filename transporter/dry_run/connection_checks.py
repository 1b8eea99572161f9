"""Probes of a pipeline's sources and sinks by its readers and writers."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from transporter.adaptor import Finding, Probe
from transporter.change_source import ChangeReader, TableTarget
from transporter.errors import TransporterError
from transporter.log.logged_reader import find_logged_reader
from transporter.pipeline.namespace_filter import NamespaceFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from transporter.message import Message
    from transporter.pipeline.config import Pipeline, RouteConfig, WriterConfig

_PATIENCE: Final = 45.0
"""Seconds after which a probe counts as hung. Each of its waits should take ten at most."""


@dataclass(slots=True)
class ProbeResult:
    """Findings of one reader or writer. *kind* is ``reader`` or ``route``."""

    kind: str
    name: str
    adaptor: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def has_problem(self) -> bool:
        """Whether a finding is a problem."""
        return any(each.level == "problem" for each in self.findings)


def probe_all(pipeline: Pipeline) -> Iterator[ProbeResult]:
    """Run the probes of all readers and writers of *pipeline* at once. Yield results in order.

    An exception of a probe becomes its last finding. Secrets in texts are redacted.
    """
    log = pipeline.log.dir
    begun = [_ProbeThread("reader", each.name, each, log) for each in pipeline.readers]
    begun += [
        _ProbeThread("route", each.name, each.writer, log, partial(_tables_for, each, pipeline))
        for each in pipeline.routes
    ]
    deadline = monotonic() + _PATIENCE
    for each in begun:
        yield each.result(max(0.0, deadline - monotonic()))


def _tables_for(route: RouteConfig, pipeline: Pipeline) -> Iterator[Message]:
    """Yield the entries of all readers that describe tables to *route*.

    None for a route with steps, which may change them. A source that cannot be asked is left to
    its own probe.
    """
    if route.steps:
        return
    takes = NamespaceFilter(route.namespace)
    for reader in pipeline.readers:
        made: Any = reader.cls(reader.config)
        if isinstance(made, ChangeReader):
            logged = find_logged_reader(pipeline.log.dir, reader.name)
            with suppress(TransporterError):
                for entry in made.change_source(logged).table_entries():
                    if takes.mask(pa.array([entry.namespace]))[0].as_py():
                        yield entry


class _ProbeThread:
    """Running probe, in a thread that is abandoned if it hangs."""

    def __init__(
        self,
        kind: str,
        name: str,
        part: WriterConfig,
        log: Path,
        find_tables: Callable[[], Iterator[Message]] = lambda: iter(()),
    ) -> None:
        self._probe_result, self._part = ProbeResult(kind, name, part.adaptor), part
        self._log, self._find_tables = log, find_tables
        self._thread = threading.Thread(target=self._run, name=f"probe-{name}", daemon=True)
        self._thread.start()

    def result(self, seconds: float) -> ProbeResult:
        """Return the findings, after at most *seconds*."""
        self._thread.join(seconds)
        found = list(self._probe_result.findings)
        if self._thread.is_alive():
            found.append(Finding(f"there was no answer within {_PATIENCE:g} s", "problem"))
        hide = self._part.secrets.hide
        self._probe_result.findings = [Finding(hide(each.text), each.level) for each in found]
        return self._probe_result

    def _run(self) -> None:
        found = self._probe_result.findings
        try:
            made: Any = self._part.cls(self._part.config)
            found.extend(self._probe(made))
            if isinstance(made, TableTarget):
                found.extend(made.probe_tables(self._find_tables()))
        except TransporterError as error:
            found.append(Finding(str(error), "problem"))
        except Exception as error:  # noqa: BLE001 - an adaptor's author may raise anything
            found.append(Finding(f"{type(error).__name__}: {error}", "problem"))

    def _probe(self, made: object) -> Iterable[Finding]:
        if isinstance(made, Probe):
            return made.probe()
        if isinstance(made, ChangeReader):
            return made.change_source(
                find_logged_reader(self._log, self._probe_result.name)
            ).check()
        return [Finding("not checked: this adaptor has no probe", "warning")]
