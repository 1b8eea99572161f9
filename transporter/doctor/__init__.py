"""Checks of a host and a log directory before an engine runs there (``transporter doctor``)."""
