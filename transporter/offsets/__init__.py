"""The offset logs: the progress of each route."""
