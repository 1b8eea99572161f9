"""Disks that tests put under the log: failing ones, and one that exists only in memory."""
