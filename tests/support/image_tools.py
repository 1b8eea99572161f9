"""The image of ``deploy/Dockerfile``, built by buildah and run without a container engine.

No registry is needed: the base image is made by debootstrap. A container is the image's files
in namespaces of their own, with the root read-only, as ``docker run --read-only`` has them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from root_tools import need_root

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates,systemd,systemd-sysv,dbus,procps"
"""The image that the Dockerfile names is Debian with Python. With systemd, and the ``kill`` of
procps, which the unit calls, it is a host, too.
"""
HOME = "/var/lib/transporter"
_CERTIFICATES = Path("/etc/ssl/certs")
_APT = Path("/etc/apt/apt.conf.d")


def need_image_tools() -> None:
    """Skip the test visibly where an image cannot be built."""
    need_root(
        "an image needs root and Debian's buildah and debootstrap",
        *("buildah", "debootstrap", "unshare", "nsenter"),
    )


class Store:
    """buildah with a storage of its own in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._command = (
            *("buildah", "--storage-driver", "vfs"),
            *("--root", str(folder / "storage"), "--runroot", str(folder / "run")),
        )

    @property
    def base(self) -> Path:
        """The files of the base image."""
        return self._folder / "base"

    def __call__(self, *arguments: str) -> str:
        """Run buildah with *arguments* and return its output."""
        done = subprocess.run(
            [*self._command, *arguments], stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout.strip()

    def build_base(self) -> str:
        """Return the name of a base image that apt has made."""
        files = self.base
        mirror = _run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages")
        names = ("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE)
        _run(*names, str(files), mirror.split()[0])
        made = self("from", "scratch")
        self("add", made, str(files), "/")
        self("commit", made, "base")
        self("rm", made)
        return "localhost/base"

    def build(self, base: str) -> Image:
        """Build the image over *base*, with this host's access to packages."""
        pip = self._folder / "pip.conf"
        pip.write_text(_pip_settings())
        mounts = [f"{each}:{each}:ro" for each in (_CERTIFICATES, _APT) if each.is_dir()]
        self(
            *("bud", "--isolation", "chroot", "--format", "docker"),
            *("--ignorefile", str(ROOT / "deploy" / "Dockerfile.dockerignore")),
            *("--build-arg", f"BASE={base}", "--volume", f"{pip}:/etc/pip.conf:ro"),
            *(part for each in mounts for part in ("--volume", each)),
            *("--file", str(ROOT / "deploy" / "Dockerfile"), "--tag", "engine", str(ROOT)),
        )
        config = json.loads(self("inspect", "--type", "image", "engine"))["Docker"]["config"]
        return Image(Path(self("mount", self("from", "--pull-never", "engine"))), config)


@dataclass(frozen=True, slots=True)
class Image:
    """The files of the image, and its configuration."""

    files: Path
    config: dict[str, Any]

    @contextmanager
    def running(self, user: str, volume: Path, *arguments: str) -> Iterator[Container]:
        """Run the entry point with *arguments* as *user*, a ``uid:gid``, over *volume*."""
        script = _CONTAINER.format(
            files=shlex.quote(str(self.files)),
            volume=shlex.quote(str(volume)),
            home=HOME,
            user=user,
            environment=shlex.join(self.config["Env"]),
            command=shlex.join([*self.config["Entrypoint"], *arguments]),
        )
        process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield Container(process, user, self.config["Env"])
        finally:
            process.kill()
            process.communicate()


_CONTAINER = """
mount --bind {files} {files}
mount --bind {volume} {files}{home}
mount -t proc proc {files}/proc
mount --rbind /dev {files}/dev
mount -t tmpfs -o mode=1777,size=1g tmpfs {files}/tmp
mount -o remount,bind,ro {files}
exec chroot --userspec={user} --groups= {files} \
    env -i {environment} sh -ec 'cd {home}; exec "$@"' - {command}
"""


class Container:
    """The image's entry point as a process of its own, in namespaces of its own."""

    def __init__(self, process: subprocess.Popen[str], user: str, environment: list[str]) -> None:
        self.process = process
        self._user, self._environment = user.split(":"), environment

    @property
    def first(self) -> psutil.Process:
        """The process that is number 1 inside."""
        (found,) = psutil.Process(self.process.pid).children()
        return found

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run *command* inside, as ``docker exec`` does."""
        uid, gid = self._user
        inside = ("nsenter", "--target", str(self.first.pid), "--mount", "--pid", "--root")
        return subprocess.run(
            [*inside, "--setuid", uid, "--setgid", gid, "env", "-i", *self._environment, *command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def _run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _pip_settings() -> str:
    """Return a pip.conf with the indexes and the certificates that this host's pip uses."""
    listed = _run(sys.executable, "-m", "pip", "config", "list")
    kept: dict[str, str] = {}
    for scope, name, value in re.findall(r"^(\S+)\.([a-z-]+)='(.*)'$", listed, re.MULTILINE):
        # Variables come first in the list, and win.
        if name in ("index-url", "extra-index-url", "trusted-host", "cert") and scope:
            kept.setdefault(name, value)
    lines = (f"{name} = {value}\n" for name, value in kept.items())
    return "[global]\n" + "".join(lines)


def prepare_volume(folder: Path, uid: int) -> Path:
    """Create a volume in *folder* for the user *uid*, or for the group 0 as a platform does."""
    volume = folder / f"volume-{uid}"
    volume.mkdir()
    os.chown(volume, uid, 0)
    volume.chmod(0o770)
    return volume
