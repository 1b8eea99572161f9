# ruff: noqa: INP001 - a script beside the files that it checks
"""Check the files of ``deploy`` with a linter of each kind; a part of ``make check``.

Usage: ``python ops/check_deploy.py``. Exits 1 if a linter finds a problem, or if one is missing
with ``CI`` set. Elsewhere a missing ``systemd-analyze`` is reported and skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEPLOY = Path(__file__).parents[1] / "deploy"
_HERE = Path(sys.executable).parent
_STAND_IN = "/bin/sh"
"""A program of every host, in place of the unit's, which is not installed here."""


class Finding(NamedTuple):
    """The result of one linter on one file. Without a linter ``problem`` is ``None``."""

    file: Path
    problem: str | None


def check_folder(deploy: Path) -> Iterator[Finding]:
    """Yield the finding of each file in *deploy* that has a linter."""
    for file in sorted(deploy.rglob("*")):
        if (check := check_of(file)) is not None:
            yield check(file)


def check_of(file: Path) -> Callable[[Path], Finding] | None:
    """Return the check of the artefact in *file*, or ``None`` for a file beside one."""
    named = {"Dockerfile": check_dockerfile, "compose.yaml": check_compose}
    if file.parent.name == "kubernetes":
        return check_manifest
    return check_unit if file.suffix == ".service" else named.get(file.name)


def check_dockerfile(file: Path) -> Finding:
    """Lint a Dockerfile."""
    return _lint(file, _HERE / "hadolint", str(file))


def check_compose(file: Path) -> Finding:
    """Validate a compose file by the schema of its specification, offline."""
    schema = ("--builtin-schema", "vendor.compose-spec")
    return _lint(file, _HERE / "check-jsonschema", *schema, str(file))


def check_manifest(file: Path) -> Finding:
    """Validate the manifests of a file by Kubernetes' own schemas, without unknown keys."""
    return _lint(file, _HERE / "kubernetes-validate", "--strict", str(file))


def check_unit(file: Path) -> Finding:
    """Verify a unit, as an instance if it is a template."""
    found = shutil.which("systemd-analyze")
    if found is None:
        return Finding(file, None)
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / file.name.replace("@.", "@example.")
        unit.write_text(_with_stand_ins(file.read_text(encoding="utf-8")), encoding="utf-8")
        return Finding(file, _problem(Path(found), "verify", str(unit)))


def _with_stand_ins(text: str) -> str:
    """Replace program and user of a unit, which this host does not have."""
    text = re.sub(r"^(ExecStart=)/opt/\S+", rf"\1{_STAND_IN}", text, flags=re.MULTILINE)
    return re.sub(r"^(User|Group)=.*", r"\1=root", text, flags=re.MULTILINE)


def _lint(file: Path, tool: Path, *arguments: str) -> Finding:
    return Finding(file, _problem(tool, *arguments) if tool.exists() else None)


def _problem(tool: Path, *arguments: str) -> str:
    """Return the output of a *tool* that fails, or complains; empty if there is nothing."""
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    # systemd-analyze also ends with 0 after warnings about unknown keys.
    complaints = done.stderr if tool.name == "systemd-analyze" else ""
    return (done.stdout + done.stderr).strip() or "failed" if done.returncode else complaints


def main() -> int:
    """Print a line for each file, and return the exit code."""
    required = bool(os.environ.get("CI"))
    missing = "NOT CHECKED, because its linter is not there"
    failed = False
    for file, problem in check_folder(DEPLOY):
        shown = missing if problem is None else problem or "ok"
        sys.stdout.write(f"{file.relative_to(DEPLOY.parent)}: {shown}\n")
        failed |= required if problem is None else bool(problem)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
