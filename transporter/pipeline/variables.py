"""Variables in a pipeline file: ``${VAR}``, ``${VAR:-default}``, ``${VAR:?message}``.

``${file:PATH}`` stands for the secret in a file, see :mod:`transporter.pipeline.secret_files`.
``$${`` stands for a plain ``${``. A variable that is set but empty counts as
unset for ``:-`` and ``:?``, as in a shell. A default or message ends at the
first ``}``, and nothing is replaced inside it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from transporter.pipeline.secret_files import Template, secret_path

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = re.compile(r"\$\{file:[^}]+\}")
_TOKEN: Final = re.compile(
    r"(?P<escape>\$\$\{)"
    r"|\$\{file:(?P<file>[^}]+)\}"
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:(?P<kind>:-|:\?)(?P<rest>[^}]*))?\}"
    r"|(?P<malformed>\$\{)"
)


class Substituted(NamedTuple):
    """A text with its variables replaced, and the values that came from outside the file.

    Of a text with secret files there is a ``template``, and their ``secrets`` are among the values.
    """

    text: str
    replaced: bool
    values: frozenset[str]
    secrets: frozenset[str] = frozenset()
    template: Template | None = None


def substitute(text: str, environ: Mapping[str, str], folder: Path = Path()) -> Substituted:
    """Replace every variable in *text*; relative secret files lie in *folder*.

    Raise :class:`ValueError`, whose text never holds a value, when a variable
    without a default is unset, a secret file cannot be used, or a ``${`` does not begin
    a variable.
    """
    values: set[str] = set()
    found = list(_TOKEN.finditer(text))
    parts: list[str | Path] = []
    end = 0
    for token in found:
        file = token["file"]
        value = secret_path(file, folder) if file else _value(token, environ, values)
        parts += [text[end : token.start()], value]
        end = token.end()
    template = Template((*parts, text[end:]))
    result, secrets = template.read()
    replaced = any(token["name"] or token["file"] for token in found)
    kept = template if template.files else None
    return Substituted(result, replaced, frozenset(values) | secrets, secrets, kept)


def _value(token: re.Match[str], environ: Mapping[str, str], values: set[str]) -> str:
    if token["escape"]:
        return "${"
    if token["malformed"]:
        raise ValueError(
            "'${' does not begin a variable; write ${NAME}, ${NAME:-default}, ${NAME:?message},"
            " ${file:/a/path}, or $${ for a plain ${"
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
