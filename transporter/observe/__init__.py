"""Metrics, health and readiness of an engine over HTTP."""
