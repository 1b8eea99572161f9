"""The log as an SQL table: the entries that a query reads, and their columns. No engine."""
