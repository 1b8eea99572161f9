"""The protection of Spark's own connections on a cluster: authentication and encryption.

Jobs, and entries of DataFrame routes, travel over these connections.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTECTED: Final = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",  # the default lets others flip bits
    "spark.network.crypto.saslFallback": "false",  # it would go on without encryption
    "spark.io.encryption.enabled": "true",  # shuffle data is on the executors' disks
}
"""Settings of Spark's on a cluster, unless it is to be insecure."""
SECRET: Final = "spark.authenticate.secret"  # noqa: S105 - the name of a setting
_AUTHENTICATE: Final = "spark.authenticate"
_FALLBACK: Final = "spark.network.crypto.saslFallback"
_ENCRYPTED: Final = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")
_OWN_SECRET: Final = re.compile(r"yarn\b|k8s://")
"""Masters for which Spark draws a secret for each application and brings it to executors."""
_INSECURE: Final = "or set spark.insecure to true in a network where every user may run code as you"


def protection_problem(master: str, config: Mapping[str, str]) -> str | None:
    """Return the reasons why Spark's connections on the cluster of *master* are unprotected."""
    found = {**PROTECTED, **config}
    if not _is_on(found, _AUTHENTICATE):
        return f"has {_AUTHENTICATE} off: leave it out, {_INSECURE}"
    if not any(_is_on(found, name) for name in _ENCRYPTED):
        return f"has {_ENCRYPTED[0]} off: leave it out, or use {_ENCRYPTED[1]}, {_INSECURE}"
    if _is_on(found, _FALLBACK) and not _is_on(found, _ENCRYPTED[1]):
        return f"has {_FALLBACK} on, which goes on without encryption: leave it out, {_INSECURE}"
    if not config.get(SECRET) and not _OWN_SECRET.match(master):
        return (
            f"needs a secret that the hosts of {master} and the engine share: set {SECRET} "
            f"in spark.config, and there, {_INSECURE}; docs/cluster.md shows how"
        )
    return None


def _is_on(config: Mapping[str, str], name: str) -> bool:
    return config.get(name, "").strip().lower() == "true"
