"""The options of a query over the log, as ``format("transporter")`` accepts them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from transporter.errors import ConfigError
from transporter.log.time_spec import parse_time
from transporter.message import ENTRY_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from typing import TypeVar

    T = TypeVar("T")

TABLE: Final = "log"
"""The table name of the log if a command chooses it instead of the user."""
TEXT: Final = ("data", "key")
"""Columns of bytes that a query may read as text."""
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
"""Every option. Case and underscores do not matter: ``partition_bytes`` is valid too."""


class Moment(NamedTuple):
    """A log time in µs UTC."""

    time: int


Place = int | Moment
"""An offset, or a time."""
Start = Place | str
"""A place, or one of ``earliest`` and ``latest``."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a query over the log in ``directory``. By default it reads everything.

    Attributes:
        text: the columns of bytes to read as text.
        lenient: whether bytes that are not UTF-8 become null there instead of an error.
        starting: the start of a stream without a checkpoint.

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


def read_options(values: Mapping[str, str], now: datetime) -> Options:
    """Parse the options of a query that is planned at *now*.

    Raises:
        ConfigError: an option is unknown, or its value is invalid.

    """
    found = _canonical_names(values)
    if "path" not in found:
        raise ConfigError("the log directory is missing; use load(DIRECTORY) or the option path")
    if {"maxOffsetsPerTrigger", "maxBytesPerTrigger"} <= found.keys():
        raise ConfigError("give maxOffsetsPerTrigger or maxBytesPerTrigger; Spark takes one limit")

    def parse(name: str, kind: Callable[[str], T], default: T) -> T:
        try:
            return kind(found[name]) if name in found else default
        except ValueError as error:
            raise ConfigError(f"option {name}: {found[name]!r} {error}") from error

    def place(text: str) -> Place:
        return parse_place(text, now)

    def starting(text: str) -> Start:
        return text.lower() if text.lower() in (EARLIEST, LATEST) else parse_place(text, now)

    default_start: Start = EARLIEST
    text = {name: parse(name, _parse_text, name == "data") for name in TEXT}
    return Options(
        directory=parse("path", _parse_directory, Path()),
        start=parse("from", place, None),
        end=parse("to", place, None),
        namespace=parse("namespace", _parse_pattern, ""),
        columns=parse("columns", _parse_columns, tuple(ENTRY_SCHEMA.names)),
        text=frozenset(name for name in TEXT if text[name]),
        lenient=parse("invalidUtf8", _parse_lenient, default=False),
        fail_on_loss=parse("failOnDataLoss", _parse_switch, default=True),
        push_down=parse("pushDown", _parse_switch, default=False),
        partition_bytes=parse("partitionBytes", _parse_size, _PARTITION_BYTES),
        starting=parse("startingOffsets", starting, default_start),
        max_rows=parse("maxOffsetsPerTrigger", _parse_count, None),
        max_bytes=parse("maxBytesPerTrigger", _parse_size, None),
    )


def refuse_options(values: Mapping[str, str], *, streaming: bool) -> None:
    """Refuse the options that only the other kind of query has."""
    found = _canonical_names(values)
    for name in _BATCH if streaming else _STREAM:
        if name in found:
            place = (
                "a stream; give startingOffsets"
                if streaming
                else "a batch query; it has from and to"
            )
            raise ConfigError(f"{name} is not an option of {place}")


def parse_place(text: str, now: datetime) -> Place:
    """Parse an offset, a time in ISO 8601 (local without a zone), or an age such as ``10m``.

    Raises:
        ValueError: it is none of these.

    """
    return int(text) if text.strip().isdecimal() else Moment(parse_time(text, now).microseconds)


def _canonical_names(values: Mapping[str, str]) -> dict[str, str]:
    """Return *values* with the canonical names of :data:`NAMES`."""
    known = {_normalize_name(name): name for name in NAMES}
    for name in values:
        if _normalize_name(name) not in known:
            close = get_close_matches(_normalize_name(name), known, n=1)
            options = f"the options are {', '.join(NAMES)}"
            hint = f"did you mean {known[close[0]]}?" if close else options
            raise ConfigError(f"there is no option {name!r}; {hint}")
    return {known[_normalize_name(name)]: str(value) for name, value in values.items()}


def _normalize_name(name: str) -> str:
    return name.lower().replace("_", "")


def _parse_directory(text: str) -> Path:
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
    # An executor may have another working directory.
    return Path(text).absolute()


def _parse_columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in ENTRY_SCHEMA.names:
            raise ValueError(
                f"names an unknown column; the columns are {', '.join(ENTRY_SCHEMA.names)}"
            )
    if len(set(names)) < len(names):
        raise ValueError("names a column twice")
    return names


def _parse_pattern(text: str) -> str:
    from transporter.log.search import EntryFilter  # noqa: PLC0415 - imports pyarrow.compute

    return EntryFilter(text).namespace


def _parse_text(text: str) -> bool:
    return _parse_choice(text, {"string": True, "binary": False})


def _parse_lenient(text: str) -> bool:
    return _parse_choice(text, {"null": True, "fail": False})


def _parse_switch(text: str) -> bool:
    return _parse_choice(text, {"true": True, "false": False})


def _parse_choice(text: str, meanings: dict[str, bool]) -> bool:
    if text.lower() not in meanings:
        raise ValueError(f"is neither {' nor '.join(meanings)}")
    return meanings[text.lower()]


def _parse_size(text: str) -> int:
    from transporter.units import parse_size  # noqa: PLC0415 - imports pydantic

    return _check_positive(parse_size(text))


def _parse_count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError("is not a whole number")
    return _check_positive(int(text))


def _check_positive(number: int) -> int:
    if number < 1:
        raise ValueError("must be at least 1")
    return number
