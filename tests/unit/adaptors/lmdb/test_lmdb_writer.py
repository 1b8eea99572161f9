"""The contents of the LMDB writer's database, and its errors."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import lmdb
import pyarrow as pa
import pytest
from root_tools import cannot_run
from transporter_adaptors.lmdb import writer as module
from transporter_adaptors.lmdb.writer import LmdbWriter, StoredProgress, latest_key, offset_key

from transporter.adaptor import StoredOffset, WriterContext
from transporter.errors import Rejected, RouteFault, SinkUnavailable
from transporter.message import ENTRY_SCHEMA, Entries, Message
from transporter.testing import RecordingAck, entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

CONTEXT = WriterContext(log_id="log-1", route="route", epoch=3)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return the folder of a database that does not exist yet."""
    return tmp_path / "db"


def deliver(
    path: Path,
    messages: Sequence[Message],
    first: int = 1,
    context: WriterContext = CONTEXT,
    generation: int = 0,
    **settings: Any,
) -> RecordingAck:
    """Write *messages* as one slice with a new writer, and return the recorded acks."""
    writer = LmdbWriter(LmdbWriter.Config(path=path, **settings))
    try:
        writer.open(context)
        batch = Entries(entries(messages, first).batch, context.log_id, generation)
        ack = RecordingAck(batch)
        writer.write(batch, ack)
        return ack
    finally:
        writer.close()


def rows(path: Path, name: bytes = b"latest") -> dict[bytes, bytes]:
    """Return the rows of one database of the folder."""
    with lmdb.open(str(path), max_dbs=3, readonly=True) as environment:
        handle = environment.open_db(name, create=False)
        with environment.begin(db=handle) as transaction:
            return {bytes(key): bytes(value) for key, value in transaction.cursor()}


def progress(path: Path, slot: bytes = b"route/0") -> StoredProgress:
    """Return the stored progress of *slot*."""
    return StoredProgress.decode(rows(path, b"progress")[slot])


def deliver_at(
    path: Path, offsets: Sequence[int], messages: Sequence[Message], **settings: Any
) -> RecordingAck:
    """Write *messages* at *offsets*, as a step that made several messages of one entry does."""
    columns = entries(messages).batch.columns
    columns[0] = pa.array(offsets)
    batch = Entries(pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA), CONTEXT.log_id)
    writer = LmdbWriter(LmdbWriter.Config(path=path, **settings))
    try:
        writer.open(CONTEXT)
        ack = RecordingAck(batch)
        writer.write(batch, ack)
        return ack
    finally:
        writer.close()


def test_half_an_entry_is_not_stored_as_delivered(database: Path) -> None:
    """An entry with one refused output of two is in neither the ack nor the stored offset."""
    messages = [Message("a", b"1", b"k"), Message("zero\0", b"2", b"k"), Message("a", b"3", b"k")]

    ack = deliver_at(database, [6, 7, 7], messages, layout="key")

    assert ack.prefix == [6]
    assert progress(database).stored.offset == 6


def test_the_newest_data_of_each_key_stays(database: Path) -> None:
    """A later entry of a key replaces the earlier one, within its namespace."""
    deliver(
        database, [Message("a", b"1", b"k"), Message("b", b"2", b"k"), Message("a", b"3", b"k")]
    )

    assert rows(database) == {b"a\0k": b"3", b"b\0k": b"2"}


@pytest.mark.parametrize(
    "message", [Message("a", None, b"k"), Message("a", b"{}", b"k", op="delete")]
)
def test_a_tombstone_or_a_delete_removes_the_key(database: Path, message: Message) -> None:
    """A message without data, or with the op delete, removes its key."""
    deliver(database, [Message("a", b"1", b"k"), message])

    assert rows(database) == {}


@pytest.mark.parametrize("op", ["noop", "skip"])
def test_an_op_without_effect_changes_nothing(database: Path, op: str) -> None:
    """The ops noop and skip are acked and leave the data of their key as it is."""
    ack = deliver(database, [Message("a", b"1", b"k"), Message("a", b"2", b"k", op=op)])

    assert ack.complete
    assert rows(database) == {b"a\0k": b"1"}


def test_the_offset_layout_keeps_every_entry_under_its_offset(database: Path) -> None:
    """With layout offset each entry is stored under its offset, and none replaces another."""
    deliver(database, [Message("a", b"1", b"k"), Message("a", b"2", b"k")], 255, layout="offset")

    assert list(rows(database, b"entries/route")) == [offset_key(255), offset_key(256)]
    assert rows(database) == {}


def whole_rows(path: Path) -> dict[bytes, str]:
    """Return the data of the whole entries by their stored keys."""
    return {key: json.loads(value)["data"] for key, value in rows(path, b"entries/route").items()}


@pytest.mark.parametrize(("layout", "key"), [("offset", b"k"), ("offset", None), ("key", None)])
def test_every_message_of_an_entry_is_kept(database: Path, layout: str, key: bytes | None) -> None:
    """Several messages that a step made of one entry are rows of their own, in order."""
    messages = [Message("a", b"%d" % n, key) for n in range(6)]

    ack = deliver_at(database, [255, 256, 256, 256, 257, 257], messages, layout=layout)

    assert ack.complete
    assert list(whole_rows(database).values()) == ["0", "1", "2", "3", "4", "5"]
    assert list(whole_rows(database)) == [
        offset_key(255),
        offset_key(256),
        offset_key(256) + b"\0\0\0\1",
        offset_key(256) + b"\0\0\0\2",
        offset_key(257),
        offset_key(257) + b"\0\0\0\1",
    ]


def test_the_first_whole_message_of_an_entry_is_under_its_offset(database: Path) -> None:
    """In layout key, messages of the entry that have a key do not count."""
    messages = [
        Message("a", b"1", b"k"),
        Message("a", b"2"),
        Message("a", b"3", b"k"),
        Message("a", b"4"),
    ]

    deliver_at(database, [7, 7, 7, 7], messages, layout="key")

    assert whole_rows(database) == {offset_key(7): "2", offset_key(7) + b"\0\0\0\1": "4"}
    assert rows(database) == {b"a\0k": b"3"}


def test_an_entry_that_is_written_again_replaces_all_its_messages(database: Path) -> None:
    """Messages that a changed step makes no more are removed, and those of others stay."""
    old = [Message("a", b"old")] * 7
    deliver_at(database, [7, 7, 8, 8, 8, 9, 9], old, layout="offset")

    deliver_at(database, [8, 8], [Message("a", b"new")] * 2, layout="offset")

    assert list(whole_rows(database).values()) == ["old", "old", "new", "new", "old", "old"]
    deliver_at(database, [8], [Message("a", b"new")], layout="offset")
    assert list(whole_rows(database).values()) == ["old", "old", "new", "old", "old"]


def test_long_keys_are_kept_apart(database: Path) -> None:
    """Keys too long for LMDB stay distinct, begin with their namespace, and are replaced."""
    long, other = b"x" * 600, b"x" * 601

    deliver(
        database, [Message("a", b"1", long), Message("a", b"2", other), Message("a", b"3", long)]
    )

    found = rows(database)
    assert found == {latest_key("a", long): b"3", latest_key("a", other): b"2"}
    assert all(len(key) == 511 and key.startswith(b"a\0xxx") for key in found)


def test_the_offset_and_the_total_are_stored_with_the_entries(database: Path) -> None:
    """The last entry's offset and generation are stored, and repeats count again."""
    deliver(database, [Message("a", b"1", b"k")] * 3)
    assert progress(database) == StoredProgress(StoredOffset("log-1", "route", 3, 0, 0, 1, 3), 3)

    deliver(database, [Message("a", b"1", b"k")] * 2, first=2, generation=1)

    assert progress(database) == StoredProgress(StoredOffset("log-1", "route", 3, 1, 0, 1, 3), 5)


def test_each_shard_stores_its_own_offset(database: Path) -> None:
    """Two shards of a route, and two routes, have an offset each in one folder."""
    shard = replace(CONTEXT, shard=1, shards=2)
    deliver(database, [Message("a", b"1", b"k")], 5, shard)
    deliver(database, [Message("a", b"1", b"l")], 9, replace(CONTEXT, route="other"))

    assert progress(database, b"route/1").stored.offset == 5
    assert progress(database, b"other/0").stored.offset == 9


def test_what_precedes_a_refused_entry_is_committed(database: Path) -> None:
    """Entries before a refused one are committed, and its namespace is named in the error."""
    good = Message("a", b"1", b"k")

    ack = deliver(database, [good, good, Message("a\0b", b"2", b"k"), good], first=10)

    assert ack.prefix == [10, 11]
    assert isinstance(ack.failures[0][0], Rejected)
    assert ack.failures[0][1] == 12
    assert progress(database).stored.offset == 11


def test_a_slice_that_begins_with_a_refused_entry_changes_nothing(database: Path) -> None:
    """A slice whose first entry is refused commits nothing."""
    ack = deliver(database, [Message("a\0b", b"2", b"k"), Message("a", b"1", b"k")])

    assert ack.prefix == []
    assert rows(database, b"progress") == {}


def test_the_map_grows_when_it_is_full(database: Path) -> None:
    """A slice larger than map_size is stored, because the map is doubled until it fits."""
    messages = [Message("a", b"x" * 10_000, b"%d" % n) for n in range(100)]

    assert deliver(database, messages, map_size="64KiB").complete
    assert len(rows(database)) == 100
    assert progress(database).entries == 100


def test_a_map_size_is_the_map_that_it_begins_with(database: Path) -> None:
    """The setting is the size of the map at the start."""
    writer = LmdbWriter(LmdbWriter.Config(path=database, map_size="8MiB"))
    writer.open(CONTEXT)
    assert writer._database is not None
    size = writer._database.environment.info()["map_size"]
    writer.close()

    assert size == 8 * 1024**2


GROW = """
import sys
sys.path[:0] = sys.argv[2].split(":")
from transporter_adaptors.lmdb.writer import LmdbWriter
from transporter.adaptor import WriterContext
from transporter.message import Message
from transporter.testing import RecordingAck, entries
writer = LmdbWriter(LmdbWriter.Config(path=sys.argv[1], map_size="64KiB"))
writer.open(WriterContext("log-1", "other", 1))
batch = entries([Message("b", b"x" * 10_000, b"%d" % n) for n in range(100)])
ack = RecordingAck(batch)
writer.write(batch, ack)
writer.close()
assert ack.complete
"""


def test_another_process_may_write_and_enlarge_the_map(database: Path) -> None:
    """Another route in another process may write to the folder, and both go on."""
    writer = LmdbWriter(LmdbWriter.Config(path=database, map_size="64KiB"))
    writer.open(CONTEXT)
    try:
        command = [sys.executable, "-c", GROW, str(database), ":".join(sys.path)]
        subprocess.run(command, check=True, timeout=60)
        batch = entries([Message("a", b"1", b"k")])
        ack = RecordingAck(batch)
        writer.write(batch, ack)
    finally:
        writer.close()

    assert ack.complete
    assert len(rows(database)) == 101


@pytest.mark.parametrize(("owner", "name"), [(lmdb, "open"), (module._Database, "open")])
def test_the_map_may_be_enlarged_while_a_writer_opens_it(
    database: Path, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that commits beyond the map, at any point of an open, halts no route."""
    deliver(database, [Message("a", b"1", b"k")], map_size="64KiB")
    opened = getattr(owner, name)

    def overtaken(*parts: Any, **settings: Any) -> Any:
        found = opened(*parts, **settings)
        command = [sys.executable, "-c", GROW, str(database), ":".join(sys.path)]
        subprocess.run(command, check=True, timeout=60)
        return found

    monkeypatch.setattr(owner, name, overtaken)
    writer = LmdbWriter(LmdbWriter.Config(path=database, map_size="64KiB"))
    stored = writer.open(CONTEXT)
    writer.close()

    assert stored is not None
    assert stored.offset == 1


def test_a_route_that_is_new_to_a_full_map_enlarges_it(database: Path) -> None:
    """A folder that has outgrown map_size has no room for the databases of another route."""
    messages = [Message("a", b"x" * 10_000, b"%d" % n) for n in range(100)]
    deliver(database, messages, map_size="64KiB")

    for n in range(9):
        context = replace(CONTEXT, route=f"other-{n}" + "x" * 400)
        assert deliver(database, messages[:1], 1, context, map_size="64KiB").complete


def test_an_older_epoch_of_another_log_is_not_fenced(database: Path) -> None:
    """Epochs of different logs are not compared, and the key layout accepts a new log."""
    deliver(database, [Message("a", b"1", b"k")])

    other = replace(CONTEXT, log_id="log-2", epoch=1)

    assert deliver(database, [Message("a", b"2", b"k")], 1, other).complete
    assert progress(database).entries == 2


def test_the_offset_layout_refuses_another_log(database: Path) -> None:
    """Another log is refused by name, because its offsets would replace entries."""
    deliver(database, [Message("a", b"1", b"k")], layout="offset")

    ack = deliver(
        database, [Message("a", b"2", b"k")], 1, replace(CONTEXT, log_id="log-2"), layout="offset"
    )

    assert isinstance(ack.failures[0][0], RouteFault)
    assert "log-1" in str(ack.failures[0][0])


def test_a_fenced_writer_is_told_by_whom(database: Path) -> None:
    """The error of a fenced writer names the epoch that has taken over."""
    deliver(database, [Message("a", b"1", b"k")])

    ack = deliver(database, [Message("a", b"2", b"k")], 2, replace(CONTEXT, epoch=2))

    assert "fenced by epoch 3" in str(ack.failures[0][0])
    assert rows(database) == {b"a\0k": b"1"}


def test_one_process_cannot_open_a_folder_twice(database: Path) -> None:
    """A second writer to the folder in the same process is refused, and the first goes on."""
    first = LmdbWriter(LmdbWriter.Config(path=database))
    second = LmdbWriter(LmdbWriter.Config(path=database))
    first.open(CONTEXT)
    try:
        with pytest.raises(RouteFault, match="use two paths"):
            second.open(CONTEXT)
        second.close()
        batch = entries([Message("a", b"1", b"k")])
        ack = RecordingAck(batch)
        first.write(batch, ack)
        assert ack.complete
    finally:
        first.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of one megabyte, if this machine lets a test mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        cannot_run("a test may not mount a file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_unavailable_and_keeps_what_was_committed(small_disk: Path) -> None:
    """A slice that meets a full disk fails as a whole, and the writer goes on once it fits."""
    filler = small_disk / "filler"
    writer = LmdbWriter(LmdbWriter.Config(path=small_disk / "db"))
    writer.open(CONTEXT)
    try:
        first, second = (
            entries([Message("a", b"1", b"k")]),
            entries(
                [Message("a", b"x" * 400_000, b"l"), Message("a", b"y" * 200_000, b"m")], first=2
            ),
        )
        acks = [RecordingAck(first), RecordingAck(second), RecordingAck(second)]
        writer.write(first, acks[0])
        filler.write_bytes(b"x" * 500_000)
        writer.write(second, acks[1])
        filler.unlink()
        writer.write(second, acks[2])
    finally:
        writer.close()

    assert acks[0].complete
    assert acks[1].prefix == []
    assert isinstance(acks[1].failures[0][0], SinkUnavailable)
    assert acks[2].complete
    assert progress(small_disk / "db").entries == 3


READ = """
import sys
import lmdb
environment = lmdb.open(sys.argv[1], max_dbs=3, readonly=True)
open = [environment.begin() for _ in range(int(sys.argv[2]))]
print("reading", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_reader(path: Path, transactions: int = 1) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that reads the folder in that many transactions, and kill it at the end."""
    command = [sys.executable, "-c", READ, str(path), str(transactions)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        try:
            yield process
        finally:
            process.kill()


def rewrite(writer: LmdbWriter, slices: int) -> None:
    """Write 100 KB for the same key in each of *slices*."""
    for _ in range(slices):
        batch = entries([Message("a", b"x" * 100_000, b"k")])
        ack = RecordingAck(batch)
        writer.write(batch, ack)
        assert ack.complete


@pytest.fixture
def writer(database: Path) -> Iterator[LmdbWriter]:
    """Return an open writer with a map of one megabyte, after one slice."""
    writer = LmdbWriter(LmdbWriter.Config(path=database, map_size="1MiB"))
    writer.open(CONTEXT)
    rewrite(writer, 1)
    yield writer
    writer.close()


def test_a_killed_reader_does_not_make_the_file_grow(database: Path, writer: LmdbWriter) -> None:
    """Pages that a dead reader had open are reused, long before the map is full."""
    rewrite(writer, 3)
    usual = (database / "data.mdb").stat().st_size
    with another_reader(database):
        pass

    rewrite(writer, 4)

    assert (database / "data.mdb").stat().st_size == usual


def test_a_reader_that_dies_during_a_slice_does_not_enlarge_the_map(
    database: Path, writer: LmdbWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots of dead readers are freed before the map is doubled."""
    put = module._put_latest
    with another_reader(database) as reader:

        def killing(*parts: Any) -> bool:
            reader.kill()
            reader.wait()
            return put(*parts)

        rewrite(writer, 7)  # An eighth one would not fit beside the pages that are being read.
        assert writer._database is not None
        size = writer._database.environment.info()["map_size"]
        monkeypatch.setattr(module, "_put_latest", killing)
        rewrite(writer, 8)

        assert writer._database.environment.info()["map_size"] == size


def test_killed_readers_leave_the_table_of_readers_at_the_open(database: Path) -> None:
    """The slots of dead readers are free again before the first slice."""
    deliver(database, [Message("a", b"1", b"k")])
    writer = LmdbWriter(LmdbWriter.Config(path=database))
    # The table of readers stays as long as a process has the folder open.
    with another_reader(database) as living:
        with another_reader(database, 100) as killed:
            pass
        writer.open(CONTEXT)
        try:
            assert writer._database is not None
            readers = writer._database.environment.readers()
        finally:
            writer.close()

    assert str(living.pid) in readers
    assert str(killed.pid) not in readers


def test_a_full_table_of_descriptors_is_waited_for(database: Path) -> None:
    """A process without a descriptor to open the database with halts no route (Invariant 14)."""
    deliver(database, [Message("a", b"1", b"k")])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(SinkUnavailable):
            deliver(database, [Message("a", b"2", b"k")], 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert deliver(database, [Message("a", b"2", b"k")], 2).complete
