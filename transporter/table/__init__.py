"""The log as a table of SQL: which entries a query reads, and as which columns; no engine."""
