"""The lines that the file reader reads, and the messages made of them."""

from __future__ import annotations

import errno
import json
import os
import resource
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from transporter_adaptors.file.reader import FileReader, open_regular

from transporter.adaptor import EndOfSource
from transporter.errors import EnvironmentFault, SourceError, SourceUnavailable
from transporter.message import ERROR_HEADER, JSON
from transporter.testing import FixedResume
from transporter.testing.contracts import joined, messages_of, read_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.message import Message


def lines_of(path: Path, position: str | None = None, **settings: Any) -> list[Message]:
    """Return the messages that a new reader reads from *path*, from *position* to the end."""
    return joined(read_all(FileReader(FileReader.Config(path=path, **settings)), position))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file that does not exist yet."""
    return tmp_path / "orders.placed.jsonl"


@pytest.fixture
def following(path: Path) -> Iterator[FileReader]:
    """Return an open reader that follows the file."""
    reader = FileReader(FileReader.Config(path=path, follow=True))
    reader.open(FixedResume())
    yield reader
    reader.close()


def data_of(reader: FileReader, timeout: float = 0.0) -> list[bytes | None]:
    """Return the data of the messages of one poll."""
    return [message.data for message in messages_of(reader.poll(timeout).messages)]


def test_data_is_the_line_byte_for_byte(path: Path) -> None:
    """Numbers, blanks and a carriage return stay as they are, and only the line feed is cut."""
    path.write_bytes(b'{"b": 1.10,  "a":123456789012345678901234567890}\r\n"\xc3\xa9"\n')

    messages = lines_of(path)

    assert [message.data for message in messages] == [
        b'{"b": 1.10,  "a":123456789012345678901234567890}\r',
        b'"\xc3\xa9"',
    ]
    assert {message.content_type for message in messages} == {JSON}


def test_the_namespace_is_the_name_of_the_file(path: Path) -> None:
    """The namespace is the setting, or else the file's name without its suffix."""
    path.write_bytes(b"1\n")

    assert lines_of(path)[0].namespace == "orders.placed"
    assert lines_of(path, namespace="other")[0].namespace == "other"


def test_the_time_is_that_of_the_file(path: Path) -> None:
    """A line has the time of its file's last change, in µs."""
    path.write_bytes(b"1\n")
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))

    assert lines_of(path)[0].timestamp == 1_700_000_000_123_456


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"id": "k\xc3\xa9"}', "ké".encode()),
        (b'{"id": 12345678901234567890.10}', b"12345678901234567890.10"),
        (b'{"id": ' + b"9" * 5000 + b"}", b"9" * 5000),
        (b'{"id": true}', b"true"),
        (b'{"id": null}', None),
        (b'{"other": 1}', None),
        (b'["id"]', None),
    ],
)
def test_the_key_is_the_value_of_a_field(path: Path, line: bytes, key: bytes | None) -> None:
    """A text key is kept as it is, a number as it is written, and no setting means no key."""
    path.write_bytes(line + b"\n")

    assert lines_of(path, key="id")[0].key == key
    assert lines_of(path)[0].key is None
    assert lines_of(path, key="id")[0].headers == ()


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"not json",
        b'{"id": NaN}',
        b"\xff\xfe",
        b"{} {}",
        b"[" * 100_000,
        b'{"id": {"a": 1}}',
        b'{"id": "\\ud800"}',
    ],
)
def test_a_bad_line_is_a_message_with_an_error(path: Path, line: bytes) -> None:
    """A line that is not JSON, or has no usable key, is kept with an error, and reading goes on."""
    path.write_bytes(b"1\n" + line + b"\n2\n")

    first, bad, last = lines_of(path, key="id")

    assert (first.data, bad.data, last.data) == (b"1", line, b"2")
    ((name, text),) = bad.headers
    assert name == ERROR_HEADER
    assert text is not None
    assert b"orders.placed.jsonl byte 2" in text
    assert bad.content_type is None
    assert first.headers == last.headers == ()


def test_blank_lines_are_passed_over(path: Path) -> None:
    """Lines of nothing but white space make no message."""
    path.write_bytes(b"\n1\n  \r\n\n2\n\n")

    assert [message.data for message in lines_of(path)] == [b"1", b"2"]


def test_a_line_over_the_limit_is_cut_and_told(path: Path) -> None:
    """Only the beginning of a line over max_line_bytes is kept, with an error header."""
    path.write_bytes(b'"12345678"\n' + b'"' + b"x" * 3_000_000 + b'"\n"next"\n')

    exact, long, following = lines_of(path, max_line_bytes=10)

    assert exact.headers == ()
    assert long.data == b'"' + b"x" * 9
    assert long.headers[0][0] == ERROR_HEADER
    assert following.data == b'"next"'


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"batch_rows": 4}, [4, 4, 2]),
        ({"batch_bytes": 5}, [3, 3, 3, 1]),
        ({"batch_bytes": 6}, [3, 3, 3, 1]),
        ({"batch_bytes": 1}, [1] * 10),
        ({}, [10]),
    ],
)
def test_batches_are_bounded(path: Path, settings: dict[str, int], sizes: list[int]) -> None:
    """A batch ends at batch_rows lines, or with the line that reaches batch_bytes."""
    path.write_bytes(b"".join(b"%d\n" % number for number in range(10, 20)))

    batches = read_all(FileReader(FileReader.Config(path=path, **settings)))

    assert [len(messages) for messages, _ in batches] == sizes


def test_a_last_line_without_an_end_is_read(path: Path) -> None:
    """At the end of a source that does not grow, a last line without a line feed is read."""
    path.write_bytes(b"1\n2")

    assert [message.data for message in lines_of(path)] == [b"1", b"2"]


def test_a_followed_file_grows(path: Path, following: FileReader) -> None:
    """A followed file is awaited and read as it grows, and a line is read once it has ended."""
    assert data_of(following) == []
    path.write_bytes(b"1\n2")
    assert data_of(following) == [b"1"]
    assert data_of(following) == []
    with path.open("ab") as file:
        file.write(b"2\n3\n")
    assert data_of(following) == [b"22", b"3"]


def test_a_poll_waits_for_a_followed_file(path: Path, following: FileReader) -> None:
    """A poll ends as soon as a line is written."""
    writer = threading.Timer(0.2, path.write_bytes, (b"1\n",))
    writer.start()
    try:
        assert data_of(following, timeout=20.0) == [b"1"]
    finally:
        writer.join()


def test_a_followed_file_that_is_replaced_is_read_to_its_end_first(
    path: Path, following: FileReader
) -> None:
    """The rest of a followed file is read before the file that takes its name."""
    path.write_bytes(b"1\n")
    assert data_of(following) == [b"1"]
    with path.open("ab") as file:
        file.write(b"2\n3")
    path.rename(path.with_suffix(".old"))
    path.write_bytes(b"4\n")

    assert [data_of(following) for _ in range(3)] == [[b"2"], [b"3"], [b"4"]]


def test_a_followed_file_that_is_cut_is_read_from_its_beginning(
    path: Path, following: FileReader
) -> None:
    """The lines of a file that became shorter than its read part are new ones."""
    path.write_bytes(b"1\n2\n")
    assert data_of(following) == [b"1", b"2"]
    path.write_bytes(b"3\n")

    assert data_of(following) == [b"3"]


def test_followed_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    """A file with a later name ends the one before it, and files without a match are left out."""
    reader = FileReader(FileReader.Config(path=tmp_path / "log-*.jsonl", follow=True))
    reader.open(FixedResume())
    (tmp_path / "log-1.jsonl").write_bytes(b"1\n2")
    (tmp_path / "else.jsonl").write_bytes(b"0\n")
    assert data_of(reader) == [b"1"]
    assert data_of(reader) == []
    (tmp_path / "log-2.jsonl").write_bytes(b"3\n")

    assert [data_of(reader) for _ in range(2)] == [[b"2"], [b"3"]]
    reader.close()


def after(path: Path, position: str | None = None) -> str:
    """Read *path* from *position* to the end, and return the new position."""
    return read_all(FileReader(FileReader.Config(path=path)), position)[-1][1] or ""


def texts(messages: list[Message]) -> list[bytes | None]:
    """Return the data of *messages*."""
    return [message.data for message in messages]


def go_on(path: Path, position: str) -> tuple[list[bytes | None], list[dict[str, object]]]:
    """Return the data that a new reader reads from *position*, and the losses it reports."""
    reader, resume = FileReader(FileReader.Config(path=path)), FixedResume(position)
    reader.open(resume)
    found: list[bytes | None] = []
    with suppress(EndOfSource):
        while True:
            found += data_of(reader)
    reader.close()
    assert all(event == "file-lost" for event, _ in resume.told)
    return found, [details for _, details in resume.told]


def test_numbers_in_names_are_numbers(tmp_path: Path) -> None:
    """The tenth file follows the ninth, not the first."""
    for number in (1, 9, 10, 100, 11):
        (tmp_path / f"orders.{number}.jsonl").write_bytes(b"%d\n" % number)

    assert texts(lines_of(tmp_path / "orders.*.jsonl")) == [b"1", b"9", b"10", b"11", b"100"]


@pytest.mark.parametrize("name", ["b.jsonl", "a.jsonl"], ids=["later", "earlier"])
def test_a_new_file_is_read_whatever_its_name_is(tmp_path: Path, name: str) -> None:
    """A new file is read even if it sorts before the current one, live and after a restart."""
    (tmp_path / "a1.jsonl").write_bytes(b"1\n")
    path = tmp_path / "*.jsonl"
    reader = FileReader(FileReader.Config(path=path, follow=True))
    reader.open(FixedResume())
    assert data_of(reader) == [b"1"]
    (tmp_path / name).write_bytes(b"2\n")
    batch = reader.poll(0.0)
    reader.close()
    assert texts(messages_of(batch.messages)) == [b"2"]
    (tmp_path / "0.jsonl").write_bytes(b"0\n")

    assert go_on(path, batch.position or "") == ([b"0"], [])


def test_a_file_that_grows_after_it_was_left_is_read_on(tmp_path: Path) -> None:
    """Lines appended to an earlier file are read, and the later file is not read again."""
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    first.write_bytes(b"1\n")
    second.write_bytes(b"2\n")
    reader = FileReader(FileReader.Config(path=tmp_path / "*.jsonl", follow=True))
    reader.open(FixedResume())
    assert [data_of(reader) for _ in range(3)] == [[b"1"], [b"2"], []]
    for path, text in ((first, b"3\n"), (second, b"4\n")):
        with path.open("ab") as file:
            file.write(text)
        assert data_of(reader) == [text[:1]]
    assert data_of(reader) == []
    reader.close()


def test_a_line_that_is_being_written_is_not_cut_by_a_rotated_file(tmp_path: Path) -> None:
    """A rotated file does not end a line of the live file, although it sorts behind that one."""
    live, rotated = tmp_path / "log", tmp_path / "log.1"
    rotated.write_bytes(b"1\n")
    os.utime(rotated, (1, 1))
    live.write_bytes(b'"a')
    reader = FileReader(FileReader.Config(path=tmp_path / "log*", follow=True))
    reader.open(FixedResume())
    assert [data_of(reader) for _ in range(3)] == [[b"1"], [], []]
    with live.open("ab") as file:
        file.write(b'b"\n')
    assert data_of(reader) == [b'"ab"']
    reader.close()


def test_a_line_without_an_end_is_read_once_its_file_is_left(tmp_path: Path) -> None:
    """A later file that existed before, and is only now written to, ends the one before it."""
    first, second = tmp_path / "1", tmp_path / "2"
    second.touch()
    os.utime(second, (1, 1))
    first.write_bytes(b"1")
    reader = FileReader(FileReader.Config(path=tmp_path / "*", follow=True))
    reader.open(FixedResume())
    assert [data_of(reader) for _ in range(2)] == [[], []]
    second.write_bytes(b"2\n")
    assert sorted([*data_of(reader), *data_of(reader)]) == [b"1", b"2"]
    assert data_of(reader) == []
    reader.close()


@pytest.mark.parametrize("pattern", ["orders.log", "orders.log*"])
def test_a_file_that_is_rotated_while_it_is_down_is_read_to_its_end(
    tmp_path: Path, pattern: str
) -> None:
    """Lines written before the rotation come first, under the old name, and none comes twice."""
    path = tmp_path / "orders.log"
    path.write_bytes(b"1\n")
    position = after(tmp_path / pattern)
    with path.open("ab") as file:
        file.write(b"2\n")
    path.rename(tmp_path / "orders.log.1")
    path.write_bytes(b"3\n4\n")

    messages = lines_of(tmp_path / pattern, position)

    assert texts(messages) == [b"2", b"3", b"4"]
    assert messages[0].source_id == "orders.log:2"
    again = after(tmp_path / pattern, position)
    assert go_on(tmp_path / pattern, again) == ([], [])


def test_a_file_that_was_overwritten_is_read_from_its_beginning(path: Path) -> None:
    """An overwritten file is recognized by its beginning, even if it is longer than before."""
    path.write_bytes(b"1\n2\n")
    position = after(path)
    path.write_bytes(b"3\n4\n5\n")

    found, told = go_on(path, position)

    assert found == [b"3", b"4", b"5"]
    assert [(each["file"], each["byte"]) for each in told] == [("orders.placed.jsonl", 4)]
    assert "overwritten" in str(told[0]["problem"])


def test_a_followed_file_that_is_overwritten_is_read_from_its_beginning(path: Path) -> None:
    """An overwritten file is read from its beginning, even if it is longer at the first look."""
    path.write_bytes(b"1\n2\n")
    reader, resume = FileReader(FileReader.Config(path=path, follow=True)), FixedResume()
    reader.open(resume)
    assert data_of(reader) == [b"1", b"2"]
    path.write_bytes(b"3\n4\n5\n")

    assert data_of(reader) == [b"3", b"4", b"5"]
    reader.close()
    assert [(event, details["byte"]) for event, details in resume.told] == [("file-lost", 4)]


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    """The unread rest of a file that left its folder is reported lost, and the next is read."""
    path = tmp_path / "*.jsonl"
    (tmp_path / "1.jsonl").write_bytes(b"1\n")
    position = after(path)
    (tmp_path / "2.jsonl").write_bytes(b"2\n")
    (tmp_path / "1.jsonl").unlink()

    found, told = go_on(path, position)

    assert found == [b"2"]
    assert [(each["file"], each["byte"]) for each in told] == [("1.jsonl", 2)]
    assert "gone" in str(told[0]["problem"])


def test_a_position_holds_only_files_that_are_there(tmp_path: Path) -> None:
    """A position does not grow without bound in a folder that is cleared now and then."""
    reader = FileReader(FileReader.Config(path=tmp_path / "*.jsonl", follow=True))
    reader.open(FixedResume())
    sizes = []
    for number in range(20):
        (tmp_path / f"{number}.jsonl").write_bytes(b"%d\n" % number)
        batch = reader.poll(0.0)
        assert texts(messages_of(batch.messages)) == [b"%d" % number]
        sizes.append(len(json.loads(batch.position or "")["files"]))
        (tmp_path / f"{number - 1}.jsonl").unlink(missing_ok=True)
    reader.close()

    assert max(sizes) <= 3


@pytest.mark.parametrize("text", ["", "{}", '{"file": "a", "byte": 1, "inode": 2}', "[1]"])
def test_a_position_of_something_else_is_refused(path: Path, text: str) -> None:
    """A position that no file reader has written is refused."""
    path.write_bytes(b"1\n")
    with pytest.raises(SourceError, match="give the reader another name"):
        FileReader(FileReader.Config(path=path)).open(FixedResume(text))


def test_a_restart_reads_a_replaced_file_from_its_beginning(path: Path) -> None:
    """A position in a file that was replaced is not used for the new file."""
    path.write_bytes(b"1\n2\n")
    position = read_all(FileReader(FileReader.Config(path=path)))[-1][1]
    path.rename(path.with_suffix(".old"))
    path.write_bytes(b"3\n4\n5\n")

    assert [message.data for message in lines_of(path, position)] == [b"3", b"4", b"5"]


def test_a_restart_goes_on_where_a_grown_file_was_left(path: Path) -> None:
    """Lines appended after the last run are read by the next one."""
    path.write_bytes(b"1\n2\n")
    position = read_all(FileReader(FileReader.Config(path=path)))[-1][1]
    with path.open("ab") as file:
        file.write(b"3\n")

    assert [message.data for message in lines_of(path, position)] == [b"3"]


def test_a_missing_file_may_come_later(path: Path) -> None:
    """A missing file makes the source unavailable, and the error names the path."""
    with pytest.raises(SourceUnavailable, match=r"orders\.placed\.jsonl: the file does not exist"):
        lines_of(path)


def test_what_is_no_file_is_a_fault(tmp_path: Path) -> None:
    """A folder in place of a file is a fault that an operator must fix."""
    reader = FileReader(FileReader.Config(path=tmp_path))
    with pytest.raises(EnvironmentFault):
        reader.open(FixedResume())


def test_an_empty_file_is_at_its_end(path: Path) -> None:
    """A file without lines ends at once."""
    path.touch()
    reader = FileReader(FileReader.Config(path=path))
    reader.open(FixedResume())
    with pytest.raises(EndOfSource):
        reader.poll(10.0)
    reader.close()


def test_a_link_in_a_drop_folder_is_refused_and_told_once(tmp_path: Path) -> None:
    """A link in a drop folder cannot make the reader read a file elsewhere."""
    elsewhere = tmp_path / "secret"
    elsewhere.write_bytes(b'"secret"\n')
    drop = tmp_path / "drop"
    drop.mkdir()
    (drop / "a.jsonl").symlink_to(elsewhere)
    (drop / "b.jsonl").write_bytes(b"1\n")
    resume = FixedResume()
    reader = FileReader(FileReader.Config(path=drop / "*.jsonl", follow=True))
    reader.open(resume)

    assert data_of(reader) == [b"1"]
    assert data_of(reader) == []
    assert [(event, details["file"]) for event, details in resume.told] == [
        ("file-refused", "a.jsonl")
    ]
    reader.close()


def test_a_link_is_followed_where_that_is_asked_for(tmp_path: Path) -> None:
    """With follow_links a link is followed, also after it leads to another file."""
    for name in ("1.jsonl", "2.jsonl"):
        (tmp_path / name).write_bytes(name[:1].encode() + b"\n")
    current = tmp_path / "current"
    current.symlink_to("1.jsonl")
    reader = FileReader(FileReader.Config(path=current, follow=True, follow_links=True))
    reader.open(FixedResume())
    assert data_of(reader) == [b"1"]
    current.unlink()
    current.symlink_to("2.jsonl")
    assert data_of(reader) == [b"2"]
    reader.close()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("links", [False, True])
def test_a_pipe_as_its_path_holds_no_poll(path: Path, links: bool) -> None:
    """A pipe without a writer is refused, because opening it would block for ever."""
    os.mkfifo(path)
    resume = FixedResume()
    reader = FileReader(FileReader.Config(path=path, follow=True, follow_links=links))
    reader.open(resume)

    assert data_of(reader) == []
    assert [event for event, _ in resume.told] == ["file-refused"]
    reader.close()
    with pytest.raises(EnvironmentFault, match="not a regular file"):
        lines_of(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_what_takes_a_files_place_after_the_look_is_not_opened(path: Path, make: Any) -> None:
    """A file that is replaced by a pipe or a link between look and open is not opened."""
    path.with_name("elsewhere").write_bytes(b'"secret"\n')
    make(path)

    with pytest.raises(SourceUnavailable, match="just been replaced"):
        open_regular(path, links=False)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Leave this process no file descriptor to open anything with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("name", ["*.jsonl", "2.jsonl"])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_full_table_of_descriptors_is_waited_for_at_the_open(
    tmp_path: Path, name: str, renamed: bool
) -> None:
    """Nothing is taken for gone where nothing can be opened, and nothing is read twice."""
    for number in (1, 2):
        (tmp_path / f"{number}.jsonl").write_bytes(b"%d\n" % number)
    position = after(tmp_path / name)
    if renamed:
        (tmp_path / "2.jsonl").rename(tmp_path / "2.old")
        (tmp_path / "2.jsonl").write_bytes(b"3\n")
    reader, resume = FileReader(FileReader.Config(path=tmp_path / name)), FixedResume(position)

    with no_descriptors(), pytest.raises(SourceUnavailable, match=str(tmp_path)):
        reader.open(resume)

    reader.close()
    assert resume.told == []
    assert go_on(tmp_path / name, position) == ([b"3"] if renamed else [], [])


def test_a_full_table_of_descriptors_is_waited_for_at_the_next_file(tmp_path: Path) -> None:
    """A poll that cannot open the next file raises the error after which it is retried."""
    (tmp_path / "1.jsonl").write_bytes(b"1\n")
    reader, resume = FileReader(FileReader.Config(path=tmp_path / "*.jsonl")), FixedResume()
    reader.open(resume)
    position = reader.poll(0.0).position or ""
    (tmp_path / "2.jsonl").write_bytes(b"2\n")

    with no_descriptors(), pytest.raises(SourceUnavailable):
        reader.poll(0.0)

    reader.close()
    assert go_on(tmp_path / "*.jsonl", position) == ([b"2"], [])


def open_and_poll(reader: FileReader, resume: FixedResume) -> list[bytes | None]:
    """Return the data of the first poll."""
    reader.open(resume)
    return data_of(reader)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOMEM, errno.ETIMEDOUT])
@pytest.mark.parametrize("call", ["stat", "listdir", "fstat", "pread"])
def test_an_error_that_passes_is_waited_for(
    tmp_path: Path, code: int, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that does not answer for a while stops no reader, whatever the call was."""
    (tmp_path / "1.jsonl").write_bytes(b"1\n")
    path = tmp_path / "*.jsonl"
    position = after(path)
    (tmp_path / "2.jsonl").write_bytes(b"2\n")
    reader, resume = FileReader(FileReader.Config(path=path)), FixedResume(position)

    def failing(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with pytest.raises(SourceUnavailable, match=r"\*\.jsonl: "):
            open_and_poll(reader, resume)
    reader.close()
    assert resume.told == []


def test_an_error_that_does_not_pass_says_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that may not be read stops the reader, with its name."""
    path.write_bytes(b"1\n")

    def failing(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(EnvironmentFault, match=r"placed\.jsonl: Permission denied: check the path"):
        lines_of(path)


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    """No message can carry such a name, so its file is reported, and the others are read."""
    (tmp_path / os.fsdecode(b"a\xff\n.jsonl")).write_bytes(b"1\n")
    (tmp_path / "b.jsonl").write_bytes(b"2\n")
    reader, resume = FileReader(FileReader.Config(path=tmp_path / "*.jsonl")), FixedResume()
    reader.open(resume)

    assert data_of(reader) == [b"2"]
    with pytest.raises(EndOfSource):
        reader.poll(0.0)
    reader.close()
    ((event, details),) = resume.told
    assert event == "file-refused"
    assert details["file"] == "a\\xff\n.jsonl"
    assert "UTF-8" in str(details["problem"])
    assert [each.level for each in reader.probe()] == ["warning", "fine"]


def followed(path: Path, position: str | None) -> tuple[FileReader, FixedResume]:
    """Return an open reader that follows *path* from *position*, and what it reports."""
    reader, resume = FileReader(FileReader.Config(path=path, follow=True)), FixedResume(position)
    reader.open(resume)
    return reader, resume


@pytest.mark.parametrize("name", ["1.jsonl", "*.jsonl"])
def test_a_mount_that_comes_late_is_waited_for(tmp_path: Path, name: str) -> None:
    """A start before its folder is there loses nothing, and reads nothing twice."""
    mount = tmp_path / "mount"
    mount.mkdir()
    (mount / "1.jsonl").write_bytes(b"1\n")
    position = after(mount / name)
    mount.rename(tmp_path / "away")

    with pytest.raises(SourceUnavailable, match="mount: the folder does not exist"):
        followed(mount / name, position)

    (tmp_path / "away").rename(mount)
    reader, resume = followed(mount / name, position)
    assert data_of(reader) == []
    with (mount / "1.jsonl").open("ab") as file:
        file.write(b"2\n")
    assert data_of(reader) == [b"2"]
    reader.close()
    assert resume.told == []


@pytest.mark.parametrize("name", ["1.jsonl", "*.jsonl"])
def test_files_that_come_late_into_their_folder_are_known(tmp_path: Path, name: str) -> None:
    """An empty folder may be a mount point, so the files that it had are not forgotten."""
    mount, away = tmp_path / "mount", tmp_path / "away"
    mount.mkdir()
    for number in (0, 1):
        (mount / f"{number}.jsonl").write_bytes(b"1\n")
    position = after(mount / name)
    mount.rename(away)
    mount.mkdir()
    reader, resume = followed(mount / name, position)
    assert data_of(reader) == []
    mount.rmdir()
    away.rename(mount)

    assert data_of(reader) == []
    with (mount / "1.jsonl").open("ab") as file:
        file.write(b"2\n")
    (batch,) = [reader.poll(0.0)]
    assert texts(messages_of(batch.messages)) == [b"2"]
    assert resume.told == []
    reader.close()
    assert go_on(mount / name, batch.position or "") == ([], [])


def test_a_file_that_is_gone_is_told_once_another_one_comes(tmp_path: Path) -> None:
    """In a folder without files a file is lost as soon as another one is read instead of it."""
    path = tmp_path / "1.jsonl"
    path.write_bytes(b"1\n")
    position = after(tmp_path / "*.jsonl")
    path.unlink()
    reader, resume = followed(tmp_path / "*.jsonl", position)
    assert data_of(reader) == []
    assert resume.told == []
    # Written under another name first, so that it does not get the inode.
    (tmp_path / "0.jsonl").write_bytes(b"2\n3\n")

    assert data_of(reader) == [b"2", b"3"]
    reader.close()
    ((event, details),) = resume.told
    assert (event, details["file"], details["byte"]) == ("file-lost", "1.jsonl", 2)


def append(path: Path, text: bytes) -> None:
    """Write *text* at the end of *path*, as a process that has it open does."""
    with path.open("ab") as file:
        file.write(text)


def rotate(path: Path) -> Path:
    """Rotate *path* as logrotate's ``create`` does, and return the newest rotated file."""
    number = 1
    while path.with_name(f"{path.name}.{number}").exists():
        number += 1
    for each in range(number, 1, -1):
        path.with_name(f"{path.name}.{each - 1}").rename(path.with_name(f"{path.name}.{each}"))
    rotated = path.with_name(f"{path.name}.1")
    path.rename(rotated)
    path.touch()
    return rotated


def polled(reader: FileReader) -> list[tuple[bytes | None, str, str]]:
    """Return data, namespace and source id of the messages of all polls up to an empty one."""
    found: list[tuple[bytes | None, str, str]] = []
    while messages := messages_of(reader.poll(0.0).messages):
        found += [(each.data, each.namespace, each.source_id or "") for each in messages]
    return found


@pytest.mark.parametrize("name", ["app.log", "*.log"])
@pytest.mark.parametrize("empty", [False, True])
def test_a_rotated_file_is_read_on_while_its_writer_has_it(
    tmp_path: Path, name: str, empty: bool
) -> None:
    """A writer goes on in the old file until it opens the new one, and no line is lost."""
    path = tmp_path / "app.log"
    path.write_bytes(b"" if empty else b"1\n")
    reader, resume = followed(tmp_path / name, None)
    assert [each[0] for each in polled(reader)] == ([] if empty else [b"1"])
    start = path.stat().st_size
    rotated = rotate(path)
    assert polled(reader) == []
    append(rotated, b"2\n")
    assert polled(reader) == [(b"2", "app", f"app.log:{start}")]
    append(path, b"3\n")
    append(rotated, b"4\n")
    assert polled(reader) == [(b"4", "app", f"app.log:{start + 2}"), (b"3", "app", "app.log:0")]
    rotated = rotate(path)
    append(rotated, b"5\n")
    append(rotated.with_name("app.log.2"), b"6\n")
    assert sorted(polled(reader)) == [
        (b"5", "app", "app.log:2"),
        (b"6", "app", f"app.log:{start + 4}"),
    ]
    reader.close()
    assert resume.told == []


@pytest.mark.parametrize("name", ["app.log", "*.log"])
def test_a_rotated_file_is_read_on_after_a_restart(tmp_path: Path, name: str) -> None:
    """A position has the rotated files, too, so what comes next in them is read, and once."""
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n")
    position = after(tmp_path / name)
    rotated = rotate(path)
    path.write_bytes(b"2\n")
    position = after(tmp_path / name, position)
    append(rotated, b"3\n")
    append(path, b"4\n")

    reader, resume = followed(tmp_path / name, position)
    found = polled(reader)
    reader.close()

    assert sorted(found) == [(b"3", "app", "app.log:2"), (b"4", "app", "app.log:2")]
    assert resume.told == []


def test_half_a_line_of_a_rotated_file_waits_for_its_rest(tmp_path: Path) -> None:
    """A new file does not end the line that is being written as long as it is empty."""
    path = tmp_path / "app.log"
    path.write_bytes(b'1\n"a')
    reader, resume = followed(path, None)
    assert [each[0] for each in polled(reader)] == [b"1"]
    rotated = rotate(path)
    assert polled(reader) == []
    append(rotated, b'b"\n"c')
    assert [each[0] for each in polled(reader)] == [b'"ab"']
    append(path, b"2\n")

    assert [each[0] for each in polled(reader)] == [b'"c', b"2"]
    reader.close()
    assert resume.told == []


def test_a_rotated_file_that_is_compressed_is_forgotten(tmp_path: Path) -> None:
    """Neither the compressed file, nor one that gets the inode, is read."""
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n")
    reader, resume = followed(path, None)
    assert [each[0] for each in polled(reader)] == [b"1"]
    rotated = rotate(path)
    assert polled(reader) == []
    rotated.with_name("app.log.1.gz").write_bytes(b"1\n2\n")
    rotated.unlink()
    for number in range(9):  # one of them has the inode on most file systems
        (tmp_path / f"other-{number}").write_bytes(b"other\n" * 9)
    path.write_bytes(b"3\n")
    batch = reader.poll(0.0)
    assert texts(messages_of(batch.messages)) == [b"3"]
    rotate(path)
    path.write_bytes(b"4\n")

    batch = reader.poll(0.0)

    assert texts(messages_of(batch.messages)) == [b"4"]
    assert polled(reader) == []
    reader.close()
    assert len(json.loads(batch.position or "")["files"]) <= 3
    assert resume.told == []


def test_a_copied_and_emptied_file_is_read_once(tmp_path: Path) -> None:
    """With ``copytruncate`` the copy is another file, which was read under its first name."""
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n2\n")
    reader, _ = followed(path, None)
    assert [each[0] for each in polled(reader)] == [b"1", b"2"]
    path.with_name("app.log.1").write_bytes(path.read_bytes())
    os.truncate(path, 0)
    assert polled(reader) == []
    append(path, b"3\n")

    assert [each[0] for each in polled(reader)] == [b"3"]
    reader.close()


def test_a_position_does_not_grow_with_rotations(tmp_path: Path) -> None:
    """Of the files that have been rotated, some of the newest are looked at, and no more."""
    path = tmp_path / "app.log"
    path.touch()
    reader, _ = followed(path, None)
    sizes = []
    for number in range(60):
        append(path, b"%d\n" % number)
        batch = reader.poll(0.0)
        assert texts(messages_of(batch.messages)) == [b"%d" % number]
        sizes.append(len(json.loads(batch.position or "")["files"]))
        rotate(path)
    reader.close()

    assert max(sizes) <= 34
    assert sizes[-1] == max(sizes)


def test_a_folder_of_many_files_is_listed_at_a_rotation_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at one file, and at those that were rotated, does not list the whole folder."""
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n")
    reader, _ = followed(path, None)
    assert [each[0] for each in polled(reader)] == [b"1"]
    rotate(path)
    assert polled(reader) == []
    list_names, lists = os.listdir, 0

    def counting(folder: Any) -> list[str]:
        nonlocal lists
        lists += 1
        return list_names(folder)

    monkeypatch.setattr(os, "listdir", counting)
    for _ in range(9):
        assert polled(reader) == []
    assert lists == 0
    path.with_name("app.log.1").unlink()
    for _ in range(9):
        assert polled(reader) == []
    assert lists <= 3
    reader.close()


def test_a_file_that_takes_the_name_after_the_look_is_not_read_as_the_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotation between the look at a file and its opening does not mix the two."""
    path.write_bytes(b"1\n")
    reader, _ = followed(path, None)
    opened = os.open

    def rotating(*parts: Any, **settings: Any) -> int:
        if not path.with_name(f"{path.name}.1").exists():
            rotate(path)
            path.write_bytes(b"2\n")
        return opened(*parts, **settings)

    monkeypatch.setattr(os, "open", rotating)
    with pytest.raises(SourceUnavailable, match="just been replaced"):
        reader.poll(0.0)
    reader.close()
