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

from transporter.pipeline.secret_files import AbsentSecret, Template, read_secret, secret_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILE: Final = re.compile(r"\$\{file:[^}]+\}")
_TOKEN: Final = re.compile(
    r"(?P<escape>\$\$\{)"
    r"|\$\{file:(?P<file>[^}]+)\}"
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:(?P<kind>:-|:\?)(?P<rest>[^}]*))?\}"
    r"|(?P<malformed>\$\{)"
)


class UnsetVariable(ValueError):
    """A variable without a value. ``reason`` names it, and the text also has the remedy."""

    def __init__(self, reason: str, advice: str) -> None:
        """Keep the *reason* apart from the *advice*."""
        super().__init__(f"{reason}: {advice}")
        self.reason = reason


class Unreplaced(ValueError):
    """A text whose variables cannot be replaced, with all of the reasons.

    ``absent`` are the reasons where it is only that variables or secret files are not here.
    """

    def __init__(self, problems: Sequence[ValueError]) -> None:
        """Collect *problems*, at least one."""
        self.problems = tuple(map(str, problems))
        super().__init__("; ".join(self.problems))
        absent = all(isinstance(each, UnsetVariable | AbsentSecret) for each in problems)
        reasons = (getattr(each, "reason", str(each)) for each in problems)
        self.absent = tuple(reasons) if absent else ()


class Substituted(NamedTuple):
    """A text with its variables replaced, and the values that came from outside the file.

    Of a text with secret files there is a ``template``, and their ``secrets`` are among the values.
    ``defaulted`` are the variables that are unset, so that the file's default counts.
    """

    text: str
    replaced: bool
    values: frozenset[str]
    secrets: frozenset[str] = frozenset()
    template: Template | None = None
    defaulted: frozenset[str] = frozenset()


def substitute(text: str, environ: Mapping[str, str], folder: Path = Path()) -> Substituted:
    """Replace every variable in *text*. Relative secret files lie in *folder*.

    Raise :class:`Unreplaced`, whose text never holds a value, when a variable without a default is
    unset, a secret file cannot be used, or a ``${`` does not begin a variable.
    """
    values: set[str] = set()
    secrets: set[str] = set()
    problems: list[ValueError] = []
    defaulted: set[str] = set()
    found = list(_TOKEN.finditer(text))
    parts: list[str | Path] = []
    texts: list[str] = []
    end = 0
    for token in found:
        plain = text[end : token.start()]
        end = token.end()
        file = token["file"]
        try:
            part = secret_path(file, folder) if file else _token_value(token, environ, values)
            if token["kind"] == ":-" and not environ.get(token["name"]):
                defaulted.add(token["name"])
            value = read_secret(part) if isinstance(part, Path) else part
        except ValueError as error:
            problems.append(error)
            continue
        secrets |= {value} if file else set()
        parts += [plain, part]
        texts += [plain, value]
    if problems:
        raise Unreplaced(problems)
    rest = text[end:]
    replaced = any(token["name"] or token["file"] for token in found)
    kept = Template((*parts, rest)) if secrets else None
    known = frozenset(secrets)
    text = "".join([*texts, rest])
    return Substituted(text, replaced, known | values, known, kept, frozenset(defaulted))


def _token_value(token: re.Match[str], environ: Mapping[str, str], values: set[str]) -> str:
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
    advice = rest or f"set it, or give a default with ${{{name}:-default}}"
    raise UnsetVariable(f"environment variable {name} is not set", advice)
