"""Help texts with short first lines and working examples."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer

from transporter.cli.commands import COMMANDS, build

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 45
"""Maximum characters of a one-line help, which then fits beside any name in 80 columns."""
WIDTH = 80


def tree(group: Any, context: typer.Context) -> Iterator[tuple[Any, typer.Context]]:
    """Yield *group* and all commands below it, each with its context."""
    yield group, context
    for name in getattr(group, "commands", {}):
        command = group.commands[name]
        yield from tree(command, typer.Context(command, info_name=name, parent=context))


ROOT: Any = typer.main.get_command(build())
TREE = list(tree(ROOT, typer.Context(ROOT, info_name="transporter")))
PATHS = [context.command_path for _, context in TREE]
EXAMPLES = [
    line.strip()
    for command, _ in TREE
    for block in re.findall(r"\x08\nExamples?:\n(.*)", command.help, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize(("command", "context"), TREE[1:], ids=PATHS[1:])
def test_a_one_line_help_fits(command: Any, context: typer.Context) -> None:
    """The first paragraph of a help text is one short sentence, which no list of commands cuts."""
    line = command.help.partition("\n\n")[0]
    assert len(line) <= LIMIT, context.command_path
    assert line.endswith(".")
    assert command.get_short_help_str(LIMIT) == line


@pytest.mark.parametrize(("command", "context"), TREE, ids=PATHS)
def test_help_fits_into_a_terminal(
    command: Any, context: typer.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of a help text is longer than 80 columns, and none of its lists ends in dots."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    lines = command.get_help(context).splitlines()
    assert [line for line in lines if len(line) > WIDTH] == []
    listed = lines[lines.index("Commands:") :] if "Commands:" in lines else []
    assert [line for line in listed if line.endswith("...")] == []


@pytest.mark.parametrize(("command", "context"), TREE, ids=PATHS)
def test_examples_keep_their_lines(
    command: Any, context: typer.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example is a line of its own, however wide the terminal is."""
    monkeypatch.setenv("COLUMNS", "200")
    shown = [line.strip() for line in command.get_help(context).splitlines()]
    examples = re.findall(r"^ +(transporter .*)$", command.help, re.MULTILINE)
    assert examples or hasattr(command, "commands") or not command.params[1:]
    assert [each for each in examples if each not in shown] == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_can_be_parsed(example: str) -> None:
    """The command, arguments and options of each example exist."""
    name, *words = shlex.split(re.split(r" [|>] ", example)[0])
    assert name == "transporter"
    command, context = TREE[0]
    while hasattr(command, "commands"):
        name = words.pop(0)
        command = command.commands[name]
        if hasattr(command, "commands"):
            context = typer.Context(command, info_name=name, parent=context)
    command.make_context(name, words, parent=context)


def test_a_command_is_built_without_the_others() -> None:
    """No module of another command is imported, which would take longer than most commands do."""
    code = (
        "import sys; from transporter.cli.commands import build; build('status'); "
        "print(*(name.rpartition('.')[2].replace('_', '-') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} & {*COMMANDS} == {"status"}
    assert {name for name in COMMANDS if name not in getattr(ROOT, "commands", {})} == set()
