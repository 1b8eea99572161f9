"""All errors that transporter raises on purpose, in one tree.

::

    TransporterError                 exit 1
    ├── ConfigError                  exit 2   the pipeline file, a flag or an adaptor's setting
    ├── EnvironmentFault             exit 3   this machine or a service it needs
    │   ├── LogLocked                         another engine owns the log directory
    │   ├── DiskUnavailable                   the disk cannot serve this now (retriable)
    │   ├── HostFailed                        Java or Spark did not start
    │   └── EngineUnreachable                 the running engine does not answer (retriable)
    ├── LogError                     exit 1   the commit log or an offset log
    │   ├── UnknownFormat                     a format version this one cannot read
    │   ├── Corrupt                           bytes that were proved durable have changed
    │   ├── EntriesLost                       a repair could not save these; a route waits here
    │   ├── LogPoisoned                       an fsync failed, so appends are refused
    │   │   └── LockLost                      the lock file is gone, and another engine may run
    │   ├── LogFull                           no space left (retriable: readers wait)
    │   │   └── BudgetSpent                   the log has reached its limit in bytes
    │   ├── MessageTooLarge                   one message is larger than a frame may be
    │   └── OffsetRefused                     an offset outside the range for acks or replays
    ├── SourceError                  exit 1   a reader
    │   └── SourceUnavailable        exit 3   the source cannot be reached now (retriable)
    ├── ActionRefused                exit 1   an operator's action does not fit the state
    │   └── UnknownName              exit 2   no route or reader has this name
    ├── StepFailed                   exit 1   a step cannot transform this entry
    └── SinkError                    exit 1   a writer
        ├── SinkUnavailable                   the sink cannot be reached now (retriable)
        ├── SinkTimeout                       the sink did not answer in time (retriable)
        ├── RouteFault                        every entry would fail: rights, topic, settings
        └── Rejected                          the sink refuses this entry

The message queue has its own branch, in ``queue.failures``.

Each message names the problem, its place and the next action. Constructors take
positional arguments only and pass all of them to ``Exception``, so that every
error survives pickling between processes. Drivers' exceptions are translated
at the adaptor, with the cause kept.
"""

from __future__ import annotations

from typing import ClassVar


class TransporterError(Exception):
    """An error that transporter reports to its user without a traceback."""

    exit_code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class ConfigError(TransporterError):
    """The configuration is not valid."""

    exit_code = 2

    def __init__(self, problem: str, file: str = "", line: int = 0, /) -> None:
        """Name the *problem* and, if known, the *file* and its 1-based *line*."""
        super().__init__(problem, file, line)
        self.problem, self.file, self.line = problem, file, line

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{place}{self.problem}"


class EnvironmentFault(TransporterError):
    """The machine, or a service that the pipeline needs, does not meet a requirement."""

    exit_code = 3


class LogLocked(EnvironmentFault):
    """Another process owns the log directory."""


class DiskUnavailable(EnvironmentFault):
    """A transient disk error or a full descriptor table. The same call may succeed later."""

    retriable = True


class HostFailed(EnvironmentFault):
    """Java is missing, or the Spark host did not come up."""


class EngineUnreachable(EnvironmentFault):
    """An engine runs, but cannot serve a request now: it starts, stops or is busy."""

    retriable = True


class LogError(TransporterError):
    """The commit log, or an offset log beside it, cannot complete an operation."""


class UnknownFormat(LogError):
    """The file was written in a format version that this version cannot read."""


class Corrupt(LogError):
    """Damage to bytes that were proved durable."""

    def __init__(self, problem: str, file: str = "", byte: int = -1, offset: int = -1, /) -> None:
        """Name the *file*, the *byte* in it and the first *offset* that is missing."""
        super().__init__(problem, file, byte, offset)
        self.problem, self.file, self.byte, self.offset = problem, file, byte, offset

    def __str__(self) -> str:
        parts = [f"at byte {self.byte}"] if self.byte >= 0 else []
        if self.offset >= 0:
            parts.append(f"offset {self.offset}")
        place = f"{self.file}: " if self.file else ""
        return f"{place}{self.problem}" + (f" ({', '.join(parts)})" if parts else "")


class EntriesLost(LogError):
    """A route has reached entries that a repair could not save."""


class LogPoisoned(LogError):
    """A sync failed, so the content of the disk is unknown. Only a restart helps."""


class LockLost(LogPoisoned):
    """The lock file was removed or replaced, so another engine may own the log by now."""


class LogFull(LogError):
    """The disk has no room for this append. Nothing was written."""

    retriable = True


class BudgetSpent(LogFull):
    """The log may not grow before routes are done with its entries. Nothing was written."""


class MessageTooLarge(LogError):
    """One message is larger than a frame may be."""


class OffsetRefused(LogError):
    """The offset is beyond the durable entries, or before the oldest entry of the log."""


class SourceError(TransporterError):
    """A reader cannot go on."""


class SourceUnavailable(SourceError):
    """The source cannot be reached now."""

    exit_code = 3
    retriable = True


class ActionRefused(TransporterError):
    """An operator's request does not fit the current state."""


class UnknownName(ActionRefused):
    """A given name that no route or reader has."""

    exit_code = 2


class StepFailed(TransporterError):
    """A step of a route cannot transform one entry."""

    def __init__(self, problem: str, offset: int, /) -> None:
        """Name the *problem* with its step, and the entry's *offset*."""
        super().__init__(problem, offset)
        self.problem, self.offset = problem, offset


class SinkError(TransporterError):
    """A writer could not deliver."""


class SinkUnavailable(SinkError):
    """The sink cannot be reached now. The slice is retried for as long as it takes."""

    retriable = True

    def __init__(self, problem: str = "", wait: float = 0.0, /) -> None:
        """Name the *problem*, and the seconds to wait before the next attempt."""
        super().__init__(problem, wait)
        self.wait = wait


class SinkTimeout(SinkError):
    """The sink did not answer within the writer's deadline."""

    retriable = True


class RouteFault(SinkError):
    """A fault of the whole route, which delivers nothing until an operator changes something."""


class Rejected(SinkError):
    """The sink refuses one entry."""

    def __init__(self, problem: str, offset: int | None = None, /) -> None:
        """Name the *problem*, and the *offset* of the entry if the sink reports one."""
        super().__init__(problem, offset)
        self.problem, self.offset = problem, offset
