"""Keys of ``postgres-cdc`` whose order is not that of pg_catalog's operators."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest
from cdc_tools import MemoryLog
from engine_tools import until

if TYPE_CHECKING:
    from services.postgres import Database

pytestmark = pytest.mark.postgres

WORD: Final = (
    """
CREATE SCHEMA "own %types";
CREATE TYPE "own %types".word AS (w text COLLATE "C");
CREATE FUNCTION "own %types".cmp(a "own %types".word, b "own %types".word) RETURNS int
  LANGUAGE sql IMMUTABLE STRICT AS
  $$SELECT pg_catalog.bttextcmp(lower((a).w) COLLATE "C", lower((b).w) COLLATE "C")$$;
"""
    + "".join(
        f"""
CREATE FUNCTION "own %types".{name}(a "own %types".word, b "own %types".word) RETURNS bool
  LANGUAGE sql IMMUTABLE STRICT AS $$SELECT "own %types".cmp(a, b) {operator} 0$$;
CREATE OPERATOR "own %types".{operator} (
  LEFTARG = "own %types".word, RIGHTARG = "own %types".word, FUNCTION = "own %types".{name});
"""
        for name, operator in (("lt", "<"), ("le", "<="), ("eq", "="), ("ge", ">="), ("gt", ">"))
    )
    + """
CREATE OPERATOR CLASS "own %types".word_ops DEFAULT FOR TYPE "own %types".word USING btree AS
  OPERATOR 1 "own %types".<, OPERATOR 2 "own %types".<=, OPERATOR 3 "own %types".=,
  OPERATOR 4 "own %types".>=, OPERATOR 5 "own %types".>,
  FUNCTION 1 "own %types".cmp("own %types".word, "own %types".word);
CREATE DOMAIN "own %types".name AS "own %types".word;
"""
)
"""A type that ignores case, as citext does. Without its operators, records are compared."""
WORDS: Final = [letter * 2 for letter in "aBcDeFgHiJkLmNoP"]
KEYS: Final = {
    "word": ('w "own %types".word PRIMARY KEY', 'ROW(w)::"own %types".word'),
    "domain": ('w "own %types".name PRIMARY KEY', 'ROW(w)::"own %types".word'),
    "last": ('a int, w "own %types".word, PRIMARY KEY (a, w)', '1, ROW(w)::"own %types".word'),
    "first": (
        'w "own %types".word, a text, PRIMARY KEY (w, a)',
        "ROW(w)::\"own %types\".word, 'x'",
    ),
}
"""Columns and values of a table, by the place of that type in its key."""


@pytest.mark.parametrize("key", list(KEYS))
def test_a_key_with_operators_of_its_own_is_copied_whole(shop: Database, key: str) -> None:
    """Each row is copied once, in chunks of any size, and changes meet the chunk with their key."""
    columns, values = KEYS[key]
    shop.execute(WORD)
    shop.execute(f"CREATE TABLE words ({columns}, v int)")
    fill = f"INSERT INTO words SELECT {values}, 0 FROM unnest(%s::text[]) w".replace(
        "own %", "own %%"
    )
    shop.execute(fill, [WORDS])
    log = MemoryLog(shop, copy_rows=3)
    until(lambda: log.poll() and any(each.phase == "copy" for each in log.messages))
    shop.execute("UPDATE words SET v = 1 WHERE lower((w).w) IN ('aa', 'cc', 'jj', 'mm')")
    shop.execute("DELETE FROM words WHERE lower((w).w) IN ('aa', 'bb', 'oo', 'pp')")
    shop.execute(fill, [["Zz", "aB"]])
    log.drain(shop)
    log.kill()
    rows: dict[str, int] = {}
    copied = []
    for message in log.messages:
        if message.namespace != "public.words" or message.op == "noop":
            continue
        assert message.key is not None
        name = message.key.decode()
        if message.op == "delete":
            rows.pop(name, None)
            continue
        data = json.loads(message.data or b"")
        rows[name] = data["v"]
        if message.phase == "copy":
            copied.append(data["w"]["w"])
    assert len(copied) == len({*copied})
    found = shop.execute("SELECT (w).w, v FROM words")
    assert len(rows) == len(found) == 14
    for word, value in found:
        assert [rows[name] for name in rows if word in name] == [value]


@pytest.mark.parametrize(
    "where", ["id % 3 = 0", "name LIKE 'x%' AND id % 3 = 0", "note OR id = 30"]
)
@pytest.mark.parametrize("key", ["id", "id, tag"])
def test_a_filtered_copy_of_large_rows_has_all_that_pass(
    shop: Database, where: str, key: str
) -> None:
    """Rows that do not pass have an end in the chunk, and no size."""
    shop.execute(f"CREATE TABLE big (id int, tag text, name text, note bool, PRIMARY KEY ({key}))")
    shop.execute("ALTER TABLE big ALTER COLUMN name SET STORAGE EXTERNAL")
    shop.execute(
        "INSERT INTO big SELECT n, 't%', repeat('x', 100000) FROM generate_series(1, 40) n"
    )
    item = {"table": "public.big", "copy_where": where}
    log = MemoryLog(shop, tables=[item], copy_rows=7, copy_bytes="300KiB")
    log.drain(shop)
    log.kill()
    copied = [json.loads(each.data or b"")["id"] for each in log.messages if each.phase == "copy"]
    assert copied == ([30] if "note" in where else [*range(3, 40, 3)])
    ended = [told["rows"] for name, told in log.told if name == "copy-complete"]
    assert ended == [len(copied)]
