"""Readers: the feed threads, and the progress that is acknowledged to sources."""
