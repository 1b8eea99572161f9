"""Outbox table: its quoted names, and the statements that create it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Final

DEFAULT: Final = "outbox"
"""Default name of the table, and of the channel of its notifications."""
_LONGEST: Final = 63
"""Maximum length of a name in bytes. PostgreSQL truncates a longer one with only a notice."""
_PART: Final = r'"(?:[^"\0]|"")+"|[A-Za-z_][A-Za-z_0-9$]*'
_NAME: Final = re.compile(rf"(?:({_PART})\.)?({_PART})")
_COLUMN: Final = re.compile(_PART)


def quote_column(name: str) -> str:
    """Return the name of a column safely quoted, by the rules of :func:`quote_table`."""
    found = _COLUMN.fullmatch(name.strip())
    if found is None:
        raise ValueError(
            f"{name!r} is not a column name; use name, or quote it as in SQL "
            '("Order Id"); unquoted letters are a to z, and become lower case'
        )
    return _quote_part(_check_length(_unquote_part(found[0])))


def quote_table(name: str) -> str:
    """Return *name* (``name``, ``schema.name``, or quoted as in SQL) safely quoted for a statement.

    As in SQL, unquoted parts are folded to lower case.

    Raises:
        ValueError: If *name* is not a table name, or is longer than PostgreSQL's names.
    """
    return ".".join(map(_quote_part, _split_name(name)))


def _split_name(name: str) -> list[str]:
    found = _NAME.fullmatch(name.strip())
    if found is None:
        raise ValueError(
            f"{name!r} is not a table name; use name, schema.name, "
            'or quote the parts as in SQL ("Order Outbox")'
        )
    return [_check_length(_unquote_part(part)) for part in found.groups() if part]


def _check_length(part: str) -> str:
    if len(part.encode()) > _LONGEST:
        raise ValueError(f"{part!r} is longer than the {_LONGEST} bytes of a name; shorten it")
    return part


def _unquote_part(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()


def _quote_part(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns of an outbox, each written as in SQL. Immutable.

    They correspond to the setting ``columns`` of the reader.

    Raises:
        ValueError: If PostgreSQL would not accept a name, or if two are the same.
    """

    id: str = "id"
    created: str = "create_time"
    topic: str = "kafka_topic"
    key: str = "kafka_key"
    value: str = "kafka_value"
    header_keys: str = "kafka_header_keys"
    header_values: str = "kafka_header_values"
    leader: str = "leader_id"

    def __post_init__(self) -> None:
        names = (quote_column(getattr(self, field.name)) for field in fields(self))
        ((name, times),) = Counter(names).most_common(1)
        if times > 1:
            raise ValueError(f"two columns are called {name}; each needs a name of its own")

    def quoted_names(self) -> dict[str, str]:
        """Return each column by its role, safely quoted for a statement."""
        return {
            field.name: self._quoted_name(field.name, str(field.default)) for field in fields(self)
        }

    def escaped_names(self) -> dict[str, str]:
        """Return the same for a statement with parameters, which start with a per cent sign."""
        return {role: name.replace("%", "%%") for role, name in self.quoted_names().items()}

    def _quoted_name(self, role: str, default: str) -> str:
        name: str = getattr(self, role)
        return default if name == default else quote_column(name)


USUAL: Final = Columns()
"""The columns of goharvest's table, and by default of ours."""


def outbox_sql(table: str = DEFAULT, channel: str = DEFAULT, columns: Columns = USUAL) -> str:
    """Return the SQL that creates *table* with *columns* and a trigger that notifies *channel*.

    The text is ``outbox.sql`` and ``trigger.sql`` of this folder with the names filled in. Its
    comments explain it. Running it again changes nothing.

    Raises:
        ValueError: If PostgreSQL would not accept a name.
    """
    return _fill_template("outbox.sql", table=quote_table(table), **columns.quoted_names()) + (
        "\n" + trigger_sql(table, channel)
    )


def trigger_sql(table: str, channel: str) -> str:
    """Return only the SQL of the trigger, for an existing table. See :func:`outbox_sql`."""
    *schema, name = _split_name(table)
    return _fill_template(
        "trigger.sql",
        table=quote_table(table),
        notify=".".join(map(_quote_part, [*schema, f"{name}_notify"])),
        trigger=_quote_part(f"{name}_notify"),
        channel=_quote_literal(channel),
    )


def _fill_template(file: str, **names: str) -> str:
    template = files("transporter.outbox").joinpath(file).read_text(encoding="utf-8")
    return template.format(**names)


def _quote_literal(channel: str) -> str:
    if not 0 < len(channel.encode()) <= _LONGEST or "\0" in channel:
        raise ValueError(f"{channel!r} is not a channel; use a name of 1 to {_LONGEST} bytes")
    text = channel.replace("'", "''")
    return " E'" + text.replace("\\", "\\\\") + "'" if "\\" in text else f"'{text}'"
