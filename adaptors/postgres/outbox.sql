-- The outbox: an application inserts a row in the transaction that changes its own tables.
-- kafka_value NULL is a tombstone. Rows are never updated by the application.
-- fillfactor leaves room on each page for the mark, so that marking touches no index.
CREATE TABLE IF NOT EXISTS {table} (
    id                  BIGSERIAL PRIMARY KEY,
    create_time         TIMESTAMPTZ NOT NULL DEFAULT now(),
    kafka_topic         VARCHAR(249) NOT NULL,
    kafka_key           VARCHAR NOT NULL,
    kafka_value         VARCHAR,
    kafka_header_keys   TEXT[] NOT NULL DEFAULT array[]::TEXT[],
    kafka_header_values TEXT[] NOT NULL DEFAULT array[]::TEXT[],
    leader_id           UUID
) WITH (fillfactor = 50);

-- Optional: wakes the reader at once. Without it the reader looks every poll_interval.
CREATE OR REPLACE FUNCTION {notify}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.pg_notify({channel}, '');
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {notify}();
