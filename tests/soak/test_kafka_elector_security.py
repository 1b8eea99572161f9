"""Electors on a broker with rights: who may not write leaves the lead to who may."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from election_tools import Watch, elector, until
from services.kafka import run
from services.safe_kafka import CA, SafeBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SafeBroker]:
    """Yield a running broker with rights, shared by this module."""
    with run(SafeBroker, tmp_path_factory.mktemp("safe")) as broker:
        yield broker


def test_who_may_not_write_leaves_the_lead_to_who_may(broker: SafeBroker) -> None:
    """The first member gets the partition, is refused, says so, and leads once it has the right."""
    topic = broker.create_topic(f"election-{uuid.uuid4().hex[:8]}")
    other = broker.create_topic(f"other-{uuid.uuid4().hex[:8]}")
    for user in ("ada", "eve"):
        broker.allow(user, ResourceType.TOPIC, topic, AclOperation.READ)
        broker.allow(user, ResourceType.GROUP, topic, AclOperation.READ)
    broker.allow("ada", ResourceType.TOPIC, other, AclOperation.WRITE)
    broker.allow("eve", ResourceType.TOPIC, topic, AclOperation.WRITE)
    with Watch() as watch:
        ada = watch.add(elector(**of(broker, topic, "ada")))
        until(lambda: ada.elector._assigned or ada.error, "it gets the partition")  # type: ignore[attr-defined]
        eve = watch.add(elector(**of(broker, topic, "eve")))
        until(lambda: ada.error, "it refuses", 20)
        assert "TOPIC_AUTHORIZATION_FAILED" in str(ada.error)
        assert "a candidate needs the rights to read and to write" in str(ada.error)
        watch.engines.remove(ada)
        ada.stop()  # A reader that stops with an error closes its elector.
        assert watch.leader() is eve
        broker.allow("ada", ResourceType.TOPIC, topic, AclOperation.WRITE)
        ada = watch.add(elector(**of(broker, topic, "ada")))
        watch.engines.remove(eve)
        eve.stop()
        assert watch.leader() is ada


def of(broker: SafeBroker, topic: str, user: str) -> dict[str, Any]:
    """Return an election on *topic* in which *user* takes part."""
    client = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"word-of-{user}",
        "ssl.ca.location": str(CA),
    }
    given = {"kind": "kafka", "bootstrap_servers": broker.safe, "topic": topic, "term": "2s"}
    return {**given, "client": client}
