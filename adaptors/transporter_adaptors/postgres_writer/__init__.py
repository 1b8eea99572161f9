"""The writer of the postgres adaptor: entries as rows of tables, with their offset."""
