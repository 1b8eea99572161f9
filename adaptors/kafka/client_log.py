"""The log of a Kafka client, without the secrets of its settings."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adaptors.kafka.config import KafkaConnection


class ClientLog:
    """Passes on what the client logs, which repeats what a provider of tokens has answered.

    Thread-safe, as the client's threads share it.
    """

    def __init__(self, name: str, config: KafkaConnection) -> None:
        """Log as *name*, without the secrets of *config*."""
        self._logger, self._config = logging.getLogger(name), config

    def log(self, level: int, text: str, *values: object) -> None:
        """Log *text* with *values* in it, as a logger does."""
        # Invariant 20
        self._logger.log(level, "%s", self._config.without_secrets(text % values))
