"""What is wrong with a pipeline file: every problem at once, each with its place."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from transporter.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


class InvalidPipeline(ConfigError):
    """A pipeline file has one or more problems; its text has one line for each.

    ``file`` and ``line`` are those of the first. Lives through pickling.
    """

    def __init__(self, *problems: ConfigError) -> None:
        """Collect *problems* (at least one) in the order in which they are to be shown."""
        first = problems[0]
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


def suggestion(word: str, known: Iterable[str], noun: str) -> str:
    """Return the end of a sentence that names the nearest of *known*, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{hint} ({noun}: {', '.join(names) or 'none'})"
