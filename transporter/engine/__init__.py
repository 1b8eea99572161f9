"""The engine process: feeds, route loops, delivery and its listener."""
