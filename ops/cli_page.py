# ruff: noqa: INP001 - a script beside the page that it writes
"""Generator of ``docs/cli.md`` from the help texts of the commands (``make docs``).

Typer's own generator writes the sections. This script adds the table of contents, the
introduction and the formatting of examples.

Usage: ``python ops/cli_page.py docs/cli.md``
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import typer
from typer.cli import get_docs_for_click
from typer.core import TyperCommand, TyperGroup

from transporter.cli.commands import build

if TYPE_CHECKING:
    from collections.abc import Iterator

    Command = TyperCommand | TyperGroup

_NAME: Final = "transporter"
_INTRODUCTION: Final = """\
<!-- Written by `make docs` from the help texts of the commands. Do not edit. -->

Most commands take a pipeline file, or its log directory. With `--json` a command prints one JSON
object: `{"ok": true, "result": …}`, or `{"ok": false, "error": …}`. `log tail` and `top` print one
object a line.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | something failed while running; a stopped route counts |
| 2 | wrong configuration or usage |
| 3 | the environment, such as a missing Java or an unreachable source |
| 130 | interrupted |

"""
_COMMANDS: Final = re.compile(r"\*\*Commands\*\*:\n\n(?:\* .*\n)+")
_EXAMPLES: Final = re.compile(r"\x08\n(Examples?):\n")


def page() -> str:
    """Return the text of the page."""
    root = cast("TyperGroup", typer.main.get_command(build()))
    context = typer.Context(root, info_name=_NAME)
    commands = list(_walk(root, context, _NAME))
    for _, command in commands:
        _move_examples(command)
    text = get_docs_for_click(obj=root, ctx=context, name=_NAME, title="Command line")
    contents = "\n".join(_entry(path, command) for path, command in commands)
    text = _COMMANDS.sub(lambda _: f"## Contents\n\n{contents}\n", text, count=1)
    head, usage, rest = text.partition("**Usage**")
    return f"{head}{_INTRODUCTION}{usage}{rest.strip()}\n"


def _walk(group: TyperGroup, context: typer.Context, path: str) -> Iterator[tuple[str, Command]]:
    """Yield the commands below *group* with their paths, in the order of the help."""
    for name in group.list_commands(context):
        command = cast("Command", group.get_command(context, name))
        yield f"{path} {name}", command
        if isinstance(command, TyperGroup):
            yield from _walk(command, context, f"{path} {name}")


def _entry(path: str, command: Command) -> str:
    """Return the command's line in the table of contents."""
    indent = "  " * (path.count(" ") - 1)
    link = f"[`{path}`](#{path.replace(' ', '-')})"
    return f"{indent}* {link}: {command.get_short_help_str()}"


def _move_examples(command: Command) -> None:
    """Move the examples of *command* from its description behind its options, as code."""
    text = command.help or ""
    found = _EXAMPLES.search(text)
    if found is None:
        return
    lines = text[found.end() :].strip().splitlines()
    code = "\n".join(f"$ {line.strip()}" for line in lines)
    command.help = text[: found.start()].strip()
    command.epilog = f"**{found[1]}**:\n\n```console\n{code}\n```"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
