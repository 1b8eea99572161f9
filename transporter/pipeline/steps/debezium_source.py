"""The ``source`` of Debezium's change events: names, times and places of changes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from transporter.pipeline.steps.debezium_rows import UnsupportedEntry
from transporter.pipeline.steps.fields import encode_name

if TYPE_CHECKING:
    from transporter.message import Message

_CHANGE_ID: Final = re.compile(r"([0-9A-F]{16})/([0-9A-F]{16})/[0-9]+")
_COPY_ID: Final = re.compile(r"copy/[0-9]+/[0-9]+/(?:[0-9]+|begin)")
_XID: Final = re.compile(rb"0|[1-9][0-9]{0,19}")


class Place(NamedTuple):
    """The place of a change, as text of the fields ``sequence`` and ``lsn``."""

    sequence: bytes = b'"[null,null]"'
    lsn: bytes = b"null"

    @classmethod
    def parse(cls, source_id: str | None) -> Place:
        """Return the place in a source id of ``postgres-cdc``: the LSNs of commit and change.

        A copied row has none.

        Raises:
            UnsupportedEntry: It is the id of another reader, or none.

        """
        found = _CHANGE_ID.fullmatch(source_id or "")
        if found is not None:
            commit, change = int(found[1], 16), int(found[2], 16)
            return cls(b'"[\\"%d\\",\\"%d\\"]"' % (commit, change), b"%d" % change)
        if _COPY_ID.fullmatch(source_id or "") is None:
            raise UnsupportedEntry(
                "the entry is not a change that postgres-cdc has read, by its source id; limit the "
                "step with its key namespace"
            )
        return cls()


@dataclass(frozen=True, slots=True)
class SourceNames:
    """The names in an event's ``source``. Immutable.

    Args:
        version: The version of Debezium that the events are to name, or another text.
        name: The connector's topic prefix.
        db: The database.
        template: The setting, for errors.
        pattern: Matches whole namespaces, with the groups ``table`` and perhaps ``schema``.
        schema: The schema where *pattern* has none.

    """

    version: str
    name: str
    db: str
    template: str
    pattern: re.Pattern[str]
    schema: str | None = None

    def table_source(self, namespace: str) -> TableSource:
        """Return what the events of *namespace* have in common.

        Raises:
            UnsupportedEntry: The namespace does not show schema and table.

        """
        found = self.pattern.fullmatch(namespace)
        if found is None:
            raise UnsupportedEntry(
                f"the namespace {namespace!r} is not of the form {self.template!r}; set template "
                "to the reader's namespace, or limit the step with its key namespace"
            )
        schema = found["schema"] if self.schema is None else self.schema
        version, name, db = map(encode_name, (self.version, self.name, self.db))
        return TableSource(
            b'{"version":%b,"connector":"postgresql","name":%b,"ts_ms":' % (version, name),
            b',"db":%b,"sequence":' % db,
            b',"schema":%b,"table":%b,"txId":' % (encode_name(schema), encode_name(found["table"])),
        )


class TableSource(NamedTuple):
    """The parts of ``source`` that are the same for all changes of a table."""

    head: bytes
    middle: bytes
    tail: bytes

    def text(self, message: Message, place: Place, logged_at: int, xid: bytes | None) -> bytes:
        """Return the JSON of ``source``.

        Args:
            message: The change, with the time of its commit or its copy.
            place: Its place.
            logged_at: Its time in the log, in microseconds since the epoch.
            xid: The id of its transaction as a decimal text, if known.

        Raises:
            UnsupportedEntry: The id is something else.

        """
        if xid is not None and _XID.fullmatch(xid) is None:
            raise UnsupportedEntry("the header pg-xid is not a whole number")
        # The entry that empties a table before it is copied again has no time of its own.
        time = message.timestamp or logged_at
        snapshot = b"true" if message.phase == "copy" else b"false"
        return b"".join(
            (
                self.head,
                b'%d,"snapshot":"%b"' % (time // 1000, snapshot),
                self.middle,
                place.sequence,
                b',"ts_us":%d,"ts_ns":%d' % (time, time * 1000),
                self.tail,
                b'%b,"lsn":%b,"xmin":null}' % (b"null" if xid is None else xid, place.lsn),
            )
        )
