-- The shop's own migration: its business tables. The outbox beside them is transporter's SQL.
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
