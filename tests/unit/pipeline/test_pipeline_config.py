"""Pipeline files become frozen values, or errors with the place and the problem."""

from __future__ import annotations

import os
import pickle
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from transporter.errors import ConfigError
from transporter.pipeline.config import load
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.retention_config import RetentionConfig, history_text

if TYPE_CHECKING:
    from collections.abc import Callable

    Write = Callable[[str], Path]

FULL = """\
name: shop
log:
  dir: logs
  segment_bytes: 64MiB
  compression: none
  compaction: {after: 1h, keep: key, tombstones: 2h, rate: 1MiB}
  retention: {bytes: 1GiB, age: 30d}
  max_bytes: 256MiB
  on_full: stop-route
readers:
  - name: in
    adaptor: doubles:Source
    count: ${COUNT}
    password: ${PASSWORD}
    wait: 250ms
    tls: {verify: false}
routes:
  - name: orders
    namespace: ^orders\\.
    writer: {adaptor: "doubles:Sink", path: out, buffer: 64KiB}
    slice_rows: 10
    slice_bytes: 1MiB
  - name: rest
    writer: {adaptor: "doubles:Sink", path: /rest}
spark:
  master: local[4]
  config: {spark.ui.enabled: true, spark.x: 5}
commit_interval: 2s
shutdown_timeout: 1m
"""


def problems(write: Write, text: str, environ: dict[str, str] | None = None) -> list[str]:
    """Return the problems of a pipeline file as ``line: text``."""
    with pytest.raises(ConfigError) as caught:
        load(write(text), environ or {})
    assert caught.value.exit_code == 2
    if not isinstance(caught.value, InvalidPipeline):
        return [f"{caught.value.line}: {caught.value.problem}"]
    return [f"{each.line}: {each.problem}" for each in caught.value.problems]


def test_defaults(pipeline_file: Write, valid: str) -> None:
    """The smallest file gets the documented defaults."""
    file = pipeline_file(valid)
    pipeline = load(file, {})
    assert (pipeline.name, pipeline.file) == ("orders", file)
    assert pipeline.log.model_dump() == {
        "dir": file.parent / "data/orders",
        "segment_bytes": 1024**3,
        "segment_age": 86400.0,
        "compression": "lz4",
        "compaction": {
            "after": None,
            "keep": "namespace",
            "tombstones": 86400.0,
            "rate": 16 * 1024**2,
        },
        "retention": {"bytes": None, "age": 7 * 86400.0},
        "max_bytes": None,
        "on_full": "wait",
    }
    (route,) = pipeline.routes
    assert (route.namespace, route.slice_rows, route.slice_bytes) == (".*", 50_000, 16 * 1024**2)
    assert (pipeline.commit_interval, pipeline.shutdown_timeout) == (1.0, 30.0)
    assert (pipeline.spark.master, pipeline.spark.config) == ("local", {})


@pytest.mark.parametrize(
    ("log", "seconds"),
    [
        ("{}", 86400.0),
        ("{segment_age: 1h}", 3600.0),
        ("{segment_age: 30d}", 7 * 86400.0 / 4),
        ("{segment_age: 30d, retention: {age: off}}", 30 * 86400.0),
        ("{segment_age: 30d, compaction: {after: off}, retention: {age: 4d}}", 86400.0),
        ("{retention: {age: 1h}}", 900.0),
        ("{compaction: {after: 1h}, retention: {age: 2h}}", 900.0),
        ("{retention: {age: 1s}}", 10.0),
        ("{segment_age: 2s, retention: {age: 1s}}", 2.0),
    ],
)
def test_segments_are_sealed_before_what_they_hold_is_old(
    pipeline_file: Write, valid: str, log: str, seconds: float
) -> None:
    """A segment's entries outlive retention and compaction by a quarter of their age at most."""
    assert load(pipeline_file(f"{valid}log: {log}\n"), {}).log.roll_after == seconds


def test_every_key_arrives(pipeline_file: Write) -> None:
    """Each key of the file ends in the value of its name, converted."""
    file = pipeline_file(FULL)
    pipeline = load(file, {"COUNT": "7", "PASSWORD": "hunter22"})
    assert pipeline.name == "shop"
    assert pipeline.log.dir == file.parent / "logs"
    assert (pipeline.log.segment_bytes, pipeline.log.compression) == (64 * 1024**2, "none")
    compaction, retention = pipeline.log.compaction, pipeline.log.retention
    assert (compaction.after, compaction.keep, compaction.tombstones) == (3600.0, "key", 7200.0)
    assert (compaction.rate, retention.bytes, retention.age) == (1024**2, 1024**3, 30 * 86400.0)
    assert (pipeline.log.max_bytes, pipeline.log.on_full) == (256 * 1024**2, "stop-route")
    (reader,) = pipeline.readers
    assert (reader.name, reader.adaptor, reader.cls.__name__) == ("in", "doubles:Source", "Source")
    assert isinstance(reader.config, reader.cls.Config)
    assert (reader.config.count, reader.config.wait, reader.config.tls.verify) == (7, 0.25, False)
    assert reader.config.password.get_secret_value() == "hunter22"
    assert set(reader.settings) == {"count", "password", "wait", "tls"}
    orders, rest = pipeline.routes
    assert (orders.name, orders.namespace, orders.slice_rows) == ("orders", r"^orders\.", 10)
    assert orders.slice_bytes == 1024**2
    assert (orders.writer.config.path, orders.writer.config.buffer) == (file.parent / "out", 65536)
    assert rest.writer.config.path == Path("/rest")
    assert pipeline.spark.master == "local[4]"
    assert pipeline.spark.config == {"spark.ui.enabled": "true", "spark.x": "5"}
    assert (pipeline.commit_interval, pipeline.shutdown_timeout) == (2.0, 60.0)


@pytest.mark.parametrize(
    ("compaction", "after", "by_hand"),
    [
        ("{}", None, None),
        ("{rate: 1MiB}", None, None),
        ("{after: off}", None, None),
        ("{after: off, keep: key}", None, 7 * 86400.0),
        ("{keep: namespace}", 7 * 86400.0, 7 * 86400.0),
        ("{after: 1h}", 3600.0, 3600.0),
    ],
)
def test_compaction_is_off_until_a_file_asks_for_it(
    pipeline_file: Write, valid: str, compaction: str, after: float | None, by_hand: float | None
) -> None:
    """``after`` or ``keep`` turns compaction on, and ``keep`` is enough for ``log compact``."""
    found = load(pipeline_file(f"{valid}log: {{compaction: {compaction}}}\n"), {}).log.compaction
    assert (found.after, found.manual_after) == (after, by_hand)


@pytest.mark.parametrize(
    ("log", "age"),
    [
        ("{compaction: {keep: key}}", None),
        ("{compaction: {after: 1d}, retention: {bytes: 1GiB}}", None),
        ("{compaction: {keep: key, after: off}}", None),
        ("{compaction: {keep: key}, retention: {age: 7d}}", 7 * 86400.0),
        ("{compaction: {after: off}}", 7 * 86400.0),
        ("{compaction: {rate: 1MiB}, retention: {bytes: 1GiB}}", 7 * 86400.0),
    ],
)
def test_what_compaction_leaves_stays_unless_an_age_is_given(
    pipeline_file: Write, valid: str, log: str, age: float | None
) -> None:
    """The last entry of a key stays after a week if the file does not set a retention."""
    assert load(pipeline_file(f"{valid}log: {log}\n"), {}).log.retention.age == age


def test_retention_by_age_can_be_turned_off(pipeline_file: Write, valid: str) -> None:
    """``off`` in place of a duration means that delivered entries stay for ever."""
    pipeline = load(pipeline_file(f"{valid}log: {{retention: {{age: off}}}}\n"), {})
    assert pipeline.log.retention == RetentionConfig(bytes=None, age=None)


@pytest.mark.parametrize(
    ("log", "text"),
    [
        ("{}", "delivered entries stay 7d; no compaction"),
        ("{retention: {age: off}}", "delivered entries stay for ever; no compaction"),
        (
            "{retention: {bytes: 10GiB}, max_bytes: 40GiB}",
            (
                "delivered entries stay 7d, less once the log takes more than 10GiB or nears "
                "max_bytes (40GiB); no compaction"
            ),
        ),
        (
            "{compaction: {after: 7d}}",
            (
                "delivered entries stay for ever; after 7d compaction keeps the last one of each "
                "namespace only"
            ),
        ),
        (
            "{compaction: {keep: key}, retention: {age: 30d}}",
            "delivered entries stay 30d; after 7d compaction keeps the last one of each key only",
        ),
    ],
)
def test_how_long_history_lasts_is_said_in_one_line(
    pipeline_file: Write, valid: str, log: str, text: str
) -> None:
    """The text has the reasons and the time of any removal of entries."""
    found = load(pipeline_file(f"{valid}log: {log}\n"), {}).log
    assert history_text(found.compaction, found.retention, found.max_bytes) == text


def test_values_are_frozen_picklable_and_secret(pipeline_file: Write) -> None:
    """A pipeline cannot change, travels to other processes, and never shows its settings."""
    pipeline = load(pipeline_file(FULL), {"COUNT": "7", "PASSWORD": "hunter22"})
    with pytest.raises(ValidationError, match="frozen"):
        pipeline.name = "other"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline  # noqa: S301 - our own
    assert "hunter22" not in repr(pipeline)


def test_the_log_does_not_depend_on_the_working_directory(
    pipeline_file: Write, valid: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: object
) -> None:
    """The same file means the same log wherever it is started from, symbolic links kept."""
    file = pipeline_file(valid)
    link = file.parent / "current"
    link.symlink_to(file.parent)
    monkeypatch.chdir(file.parent)
    near = load(Path(file.name), {})
    monkeypatch.chdir("/")
    far = load(Path(os.path.relpath(file)), {})
    assert near.log.dir == far.log.dir == file.parent / "data/orders"
    assert near.file == far.file == file
    assert load(link / file.name, {}).log.dir == link / "data/orders"


def test_a_text_setting_keeps_the_text_of_a_variable(pipeline_file: Write, valid: str) -> None:
    """A variable's leading zeros survive in a text setting."""
    text = valid.replace("Source\n", "Source\n    text: ${ZIP}\n")
    assert load(pipeline_file(text), {"ZIP": "0123"}).readers[0].config.text == "0123"


REPLACED = [
    # (a text in the valid file, its replacement, the only problem)
    ("readers:\n", "reader:\n", "1: unknown key 'reader'; did you mean 'readers'?"),
    ("name: in", "nme: in", "2: unknown key 'nme' in readers[0]; did you mean 'name'?"),
    ("name: in", "name: 5", "2: readers[0].name must be text; quote it if"),
    ("name: in", "name: in/out", "2: readers[0].name must be 1 to 63 letters"),
    ("name: in", "name: -in", "2: readers[0].name must be 1 to 63 letters"),
    ("doubles:Source", "doubles:Sorce", "3: 'doubles:Sorce': "),
    ("doubles:Source", "dubles:Source", "3: there is no module 'dubles' in "),
    ("doubles:Source", "doubles:number", "3: adaptor 'doubles:number' is not a class but int"),
    ("doubles:Source", "no-such-thing", "3: there is no reader 'no-such-thing'"),
    (
        "doubles:Source",
        "doubles:Sink",
        "3: adaptor 'doubles:Sink' is not a reader: it lacks poll()",
    ),
    ("doubles:Source", "a:b:c", "3: 'a:b:c' does not name a class; use module:Class"),
    ("doubles:Source", "5", "3: readers[0].adaptor must be text"),
    ("doubles:Sink", "doubles:NoConfig", "6: adaptor 'doubles:NoConfig' is not a writer: it lacks"),
    ("Source\n", "Source\n    count: many\n", "4: readers[0].count must be a valid integer"),
    (
        "Source\n",
        "Source\n    cuont: 1\n",
        "4: unknown key 'cuont' in readers[0]; did you mean 'co",
    ),
    ("Source\n", "Source\n    wait: 5\n", "4: readers[0].wait is not a duration"),
    ("Source\n", "Source\n    mode: slow\n", "4: readers[0].mode must be 'fast' or 'safe' (it is"),
    ("Source\n", "Source\n    odd: 2\n", "4: readers[0].odd 2 is even (it is 2)"),
    ("Source\n", "Source\n    odd: 13\n", "2: Source cannot validate its settings: RuntimeErr"),
    ("Source\n", "Source\n    tls: 5\n", "4: readers[0].tls must be a"),
    (", path: out", "", "6: routes[0].writer.path is missing"),
    ("path: out", "path: out, buffer: much", "6: routes[0].writer.buffer is not a size"),
    ("path: out", "path: out, tags: [a, {}]", "6: routes[0].writer.tags[1] must be text"),
    ("path: out", "path: ", "6: routes[0].writer.path"),
    (
        "    writer",
        "    namespace: a(b\n    writer",
        "6: routes[0].namespace is not a regular expr",
    ),
    ("    writer", "    slice_rows: 0\n    writer", "6: routes[0].slice_rows must be greater"),
    ("    writer", "    slice_rows: true\n    writer", "6: routes[0].slice_rows must be a whole"),
    ("    writer", "    slice_bytes: 0\n    writer", "6: routes[0].slice_bytes must be greater"),
    (
        "    writer",
        "    slice_byte: 1\n    writer",
        "6: unknown key 'slice_byte' in routes[0]; did",
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), REPLACED)
def test_one_mistake_is_one_problem(
    pipeline_file: Write, valid: str, old: str, new: str, expected: str
) -> None:
    """A mistake is named with its line, and a correction where that can be guessed."""
    found = problems(pipeline_file, valid.replace(old, new, 1))
    assert any(each.startswith(expected) for each in found), found
    # A misspelt key is also missing under its right name, but nothing else may be reported.
    assert all(each.startswith(expected) or each.endswith("is missing") for each in found), found


APPENDED = [
    ("file: x\n", "7: unknown key 'file'"),
    ("log:\n", "7: log must be a mapping (it is empty)"),
    ("log: {dir: 5}\n", "7: log.dir "),
    ("log: {segment_bytes: 1KiB}\n", "7: log.segment_bytes must be greater than or equal to 65536"),
    ("log: {compression: zip}\n", "7: log.compression must be 'none' or 'lz4' (it is 'zip')"),
    ("log: {compresion: lz4}\n", "7: unknown key 'compresion' in log; did you mean 'compression'?"),
    ("log: {compaction: {after: 7}}\n", "7: log.compaction.after is not a duration"),
    ("log: {compaction: {keep: all}}\n", "7: log.compaction.keep must be 'namespace' or 'key'"),
    ("log: {compaction: {rate: 1KiB}}\n", "7: log.compaction.rate must be greater than or equal"),
    ("log: {retention: {age: 0s}}\n", "7: log.retention.age must be greater than 0"),
    (
        "log: {max_bytes: 1GiB}\n",
        "7: log.max_bytes must be at least four times segment_bytes, 4GiB",
    ),
    ("log: {on_full: stop-route}\n", "7: log.on_full needs max_bytes beside it"),
    ("spark: {config: {a.b: c}}\n", "7: spark.config.a.b does not begin with 'spark.'"),
    (
        "spark: {config: {spark.master: c}}\n",
        "7: spark.config.spark.master is not allowed here; set master",
    ),
    ("spark: {config: {spark.a: [1]}}\n", "7: spark.config.spark.a must be text"),
    ("spark: {master: ''}\n", "7: spark.master String should have at least 1 character"),
    ("commit_interval: 0s\n", "7: commit_interval must be greater than 0"),
    ("commit_interval: 1\n", "7: commit_interval is not a duration"),
    ("shutdown_timeout: soon\n", "7: shutdown_timeout is not a duration"),
    ("name: a b\n", "7: name must be 1 to 63"),
    ("name: ''\n", "7: name must be 1 to 63"),
    ("name:\n", "7: name must be text"),
    ("'odd\\x1b[31m': 1\n", "7: unknown key"),
    ('"a\\e[31m\\n": 1\n', "7: unknown key 'a\\x1b[31m\\n'"),
]


@pytest.mark.parametrize(("text", "expected"), APPENDED)
def test_one_mistake_at_the_top(pipeline_file: Write, valid: str, text: str, expected: str) -> None:
    """A mistake at the top of the file is one problem with its line, all of it printable."""
    (found,) = problems(pipeline_file, valid + text)
    assert found.startswith(expected)
    assert found.isprintable()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", ["1: the pipeline must be a mapping"]),
        ("just text", ["1: the pipeline must be a mapping (it is 'just text')"]),
        ("name: x", ["1: readers is missing", "1: routes is missing"]),
        ("readers: []\nroutes:\n", ["1: readers needs at least one", "2: routes must be a list"]),
        (
            "readers: [x]\nroutes: {}\n",
            ["1: readers[0] must be a mapp", "2: routes must be a list"],
        ),
    ],
)
def test_other_shapes(pipeline_file: Write, text: str, expected: list[str]) -> None:
    """The error for a file of another shape describes the right one."""
    found = problems(pipeline_file, text)
    assert len(found) == len(expected)
    assert all(each.startswith(start) for each, start in zip(found, expected, strict=True)), found


def test_every_problem_is_told_at_once_in_order(pipeline_file: Write, valid: str) -> None:
    """Problems of the file, its adaptors and its names come together, by line."""
    text = valid.replace("Source\n", "Source\n    count: x\n  - name: IN\n    adaptor: nope\n")
    found = problems(pipeline_file, f"{text}colour: red\n")
    assert [int(each.partition(":")[0]) for each in found] == [4, 5, 6, 10]


def test_names_that_differ_in_case_only_are_the_same(pipeline_file: Write, valid: str) -> None:
    """Names become folders, so two that some file system takes for one are refused."""
    twice = valid + '  - name: OUT\n    writer: {adaptor: "doubles:Sink", path: out}\n'
    (found,) = problems(pipeline_file, twice)
    assert found.startswith("7: routes[1].name repeats that of routes[0]")


def test_a_file_name_that_is_no_name_needs_one(pipeline_file: Write, valid: str) -> None:
    """The default name is the file's, and a file whose name is not valid must give one."""
    odd = pipeline_file(valid).rename(pipeline_file(valid).with_name("my orders.yaml"))
    with pytest.raises(ConfigError, match="add name:"):
        load(odd, {})
    odd.write_text(f"{valid}name: orders\n")
    assert load(odd, {}).name == "orders"


SECRETS = [
    "count: ${SECRET}",
    "wait: ${SECRET}",
    "mode: ${SECRET}",
    "odd: ${SECRET}",
    "tls: ${SECRET}",
    "password: [${SECRET}]",
    "unknown: ${SECRET}",
    "tls: {verify: ${SECRET}}",
    "count: x${SECRET}x",
    "echo: x${SECRET}x",
    "echo: x${SECRET}xx",
]
LOADS = [("count: ${SECRET}", "4242"), ("odd: ${SECRET}", "4242")]


@pytest.mark.parametrize("setting", SECRETS)
@pytest.mark.parametrize("secret", ["hunter22", "4242424242424242424243", "q9!"])
def test_values_of_variables_are_never_shown(
    pipeline_file: Write, valid: str, setting: str, secret: str
) -> None:
    """The error never repeats the value of a variable, whichever rule refuses it."""
    text = valid.replace("Source\n", f"Source\n    {setting}\n")
    if (setting, secret[:4]) in LOADS:
        load(pipeline_file(text), {"SECRET": secret})
        return
    with pytest.raises(ConfigError) as caught:
        load(pipeline_file(text), {"SECRET": secret})
    shown = traceback.format_exception(caught.value, chain=True)
    assert secret not in "".join(shown) + repr(caught.value.__context__)


@pytest.mark.parametrize("place", ["adaptor: doubles:${SECRET}", "adaptor: ${SECRET}"])
def test_adaptors_named_by_variables_are_never_shown(
    pipeline_file: Write, valid: str, place: str
) -> None:
    """A reference that came from a variable is not repeated."""
    text = valid.replace("adaptor: doubles:Source", place)
    assert "q9z" not in "".join(problems(pipeline_file, text, {"SECRET": "q9z"}))


def test_secrets_written_into_the_file_are_not_shown(pipeline_file: Write, valid: str) -> None:
    """A wrong value of a secret setting is not repeated, only its kind is."""
    (found,) = problems(pipeline_file, valid.replace("Source\n", "Source\n    password: 7134\n"))
    assert found.startswith("4: readers[0].password")
    assert "7134" not in found
    assert "a number" in found


def test_a_mapping_of_some_kind_is_told_by_its_keys(pipeline_file: Write) -> None:
    """A problem in one of several kinds has its line, and the path that the file has."""
    text = """\
readers:
  - name: in
    adaptor: postgres-outbox
    dsn: host=x
    elector:
      kind: kafka
      bootstrap_servers: x:1
      topic: x
      trem: 5s
routes: [{name: out, writer: {adaptor: file, path: x}}]
"""
    (told,) = problems(pipeline_file, text)
    assert told.startswith("9: unknown key 'trem' in readers[0].elector; did you mean 'term'?")
