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


def other_distribution_problem() -> str:
    """Return the problem, with the commands to run, or an empty text."""
    try:
        found = distribution(_FOREIGN)
    except PackageNotFoundError:
        return ""
    pip = f"{shlex.quote(sys.executable)} -m pip"
    return (
        f"the distribution 'transporter' {found.version} is installed in "
        f"{found.locate_file('')}; it is not this program, but has files of the same "
        f"names, so one has overwritten the other; run: {pip} uninstall --yes {_FOREIGN} && "
        f"{pip} install --force-reinstall --no-deps {_reinstalled()}"
    )


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
