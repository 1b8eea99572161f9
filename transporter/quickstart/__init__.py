"""Everything a first look needs on one machine: an embedded PostgreSQL and a shop that uses it."""
