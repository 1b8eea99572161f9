"""Engines of one group between topics of Kafka, that come and go, and checks of their logs."""

from __future__ import annotations

import signal
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Self

from leader_tools import Node
from storm_tools import SESSION
from transporter_adaptors.kafka.reader import KafkaReader

from transporter.log.inspection import inspect
from transporter.log.reader import LogReader

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from confluent_kafka import TopicPartition

    from transporter.adaptor import Resume
    from transporter.testing import FaultyProxy

_BEGINNING = ("engine-started", "reader-opened")


class WatchedReader(KafkaReader):
    """A kafka reader that reports the begin of its partitions at each assignment."""

    def open(self, resume: Resume) -> None:
        super().open(resume)
        assert self._group is not None
        begun = self._group._hold_assigned

        def told(partitions: list[TopicPartition]) -> list[TopicPartition]:
            starts = begun(partitions)
            where = {str(each.partition): max(0, each.offset) for each in starts}
            resume.report("partitions-begun", begins=where)
            return starts

        self._group._hold_assigned = told  # type: ignore[method-assign]


class Crowd:
    """Engines of one group, each with a log and a proxy of its own, that come and go.

    ``changes`` counts the changes made to them, by kind.
    """

    LEAVE = ("stop", "kill", "pause", "hang")

    def __init__(
        self,
        folder: Path,
        proxies: list[FaultyProxy],
        chance: random.Random,
        pipeline: Callable[[str], dict[str, Any]],
    ) -> None:
        self._proxies, self._chance = proxies, chance
        self.nodes = [
            Node(folder / f"node-{number}", pipeline(f"127.0.0.1:{proxy.port}"))
            for number, proxy in enumerate(proxies)
        ]
        self._away: dict[int, tuple[str, float]] = {}
        self._starts: Counter[int] = Counter()
        self.changes: Counter[str] = Counter()

    def __enter__(self) -> Self:
        for place in range(len(self.nodes)):
            self._start(place)
        return self

    def __exit__(self, *_: object) -> None:
        for node, proxy in zip(self.nodes, self._proxies, strict=True):
            proxy.heal()
            node.send(signal.SIGCONT)
            node.stop(signal.SIGKILL)

    def change(self) -> None:
        """Make some engine leave in some way, or come back. At least one stays."""
        place = self._chance.randrange(len(self.nodes))
        if place in self._away:
            how, until = self._away[place]
            if time.monotonic() >= until:
                self._back(place, how)
        elif len(self._away) < len(self.nodes) - 1 and self._is_ready(place):
            # Before that, an engine that cannot reach its source reports it and ends, as promised.
            self._leave(place, self._chance.choice(self.LEAVE))

    def settle(self) -> None:
        """Bring all back."""
        for place, (how, _) in list(self._away.items()):
            self._back(place, how)

    def stop(self) -> None:
        """End all of them in order. No route and no reader may have stopped by itself."""
        for node in self.nodes:
            node.stop()
            told = node.events("route-stopped", "reader-stopped")
            # A reader stopped while its group waits for a hanging member reports that.
            assert [each for each in told if "did not end within" not in each["problem"]] == []

    def _start(self, place: int) -> None:
        self._starts[place] += 1
        self.nodes[place].start()

    def _is_ready(self, place: int) -> bool:
        told = [each["event"] for each in self.nodes[place].events(*_BEGINNING)]
        return told.count(_BEGINNING[0]) >= self._starts[place] and told[-1] == _BEGINNING[1]

    def _leave(self, place: int, how: str) -> None:
        node, proxy = self.nodes[place], self._proxies[place]
        {
            "stop": node.stop,
            "kill": lambda: node.stop(signal.SIGKILL),
            "pause": lambda: node.send(signal.SIGSTOP),
            "hang": proxy.hang,
        }[how]()
        least = SESSION + 1 if how in ("pause", "hang") else 0.0
        self._away[place] = how, time.monotonic() + self._chance.uniform(least, least + 5)
        self.changes[how] += 1

    def _back(self, place: int, how: str) -> None:
        node, proxy = self.nodes[place], self._proxies[place]
        {
            "stop": lambda: self._start(place),
            "kill": lambda: self._start(place),
            "pause": lambda: node.send(signal.SIGCONT),
            "hang": proxy.heal,
        }[how]()
        del self._away[place]
        self.changes[f"back from {how}"] += 1


def logged(log: Path) -> dict[int, list[int]]:
    """Return the offsets of each source partition, in the order in which *log* holds them."""
    found: dict[int, list[int]] = defaultdict(list)
    info = inspect(log)
    with LogReader(log) as reader:
        for batch in reader.read(info.first, info.last) if info.last >= info.first else ():
            for source in batch.column("source_id").to_pylist():
                _, partition, offset = source.split("/")
                found[int(partition)].append(int(offset))
    return found


def unexplained(node: Node) -> list[str]:
    """Return the places where the log of *node* jumps without an assignment that begins there."""
    begins: dict[int, list[int]] = defaultdict(list)
    for told in node.events("partitions-begun"):
        for partition, offset in told["begins"].items():
            begins[int(partition)].append(offset)
    wrong = []
    for partition, offsets in logged(node.folder / "log").items():
        starts, before = iter(begins[partition]), None
        for offset in offsets:
            if offset - 1 != before and offset not in starts:  # consumes the starts it passes
                wrong.append(f"{node.folder.name}, partition {partition}: {offset} after {before}")
                break
            before = offset
    return wrong
