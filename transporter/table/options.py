"""The options of a query over the log, as ``format("transporter")`` takes them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from transporter.errors import ConfigError
from transporter.log.moments import named
from transporter.message import ENTRY_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from typing import TypeVar

    T = TypeVar("T")

TABLE: Final = "log"
"""The name of the log where a command names it, and not the user."""
TEXT: Final = ("data", "key")
"""Columns of bytes that a query may have as text."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_PARTITION_BYTES: Final = 64 << 20
_BATCH: Final = ("from", "to", "pushDown")
_STREAM: Final = ("startingOffsets", "maxOffsetsPerTrigger", "maxBytesPerTrigger")
_BOTH: Final = (
    "path",
    "namespace",
    "columns",
    "data",
    "key",
    "invalidUtf8",
    "failOnDataLoss",
    "partitionBytes",
)
NAMES: Final = (*_BOTH, *_BATCH, *_STREAM)
"""Every option. Case and underscores do not matter: ``partition_bytes`` is one of them too."""


class Moment(NamedTuple):
    """A log time in µs UTC."""

    time: int


Place = int | Moment
"""An offset, or a time."""
Start = Place | str
"""A place, or one of ``earliest`` and ``latest``."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a query wants of the log in ``directory``; by default all of it.

    ``text`` names the columns of bytes that are wanted as text, and ``lenient`` has
    what is no UTF-8 become null there instead of an error. ``starting`` is where a
    stream that has no checkpoint begins.
    """

    directory: Path
    start: Place | None = None
    end: Place | None = None
    namespace: str = ""
    columns: tuple[str, ...] = tuple(ENTRY_SCHEMA.names)
    text: frozenset[str] = frozenset({"data"})
    lenient: bool = False
    fail_on_loss: bool = True
    partition_bytes: int = _PARTITION_BYTES
    push_down: bool = False
    starting: Start = EARLIEST
    max_rows: int | None = None
    max_bytes: int | None = None


def read_options(given: Mapping[str, str], now: datetime) -> Options:
    """Read the options of a query that is planned at *now*.

    Raises:
        ConfigError: an option is unknown, or its value makes no sense.

    """
    found = _named(given)
    if "path" not in found:
        raise ConfigError("say which log: load(DIRECTORY), or the option path")
    if {"maxOffsetsPerTrigger", "maxBytesPerTrigger"} <= found.keys():
        raise ConfigError("give maxOffsetsPerTrigger or maxBytesPerTrigger: Spark takes one limit")

    def read(name: str, kind: Callable[[str], T], default: T) -> T:
        try:
            return kind(found[name]) if name in found else default
        except ValueError as error:
            raise ConfigError(f"option {name}: {found[name]!r} {error}") from error

    def place(text: str) -> Place:
        return place_of(text, now)

    def starting(text: str) -> Start:
        return text.lower() if text.lower() in (EARLIEST, LATEST) else place_of(text, now)

    default_start: Start = EARLIEST
    text = {name: read(name, _is_text, name == "data") for name in TEXT}
    return Options(
        directory=read("path", _directory, Path()),
        start=read("from", place, None),
        end=read("to", place, None),
        namespace=read("namespace", _pattern, ""),
        columns=read("columns", _columns, tuple(ENTRY_SCHEMA.names)),
        text=frozenset(name for name in TEXT if text[name]),
        lenient=read("invalidUtf8", _is_lenient, default=False),
        fail_on_loss=read("failOnDataLoss", _switch, default=True),
        push_down=read("pushDown", _switch, default=False),
        partition_bytes=read("partitionBytes", _size, _PARTITION_BYTES),
        starting=read("startingOffsets", starting, default_start),
        max_rows=read("maxOffsetsPerTrigger", _count, None),
        max_bytes=read("maxBytesPerTrigger", _size, None),
    )


def refuse(given: Mapping[str, str], *, streaming: bool) -> None:
    """Refuse the options that only the other kind of query has."""
    found = _named(given)
    for name in _BATCH if streaming else _STREAM:
        if name in found:
            place = (
                "a stream; give startingOffsets"
                if streaming
                else "a batch query; it has from and to"
            )
            raise ConfigError(f"{name} is no option of {place}")


def place_of(text: str, now: datetime) -> Place:
    """Read an offset, a time in ISO 8601 (local where no zone is given), or an age like ``10m``.

    Raise :class:`ValueError` for anything else.
    """
    return int(text) if text.strip().isdecimal() else Moment(named(text, now).microseconds)


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """Return *given* by the names of :data:`NAMES`."""
    known = {_plain(name): name for name in NAMES}
    for name in given:
        if _plain(name) not in known:
            close = get_close_matches(_plain(name), known, n=1)
            hint = f"did you mean {known[close[0]]}?" if close else f"there are {', '.join(NAMES)}"
            raise ConfigError(f"there is no option {name!r}; {hint}")
    return {known[_plain(name)]: str(value) for name, value in given.items()}


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _directory(text: str) -> Path:
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
    # An executor may have another working directory.
    return Path(text).absolute()


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in ENTRY_SCHEMA.names:
            raise ValueError(f"names no column of {', '.join(ENTRY_SCHEMA.names)}")
    if len(set(names)) < len(names):
        raise ValueError("names a column twice")
    return names


def _pattern(text: str) -> str:
    from transporter.log.search import Wanted  # noqa: PLC0415 - imports pyarrow.compute

    return Wanted(text).namespace


def _is_text(text: str) -> bool:
    return _one_of(text, {"string": True, "binary": False})


def _is_lenient(text: str) -> bool:
    return _one_of(text, {"null": True, "fail": False})


def _switch(text: str) -> bool:
    return _one_of(text, {"true": True, "false": False})


def _one_of(text: str, meanings: dict[str, bool]) -> bool:
    if text.lower() not in meanings:
        raise ValueError(f"is neither {' nor '.join(meanings)}")
    return meanings[text.lower()]


def _size(text: str) -> int:
    from transporter.units import size  # noqa: PLC0415 - imports pydantic

    return _positive(size(text))


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError("is no whole number")
    return _positive(int(text))


def _positive(number: int) -> int:
    if number < 1:
        raise ValueError("must be at least 1")
    return number
