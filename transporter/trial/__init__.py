"""Trying a route without its sink: what its filter and steps make of entries."""
