"""Environment variables in a pipeline file: ``${VAR}``, ``${VAR:-default}``, ``${VAR:?message}``.

``$${`` stands for a plain ``${``. A variable that is set but empty counts as
unset for ``:-`` and ``:?``, as in a shell. A default or message ends at the
first ``}``, and nothing is replaced inside it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKEN: Final = re.compile(
    r"(?P<escape>\$\$\{)"
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:(?P<kind>:-|:\?)(?P<rest>[^}]*))?\}"
    r"|(?P<malformed>\$\{)"
)


class Substituted(NamedTuple):
    """A text with its variables replaced, and the values that came from outside the file."""

    text: str
    replaced: bool
    values: frozenset[str]


def substitute(text: str, environ: Mapping[str, str]) -> Substituted:
    """Replace every variable in *text*.

    Raise :class:`ValueError`, whose text never holds a value, when a variable
    without a default is unset or a ``${`` does not begin a variable.
    """
    values: set[str] = set()
    found = list(_TOKEN.finditer(text))
    parts, end = [], 0
    for token in found:
        parts += [text[end : token.start()], _value(token, environ, values)]
        end = token.end()
    replaced = any(token["name"] for token in found)
    return Substituted("".join([*parts, text[end:]]), replaced, frozenset(values))


def _value(token: re.Match[str], environ: Mapping[str, str], values: set[str]) -> str:
    if token["escape"]:
        return "${"
    if token["malformed"]:
        raise ValueError(
            "'${' does not begin a variable; write ${NAME}, ${NAME:-default}, ${NAME:?message},"
            " or $${ for a plain ${"
        )
    name, kind, rest = token["name"], token["kind"], token["rest"]
    value = environ.get(name)
    if value or (value is not None and kind is None):
        values.add(value)
        return value
    if kind == ":-":
        return str(rest)
    raise ValueError(_unset(name, rest))


def _unset(name: str, message: str | None) -> str:
    reason = message or f"set it, or give a default with ${{{name}:-default}}"
    return f"environment variable {name} is not set: {reason}"
