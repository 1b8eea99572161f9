"""``opfilter`` and ``remap``: the entries that pass, and their namespaces."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_tools import batch_of, rows_of

from transporter.message import OPS, Message
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.steps.remap import RemapStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.pipeline.steps.chain import Steps

    Compile = Callable[..., Steps]

MESSAGES = [
    Message(f"{name}.x", b"data", key=b"k", op=op, headers=(("h", None),), source_id="s")
    for name in ("a", "b")
    for op in OPS
]

FILTERED = [
    ({"allow": ["insert"]}, ["insert"]),
    ({"allow": ["insert", "update"]}, ["insert", "update"]),
    ({"deny": ["delete"]}, ["insert", "update", "command", "noop", "skip"]),
    ({"deny": ["delete", "skip", "noop"]}, ["insert", "update", "command"]),
    ({"allow": ["noop", "noop"]}, ["noop"]),
    ({"allow": ["insert", "delete"], "deny": ["command"]}, ["insert", "delete"]),
    ({"allow": list(OPS)}, list(OPS)),
    ({"deny": list(OPS)}, []),
]


@pytest.mark.parametrize(("ops", "passing"), FILTERED)
def test_ops_that_pass(steps: Compile, ops: dict[str, Any], passing: list[str]) -> None:
    """Exactly the ops that are allowed and not denied pass, with all that their entries have."""
    entries = rows_of(steps({"opfilter": ops}).apply(batch_of(*MESSAGES)))
    assert entries == [each for each in rows_of(batch_of(*MESSAGES)) if each.message.op in passing]
    mine = rows_of(steps({"opfilter": {**ops, "namespace": "^a"}}).apply(batch_of(*MESSAGES)))
    assert [entry.message for entry in mine] == [
        each for each in MESSAGES if each.op in passing or each.namespace == "b.x"
    ]


REMAPPED = [
    # settings, namespaces before, namespaces after
    ({"namespaces": {"foo": "bar"}}, ["foo", "fo", "foo.x", "Foo"], ["bar", "fo", "foo.x", "Foo"]),
    ({"namespaces": {"foo": "bar", "baz": "boo"}}, ["baz", "foo"], ["boo", "bar"]),
    ({"namespaces": {"blah": "hey"}}, ["foo"], ["foo"]),
    ({"namespaces": {"a": "b", "b": "a"}}, ["a", "b", "c", "a"], ["b", "a", "c", "b"]),
    ({"namespaces": {"a": "b", "b": "c"}}, ["a", "b"], ["b", "c"]),
    ({"namespaces": {"größe": "😀\n"}}, ["größe"], ["😀\n"]),
    ({"namespaces": {"a.x": "b"}}, ["a.x", "aax"], ["b", "aax"]),
    ({"namespaces": {"": "b"}}, ["", "a"], ["b", "a"]),
    ({"namespaces": {"a": "z", "b": "z"}, "namespace": "^a"}, ["a", "b"], ["z", "b"]),
    ({"namespace": r"^db\.", "to": ""}, ["db.a", "x.db.a"], ["a", "x.db.a"]),
    ({"namespace": r"^(\w+)\.(\w+)$", "to": r"\2.\1"}, ["a.b", "a.b.c"], ["b.a", "a.b.c"]),
    ({"namespace": "o", "to": "0"}, ["foo", "f"], ["f0o", "f"]),
    ({"namespace": "o+", "to": r"<\0>\\"}, ["foo"], ["f<oo>\\"]),
    ({"to": "all"}, ["a", "b\nc", ""], ["all", "all", "all"]),
    ({"to": r"new.\0"}, ["a", "b\nc\n", ""], ["new.a", "new.b\nc\n", "new."]),
    ({"namespace": "ß", "to": "ss"}, ["größe"], ["grösse"]),
]


@pytest.mark.parametrize(("settings", "before", "after"), REMAPPED)
def test_remapped_namespaces(
    steps: Compile, settings: dict[str, Any], before: list[str], after: list[str]
) -> None:
    """Namespaces change all at once, as a whole or where they match, and nothing else does."""
    messages = [replace(MESSAGES[0], namespace=name) for name in before]
    entries = rows_of(steps({"remap": settings}).apply(batch_of(*messages)))
    assert [entry.offset for entry in entries] == list(range(100, 100 + len(before)))
    assert [entry.message for entry in entries] == [
        replace(MESSAGES[0], namespace=name) for name in after
    ]


def test_later_steps_see_the_new_namespace(steps: Compile) -> None:
    """A step applies by the namespace that the steps before it have made."""
    remap = {"remap": {"namespaces": {"a": "b"}}}
    omit = {"omit": {"fields": ["x"], "namespace": "^b$"}}
    (entry,) = rows_of(steps(remap, omit).apply(batch_of(Message("a", b'{"x":1}'))))
    assert entry.message == Message("b", b"{}")
    (entry,) = rows_of(steps(omit, remap).apply(batch_of(Message("a", b'{"x":1}'))))
    assert entry.message == Message("b", b'{"x":1}')


EVERY_STEP: list[dict[str, Any]] = [
    {"omit": {"fields": ["card", "lines[0]"]}},
    {"pick": {"fields": ["n", "lines[*].a"]}},
    {"rename": {"fields": {"card": "number", "lines[*].a": "b"}}},
    {"only": {"field": "n", "operator": "gt", "value": 1}},
    {"skip": {"field": "n", "operator": "gt", "value": 1}},
    {"opfilter": {"allow": ["update"]}},
    {"remap": {"namespaces": {"a": "b"}}},
    {"remap": {"to": r"x.\0"}},
    {"pretty": {}},
]
NOTHING_TO_DO = Message("z", b'{\n  "other": 2\n}', op="update", content_type="text/plain")


def test_two_routes_do_not_see_each_other(steps: Compile) -> None:
    """No step changes the batch it is given, whole or in slices, alone or behind another."""
    document = b'{"card":1,"n":%d,"lines":[{"a":1.10}]}'
    ops = ("insert", "update", "insert", "update")
    shared = batch_of(*(Message("a", document % n, op=op) for n, op in enumerate(ops)))
    before = [column.to_pylist() for column in shared.columns]
    for step in EVERY_STEP:
        for given_batch in (shared, shared.slice(1, 2)):
            made = rows_of(steps(step).apply(given_batch))
            assert made != rows_of(given_batch)
            assert made == rows_of(steps(step).apply(given_batch))
            rows_of(steps(*EVERY_STEP).apply(given_batch))
    assert [column.to_pylist() for column in shared.columns] == before


@pytest.mark.parametrize("step", EVERY_STEP, ids=lambda step: next(iter(step)))
def test_what_is_not_concerned_is_handed_on_as_it_is(steps: Compile, step: dict[str, Any]) -> None:
    """A batch without work for a step is neither copied nor changed, and no batch is too short."""
    batch = batch_of(NOTHING_TO_DO, NOTHING_TO_DO)
    mine = {name: {"namespace": "^a", **settings} for name, settings in step.items()}
    assert steps(mine).apply(batch) is batch
    for whole in (batch_of(), batch.slice(0, 0)):
        assert rows_of(steps(step, mine).apply(whole)) == []


names = st.text(st.sampled_from("ab.ß\n"), max_size=3)


@settings(deadline=None)
@given(st.lists(names, max_size=8), st.dictionaries(names, names, min_size=1, max_size=5))
def test_a_remap_is_a_look_up(before: list[str], mapping: dict[str, str]) -> None:
    """Each namespace becomes its value in the mapping, and stays if it has none."""
    batch = batch_of(*(Message(name, None) for name in before))
    made = rows_of(RemapStep(NamespaceFilter(), mapping, None).apply(batch))
    assert [entry.message.namespace for entry in made] == [
        mapping.get(name, name) for name in before
    ]
