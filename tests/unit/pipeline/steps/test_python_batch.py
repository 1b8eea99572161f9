"""``python`` with ``batch``: record batches in and out, and the reports of its mistakes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from step_tools import LOGGED_AT, batch_of, rows_of

from transporter.errors import StepFailed
from transporter.message import ENTRY_SCHEMA, Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.pipeline.steps.chain import Steps

    Compile = Callable[..., Steps]
    Batch = Callable[[str], dict[str, Any]]

MESSAGES = tuple(
    Message("ab"[n % 2], b"%d" % n, key=b"k%d" % n, headers=(("h", b"v"), ("h", None)))
    for n in range(7)
)
HEAD = "import pyarrow as pa\nimport pyarrow.compute as pc\n"


@pytest.fixture
def batch(python: Callable[[str], dict[str, Any]]) -> Batch:
    """Write a module whose function ``turn`` has this body, and return the step."""

    def write(body: str) -> dict[str, Any]:
        lines = "".join(f"    {line}\n" for line in body.split("\n"))
        step = python(f"{HEAD}\ndef turn(batch):\n{lines}")
        step["python"]["batch"] = True
        return step

    return write


def made(steps: Steps, *messages: Message) -> list[tuple[int, Message]]:
    """Return the offsets and messages that *steps* make of *messages*, which stay as they are."""
    given, same = batch_of(*messages), batch_of(*messages)
    entries = rows_of(steps.apply(given))
    assert given.equals(same)
    assert {entry.logged_at for entry in entries} <= {LOGGED_AT}
    return [(entry.offset, entry.message) for entry in entries]


def test_a_function_is_given_entries(steps: Compile, batch: Batch) -> None:
    """A function gets all columns of the entries at once, and can return them as they are."""
    names = list(ENTRY_SCHEMA.names)
    step = batch(f"assert batch.schema.names == {names!r}\nassert len(batch) == 7\nreturn batch")
    given = batch_of(*MESSAGES)
    assert steps(step).apply(given) is given


def test_columns_can_be_changed(steps: Compile, batch: Batch) -> None:
    """A changed column arrives. Columns may come in any order, and others are left out."""
    step = batch(
        "upper = pc.utf8_upper(batch.column('namespace'))\n"
        "batch = batch.set_column(batch.schema.get_field_index('namespace'), 'namespace', upper)\n"
        "names = sorted(set(batch.schema.names) - {'logged_at'})\n"
        "return batch.select(names).append_column('more', upper)"
    )
    assert made(steps(step), *MESSAGES) == [
        (100 + n, replace(each, namespace=each.namespace.upper()))
        for n, each in enumerate(MESSAGES)
    ]


@pytest.mark.parametrize("end", ["", ".to_batches()[0]", ".slice(0)"])
def test_rows_vanish_and_multiply(steps: Compile, batch: Batch, end: str) -> None:
    """Offsets map rows to entries: missing ones skip, repeated ones multiply."""
    step = batch(
        "table = pa.Table.from_batches([batch])\n"
        f"return table.take([0, 0, 3, 3, 3, 6]).combine_chunks(){end}"
    )
    rows = (0, 0, 3, 3, 3, 6)
    assert made(steps(step), *MESSAGES) == [(100 + n, MESSAGES[n]) for n in rows]


def test_everything_can_vanish(steps: Compile, batch: Batch) -> None:
    """A batch without rows skips all entries, be it a batch or a table."""
    for nothing in ("batch.slice(0, 0)", "pa.Table.from_batches([batch]).slice(0, 0)",
                    "batch.schema.empty_table()"):  # fmt: skip
        assert made(steps(batch(f"return {nothing}")), *MESSAGES) == []


def test_other_layouts_of_the_same_values_will_do(steps: Compile, batch: Batch) -> None:
    """Large and dictionary-encoded text, large bytes, and times in other units are accepted."""
    step = batch(
        "kinds = {'namespace': pa.large_string(), 'data': pa.large_binary(),\n"
        "         'timestamp': pa.timestamp('ns', 'UTC')}\n"
        "columns = {n: batch.column(n).cast(kinds.get(n, batch.column(n).type))\n"
        "           for n in batch.schema.names}\n"
        "columns['op'] = columns['op'].dictionary_encode()\n"
        "columns['source_id'] = pa.nulls(len(batch))\n"
        "return pa.table(columns)"
    )
    assert [message for _, message in made(steps(step), *MESSAGES)] == list(MESSAGES)


def test_the_step_has_its_own_filter(steps: Compile, batch: Batch) -> None:
    """A function gets the namespaces of its step only, and the others keep their places."""
    step = batch("assert set(batch.column('namespace').to_pylist()) == {'b'}\n"
                 "return pa.Table.from_batches([batch]).take([0, 0, 2])")  # fmt: skip
    step["python"]["namespace"] = "^b$"
    rows = (0, 1, 1, 2, 4, 5, 6)
    assert made(steps(step), *MESSAGES) == [(100 + n, MESSAGES[n]) for n in rows]


def test_no_entries_are_no_call(steps: Compile, batch: Batch) -> None:
    """A function is not called without rows, so it need not handle that."""
    step = batch("raise ValueError('called')")
    step["python"]["namespace"] = "^z$"
    given = batch_of(*MESSAGES)
    assert steps(step).apply(given) is given
    assert steps(step).apply(given.slice(0, 0)).num_rows == 0


PICKY = "picked = pc.equal(batch.column('data'), b'%d')\n"
PUT = (
    "def put(name, column): return batch.set_column(batch.schema.get_field_index(name), name,"
    " column)\n"
)
NOT_TEXT = (
    "pa.Array.from_buffers(pa.string(), len(batch), [None, pa.array([0] + [2] * len(batch),"
    " pa.int32()).buffers()[1], pa.py_buffer(b'\\xc3(')])"
)
WRONG = [
    # the function's result, and its report
    ("None", "NoneType; it may return a RecordBatch or a Table"),
    ("batch.to_pylist()", "list; it may return a RecordBatch"),
    ("batch.drop_columns(['offset'])", "a batch with no columns 'offset'"),
    ("batch.drop_columns(['headers'])", "a batch with no columns 'headers'"),
    ("batch.append_column('op', batch.column('op'))", "a batch with 2 columns 'op'"),
    ("put('op', pa.array([1] * len(batch)))", "a batch whose column 'op' is int64, not string"),
    ("put('data', batch.column('namespace'))", "a batch whose column 'data' is string, not binary"),
    ("put('offset', pc.cast(batch.column('offset'), pa.float64()))", "column 'offset' is double"),
    ("put('timestamp', pc.cast(batch.column('offset'), pa.timestamp('us')))",
     "column 'timestamp' is timestamp[us], not timestamp[us, tz=UTC]"),
    ("put('op', pa.nulls(len(batch), pa.string()))", "a null in column 'op'"),
    ("put('op', pa.array(['upsert'] * len(batch)))", "column 'op' that is not one of insert,"),
    ("put('phase', pa.array(['x'] * len(batch)))", "column 'phase' that is not one of copy,"),
    ("put('offset', pc.add(batch.column('offset'), 100))", "an offset that it was not given"),
    ("pa.concat_batches([batch, batch.slice(0, 1)]) if len(batch) > 1 else 5", "int; it may"),
    (f"put('namespace', {NOT_TEXT})", "a batch that is not valid: "),
]  # fmt: skip


@pytest.mark.parametrize(("returned", "expected"), WRONG)
def test_a_wrong_batch_fails_the_step(
    steps: Compile, batch: Batch, returned: str, expected: str
) -> None:
    """A result that cannot replace the batch is refused at the first entry, with the reason."""
    with pytest.raises(StepFailed) as caught:
        steps(batch(f"{PUT}return {returned}")).apply(batch_of(*MESSAGES))
    assert caught.value.offset == 100
    assert str(caught.value).startswith("python: turning:turn returned ")
    assert expected in str(caught.value)


def test_offsets_must_ascend(steps: Compile, batch: Batch) -> None:
    """Rows in another order are refused, because deliveries must follow the log."""
    step = batch("return pa.Table.from_batches([batch]).take(list(range(len(batch)))[::-1])")
    with pytest.raises(StepFailed, match="offsets that do not ascend") as caught:
        steps(step).apply(batch_of(*MESSAGES))
    assert caught.value.offset == 101  # one row alone is in order


@pytest.mark.parametrize("bad", range(7))
@pytest.mark.parametrize(
    "harm", ["raise ValueError('bad')", "return put('op', pc.if_else(picked, 'x', 'insert'))"]
)
def test_the_entry_at_fault_is_found(steps: Compile, batch: Batch, bad: int, harm: str) -> None:
    """A failure that names no entry is traced to the first one, and those before go through."""
    step = steps(batch(f"{PICKY % bad}{PUT}if pc.any(picked).as_py(): {harm}\nreturn batch"))
    given = batch_of(*MESSAGES)
    with pytest.raises(StepFailed) as caught:
        step.apply(given)
    assert caught.value.offset == 100 + bad
    before, failed = step.apply_before_failure(given)
    assert before.equals(given.slice(0, bad))
    assert failed is not None
    assert failed.offset == 100 + bad


def test_outputs_of_one_entry_fail_together(steps: Compile, batch: Batch) -> None:
    """After a step that multiplied, the entry at fault is still reported by its offset."""
    twice = batch("return pa.Table.from_batches([batch]).take("
                  "[n // 2 for n in range(2 * len(batch))])")  # fmt: skip
    calls = "if pc.any(picked).as_py(): raise ValueError('bad')\nreturn batch"
    both = steps(twice, batch(f"{PICKY % 4}{calls}"))
    before, failed = both.apply_before_failure(batch_of(*MESSAGES))
    assert failed is not None
    assert failed.offset == 104
    assert [entry.offset for entry in rows_of(before)] == [100, 100, 101, 101, 102, 102, 103, 103]


def test_an_exception_names_the_line(steps: Compile, batch: Batch, folder: Path) -> None:
    """An exception is one line: the user's own file and line, its type and its text."""
    with pytest.raises(StepFailed) as caught:
        steps(batch("x = 1\nreturn batch.column('dta')")).apply(batch_of(*MESSAGES))
    place = f"python turning:turn: {folder}/turning.py:9: KeyError: "
    assert str(caught.value).startswith(place), str(caught.value)
    assert caught.value.offset == 100
    assert isinstance(caught.value.__cause__, KeyError)


def test_memory_is_not_the_entrys_fault(steps: Compile, batch: Batch) -> None:
    """Running out of memory is left to the worker, whose limit it is."""
    with pytest.raises(MemoryError):
        steps(batch("raise MemoryError")).apply(batch_of(*MESSAGES))


def test_a_batch_is_one_call_and_a_failure_few(steps: Compile, batch: Batch) -> None:
    """The function is called once for any number of entries, and halving finds a failing one."""
    step = steps(batch("SEEN.append(len(batch))\n"
                       "if pc.any(pc.equal(batch.column('data'), b'700')).as_py(): 1 // 0\n"
                       "return batch"))  # fmt: skip
    seen: list[int] = step.steps[0].function.__globals__.setdefault("SEEN", [])  # type: ignore[attr-defined]
    messages = [Message("a", b"%d" % n) for n in range(1_000)]
    step.apply(batch_of(*messages[:700]))
    assert seen == [700]
    seen.clear()
    with pytest.raises(StepFailed) as caught:
        step.apply(batch_of(*messages))
    assert caught.value.offset == 800
    assert len(seen) <= 13


def test_logged_at_comes_from_the_log(steps: Compile, batch: Batch) -> None:
    """The log time of an entry comes from the log, not from the function."""
    step = batch(f"{PUT}return put('logged_at', batch.column('timestamp'))")
    rows = rows_of(steps(step).apply(batch_of(*MESSAGES)))
    assert {entry.logged_at for entry in rows} == {LOGGED_AT}
    assert pa.types.is_timestamp(ENTRY_SCHEMA.field("logged_at").type)
