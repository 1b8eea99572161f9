"""The offset logs: how far each route has come."""
