"""Clusters and brokers of soak tests. Each file that uses a cluster has its own."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from cluster_tools import Cluster, Node, cluster, hiding, unsharing, wired
from root_tools import need_root
from services.kafka import Broker, run
from services.safe_kafka import SafeBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cluster_tools import Wire

WORKERS = 2


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a cluster on loopback, whose workers' own mounts show ``engine`` empty."""
    unshared = unsharing()
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "engine").mkdir()
    with cluster(folder) as made:
        made.start_master(Node("127.0.0.1"))
        for _ in range(WORKERS):
            made.start_worker(Node("127.0.0.1", hiding([folder / "engine"], *unshared)))
        yield made


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    """Set up two other hosts, and a network between them and this one."""
    need_root("hosts of their own need root and iproute2", "ip")
    with wired(WORKERS, 100 + os.getpid() % 150) as made:  # other runs use other numbers
        yield made


@pytest.fixture(scope="module")
def far(wire: Wire, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a cluster on other hosts, which do not see ``engine`` beside its folder."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "engine").mkdir()
    with cluster(folder) as made:
        made.start_master(Node(wire.ours))
        for address, inside in wire.hosts:
            hidden = hiding([folder / "engine"], *inside, "unshare", "-m")
            made.start_worker(Node(address, hidden))
        yield made


@pytest.fixture
def place(far: Cluster) -> Iterator[Path]:
    """Create an empty folder that no worker of ``far`` sees."""
    folder = far.folder / "engine" / "now"
    folder.mkdir()
    yield folder
    # Spark's output stays, to explain a failure.
    for log in folder.glob("**/spark.log"):
        shutil.copy(log, far.folder)
    shutil.rmtree(folder)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """Run a Kafka broker for this test alone."""
    (tmp_path / "kafka").mkdir()
    with run(Broker, tmp_path / "kafka") as made:
        yield made


@pytest.fixture(scope="session")
def safe_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SafeBroker]:
    """Run a broker with TLS, passwords and rights. A topic of a test gives no rights at first."""
    with run(SafeBroker, tmp_path_factory.mktemp("safe")) as made:
        yield made
