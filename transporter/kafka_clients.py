"""What all Kafka clients have in common: of adaptors, of queues, and of electors.

Settings are librdkafka's own, by name. Imports no client: settings are read without one.
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
"""Found in the names of the settings that hold secrets."""
_TRUST: Final = frozenset({"https.ca.location", "https.ca.pem"})
_PASSING: Final = (
    "Failed to acquire SASL OAUTHBEARER token",
    '"status":"invalid_token"',
    "Broker: Request not valid in current SASL state",
    "Local: Broker transport failure",
)
"""Words of authentication errors that another token, or another connection, may mend."""


def may_pass(error: KafkaError) -> bool:
    """Tell whether an error of authentication may go away without an operator.

    While a provider of tokens is away the client has none, or one that has expired. It asks
    for another one by itself.
    """
    return error.name() == "_AUTHENTICATION" and any(words in error.str() for words in _PASSING)


def asks_a_provider(settings: Mapping[str, Value]) -> bool:
    """Tell whether a client with *settings* asks an OpenID provider for tokens."""
    return str(settings.get("sasl.oauthbearer.method", "")).lower() == "oidc"


def trusted(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return what a client with *settings* has to be told to trust a provider as the system does.

    It was built to look for certificates in one place, which not every system has.
    """
    if not asks_a_provider(settings) or _TRUST & settings.keys():
        return {}
    known = ssl.get_default_verify_paths()
    found = known.cafile or known.capath
    return {"https.ca.location": found} if found else {}


def without_values(settings: Mapping[str, Value], text: str) -> str:
    """Return *text* without the values of *settings*: the client repeats what it refuses."""
    # Invariant 20
    for value in settings.values():
        if isinstance(value, str) and value:
            text = text.replace(value, "***")
    return text


def without_secrets(settings: Mapping[str, Value], text: str) -> str:
    """Return *text* without the values of those of *settings* that are secrets."""
    # Invariant 20
    for name, value in settings.items():
        if isinstance(value, str) and value and _SECRET.search(name):
            text = text.replace(value, "***").replace(quote_plus(value), "***")
    return text


class ClientLog:
    """Passes on what a client logs, which repeats what a provider of tokens has answered.

    Thread-safe, as the client's threads share it.
    """

    def __init__(self, name: str, hide: Callable[[str], str]) -> None:
        """Log as *name* what *hide* leaves of it."""
        self._logger, self._hide = logging.getLogger(name), hide

    def log(self, level: int, text: str, *values: object) -> None:
        """Log *text* with *values* in it, as a logger does."""
        # Invariant 20
        self._logger.log(level, "%s", self._hide(text % values))
