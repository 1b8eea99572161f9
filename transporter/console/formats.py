"""Texts for pages: numbers, times, payloads. Pure."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from transporter.bytes_as_json import text_or_base64
from transporter.units import display_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

THIN: Final = "\N{NARROW NO-BREAK SPACE}"
_KEPT: Final = frozenset("\n\t")
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"})
"""Unicode categories of letters that are not seen, or change how their neighbours are shown."""
MOST_SHOWN: Final = 256 << 10
"""Bytes of data that a page shows."""
_LONGEST_LETTER: Final = 4
"""Bytes of a letter in UTF-8 at most."""
_STEPS: Final = ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k"))


def count_text(count: int) -> str:
    """Return *count* with its digits in groups of three: ``1 740 002``."""
    return f"{count:,}".replace(",", THIN)


def short_count(count: float) -> str:
    """Return *count* in at most four letters: ``44 k``."""
    for least, unit in _STEPS:
        if count >= least:
            width = max(least, 1_000) if unit != "k" else 1_000
            return f"{count / width:.3g}{THIN}{unit}"
    return count_text(round(count))


def rate_text(rate: float) -> str:
    """Return entries a second: ``2 010/s``, ``0.4/s``."""
    return f"{rate:.1f}/s" if 0 < rate < 10 else f"{short_count(rate)}/s"  # noqa: PLR2004


def size_text(count: int) -> str:
    """Return a size in bytes in the largest binary unit that fits."""
    return display_size(count).replace(" ", THIN)


def iso_text(seconds: float) -> str:
    """Return a time in seconds since the epoch as ISO 8601, UTC, with milliseconds."""
    try:
        time = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def visible(text: object) -> str:
    """Return *text* with every letter escaped that is not seen, or that moves others.

    Lines stay lines. So a payload can neither hide parts of itself nor pretend to be the page.
    """
    return "".join(
        letter
        if letter in _KEPT or unicodedata.category(letter) not in _HIDDEN_CATEGORIES
        else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in str(text)
    )


def one_line(text: object, most: int = 0) -> str:
    """Return *text* as :func:`visible` on one line, of at most *most* letters if that is given."""
    line = visible(" ".join(str(text).split()))
    return line if not most or len(line) <= most else f"{line[: most - 1]}…"


def bytes_text(value: bytes | None) -> str:
    """Return a key or a header as text; other bytes than UTF-8 as ``base64:…``."""
    found = text_or_base64(value)
    if found is None:
        return "null"
    return found if isinstance(found, str) else f"base64:{found['base64']}"


def head_text(value: bytes | None, most: int) -> str:
    """Return :func:`bytes_text` of the first *most* bytes, without a letter that this would cut."""
    if value is None or len(value) <= most:
        return bytes_text(value)
    heads = (value[: most - cut] for cut in range(_LONGEST_LETTER))
    whole = next((each for each in heads if _is_text(each)), value[:most])
    return f"{bytes_text(whole)}…"


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def pretty_data(data: bytes | None) -> str:
    """Return *data* for people to read: JSON in lines, other text as it is, bytes in base64.

    Numbers keep their digits: a value is never shown other than as it was sent. Of more than
    :data:`MOST_SHOWN` bytes the first are shown, as they are. So is JSON that would be longer
    than that in lines.
    """
    if data is not None and len(data) > MOST_SHOWN:
        return visible(head_text(data, MOST_SHOWN))
    text = bytes_text(data)
    try:
        found = json.loads(text, parse_float=_Digits, parse_int=_Digits)
    except (ValueError, RecursionError):
        return visible(text)
    try:
        pretty = _joined(_pretty(found, ""), MOST_SHOWN)
    except RecursionError:
        pretty = None
    return visible(text if pretty is None else pretty)


def _joined(parts: Iterable[str], most: int) -> str | None:
    """Return *parts* as one text, or ``None`` as soon as it has more than *most* letters."""
    kept, size = [], 0
    for each in parts:
        kept.append(each)
        size += len(each)
        if size > most:
            return None
    return "".join(kept)


class _Digits(str):
    """A number, by its own digits."""

    __slots__ = ()


def _pretty(value: Any, indent: str) -> Iterator[str]:  # noqa: ANN401 - whatever JSON holds
    """Yield *value* in lines, piece by piece: indentation can make it far longer than it was."""
    inner = f"{indent}  "
    if isinstance(value, _Digits):
        yield str(value)
    elif isinstance(value, dict) and value:
        for number, (name, each) in enumerate(value.items()):
            yield f"{',' if number else '{'}\n{inner}{json.dumps(name, ensure_ascii=False)}: "
            yield from _pretty(each, inner)
        yield f"\n{indent}}}"
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield f"{',' if number else '['}\n{inner}"
            yield from _pretty(each, inner)
        yield f"\n{indent}]"
    else:
        yield json.dumps(value, ensure_ascii=False)
