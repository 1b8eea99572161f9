"""The installed distribution, and a foreign one that would break it.

The import name ``transporter`` belongs to two distributions: ``transporter-engine``, which
is this one, and ``transporter`` of the package index, a program of 2013. Whichever is
installed last overwrites files of the other.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Final

from transporter.errors import EnvironmentFault

NAME: Final = "transporter-engine"
"""The name of this distribution on the package index."""
_FOREIGN: Final = "transporter"


def refuse_other_distribution() -> None:
    """Raise an error that names the commands to run if a distribution ``transporter`` is here.

    An editable installation of this project from before its renaming counts as well. Removing
    either also removes files that belong to this distribution, so that is installed again.

    Raises:
        EnvironmentFault: it is in the environment of this Python.

    """
    if problem := other_distribution_problem():
        raise EnvironmentFault(problem)


def broken_installation_text(error: ImportError) -> str:
    """Return the reason for *error*, an import of the command line itself, and the next action."""
    return other_distribution_problem() or (
        f"the installation is not complete: {error}; run: {_reinstall_command()}"
    )


def other_distribution_problem() -> str:
    """Return the problem, with the commands to run, or an empty text."""
    try:
        found = distribution(_FOREIGN)
    except PackageNotFoundError:
        return ""
    return (
        f"the distribution 'transporter' {found.version} is installed in "
        f"{found.locate_file('')}; it is not this program, but has files of the same "
        f"names, so one has overwritten the other; run: {_uninstall_command()} && "
        f"{_reinstall_command()}"
    )


def _uninstall_command() -> str:
    python = shlex.quote(sys.executable)
    if _has_pip():
        return f"{python} -m pip uninstall --yes {_FOREIGN}"
    return f"uv pip uninstall --python {python} {_FOREIGN}"


def _reinstall_command() -> str:
    python = shlex.quote(sys.executable)
    if _has_pip():
        return f"{python} -m pip install --force-reinstall --no-deps {_reinstalled()}"
    return f"uv pip install --python {python} --reinstall --no-deps {_reinstalled()}"


def _has_pip() -> bool:
    """Return whether pip is in this environment. Those that uv makes have none."""
    return find_spec("pip") is not None


def _reinstalled() -> str:
    """Return the argument of pip that installs this distribution again from where it came."""
    try:
        origin = _origin(distribution(NAME))
    except PackageNotFoundError:
        origin = {}
    url = origin.get("url")
    if not isinstance(url, str):
        return NAME
    is_editable = isinstance(info := origin.get("dir_info"), dict) and info.get("editable")
    return ("-e " if is_editable else "") + shlex.quote(url.removeprefix("file://"))


def _origin(found: Distribution) -> dict[str, object]:
    """Return the record of an installation from somewhere else than an index, else nothing."""
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return origin if isinstance(origin, dict) else {}
