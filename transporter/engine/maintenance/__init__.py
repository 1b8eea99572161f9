"""Maintenance of a running log: retention, budget and compaction."""
