"""Writer of entries to an LMDB database, together with their offset, and the layout of both."""

from __future__ import annotations

import errno
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

import lmdb
from pydantic import Field

from transporter.adaptor import AdaptorConfig, LocalPath, Size, StoredOffset
from transporter.bytes_as_json import text_or_base64
from transporter.errors import Rejected, RouteFault, SinkError, SinkUnavailable
from transporter_adaptors.passing_errors import PASSING
from transporter_adaptors.rights import FileMode, check_writable, make_folder, mode_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transporter.adaptor import Ack, Entries, Finding, WriterContext
    from transporter.message import Entry


class LmdbWriterConfig(AdaptorConfig):
    """The database's location, and its content."""

    path: LocalPath
    """Folder of the database. Made when it does not exist."""

    layout: Literal["key", "offset"] = "key"
    """``key``: the newest data of each key. ``offset``: every entry, under its offset."""

    @property
    def upserts(self) -> bool:
        """Whether the newest data of a key replace the previous ones."""
        return self.layout == "key"

    map_size: Annotated[Size, Field(ge=64 * 1024)] = 1024**3
    """Initial address space. Doubled whenever it is full."""

    mode: FileMode = "0600"
    """Rights of the files it makes, whatever the umask is. Readers must be able to write the
    lock file, so those of the group need ``0660``."""


_MAX_KEY: Final = 511
"""Maximum of LMDB. A longer key ends in a digest of the whole."""

_LATEST: Final = b"latest"
"""Database of the newest data of each key: ``<namespace> 0x00 <key>`` → data."""

PROGRESS: Final = b"progress"
"""Database of ``<route>/<shard>`` → a JSON object, see :class:`StoredProgress`."""

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_T = TypeVar("_T")

_FILES: Final = ("data.mdb", "lock.mdb")
_PRIVATE: Final = 0o600
_PASSING: Final = {*PASSING, errno.ENOSPC, errno.EDQUOT}
"""Errors after which a slice is tried again. LMDB reports a short write as EIO."""


class LmdbWriter:
    """Writer that keeps the newest data of each key, or every entry, in an LMDB database.

    The entries of a slice and the offset of the last one are one durable
    transaction: an entry is in the database if and only if the stored offset
    covers it. Other processes may read meanwhile, and other routes may write to
    the same folder from other processes. LMDB lets one write at a time.

    Not promised: a bound on the wait for another writer that stands still
    inside its transaction. Not thread-safe.
    """

    Config: ClassVar[type[AdaptorConfig]] = LmdbWriterConfig

    def __init__(self, config: LmdbWriterConfig) -> None:
        """Keep *config*. The database is opened by :meth:`open`."""
        self._config = config
        self._context: WriterContext
        self._database: _Database | None = None

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Open or make the database and return the offset that it stores.

        Raises:
            SinkUnavailable: The disk has no room for it.
            RouteFault: It cannot be opened, or is open in this process.
        """
        self._context = context
        try:
            progress = self._open_database().progress(self._slot)
        except (lmdb.Error, OSError) as error:
            raise self._translate_error(error) from error
        return progress.stored if progress else None

    def write(self, batch: Entries, ack: Ack) -> None:
        """Commit *batch*, or the entries before the first one that cannot be stored."""
        if not len(batch):
            ack.all()
            return
        try:
            refused = self._commit(batch, ack)
        except (lmdb.Error, OSError) as error:
            ack.fail(self._translate_error(error))
            self.close()  # A failed commit may leave the environment unusable.
        except RouteFault as error:
            ack.fail(error)
        else:
            if refused is not None:
                ack.fail(refused, refused.offset)

    def close(self) -> None:
        """Close the database. Safe to call twice."""
        database, self._database = self._database, None
        if database is not None:
            database.environment.close()

    def probe(self) -> Iterable[Finding]:
        """Check that the folder can be written. A database in it is not opened."""
        yield check_writable(self._config.path)

    def _open_database(self) -> _Database:
        if self._database is None:
            self._database = _Database.open(self._config, self._context.route)
        return self._database

    @property
    def _slot(self) -> bytes:
        return f"{self._context.route}/{self._context.shard}".encode()

    def _commit(self, batch: Entries, ack: Ack) -> Rejected | None:
        """Write as many entries as possible in one transaction, ack them, and return the error."""
        database = self._open_database()
        offsets = batch.offsets

        def body(transaction: lmdb.Transaction) -> tuple[int, Rejected | None]:
            before = self._check_epoch(transaction, database)
            written, refused = self._put_all(transaction, database, batch)
            written = batch.whole(written)
            if written:
                known = before.stored if before else None
                stored = self._context.stored(batch.generation, offsets[written - 1], known)
                progress = StoredProgress(stored, (before.entries if before else 0) + written)
                transaction.put(self._slot, progress.encode(), db=database.progress_db)
            return written, refused

        written, refused = database.transact(body)
        ack(offsets[:written])
        return refused

    def _check_epoch(
        self, transaction: lmdb.Transaction, database: _Database
    ) -> StoredProgress | None:
        """Return the stored progress, or raise if this epoch may no longer write."""
        text = transaction.get(self._slot, db=database.progress_db)
        if text is None:
            return None
        before = StoredProgress.decode(bytes(text))
        context, stored = self._context, before.stored
        if stored.log_id == context.log_id and stored.epoch > context.epoch:
            raise RouteFault(
                f"{self._config.path}: fenced by epoch {stored.epoch}; this writer has epoch "
                f"{context.epoch}: another engine has opened the log since"
            )
        if stored.log_id != context.log_id and self._config.layout == "offset":
            raise RouteFault(
                f"{self._config.path}: holds entries of log {stored.log_id}, whose offsets are "
                f"not those of {context.log_id}: give the route another path"
            )
        return before

    def _put_all(
        self, transaction: lmdb.Transaction, database: _Database, batch: Entries
    ) -> tuple[int, Rejected | None]:
        put = _put_latest if self._config.layout == "key" else _put_whole
        written, last, copy = 0, -1, 0
        for entry in batch:
            copy = copy if entry.offset == last else 0
            last = entry.offset
            try:
                copy += put(transaction, database, entry, copy)
            except Rejected as error:
                return written, error
            written += 1
        return written, None

    def _translate_error(self, error: Exception) -> SinkError:
        path = self._config.path
        if "already open in this process" in str(error):
            return RouteFault(f"{path}: another route of this process has it open: use two paths")
        code = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
        if code in _PASSING:
            return SinkUnavailable(f"{path}: {error}")
        return RouteFault(f"{path}: {error}: check the folder and its rights")


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """The progress of a route's shard, and the number of entries that it wrote in all.

    ``entries`` counts every delivery since the database was made. A repeated
    one counts again.
    """

    stored: StoredOffset
    entries: int

    def encode(self) -> bytes:
        """Return the JSON object that :meth:`decode` reads."""
        return json.dumps({**asdict(self.stored), "entries": self.entries}).encode()

    @classmethod
    def decode(cls, text: bytes) -> StoredProgress:
        """Parse the JSON object of :meth:`encode`."""
        fields: dict[str, Any] = json.loads(text)
        entries = fields.pop("entries")
        return cls(StoredOffset(**fields), entries)


class _Database:
    """An open environment with the databases of one route."""

    def __init__(self, environment: lmdb.Environment, route: str) -> None:
        """Open, and make where necessary, the databases of *route*."""
        self.environment = environment
        self.progress_db = environment.open_db(PROGRESS)
        self.latest_db = environment.open_db(_LATEST)
        self.entries_db = environment.open_db(_entries_database(route))

    @classmethod
    def open(cls, config: LmdbWriterConfig, route: str) -> Self:
        """Open the environment that *config* names. On failure nothing stays open."""
        mode = mode_bits(config.mode)
        make_folder(config.path, mode)
        made = [each for name in _FILES if not (each := config.path / name).exists()]
        environment = lmdb.open(
            str(config.path), map_size=config.map_size, max_dbs=3, mode=_PRIVATE
        )
        try:
            for each in made:
                each.chmod(mode)
            return _run_in_map(environment, lambda: cls(environment, route))
        except BaseException:
            environment.close()
            raise

    def progress(self, slot: bytes) -> StoredProgress | None:
        """Return the progress of *slot*."""

        def read() -> bytes | None:
            with self.environment.begin(db=self.progress_db) as transaction:
                return transaction.get(slot)

        text = _run_in_map(self.environment, read)
        return StoredProgress.decode(bytes(text)) if text else None

    def transact(self, body: Callable[[lmdb.Transaction], _T]) -> _T:
        """Run *body* in a write transaction, again in a larger map when it is full."""

        def write() -> _T:
            with self.environment.begin(write=True) as transaction:
                return body(transaction)

        return _run_in_map(self.environment, write)


def _run_in_map(environment: lmdb.Environment, act: Callable[[], _T]) -> _T:
    """Run *act*, again in a larger map when it is full or another process has enlarged it.

    The slot of a killed reader prevents the reuse of all pages that were freed since, until
    a check finds that its process is gone. It also takes up room in the table of readers.
    """
    while True:
        environment.reader_check()
        try:
            return act()
        except lmdb.MapFullError:
            if environment.reader_check():
                continue  # A reader has died meanwhile: its pages may be room enough.
            environment.set_mapsize(2 * environment.info()["map_size"])
        except lmdb.MapResizedError:
            environment.set_mapsize(0)  # Another process has enlarged it.


def _entries_database(route: str) -> bytes:
    """Return the name of the database of whole entries: :func:`offset_key` → JSON."""
    return b"entries/" + route.encode()


def _put_latest(
    transaction: lmdb.Transaction, database: _Database, entry: Entry, copy: int
) -> bool:
    """Store *entry* by its key, and return whether it has none and is the whole row *copy*."""
    message = entry.message
    if message.op in {"noop", "skip"}:
        return False
    if message.key is None:
        return _put_whole(transaction, database, entry, copy)
    if "\0" in message.namespace:
        # The first zero byte ends the namespace in a stored key.
        raise Rejected(f"namespace {message.namespace!r} holds a NUL character", entry.offset)
    key = latest_key(message.namespace, message.key)
    if message.data is None or message.op == "delete":
        transaction.delete(key, db=database.latest_db)
    else:
        transaction.put(key, message.data, db=database.latest_db)
    return False


def _put_whole(transaction: lmdb.Transaction, database: _Database, entry: Entry, copy: int) -> bool:
    """Store *entry* whole, as the row *copy* of its offset, and return true."""
    key = offset_key(entry.offset, copy)
    before = transaction.replace(key, _whole_entry(entry), db=database.entries_db)
    if before is not None and copy == 0:
        _remove_copies(transaction, database, entry.offset)
    return True


def _remove_copies(transaction: lmdb.Transaction, database: _Database, offset: int) -> None:
    """Remove the further rows of an entry that is written again, which may have fewer now."""
    first = offset_key(offset, 1)
    with transaction.cursor(db=database.entries_db) as cursor:
        while cursor.set_range(first) and bytes(cursor.key()).startswith(offset_key(offset)):
            cursor.delete()


def latest_key(namespace: str, key: bytes) -> bytes:
    """Return the stored key of *key*'s newest data.

    A key that is too long keeps its beginning and ends in a SHA-256 of the whole, so
    that a scan of a namespace still finds it.
    """
    full = namespace.encode() + b"\0" + key
    if len(full) <= _MAX_KEY:
        return full
    return full[: _MAX_KEY - 32] + hashlib.sha256(full).digest()


def offset_key(offset: int, copy: int = 0) -> bytes:
    """Return the stored key of a whole entry, 8 bytes. It sorts as the offsets do.

    If a step made several messages of one entry, the keys of the second (*copy* 1) and later
    ones are 4 bytes longer, so that they sort behind the first.
    """
    key = offset.to_bytes(8, "big")
    return key + copy.to_bytes(4, "big") if copy else key


def _whole_entry(entry: Entry) -> bytes:
    """Return *entry* as JSON in UTF-8.

    Times are µs since 1970, bytes as in :func:`text_or_base64`.
    """
    message = entry.message
    return _ENCODER.encode(
        {
            "offset": entry.offset,
            "logged_at": entry.logged_at,
            "namespace": message.namespace,
            "op": message.op,
            "phase": message.phase,
            "key": text_or_base64(message.key),
            "timestamp": message.timestamp,
            "source_id": message.source_id,
            "content_type": message.content_type,
            "headers": [[name, text_or_base64(value)] for name, value in message.headers],
            "data": text_or_base64(message.data),
        }
    ).encode()
