"""Operating a log: every action, on the running engine or, when none runs, under the lock."""
