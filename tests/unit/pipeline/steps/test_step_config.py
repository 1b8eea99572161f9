"""Steps in a pipeline file: valid ones travel, wrong ones are reported with their line."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from step_tools import batch_of, rows_of

from transporter.errors import ConfigError
from transporter.message import Message
from transporter.pipeline.config import load
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.steps.chain import compile_steps
from transporter.pipeline.steps.step import StepConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[[str], Path]

MODULE = """\
class Turn:
    def __call__(self, message): return message

def turn(message): return message
def more(message, extra=1, *rest, **named): return message
def none(): ...
def two(message, other): ...
def keyword(*, message): ...
async def later(message): ...
obj = Turn()
number = 5
"""


@pytest.fixture
def steps_file(pipeline_file: Write, valid: str, folder: Path) -> Write:
    """Write a pipeline file whose route has steps, from line 8 on, beside a module of functions."""
    (folder / "turning.py").write_text(MODULE)
    return lambda items: pipeline_file(f"{valid}    steps:\n{items}\n")


def problem(file: Path, environ: dict[str, str] | None = None) -> str:
    """Return the only problem of *file*."""
    with pytest.raises(InvalidPipeline) as caught:
        load(file, environ or {})
    (found,) = caught.value.problems
    return f"{found.line}: {found.problem}"


def test_steps_arrive_in_order_and_travel(steps_file: Write, folder: Path) -> None:
    """A route has its steps with their settings as plain values, and they survive pickling."""
    file = steps_file(
        "      - omit: {fields: [a, b.c], namespace: ^x}\n"
        "      - rename: {fields: {d: e}}\n"
        "      - python: {function: 'turning:turn'}"
    )
    (route,) = load(file, {}).routes
    assert route.steps == (
        StepConfig(name="omit", settings={"fields": ["a", "b.c"], "namespace": "^x"}),
        StepConfig(name="rename", settings={"fields": {"d": "e"}}),
        StepConfig(name="python", settings={"function": "turning:turn"}),
    )
    there = pickle.loads(pickle.dumps(route.steps))  # noqa: S301 - our own
    batch = batch_of(Message("x", b'{"a":1,"d":2}'))
    (entry,) = rows_of(compile_steps(there, folder).apply(batch))
    assert entry.message.data == b'{"e":2}'


@pytest.mark.parametrize("name", ["turn", "more", "obj"])
def test_anything_that_takes_one_message_can_be_called(steps_file: Write, name: str) -> None:
    """A function, with defaults or not, and any object that can be called are accepted."""
    (route,) = load(steps_file(f"      - python: {{function: 'turning:{name}'}}"), {}).routes
    assert route.steps[0].settings == {"function": f"turning:{name}"}


ITEM = "routes[0].steps[0]"
MISTAKES = [
    ("omit", "a step is a mapping of one key, its name; write for example - omit:"),
    ("", "a step is a mapping of one key"),
    ("{}", "a step is a mapping of one key"),
    ("{omit: {fields: [a]}, rename: {fields: {a: b}}}", "a step is a mapping of one key"),
    ("omitt: {fields: [a]}", "there is no step 'omitt'; did you mean 'omit'? (steps: debez"),
    ("omit:", f"{ITEM}.omit must be a mapping (it is empty)"),
    ("omit: [a]", f"{ITEM}.omit must be a mapping"),
    ("omit: {}", f"{ITEM}.omit.fields is missing"),
    ("omit: {field: [a], fields: [a]}", f"unknown key 'field' in {ITEM}.omit; did you mean 'fie"),
    ("omit: {fields: a}", f"{ITEM}.omit.fields must be a list"),
    ("omit: {fields: []}", f"{ITEM}.omit.fields needs at least one"),
    ("omit: {fields: [5]}", f"{ITEM}.omit.fields[0] must be text; quote it if it looks like a"),
    ("omit: {fields: [a, b..c]}", f"{ITEM}.omit.fields[1] is not a path of field names; use a.b.c"),
    ("omit: {fields: [a], namespace: '('}", f"{ITEM}.omit.namespace is not a regular expression"),
    ("rename: {fields: [a]}", f"{ITEM}.rename.fields must be a mapping"),
    ("rename: {fields: {}}", f"{ITEM}.rename.fields needs at least one"),
    ("rename: {fields: {a: }}", f"{ITEM}.rename.fields.a must be text"),
    ("rename: {fields: {a: b.c}}", f"{ITEM}.rename.fields.a is a path; write the new name only"),
    ("rename: {fields: {.a: b}}", f"{ITEM}.rename.fields..a is not a path of field names"),
    ("rename: {fields: {a: a}}", f"{ITEM}.rename.fields renames 'a' to its own name"),
    ("rename: {fields: {a: c, b: c}}", f"{ITEM}.rename.fields gives 'a' and 'b' the same name"),
    ("omit: {fields: ['a[-1]']}", f"{ITEM}.omit.fields[0] is not a path of field names; use a.b.c"),
    ("omit: {fields: ['a[0]', 'a[*].b']}", f"{ITEM}.omit.fields names items of 'a' by number and"),
    ("rename: {fields: {'a[0]': b}}", f"{ITEM}.rename.fields ends at an item of an array, which h"),
    ("rename: {fields: {'a[0].b': c, 'a[*].b': d}}", f"{ITEM}.rename.fields names items of 'a' by"),
    ("pick: {}", f"{ITEM}.pick.fields is missing"),
    ("pick: {fields: []}", f"{ITEM}.pick.fields needs at least one"),
    (
        "pick: {fields: [a, '[0]']}",
        f"{ITEM}.pick.fields[1] is not a path of field names; use a.b.c",
    ),
    ("only: {operator: gt, value: 1}", f"{ITEM}.only.field is missing"),
    ("only: {field: a, value: 1}", f"{ITEM}.only.operator is missing"),
    ("skip: {field: a, operator: gt}", f"{ITEM}.skip.value is missing"),
    (
        "skip: {field: a., operator: gt, value: 1}",
        f"{ITEM}.skip.field is not a path of field names",
    ),
    (
        "only: {field: a, operator: gtt, value: 1}",
        f"{ITEM}.only.operator is not an operator; did you",
    ),
    ("only: {field: a, operator: gt, value: x}", f"{ITEM}.only.value must be a number for this op"),
    ("only: {field: a, operator: gt, value: }", f"{ITEM}.only.value must be a number for this ope"),
    ("only: {field: a, operator: lte, value: true}", f"{ITEM}.only.value must be a number for thi"),
    ("only: {field: a, operator: =~, value: (}", f"{ITEM}.only.value is not a regular expression"),
    ("only: {field: a, operator: =~, value: (?=x)}", f"{ITEM}.only.value is not a regular express"),
    ("only: {field: a, operator: =~, value: 5}", f"{ITEM}.only.value must be a regular expression"),
    ("only: {field: a, operator: ==, value: [1]}", f"{ITEM}.only.value must be text, a number, a"),
    (
        "only: {field: a, operator: ==, value: .nan}",
        f"{ITEM}.only.value is not a number that a docum",
    ),
    (
        "only: {field: a, operator: ==, value: -.inf}",
        f"{ITEM}.only.value is not a number that a docu",
    ),
    ("only: {field: a, operator: ==, value: 1.2345678901234567}", f"{ITEM}.only.value has more di"),
    ("only: {field: a, operator: gt, value: '1e99999999999999999999'}", f"{ITEM}.only.value holds"),
    ("opfilter: {}", f"{ITEM}.opfilter needs allow or deny; write for example allow: [insert, upd"),
    ("opfilter: {allow: []}", f"{ITEM}.opfilter.allow needs at least one"),
    ("opfilter: {allow: insert}", f"{ITEM}.opfilter.allow must be a list"),
    (
        "opfilter: {allow: [i]}",
        f"{ITEM}.opfilter.allow[0] is not an op (ops: command, delete, insert",
    ),
    (
        "opfilter: {deny: [delete, Insert]}",
        f"{ITEM}.opfilter.deny[1] is not an op; did you mean 'ins",
    ),
    ("opfilter: {allow: [noop, skip], deny: [skip]}", f"{ITEM}.opfilter both allows and denies s"),
    ("remap: {}", f"{ITEM}.remap needs either namespaces, or namespace and to"),
    ("remap: {namespaces: {a: b}, to: c}", f"{ITEM}.remap needs either namespaces, or namespace a"),
    ("remap: {namespaces: {}}", f"{ITEM}.remap.namespaces needs at least one"),
    ("remap: {namespaces: [a]}", f"{ITEM}.remap.namespaces must be a mapping"),
    ("remap: {namespaces: {a: 5}}", f"{ITEM}.remap.namespaces.a must be text; quote it if it look"),
    (
        'remap: {namespaces: {a: "\\ud800"}}',
        f"{ITEM}.remap.namespaces.a holds an unpaired surrogate",
    ),
    (
        "remap: {namespace: ^x, to: '\\1'}",
        f"{ITEM}.remap.to is not a template for this namespace; u",
    ),
    ("remap: {namespace: (, to: '\\1'}", f"{ITEM}.remap.namespace is not a regular expression"),
    ("remap: {to: 'x\\'}", f"{ITEM}.remap.to is not a template for this namespace"),
    ("debezium-envelope: {db: d, key: [id]}", f"{ITEM}.debezium-envelope.name is missing"),
    ("debezium-envelope: {name: '', db: d, key: [id]}", f"{ITEM}.debezium-envelope.name "),
    ("debezium-envelope: {name: n, db: d}", f"{ITEM}.debezium-envelope needs key, the names of"),
    ("debezium-envelope: {name: n, db: d, key: id}", f"{ITEM}.debezium-envelope.key must be a li"),
    ("debezium-envelope: {name: n, db: d, key: []}", f"{ITEM}.debezium-envelope.key needs at lea"),
    (
        "debezium-envelope: {name: n, db: d, keys: {a.b: [x, x]}}",
        f"{ITEM}.debezium-envelope.keys.a.b names a column twice",
    ),
    (
        "debezium-envelope: {name: n, db: d, key: [id], key_as: text}",
        f"{ITEM}.debezium-envelope.key_as must be ",
    ),
    (
        "debezium-envelope: {name: n, db: d, key: [id], template: '{schema}'}",
        f"{ITEM}.debezium-envelope.template needs the field {{table}} once",
    ),
    (
        "debezium-envelope: {name: n, db: d, key: [id], template: '{db}.{table}'}",
        f"{ITEM}.debezium-envelope.template needs the field {{table}} once",
    ),
    (
        "debezium-envelope: {name: n, db: d, key: [id], template: '{schema}{table}'}",
        f"{ITEM}.debezium-envelope.template needs a separator",
    ),
    (
        "debezium-envelope: {name: n, db: d, key: [id], template: '{table}'}",
        f"{ITEM}.debezium-envelope needs either {{schema}} in template, or schema",
    ),
    (
        "debezium-envelope: {name: n, db: d, key: [id], schema: public}",
        f"{ITEM}.debezium-envelope needs either {{schema}} in template, or schema",
    ),
    ("pretty:", f"{ITEM}.pretty must be a mapping (it is empty)"),
    ("pretty: {indent: -1}", f"{ITEM}.pretty.indent must be greater than or equal to 0"),
    ("pretty: {indent: 11}", f"{ITEM}.pretty.indent must be less than or equal to 10"),
    ("pretty: {indent: true}", f"{ITEM}.pretty.indent must be a whole number"),
    ("pretty: {indent: two}", f"{ITEM}.pretty.indent must be a valid integer"),
    ("python: {}", f"{ITEM}.python.function is missing"),
    (
        "python: {function: turn}",
        f"{ITEM}.python.function 'turn' does not name a function; use module:",
    ),
    ("python: {function: 'turnng:turn'}", f"{ITEM}.python.function there is no module 'turnng' in"),
    ("python: {function: 'turning:trn'}", f"{ITEM}.python.function 'turning:trn': turning ("),
    ("python: {function: 'turning:number'}", f"{ITEM}.python.function 'turning:number' is not a f"),
    ("python: {function: 'turning:none'}", f"{ITEM}.python.function 'turning:none' does not take"),
    ("python: {function: 'turning:two'}", f"{ITEM}.python.function 'turning:two' does not take o"),
    ("python: {function: 'turning:keyword'}", f"{ITEM}.python.function 'turning:keyword' does no"),
    ("python: {function: 'turning:Turn'}", f"{ITEM}.python.function 'turning:Turn' does not take"),
    ("python: {function: 'turning:later'}", f"{ITEM}.python.function 'turning:later' is async"),
]


@pytest.mark.parametrize(("item", "expected"), MISTAKES)
def test_a_wrong_step_is_one_problem(steps_file: Write, item: str, expected: str) -> None:
    """A wrong step is named with its line, its key and a correction."""
    found = problem(steps_file(f"      - omit: {{fields: [ok]}}\n      - {item}"))
    assert found.startswith(f"9: {expected.replace('steps[0]', 'steps[1]')}"), found


@pytest.mark.parametrize("items", ["      omit: {fields: [a]}", "", "      5"])
def test_steps_are_a_list(steps_file: Write, items: str) -> None:
    """Anything but a list is refused as such."""
    assert "routes[0].steps must be a list" in problem(steps_file(items))


def test_a_function_that_a_variable_names_is_not_repeated(steps_file: Write) -> None:
    """A value that came from a variable stays out of the error."""
    file = steps_file("      - python: {function: '${X}'}")
    assert "hunter22" not in problem(file, {"X": "hunter22"})
    assert "hunter22" not in problem(file, {"X": "turning:hunter22"})


def test_a_module_that_fails_is_told_by_its_line(steps_file: Write, folder: Path) -> None:
    """A mistake in the user's own module is reported by its file and line, without a traceback."""
    file = steps_file("      - python: {function: 'broken:turn'}")
    (folder / "broken.py").write_text("x = 1\nx.y\n")
    assert f"cannot be imported: {folder}/broken.py:2: AttributeError" in problem(file)


def test_what_is_gone_since_the_load_is_told(folder: Path) -> None:
    """A worker that does not find a function reports a configuration error, without a traceback."""
    config = StepConfig(name="python", settings={"function": "never_there:turn"})
    with pytest.raises(ConfigError, match=r"^step python: .*there is no module 'never_there'"):
        compile_steps([config], folder)
