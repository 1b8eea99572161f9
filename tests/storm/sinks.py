"""The sink of a storm: a journal of deliveries, with every way in which sinks fail."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from storm.journal import Journal, Switch, whole
from storm.rows import identity, row

from transporter.adaptor import AdaptorConfig, LocalPath, StoredOffset
from transporter.errors import Rejected, SinkUnavailable

if TYPE_CHECKING:
    from transporter.adaptor import Ack, Entries, WriterContext
    from transporter.message import Entry

FAR = 100_000
"""Distance of the wrong offsets that a writer names."""


class SinkConfig(AdaptorConfig):
    """Settings of a storm's sink. With ``exact`` it stores its offset along with the entries."""

    world: LocalPath
    sink: str
    seed: int
    exact: bool = False
    upsert: bool = False

    @property
    def upserts(self) -> bool:
        """True if the sink keeps the newest value of a key."""
        return self.upsert


class StormWriter:
    """Appends one line for each call. That of an exact sink holds the stored offset, too."""

    Config: ClassVar[type[AdaptorConfig]] = SinkConfig

    def __init__(self, config: SinkConfig) -> None:
        self._config = config
        self._fault = Switch(config.world / f"{config.sink}.fault")
        self._path = config.world / f"{config.sink}.journal"
        self._journal: Journal | None = None
        self._context: WriterContext | None = None
        self._stored: StoredOffset | None = None

    def open(self, context: WriterContext) -> StoredOffset | None:
        self._context, self._journal = context, Journal(self._path)
        fault = self._fault.get()
        if fault and fault["mode"] in ("away", "hang-open"):
            self._hang(fault)
            raise SinkUnavailable("the sink is away, for the storm")
        if self._config.exact:
            self._stored = self._last_stored()
        return self._stored

    def close(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    def write(self, batch: Entries, ack: Ack) -> None:
        entries, begun = list(batch), time.monotonic()
        self._refuse_altered(entries)
        fault = self._fault.get() or {"mode": ""}
        mode, bad = fault["mode"], self._first_bad(entries, fault)
        count = len(entries)
        if mode == "hang":
            self._hang(fault)
        if mode == "away":
            count = 0
        elif mode == "prefix" and count > 0:
            count //= 2
        elif bad is not None:
            count = bad if mode == "refuse" else 0
        elif mode == "die" and self._dies(fault):
            count //= 2
        delivered = entries[:count]
        self._keep(batch, delivered, begun, mode if count < len(entries) else "")
        if mode == "die" and count < len(entries):
            os._exit(9)
        ack([each.offset for each in delivered])
        if count == len(entries):
            return
        if mode in ("away", "prefix"):
            raise SinkUnavailable("the sink is away, for the storm")
        self._fail(mode, entries[bad or 0].offset, ack)

    def _fail(self, mode: str, offset: int, ack: Ack) -> None:
        if mode == "refuse":
            ack.fail(Rejected("refused, for the storm", offset), offset)
        elif mode == "wrong":
            ack.fail(Rejected("a wrong offset, for the storm"), offset + FAR)
        else:
            raise Rejected("refused without a name, for the storm")

    def _first_bad(self, entries: list[Entry], fault: dict[str, Any]) -> int | None:
        """Return the place of the first entry that the fault affects."""
        if fault["mode"] not in ("refuse", "unnamed", "wrong"):
            return None
        numbers = (identity(each.message.data or b"")[1] for each in entries)
        every, at = fault["every"], fault["at"]
        return next((i for i, number in enumerate(numbers) if number % every == at), None)

    def _keep(self, batch: Entries, delivered: list[Entry], begun: float, failed: str) -> None:
        assert self._journal is not None
        assert self._context is not None
        fields: dict[str, Any] = {}
        if self._config.exact and delivered:
            last = delivered[-1].offset
            self._stored = self._context.stored(batch.generation, last, self._stored)
            fields["stored"] = asdict(self._stored)
        self._journal.write(
            log=self._context.log_id,
            epoch=self._context.epoch,
            shard=self._context.shard,
            generation=batch.generation,
            begun=begun,
            failed=failed,
            offsets=[each.offset for each in delivered],
            rows=[identity(each.message.data or b"") for each in delivered],
            **fields,
        )

    def _refuse_altered(self, entries: list[Entry]) -> None:
        assert self._journal is not None
        for each in entries:
            source, number = identity(each.message.data or b"")
            wanted = row(self._config.seed, source, number).message
            got = each.message
            if (wanted.data, wanted.key, wanted.namespace) != (got.data, got.key, got.namespace):
                self._journal.write(altered=each.offset)

    def _hang(self, fault: dict[str, Any]) -> None:
        if fault["mode"] in ("hang", "hang-open"):
            while (now := self._fault.get()) and now.get("id") == fault.get("id"):
                time.sleep(0.005)

    def _dies(self, fault: dict[str, Any]) -> bool:
        """Return true if this worker is the first to meet *fault*: only that one dies."""
        mark = self._path.with_suffix(f".died-{fault['id']}")
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def _last_stored(self) -> StoredOffset | None:
        """Return the stored offset of this log, or else of another one.

        Engines that take turns write into one sink, each from a log of its own. A sink that stored
        a single offset for all of them would lose the offsets of the others.
        """
        assert self._context is not None
        mine: dict[str, Any] | None = None
        others: dict[str, Any] | None = None
        for line in self._path.read_bytes().splitlines():
            told = whole(line)
            if told is None or "stored" not in told or told["shard"] != self._context.shard:
                continue
            stored = told["stored"]
            if stored is None:
                mine = others = None
            elif stored["log_id"] == self._context.log_id:
                mine = stored
            else:
                others = stored
        found = mine or others
        return None if found is None else StoredOffset(**found)
