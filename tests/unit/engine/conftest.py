"""Fixtures for every test of the engine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check often whether to stop, so that no test waits for an idle thread."""
    monkeypatch.setattr("transporter.engine.routing.route.IDLE", 0.02)
    monkeypatch.setattr("transporter.engine.routing.session.IDLE", 0.02)
    monkeypatch.setattr("transporter.engine.workers.worker_connection.IDLE", 0.02)
    monkeypatch.setattr("transporter.engine.reading.feed.POLL", 0.02)
