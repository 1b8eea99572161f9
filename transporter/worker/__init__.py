"""The worker process: reads slices of the log, delivers them, and answers the engine."""
