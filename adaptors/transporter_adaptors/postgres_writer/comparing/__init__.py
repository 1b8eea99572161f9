"""Comparison of the tables of the ``postgres`` writer with their source, or with the log."""
