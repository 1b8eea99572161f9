"""Settings that make property tests run the same examples everywhere, so a red one stays red."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ours",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("ours")
