"""Quickstart on one machine: an embedded PostgreSQL and a shop that uses it."""
