"""The watch of a CDC reader, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from transporter_adaptors.postgres_cdc import watch as module
from transporter_adaptors.postgres_cdc.config import CdcConfig
from transporter_adaptors.postgres_cdc.plan import Names
from transporter_adaptors.postgres_cdc.slot import Slot
from transporter_adaptors.postgres_cdc.watch import Watch

if TYPE_CHECKING:
    import pytest


class Measures(dict[str, Any]):
    """The measures of a reader, as a part of an ``adaptor.Resume``."""

    def measure(self, gauge: str, value: float | None) -> None:
        """Keep the newest value of *gauge*."""
        self[gauge] = value


def slot(end: str) -> Slot:
    """Return a slot on a server whose log ends at *end*."""
    healthy: dict[str, Any] = {"plugin": "pgoutput", "status": "reserved", "is_ours": True}
    unknown = dict.fromkeys(
        ("database", "pid", "application", "client", "confirmed", "safe", "catalog_age", "reason")
    )
    return Slot("s", **healthy, **unknown, is_active=True, retained=7, end=end, spilled=0)


def test_the_lag_is_measured_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second while it lasts, and at once when the stream has come to the last look's end."""
    clock = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    config = CdcConfig.model_validate({"dsn": "dbname=shop", "tables": ["t"]})
    found = Measures()
    watch = Watch(cast("Any", None), config, Names("p", "s"), 170000, cast("Any", found))
    watch.follow(0x100)
    assert found == {}
    watch._measure(slot("0/200"), 0x100)
    assert (found["lag_seconds"], found["lag_bytes"]) == (0.0, 0x100)
    for moment, at, seconds, size in (
        (100.5, 0x180, 0.0, 0x100),  # too soon
        (101.5, 0x180, 1.5, 0x80),
        (101.6, 0x200, 0.0, 0),
        (109.0, 0x200, 0.0, 0),
    ):
        clock[0] = moment
        watch.follow(at)
        assert (found["lag_seconds"], found["lag_bytes"]) == (seconds, size)
