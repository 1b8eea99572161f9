"""Problems of a pipeline file: all at once, each with its file and line."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final

from transporter.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TELLING: Final = (
    "passw|secret|token|credential|(private|api|account|access).?key|key.?pem|jaas|[._]sas[._]"
)
TELLING: Final = re.compile(_TELLING, re.IGNORECASE)
"""Names of keys whose values are secrets."""
SECRETIVE: Final = re.compile(f"{_TELLING}|dsn|sasl|auth|ur[il]|conninfo", re.IGNORECASE)
"""Names of keys and variables that may hold a secret."""


_PUBLIC: Final = (("observe", "console_access", "tokens"), frozenset({"name", "role"}))
"""A list of mappings with a typical name, and the keys in it that are no secrets."""


def has_secret_name(path: Sequence[str | int], pattern: re.Pattern[str] = TELLING) -> bool:
    """Return whether *pattern* matches the name of a setting, or of a part that it is in."""
    place, public = _PUBLIC
    if tuple(path[: len(place)]) == place and path[-1] in public:
        return False
    return any(isinstance(step, str) and pattern.search(step) for step in path)


MOST_PROBLEMS: Final = 100
"""Maximum of reported problems of one file."""
_MOST_NAMES: Final = 50
_LONGEST_NAME: Final = 100


class InvalidPipeline(ConfigError):
    """A pipeline file with one or more problems. The text has one line for each.

    ``file`` and ``line`` are those of the first. Survives pickling.
    """

    def __init__(self, *problems: ConfigError) -> None:
        """Collect *problems* (at least one) in the order in which they are to be shown.

        Of very many, the first are kept, and the number of the others.
        """
        first = problems[0]
        if (more := len(problems) - MOST_PROBLEMS) > 0:
            # One with a place keeps it.
            rest = ConfigError(f"there are more problems: {more} or more", first.file, first.line)
            problems = (*problems[:MOST_PROBLEMS], rest) if more > 1 else problems
        super().__init__(first.problem, first.file, first.line)
        self.args = problems
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def one_line(text: object) -> str:
    """Return *text* on one line, with everything unprintable escaped."""
    joined = " ".join(str(text).split())
    return "".join(
        letter
        if letter.isprintable()
        else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in joined
    )


def dotted_path(path: tuple[str | int, ...]) -> str:
    """Return *path* of a pipeline file as users write it: ``routes[0].writer.path``."""
    parts = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return one_line("".join(parts)).removeprefix(".") or "the pipeline"


def spellings(secret: str) -> tuple[str, ...]:
    """Return *secret* as it is, on one line, and as a quoted text in an error may hold it."""
    # Python escapes a single quote only beside a double one, which may be outside of the secret.
    return (secret, one_line(secret), repr(secret)[1:-1], repr(f'"{secret}')[2:-1])


def suggestion(word: str, known: Iterable[str], noun: str) -> str:
    """Return the end of a sentence with the nearest of *known*, and all or many of them."""
    names = sorted(known)
    near = []
    if len(word) <= _LONGEST_NAME:
        near = difflib.get_close_matches(word, names[:_MOST_NAMES], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    shown = names[:_MOST_NAMES] + ["…"] * (len(names) > _MOST_NAMES)
    return f"{hint} ({noun}: {', '.join(shown) or 'none'})"
