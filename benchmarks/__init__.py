"""Benchmarks: each measures a ratio against a floor or a rival in the same run."""
