"""Election by Kafka, after the idea of NELI: a consumer group chooses, and heartbeats prove.

All candidates are members of one group on one topic. The member with partition
0 may claim the lease (:mod:`~.lease`). It leads while its own heartbeats come
back to it through that partition. Every candidate reads the partition and
recognizes the heartbeats of a rival. A later claim therefore ends a leadership
at once, regardless of the group's view.

The group determines the time until a vanished leader is replaced. Its member is
removed after the session time-out, which brokers do not allow below
``group.min.session.timeout.ms`` (6 s by default). The replacement takes the
longer of the term and the session time-out, and a tenth of that for detection.
An elector that closes leaves the group and is replaced at once.

These guarantees rely on settings of the Kafka clients, which are made here.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Partition

from transporter.election.elector import Pulse, answer_timeout
from transporter.election.lease import Lease, RecordKind, decode_beat
from transporter.election.state_machine import ElectionState, Observation, Standing, Transition
from transporter.errors import EnvironmentFault
from transporter.kafka.clients import ClientLog, is_transient_auth_error, trust_defaults
from transporter.kafka.errors import CLIENT_ERRORS, kafka_error
from transporter.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.election.config import KafkaElection

_MOST: Final = 1000
"""Maximum number of records that one pulse reads."""

_CLOSE_SECONDS: Final = 5.0
_FLUSH_SECONDS: Final = 1.0
_OBSERVER: Final = {
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 1024,  # Invariant 17
}

# The client library's own error codes are public, underscore and all.
_LOST_POSITION: Final = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)
_REFUSED: Final = frozenset(
    {
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)
"""Errors for a record that the topic's settings forbid."""
_GROUP: Final = frozenset(
    {
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_SESSION_TIMEOUT,
    }
)
"""Errors of the group, which keep no record of ours from coming back."""
_FAULTS: Final = (
    _REFUSED
    | _GROUP
    | frozenset(
        {
            KafkaError._AUTHENTICATION,  # noqa: SLF001
            KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.UNSUPPORTED_VERSION,
        }
    )
)
_MISSING: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


class KafkaElector:
    """Elector that leads while it holds the lease on the topic's partition 0.

    See :class:`~.elector.Elector`. It does not guarantee that the former leader
    has ended its work. A new candidate reads for a term before it leads. The
    thread that pulses also runs the group's callbacks.
    """

    def __init__(self, name: str, config: KafkaElection) -> None:
        """Set the election's *name* and *config* without connecting."""
        self._name, self._config = name, config
        self._candidate = uuid4().hex
        self._machine = ElectionState(config.term)
        self._lease = Lease(name, self._candidate, config.term)
        self._clients: _Clients | None = None
        self._assigned = self._listening = self._closed = False
        self._now = self._next_beat_at = -1.0
        self._foreign_record_at = -math.inf
        """Time of the last read of a record that was not written by an elector."""
        self._awaited_number: int | None = None
        """Number of our last record that was not read back yet."""
        self._transitions: list[Transition] = []
        self._problem = ""
        self._fault: EnvironmentFault | None = None
        self._fault_until = -math.inf
        """Time from which a proof of our lease shows that the fault is over."""

    def pulse(self, now: float) -> Pulse:
        """Read the candidates' records, and write a heartbeat when it is due. See ``Elector``."""
        began = time.monotonic()
        self._now = now
        self._transitions = list(self._machine.pulse(now))
        if self._fault is not None and not (self._leads or self._transitions):
            raise self._fault
        if not self._closed:
            self._exchange_records(self._open_clients(), now, began)
        later = now + time.monotonic() - began
        self._forget_fault(later)
        self._transitions += self._machine.pulse(later, self._observation(later))
        return Pulse(
            self._machine.standing(later), tuple(self._transitions), self._current_problem(later)
        )

    def standing(self, now: float) -> Standing:
        """Return the standing at *now*."""
        return self._machine.standing(now)

    def close(self) -> None:
        """Resign and leave the group, so that the next leader need not wait; at most 5 s."""
        self._closed = True
        self._machine = ElectionState(self._config.term)
        clients, self._clients = self._clients, None
        if clients is not None:
            self._resign(clients, time.monotonic())
            clients.close()

    def _open_clients(self) -> _Clients:
        if self._clients is None:
            self._clients = _Clients(self._config, self._note_repeated_error, self._on_delivery)
            self._clients.join(self._on_assign, self._on_revoke)
            self._clients.read_from_end()
        return self._clients

    def _exchange_records(self, clients: _Clients, now: float, began: float) -> None:
        self._serve_producer(clients)
        while (event := clients.member.poll(0)) is not None:  # Callbacks run in here.
            if (error := event.error()) is not None:
                self._note_error(error)
        self._read_records(clients, now, began, 0)
        if self._write_record(clients, now):
            self._read_records(clients, now, began, answer_timeout(self._config.term))

    def _serve_producer(self, clients: _Clients) -> None:
        try:
            error = clients.serve_producer()
        except EnvironmentFault as fault:
            self._note_fault(fault, math.inf)  # A leader goes on until its term is over.
        else:
            if error is not None:
                self._note_repeated_error(error)

    def _read_records(self, clients: _Clients, now: float, began: float, seconds: float) -> None:
        """Read the available records, waiting for our own last one for *seconds* at most."""
        until = began + seconds
        for _ in range(_MOST):
            left = until - time.monotonic() if self._awaited_number is not None else 0
            record = clients.observer.poll(max(0.0, left))
            if record is None:
                return
            self._now = now + time.monotonic() - began
            self._handle_record(clients, record)

    def _handle_record(self, clients: _Clients, record: Any) -> None:  # noqa: ANN401 - no types there
        error = record.error()
        if error is not None and error.code() in _LOST_POSITION:
            self._listening = False
            self._lease.start_listening(math.inf)
            clients.read_from_end()
        elif error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
            self._note_error(error)
        else:
            self._start_listening()
            if error is None:
                self._apply_record(record.value(), record.offset())

    def _start_listening(self) -> None:
        """Record the first sign of life. Records written before it may have been missed."""
        if not self._listening:
            self._listening, self._awaited_number, self._problem = True, None, ""
            self._lease.start_listening(self._now)

    def _apply_record(self, value: bytes | None, offset: int) -> None:
        beat = decode_beat(value)
        if beat is None:
            self._foreign_record_at = self._now
        elif beat.election != self._name:
            fault = EnvironmentFault(
                f"{self._place}: the election of {beat.election} also uses it; "
                "give each election its own topic and group"
            )
            self._note_fault(fault, math.inf)
        else:
            self._problem = ""
            self._lease.apply(beat, offset, self._now)
            if (beat.candidate, beat.number) == (self._candidate, self._awaited_number):
                self._awaited_number = None

    def _write_record(self, clients: _Clients, now: float) -> bool:
        """Write a claim or a due heartbeat, and return whether a record is in flight."""
        kind = self._lease.next_kind(now) if self._assigned and self._listening else None
        if kind is RecordKind.CLAIM or (kind is RecordKind.BEAT and now >= self._next_beat_at):
            self._next_beat_at = now + self._config.heartbeat_interval
            beat = self._lease.next_record(kind, now)
            if clients.produce(beat.encode()):
                self._awaited_number = beat.number
        return self._awaited_number is not None

    def _observation(self, now: float) -> Observation | None:
        """Return the observation of our standing in the partition and the group."""
        if not self._assigned:
            return _negative_observation(
                now, f"{self._place}: the group has not assigned partition 0 to us"
            )
        if not self._lease.is_ours:
            return _negative_observation(
                now, f"{self._place}: another candidate has claimed the lease, or none has"
            )
        proof = self._lease.proof_time(now)
        if proof is None:
            return None
        return Observation(holding=True, asked_at=proof, why=f"{self._place}: the lease is ours")

    def _on_assign(self, member: Any, partitions: list[Partition]) -> None:  # noqa: ANN401
        for each in partitions:
            each.offset = OFFSET_END  # This client reads nothing, so it needs no offset lookup.
        member.incremental_assign(partitions)
        member.pause(partitions)
        if any(each.partition == 0 for each in partitions):
            self._assigned = True
            self._lease.note_assignment()

    def _on_revoke(self, member: Any, partitions: list[Partition]) -> None:  # noqa: ANN401
        if any(each.partition == 0 for each in partitions):
            self._assigned = False
            why = f"{self._place}: the group has revoked partition 0"
            # Before the resignation is written, so that two never lead at the same moment.
            self._transitions += self._machine.pulse(
                self._now, _negative_observation(self._now, why)
            )
            if self._clients is not None:
                self._resign(self._clients, self._now)
        member.incremental_unassign(partitions)

    def _resign(self, clients: _Clients, now: float) -> None:
        if (beat := self._lease.resign(now)) is not None:
            clients.produce(beat.encode())

    def _current_problem(self, now: float) -> str:
        """Return the problem. Foreign records in the topic count as one for a term."""
        if not self._problem and now < self._foreign_record_at + self._config.term:
            return f"{self._place}: skipped a record that no elector wrote"
        return self._problem

    def _on_delivery(self, error: KafkaError | None, _record: Any) -> None:  # noqa: ANN401
        if error is not None:
            self._note_repeated_error(error)

    def _note_repeated_error(self, error: KafkaError) -> None:
        """Note an error that comes again if it lasts. A leader goes on until its term is over."""
        (self._note_problem if self._leads else self._note_error)(error)

    def _note_error(self, error: KafkaError) -> None:
        """Note an error that may be reported only once, however long it lasts."""
        self._note_problem(error)
        if error.code() in _FAULTS and not is_transient_auth_error(error):
            fault = EnvironmentFault(f"{self._problem}; check rights and settings")
            # The group has removed us by then if it refuses us for good.
            patience = 2 * self._config.session_seconds if error.code() in _GROUP else 0.0
            self._note_fault(fault, self._now + patience)

    def _note_fault(self, fault: EnvironmentFault, until: float) -> None:
        self._fault, self._fault_until = fault, max(self._fault_until, until)

    def _forget_fault(self, now: float) -> None:
        """Forget a fault that a leader has overcome: a later record of its has come back."""
        proof = self._lease.proof_time(now)
        if proof is not None and proof > self._fault_until:
            self._fault, self._fault_until = None, -math.inf

    def _note_problem(self, error: KafkaError) -> None:
        text = f"{self._place}: {self._config.redact_values(error.str())} ({error.name()})"
        if error.code() in _MISSING:
            text += "; create the topic with one partition"
        if error.code() in _REFUSED:
            text += (
                "; the topic refuses the election's records: set its cleanup.policy to delete, "
                "and see its max.message.bytes and message.timestamp.before.max.ms"
            )
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            text += "; a candidate needs the rights to read and to write the topic"
        if error.code() == KafkaError.INVALID_SESSION_TIMEOUT:
            session = format_duration(self._config.session_seconds)
            text += (
                f"; the brokers do not allow a session_timeout of {session}: see their "
                "group.min.session.timeout.ms and group.max.session.timeout.ms"
            )
        self._problem = text

    @property
    def _leads(self) -> bool:
        return self._machine.standing(self._now) is Standing.LEADER

    @property
    def _place(self) -> str:
        return f"the elector's topic {self._config.topic} at {self._config.bootstrap_servers}"


def _negative_observation(now: float, why: str) -> Observation:
    return Observation(holding=False, asked_at=now, why=why)


class _Clients:
    """The three clients of an elector: the group's member, the reader and the writer."""

    def __init__(
        self,
        config: KafkaElection,
        on_error: Callable[[KafkaError], None],
        on_delivery: Callable[[KafkaError | None, Any], None],
    ) -> None:
        self._topic, self._on_delivery = config.topic, on_delivery
        common = _common_settings(config) | {"error_cb": on_error}
        reading = common | {
            "allow.auto.create.topics": False,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "group.id": config.group or config.topic,
        }
        self.member = _create_client(config, Consumer, reading | _member_settings(config))
        self.observer = _create_client(config, Consumer, reading | _OBSERVER)
        self._make_producer = partial(
            _create_client, config, Producer, common | _producer_settings(config)
        )
        self.producer = self._make_producer()

    def join(self, on_assign: Callable[..., None], on_revoke: Callable[..., None]) -> None:
        """Join the group. The callbacks run in ``member.poll``."""
        self.member.subscribe(
            [self._topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke
        )

    def read_from_end(self) -> None:
        """Start reading the partition at its end."""
        self.observer.assign([Partition(self._topic, 0, OFFSET_END)])

    def serve_producer(self) -> KafkaError | None:
        """Run the producer's callbacks.

        After an error with which it can never write again it is replaced, and the error is
        returned. Consumers have no such errors here.

        Raises:
            EnvironmentFault: The settings do not allow another producer.
        """
        try:
            self.producer.poll(0)
        except CLIENT_ERRORS as failure:
            if (error := kafka_error(failure)) is None:
                raise
            # The end of a client joins its threads, for which no pulse waits.
            ended, self.producer = [self.producer], self._make_producer()
            _start_thread("producer", ended.clear)
            return error
        return None

    def produce(self, value: bytes) -> bool:
        """Write *value* to the partition and return whether the client had room for it."""
        try:
            self.producer.produce(self._topic, value, partition=0, on_delivery=self._on_delivery)
        except (BufferError, KafkaException):
            return False
        return True

    def close(self) -> None:
        """Send pending records and leave the group. A client that hangs is dropped."""
        until = time.monotonic() + _CLOSE_SECONDS
        with suppress(*CLIENT_ERRORS):  # A fatal error that was not raised before.
            self.producer.flush(_FLUSH_SECONDS)
        self.producer.purge()
        closers = {"member": self.member.close, "observer": self.observer.close}
        for thread in [_start_thread(name, closer) for name, closer in closers.items()]:
            # The client has been observed to hang here for ever. It is left to a daemon thread,
            # which ends with this process. The group then removes its member after the session
            # time-out.
            thread.join(max(0.0, until - time.monotonic()))


def _start_thread(name: str, closer: Callable[[], object]) -> threading.Thread:
    """Close a client on a thread of its own, which ends with this process at the latest."""
    thread = threading.Thread(target=closer, name=f"elector-{name}", daemon=True)
    thread.start()
    return thread


def _common_settings(config: KafkaElection) -> dict[str, Any]:
    return {
        "topic.metadata.refresh.interval.ms": 30_000,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 2,
        **trust_defaults(config.client),
        **config.client,
        "bootstrap.servers": config.bootstrap_servers,
        "socket.timeout.ms": _milliseconds(config.term, 2.0, 60.0),
        "logger": ClientLog(__name__, config.redact_secrets),
    }


def _member_settings(config: KafkaElection) -> dict[str, Any]:
    session_ms = _milliseconds(config.session_seconds, 1.0, 3600.0)
    return {
        # A new candidate must not depose the leader.
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": min(3000, session_ms // 10),
        # A candidate without pulses counts as gone, even while the client sends heartbeats.
        "max.poll.interval.ms": session_ms,
    }


def _producer_settings(config: KafkaElection) -> dict[str, Any]:
    return {
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 0,
        "message.timeout.ms": _milliseconds(config.term, 1.0, 3600.0),
        "request.timeout.ms": _milliseconds(config.term, 1.0, 30.0),
    }


def _create_client(config: KafkaElection, kind: Callable[..., Any], values: dict[str, Any]) -> Any:  # noqa: ANN401 - no types there
    try:
        return kind(values)
    except KafkaException as error:
        text = config.redact_values(error.args[0].str())
        place = f"the elector's topic {config.topic} at {config.bootstrap_servers}"
        raise EnvironmentFault(f"{place}: {text}; check the client settings") from None


def _milliseconds(seconds: float, least: float, most: float) -> int:
    return round(min(max(seconds, least), most) * 1000)
