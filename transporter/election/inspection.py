"""Check of an election's topic or database, without taking part in the election."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from transporter.election.config import KafkaElection, PostgresElection
from transporter.errors import EnvironmentFault
from transporter.kafka.clients import ClientLog, trust_defaults

if TYPE_CHECKING:
    from transporter.election.config import Election

_SECONDS: Final = 10


def check_reachable(election: Election) -> str | None:
    """Check the topic or database of *election*, and return a sentence about it.

    Returns ``None`` if the election needs none of its own. The wait lasts about ten
    seconds at most.

    Raises:
        EnvironmentFault: If the election is not possible with these settings, or not now.
    """
    if isinstance(election, KafkaElection):
        return _check_topic(election)
    if isinstance(election, PostgresElection) and election.dsn is not None:
        return _check_database(election.dsn.get_secret_value())
    return None


def _check_topic(election: KafkaElection) -> str:
    from confluent_kafka import KafkaException  # noqa: PLC0415 - only where it is needed
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - as above

    place = f"the election's topic {election.topic} at {election.bootstrap_servers}"
    settings = {
        "log_level": 0,
        **trust_defaults(election.client),
        **election.client,
        "bootstrap.servers": election.bootstrap_servers,
        "allow.auto.create.topics": False,
        "logger": ClientLog(__name__, election.redact_secrets),
    }
    try:
        found = AdminClient(settings).list_topics(election.topic, _SECONDS).topics[election.topic]
    except KafkaException as error:
        raise EnvironmentFault(f"{place}: {election.redact_values(error.args[0].str())}") from None
    if found.error is not None:
        raise EnvironmentFault(f"{place}: {found.error.str()}; create it, or correct `topic`")
    return f"{place} exists"


def _check_database(dsn: str) -> str:
    import psycopg  # noqa: PLC0415 - only where it is needed

    try:
        with psycopg.connect(dsn, connect_timeout=_SECONDS) as connection:
            where = f"{connection.info.host}:{connection.info.port}"
    except psycopg.Error as error:
        # Only the first line of the message, because the rest may quote settings.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise EnvironmentFault(f"the election's database: {lines[0]}") from None
    return f"the election's database at {where} answers"
