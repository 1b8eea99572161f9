-- A transactional outbox for transporter. Running this again changes nothing.
-- It needs PostgreSQL 14 or newer, no extension, no replication slot.

-- The table: an application inserts a row in the transaction that changes its own tables, so an
-- event exists exactly when the change does. The application never updates or deletes a row; the
-- engine deletes it once it is durable in the engine's log.
CREATE TABLE IF NOT EXISTS {table} (
    -- Rows are read by id. Leave it to the sequence, and that at CACHE 1, its default.
    {id:<19} BIGSERIAL PRIMARY KEY,
    -- Becomes the message's timestamp.
    {created:<19} TIMESTAMPTZ NOT NULL DEFAULT now(),
    -- The namespace that routes filter by; a topic of Kafka has at most 249 characters.
    {topic:<19} VARCHAR(249) NOT NULL,
    -- Order is kept among the rows of one key.
    {key:<19} VARCHAR NOT NULL,
    -- JSON. NULL is a tombstone: the key is gone.
    {value:<19} VARCHAR,
    -- The n-th name belongs to the n-th value.
    {header_keys:<19} TEXT[] NOT NULL DEFAULT array[]::TEXT[],
    {header_values:<19} TEXT[] NOT NULL DEFAULT array[]::TEXT[],
    -- Which reader has claimed the row (claim: mark); NULL until then.
    {leader:<19} UUID
    -- Half of each page stays free for the mark, so that marking touches no index. Where rows are
    -- only ever taken (claim: take), 100 halves the table.
) WITH (fillfactor = 50);

-- Rights, if the roles are not the table's owner. The application: INSERT on the table and USAGE
-- on its sequence. The engine: SELECT, UPDATE, DELETE on the table; and a table transporter_term
-- beside it. Its first start creates that table, or reports the missing right.
