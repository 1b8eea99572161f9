"""Trial of a route without its sink: the output of its filter and steps."""
