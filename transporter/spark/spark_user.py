"""The user that Spark runs as, where the system has no name for it.

Containers often run with an arbitrary user id without a passwd entry. Java then has neither
the user's name nor their home, and Hadoop refuses to start.
"""

from __future__ import annotations

import os
import pwd
import shlex
from typing import TYPE_CHECKING, Any, Final

from transporter.spark.class_archive import LAUNCHER_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

_HADOOP: Final = "HADOOP_USER_NAME"


def is_nameless() -> bool:
    """Return whether this process's user has no passwd entry."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return True
    return False


def nameless_environment(environ: Mapping[str, str], home: str) -> dict[str, str]:
    """Return the variables that a JVM needs besides *environ* to run as this process's user.

    Empty for a user with a passwd entry. *home* is used if ``HOME`` is not set.
    """
    if not is_nameless():
        return {}
    name = _user_name(environ)
    home = environ.get("HOME") or home
    options = [f"-Duser.name={name}", f"-Duser.home={home}"]
    given = environ.get(LAUNCHER_OPTIONS, "")
    return {_HADOOP: name, LAUNCHER_OPTIONS: f"{shlex.join(options)} {given}".rstrip()}


def name_login_user(jvm: Any) -> None:  # noqa: ANN401 - a view of py4j's
    """Give Hadoop in *jvm* a login user if the system has none. Call it before Spark starts."""
    if is_nameless():
        # Hadoop's own login takes the name from the system and fails, despite the environment.
        users = jvm.org.apache.hadoop.security.UserGroupInformation
        users.setLoginUser(users.createRemoteUser(_user_name(os.environ)))


def _user_name(environ: Mapping[str, str]) -> str:
    return environ.get(_HADOOP) or str(os.getuid())
