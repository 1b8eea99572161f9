"""Common parts of all Kafka clients, for adaptors, queues and electors.

Settings have librdkafka's own names. No client is imported, because settings are read without one.
"""

from __future__ import annotations

import logging
import re
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import KafkaError

Value = str | int | float | bool

_SECRET: Final = re.compile(r"secret|password|passphrase|\.pem$")
"""Pattern in the names of settings that hold secrets."""
_TRUST: Final = frozenset({"https.ca.location", "https.ca.pem"})
_ECHO: Final = "Local: Authentication failure"
"""Text of a request that was under way when a login failed. The login's own error has the cause."""
_PASSING: Final = (
    "Failed to acquire SASL OAUTHBEARER token",
    '"status":"invalid_token"',
    "Broker: Request not valid in current SASL state",
    "Local: Broker transport failure",
    _ECHO,
)
"""Texts of authentication errors that another token, or another connection, may resolve."""


def is_transient_auth_error(error: KafkaError) -> bool:
    """Return whether an authentication error may go away without an operator.

    While a token provider is away the client has no token, or an expired one. It requests
    another one by itself.
    """
    return error.name() == "_AUTHENTICATION" and any(words in error.str() for words in _PASSING)


def is_login_echo(error: KafkaError) -> bool:
    """Return whether *error* only repeats that a login has failed, without the cause."""
    return error.name() == "_AUTHENTICATION" and _ECHO in error.str()


def uses_oidc_provider(settings: Mapping[str, Value]) -> bool:
    """Return whether a client with *settings* requests tokens from an OpenID provider."""
    return str(settings.get("sasl.oauthbearer.method", "")).lower() == "oidc"


def trust_defaults(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings that make a client trust the system's certificates for a provider.

    The client was built to look for certificates in one place, which not every system has.
    """
    if not uses_oidc_provider(settings) or _TRUST & settings.keys():
        return {}
    known = ssl.get_default_verify_paths()
    found = known.cafile or known.capath
    return {"https.ca.location": found} if found else {}


def redact_values(settings: Mapping[str, Value], text: str) -> str:
    """Redact the values of *settings* in *text*, because the client quotes refused values."""
    # Invariant 20
    for value in settings.values():
        if isinstance(value, str) and value:
            text = text.replace(value, "***")
    return text


def redact_secrets(settings: Mapping[str, Value], text: str) -> str:
    """Redact the values of secret *settings* in *text*."""
    # Invariant 20
    for name, value in settings.items():
        if isinstance(value, str) and value and _SECRET.search(name):
            text = text.replace(value, "***").replace(quote_plus(value), "***")
    return text


class ClientLog:
    """Logger for a client, whose log repeats the answers of a token provider.

    Thread-safe, because the client's threads share it.
    """

    def __init__(self, name: str, redact: Callable[[str], str]) -> None:
        """Log as *name* the text that *redact* returns."""
        self._logger, self._redact = logging.getLogger(name), redact

    def log(self, level: int, text: str, *values: object) -> None:
        """Log *text* formatted with *values*, as a logger does."""
        # Invariant 20
        self._logger.log(level, "%s", self._redact(text % values))
