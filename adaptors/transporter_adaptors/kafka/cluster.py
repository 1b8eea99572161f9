"""Queries to the brokers about topics, apart from the records."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from transporter.errors import EnvironmentFault
from transporter.kafka.clients import ClientLog
from transporter_adaptors.kafka.config import matching_topics
from transporter_adaptors.kafka.failures import is_fault, source_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

    from transporter_adaptors.kafka.config import KafkaConnection

REQUEST_SECONDS: Final = 10.0
"""Time limit of a query to the brokers."""

_GLANCE_SECONDS: Final = 5.0
"""Time limit of queries for operators. After it the answer is unknown, and the query repeated."""

_ERROR_CHECK_SECONDS: Final = 0.2
"""Seconds between two checks for an error that makes waiting useless, such as a bad password."""

_ALL_DOWN: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - a public code
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""Topic id from brokers that have no topic ids."""


class Cluster:
    """Queries about topics, each of at most ten seconds. Used by one thread at a time.

    Raises:
        SourceUnavailable: From every method, when no answer comes.
        EnvironmentFault: From every method, when the brokers refuse to answer.
    """

    def __init__(self, config: KafkaConnection, place: str, **settings: object) -> None:
        """Make a client, with *settings* of its own. It connects with the first query."""
        self._place = place
        self._last_error: KafkaError | None = None
        with translate_refusal(config, place):
            self._admin: Any = AdminClient(
                {
                    "log_level": 2,
                    **config.client,
                    **config.security_settings,
                    **settings,
                    "bootstrap.servers": config.bootstrap_servers,
                    "error_cb": self._record_error,
                    "logger": ClientLog(__name__, config.redact_secrets),
                }
            )

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the id of each of *topics* that exists, empty where brokers have no ids."""
        return {
            name: _spell_id(str(each.topic_id)) for name, each in self._describe(topics).items()
        }

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Return the partitions of those of *topics* that exist."""
        return [
            TopicPartition(name, partition.id)
            for name, topic in self._describe(topics).items()
            for partition in topic.partitions
        ]

    def describe_with_rights(self, topics: Iterable[str]) -> dict[str, Any]:
        """Return the brokers' descriptions of those of *topics* that exist, with our rights."""
        return self._describe(topics, rights=True)

    def _describe(self, topics: Iterable[str], *, rights: bool = False) -> dict[str, Any]:
        names = sorted(set(topics))
        found: dict[str, Any] = {}
        if not names:
            return found
        with self._translate_errors():
            asked = self._admin.describe_topics(
                TopicCollection(names),
                include_authorized_operations=rights,
                request_timeout=REQUEST_SECONDS,
            )
        for name, future in asked.items():
            with self._translate_errors(KafkaError.UNKNOWN_TOPIC_OR_PART):
                found[name] = self._answer(future)
        return found

    def matching_topics(self, pattern: str) -> list[str]:
        """Return the topics whose names match *pattern* anywhere, sorted."""
        with self._translate_errors():
            return matching_topics(
                list(self._admin.list_topics(timeout=REQUEST_SECONDS).topics), pattern
            )

    def ends(
        self, partitions: Iterable[TopicPartition], isolation: str
    ) -> dict[tuple[str, int], int]:
        """Return the offset behind the end of each of *partitions*, as far as *isolation* reads."""
        found: dict[tuple[str, int], int] = {}
        with self._translate_errors():
            asked = self._list_ends(partitions, isolation, REQUEST_SECONDS)
        for partition, future in asked.items():
            with self._translate_errors():
                found[partition.topic, partition.partition] = self._answer(future).offset
        return found

    def query_ends(self, partitions: Iterable[TopicPartition], isolation: str) -> Ends:
        """Return the same as a query whose answer need not be awaited."""
        return Ends(self._list_ends(partitions, isolation, _GLANCE_SECONDS))

    def _list_ends(
        self, partitions: Iterable[TopicPartition], isolation: str, seconds: float
    ) -> dict[TopicPartition, Future[Any]]:
        committed = isolation == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        wanted = {partition: OffsetSpec.latest() for partition in partitions}
        if not wanted:
            return {}
        asked: dict[TopicPartition, Future[Any]] = self._admin.list_offsets(
            wanted, isolation_level=level, request_timeout=seconds
        )
        return asked

    def _answer(self, future: Future[Any]) -> Any:  # noqa: ANN401 - the library has no types
        """Return the answer, or raise as soon as it is certain that none will come."""
        while True:
            try:
                return future.result(_ERROR_CHECK_SECONDS)
            except TimeoutError:
                self._admin.poll(0)
                if self._last_error is not None and is_fault(self._last_error):
                    raise KafkaException(self._last_error) from None

    def _record_error(self, error: KafkaError) -> None:
        """Keep the reason for missing answers: a right, a certificate, a name, a port."""
        known = self._last_error
        if known is None or (error.code() != _ALL_DOWN and not is_fault(known)):
            self._last_error = error

    @contextmanager
    def _translate_errors(self, ignored_code: int | None = None) -> Iterator[None]:
        """Translate errors raised inside the block, and ignore one with the code *ignored_code*."""
        try:
            yield
            self._admin.poll(0)
            self._last_error = None  # The answer proves that it has passed.
        except KafkaException as error:
            asked = error.args[0]
            if asked.code() == ignored_code:
                return
            self._admin.poll(0)  # The reason, when there is one, waits in the error callback.
            heard = None if is_fault(asked) else self._last_error
            raise source_error(heard or asked, self._place) from error


class Ends:
    """The ends of partitions, once the brokers have answered. Implements ``Question``."""

    def __init__(self, asked: dict[TopicPartition, Future[Any]]) -> None:
        """Keep the queries that were *asked*."""
        self._asked = asked

    def done(self) -> bool:
        """Return whether each query has an answer or an error."""
        return all(future.done() for future in self._asked.values())

    def result(self) -> dict[tuple[str, int], int]:
        """Return the offset behind the end of each partition.

        Raises:
            KafkaException: One of the queries has failed.
        """
        return {
            (partition.topic, partition.partition): future.result().offset
            for partition, future in self._asked.items()
        }


def _spell_id(topic_id: str) -> str:
    """Return *topic_id* as Kafka's own tools write it."""
    return "" if topic_id == _NO_ID else topic_id.replace("/", "_").replace("+", "-")


@contextmanager
def translate_refusal(config: KafkaConnection, place: str) -> Iterator[None]:
    """Translate the client's refusal of a setting, without the settings' values."""
    try:
        yield
    except KafkaException as error:
        raise EnvironmentFault(f"{place}: {config.redact(error.args[0].str())}") from None
