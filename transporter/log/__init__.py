"""The commit log: segments of checksummed frames on disk."""
