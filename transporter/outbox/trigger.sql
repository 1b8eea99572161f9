-- Optional: the trigger wakes the reader at once. Without it the reader polls: 200 times a second
-- while rows come, then less and less. It fires once a statement, and PostgreSQL sends one
-- notification a transaction.
CREATE OR REPLACE FUNCTION {notify}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.pg_notify({channel}, '');
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {notify}();
