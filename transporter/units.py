"""Durations, sizes and paths as in a pipeline file: types for any adaptor's settings.

Each is an annotated type for a pydantic model. :data:`Duration` reads ``5s`` as
seconds, :data:`Size` reads ``64MiB`` as bytes, :data:`Rate` reads ``30/m`` as a number per
second, :data:`LocalPath` reads a path relative to the pipeline file. Error texts never repeat
the value, because it may hold a secret. The caller that reports the error decides about that.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, WithJsonSchema

FOLDER: Final = "folder"
"""Key of the pipeline file's folder in the validation context."""

DURATION: Final = "duration"
SIZE: Final = "size"
"""Titles of the types in a JSON schema, and in lists of settings."""

_SECONDS: Final = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES: Final = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(us|µs|ms|s|m|h|d)")
_RATE: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)/(s|m|h)")
_SIZE: Final = re.compile(r"([0-9]{1,19}) ?([KMGT]i?B|B|)")
_LARGEST: Final = 2**63 - 1
_LARGEST_SHOWN: Final = 1023.5
"""Larger counts of a unit are shown in the next one, because they would be rounded to 1024."""


def parse_duration(value: object) -> float:
    """Return a text such as ``200ms``, ``1.5s`` or ``7d`` in seconds.

    Raise :class:`ValueError` for anything else.
    """
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("is not a duration; write for example 200ms, 5s, 1m, 24h or 7d")
    return float(found[1]) * _SECONDS[found[2]]


def parse_size(value: object) -> int:
    """Return a size such as ``64MiB``, ``10MB``, ``512`` or a whole number in bytes.

    Raise :class:`ValueError` for anything else.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    found = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError("is not a size; write for example 512, 64KiB, 10MB or 1GiB")
    count: int = int(found[1]) * _BYTES[found[2]]
    if count > _LARGEST:
        raise ValueError("is too large for a size")
    return count


def parse_rate(value: object) -> float:
    """Return a text such as ``500/s``, ``30/m`` or ``0.5/s`` as a number per second.

    Raise :class:`ValueError` for anything else, and for a rate of 0.
    """
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is None or not float(found[1]):
        raise ValueError("is not a rate; write for example 500/s, 30/m or 10/h")
    return float(found[1]) / _SECONDS[found[2]]


def format_duration(seconds: float) -> str:
    """Write *seconds*, to the microsecond, in the notation of a pipeline file."""
    microseconds = round(seconds * 1e6)
    for unit in ("d", "h", "m", "s", "ms", "us"):
        width = round(_SECONDS[unit] * 1e6)
        if microseconds and microseconds % width == 0:
            return f"{microseconds // width}{unit}"
    return "0s"


def format_size(count: int) -> str:
    """Write *count* bytes in the notation of a pipeline file, in the largest whole unit."""
    for unit, width in sorted(_BYTES.items(), key=lambda item: -item[1]):
        if unit not in ("", "B") and count and count % width == 0:
            return f"{count // width}{unit}"
    return str(count)


def display_size(count: int) -> str:
    """Write *count* bytes for people, with two or three digits: ``183 KiB``, ``1.5 GiB``."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < _LARGEST_SHOWN:
            break
        size, unit = size / 1024, larger
    digits = 1 if unit != "B" and size < 10 else 0  # noqa: PLR2004 - one digit before the point
    return f"{size:,.{digits}f} {unit}"


def _validate_duration(value: object, info: ValidationInfo) -> float:
    """Accept seconds as a number from code, but only with a unit from a pipeline file."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and info.context is None and value >= 0:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    return parse_duration(value)


def resolve_path(value: Path, info: ValidationInfo) -> Path:
    """Return *value* as an absolute path, relative to the pipeline's folder in *info*.

    Raise :class:`ValueError` for a path that no file system can hold.
    """
    folder = (info.context or {}).get(FOLDER, ".")
    try:
        # Not resolve(), because a symlinked folder that moves must not make a second log.
        path = os.path.abspath(Path(folder, value.expanduser()))  # noqa: PTH100 - see above
    except (RuntimeError, ValueError) as error:
        raise ValueError("is not a path; `~` needs a user that exists") from error
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ValueError("is not a path: it contains half of a surrogate pair") from error
    if b"\0" in encoded:
        raise ValueError("is not a path: it contains a NUL character")
    return Path(path)


def _json_schema(title: str, *types: str) -> WithJsonSchema:
    schema: dict[str, Any] = {"title": title, "type": list(types)}
    return WithJsonSchema(schema)


Duration = Annotated[float, BeforeValidator(_validate_duration), _json_schema(DURATION, "string")]
"""Seconds, written as ``200ms``, ``5s``, ``1m``, ``24h`` or ``7d`` in a pipeline file.

A bare number is refused there, because its unit is unclear. Code may pass seconds.
"""

Size = Annotated[int, BeforeValidator(parse_size), _json_schema(SIZE, "string", "integer")]
"""Bytes, written as ``512``, ``64KiB``, ``10MB`` or ``1GiB`` in a pipeline file."""

Rate = Annotated[float, BeforeValidator(parse_rate), _json_schema("rate", "string")]
"""A number per second, written as ``500/s``, ``30/m`` or ``10/h`` in a pipeline file."""

LocalPath = Annotated[Path, AfterValidator(resolve_path), _json_schema("path", "string")]
"""An absolute path. A relative one is taken from the pipeline file's folder.

So a pipeline means the same files from any working directory. Symbolic links
are kept as they are written. In code, without a pipeline file, relative paths
start at the working directory.
"""
