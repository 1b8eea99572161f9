"""Errors of the Kafka client: what is behind its exceptions, and what they blame."""

# ruff: noqa: SLF001 - the client library's own error codes are public, underscore and all

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

CLIENT_ERRORS: Final = (KafkaException, SystemError)
"""The exceptions that the client raises. Of a SystemError :func:`kafka_error` finds the error."""
_BYSTANDER: Final = frozenset(
    {
        KafkaError._FATAL,
        KafkaError._INVALID_DIFFERENT_RECORD,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._PURGE_QUEUE,
    }
)
_DAMAGED: Final = frozenset(
    {
        KafkaError._BAD_COMPRESSION,
        KafkaError._BAD_MSG,
        KafkaError._NOT_IMPLEMENTED,  # An unknown version of a batch, which the client skips.
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
    }
)
"""Errors of a batch in a topic. The client reads it again for ever, or reads on behind it."""
_LOST: Final = "returned NULL without setting an exception"
"""Python's text for a call that fails without an exception."""


def kafka_error(failure: BaseException) -> KafkaError | None:
    """Return the client's error behind *failure*; ``None`` if it is not from the client.

    The client raises a fatal error while it serves callbacks. If another callback runs after
    that, it becomes a SystemError with the fatal error as its cause. If Python collects garbage in
    that callback, it drops the fatal error, and only the fact that there was one is known.
    """
    cause = failure if isinstance(failure, KafkaException) else failure.__cause__
    if isinstance(cause, KafkaException):
        found = cause.args[0] if cause.args else None
        return found if isinstance(found, KafkaError) else None
    if isinstance(failure, SystemError) and _LOST in str(failure):
        return KafkaError(
            KafkaError._FATAL, "the client failed; its log has the reason", fatal=True
        )
    return None


def is_bystander(error: KafkaError) -> bool:
    """Return whether the message itself is fine: taken back, or lost with another's failure."""
    return error.code() in _BYSTANDER


def is_damaged(error: KafkaError) -> bool:
    """Return whether *error*, which a consumer got, is that of a damaged batch in a topic."""
    return error.code() in _DAMAGED
