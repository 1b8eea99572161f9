# ruff: noqa: INP001 - a script beside its project
"""Generator of the bill of materials of transporter, and of its licences (``make sbom``).

Both are of the environment whose Python runs this: of transporter, its dependencies and its extras,
and of no tool that is installed beside them. Both come out the same as long as the same versions
are installed.

Usage: ``python ops/bill_of_materials.py CYCLONEDX_PY FOLDER``
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from transporter import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PROJECT: Final = Path(__file__).parent.parent / "pyproject.toml"
_LICENCES: Final = ("LICENSE", "LICENCE", "NOTICE", "COPYING")
_RULE: Final = "=" * 80
_HEAD: Final = f"""\
transporter {__version__}, licensed under the Apache License 2.0 (see LICENSE), runs with
the packages below. Each is its authors' own, under the licence that stands here as its
package states it.
"""


def collect(tool: str) -> dict[str, Any]:
    """Return the CycloneDX document that *tool*, ``cyclonedx-py``, makes of this environment."""
    command = [tool, "environment", "--output-reproducible", "--pyproject", str(_PROJECT)]
    made = subprocess.run([*command, sys.executable], check=True, stdout=subprocess.PIPE)
    document: dict[str, Any] = json.loads(made.stdout)
    return document


def needed(
    name: str = "transporter-engine", extras: Iterable[str] = ("java", "embedded")
) -> set[str]:
    """Return the names of the packages that *name* with *extras* needs here, its own left out."""
    found: set[str] = set()
    waiting = [(name, frozenset(extras))]
    seen = set(waiting)
    while waiting:
        owner, wanted = waiting.pop()
        for line in distribution(owner).requires or ():
            each = Requirement(line)
            met = each.marker is None or any(
                each.marker.evaluate({"extra": extra}) for extra in (*wanted, "")
            )
            if met and (more := (each.name, frozenset(each.extras))) not in seen:
                found.add(canonicalize_name(each.name))
                seen.add(more)
                waiting.append(more)
    return found


def runtime(document: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return *document* with no components but those of these *names*."""
    root = document["metadata"]["component"]
    kept = [each for each in document["components"] if canonicalize_name(each["name"]) in names]
    refs = {root["bom-ref"], *(each["bom-ref"] for each in kept)}
    links = [each for each in document["dependencies"] if each["ref"] in refs]
    return document | {
        # The version is in the code, which the tool does not read.
        "metadata": document["metadata"] | {"component": root | {"version": __version__}},
        "components": kept,
        "dependencies": [
            {**each, "dependsOn": [ref for ref in each.get("dependsOn", ()) if ref in refs]}
            for each in links
        ],
    }


def notice(names: Iterable[str]) -> str:
    """Return the licences of the installed packages *names*, with their texts."""
    return "\n".join((_HEAD, *map(_notice_of, sorted(names, key=str.lower))))


def _notice_of(name: str) -> str:
    found = distribution(name)
    parts = [_RULE, f"{name} {found.version}: {_licence(found)}", _RULE]
    texts = list(_texts(found))
    parts += [text.strip() for text in texts]
    if folders := _elsewhere(found):
        parts.append(
            f"Licences of what comes with it: {', '.join(folders)} of the installed package."
        )
    elif not texts:
        parts.append("The package comes without a licence text.")
    return "\n\n".join(parts) + "\n"


def _licence(found: Distribution) -> str:
    """Return the licence that the package declares: an expression, a classifier or a line."""
    said = found.metadata
    classifiers = [each for each in said.get_all("Classifier", ()) if each.startswith("License")]
    named = [each.rpartition(" :: ")[2] for each in classifiers]
    first_line = (said.get("License") or "").strip().partition("\n")[0]
    return said.get("License-Expression") or ", ".join(named) or first_line or "see below"


def _texts(found: Distribution) -> Iterator[str]:
    for file in _licence_files(found):
        if file.parts[0].endswith(".dist-info"):
            yield Path(str(found.locate_file(file))).read_text(encoding="utf-8", errors="replace")


def _elsewhere(found: Distribution) -> list[str]:
    """Return the folders of the package itself in which licences lie."""
    files = (each for each in _licence_files(found) if not each.parts[0].endswith(".dist-info"))
    # A Java runtime has a folder for each of its modules.
    return sorted({str(each.parent).partition("/legal/")[0] for each in files})


def _licence_files(found: Distribution) -> list[PurePosixPath]:
    files = (PurePosixPath(str(each)) for each in found.files or ())
    return sorted(each for each in files if each.name.upper().startswith(_LICENCES))


def main() -> None:
    """Write ``sbom.cdx.json`` and ``NOTICE`` into the folder of the command line."""
    tool, folder = sys.argv[1], Path(sys.argv[2])
    document = runtime(collect(tool), needed())
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    (folder / "sbom.cdx.json").write_text(text, encoding="utf-8")
    names = [each["name"] for each in document["components"]]
    (folder / "NOTICE").write_text(notice(names), encoding="utf-8")


if __name__ == "__main__":
    main()
