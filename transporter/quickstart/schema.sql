-- The shop's own migration: its business tables, and an outbox beside them.
CREATE TABLE IF NOT EXISTS customers (
    id    BIGINT PRIMARY KEY,
    name  TEXT NOT NULL,
    email TEXT NOT NULL,
    city  TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS orders (
    id          BIGSERIAL PRIMARY KEY,
    customer_id BIGINT NOT NULL REFERENCES customers (id),
    status      TEXT NOT NULL,
    total_cents BIGINT NOT NULL,
    placed_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    shipped_at  TIMESTAMPTZ
);

CREATE TABLE IF NOT EXISTS outbox (
    id                  BIGSERIAL PRIMARY KEY,
    create_time         TIMESTAMPTZ NOT NULL DEFAULT now(),
    kafka_topic         VARCHAR(249) NOT NULL,
    kafka_key           VARCHAR NOT NULL,
    kafka_value         VARCHAR,
    kafka_header_keys   TEXT[] NOT NULL,
    kafka_header_values TEXT[] NOT NULL,
    leader_id           UUID
) WITH (fillfactor = 50);

CREATE OR REPLACE FUNCTION outbox_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('outbox', '');
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER outbox_notify AFTER INSERT ON outbox
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_notify();
