"""Messages a second through each kind of step, against a bare loop that does the same."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from benchmarks.figures import Aim, Comparison, Section
from benchmarks.messages import batches
from benchmarks.setting import ROOT
from transporter.adaptor import AdaptorConfig
from transporter.message import with_offsets
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.steps.chain import compile_steps
from transporter.pipeline.steps.step import StepConfig
from transporter.worker.delivery import Delivery, deliver

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.setting import Setting
    from transporter.adaptor import Ack, Entries, WriterContext
    from transporter.message import Message

    Loop = Callable[[dict[str, Any]], dict[str, Any] | None]

_ROWS: Final = 10_000
_ROUTES: Final = 8
_AIMS: Final = {
    "omit": Aim(1.0, at_least=True),
    "rename": Aim(1.0, at_least=True),
    "python": Aim(0.7, at_least=True),
    "starlark": Aim(0.3, at_least=True),
}

METHOD: Final = f"""\
Slices of {_ROWS} messages of about 200 bytes of JSON through `deliver`, the function that workers
run, with one step and a writer that takes everything. The floor is hand-written code:
for each message `json.loads`, the change, `json.dumps`. If a step looks at no document, the
loop does not either. Fan-out sends each slice through {_ROUTES} routes, each with a step that
changes it, one after another in one process. Its floor parses each message once, and copies and
changes the document for each route. One thread each."""
LIMITS: Final = """\
Steps that look into documents match each with one regular expression, half of their time, and
copy the parts that they change. Two thirds of `python`'s time are the function's own, a third of
which is `dataclasses.replace`. The rest makes messages of rows and rows of messages. `starlark`
spends half of its time in the binding, which has no `json` module: each message is parsed as
Starlark source. Handing it over as values costs nearly as much, and freezes the values that the
script is to change. The rest is JSON, read and written twice."""


def measure(setting: Setting) -> Section:
    """Measure each kind of step, in turns with its floor."""
    slices = [
        with_offsets(batch, number * _ROWS, 0)
        for number, batch in enumerate(batches(setting.scale(10, 2), _ROWS))
    ]
    sides: dict[str, Callable[[], float]] = {}
    for name, (step, loop) in _kinds().items():
        sides[name] = partial(_our_rate, slices, [_route(step)])
        sides[f"{name}, floor"] = partial(
            _floor_rate, slices, loop, 2 if name == "pretty" else None
        )
    fan_out = [_route({"rename": {"fields": {"note": f"note_{n}"}}}) for n in range(_ROUTES)]
    sides["fan-out"] = partial(_our_rate, slices, fan_out)
    sides["fan-out, floor"] = partial(_fan_out_rate, slices)
    found = setting.interleave(sides)
    return Section(
        "steps",
        METHOD,
        tuple(
            Comparison(
                f"{_ROUTES} routes that rename" if name == "fan-out" else name,
                "bare Python loop",
                "messages/s",
                found[name],
                found[f"{name}, floor"],
                _AIMS.get(name),
            )
            for name in (*_kinds(), "fan-out")
        ),
        limits=LIMITS,
    )


def _kinds() -> dict[str, tuple[dict[str, Any], Loop | None]]:
    """Return an example of each kind of step, and the change that a loop makes for it."""
    return {
        "omit": ({"omit": {"fields": ["note"]}}, _without_note),
        "rename": ({"rename": {"fields": {"trace": "trace_id"}}}, _rename),
        "pick": ({"pick": {"fields": ["order", "amount"]}}, _pick),
        "only": ({"only": {"field": "state", "operator": "eq", "value": "paid"}}, _only_paid),
        "opfilter": ({"opfilter": {"allow": ["insert"]}}, None),
        "remap": ({"remap": {"namespaces": {"orders": "sales"}}}, None),
        "pretty": ({"pretty": {}}, lambda document: document),
        "python": ({"python": {"function": "benchmarks.steps:without_note"}}, _without_note),
        "starlark": ({"starlark": {"code": _SCRIPT}}, _without_note),
    }


_SCRIPT: Final = """\
def transform(message):
    message["data"].pop("note")
    return message
"""


def without_note(message: Message) -> Message:
    """Leave a field out, as a user's function would."""
    document = json.loads(message.data or b"{}")
    del document["note"]
    return replace(message, data=json.dumps(document).encode())


def _without_note(document: dict[str, Any]) -> dict[str, Any]:
    del document["note"]
    return document


def _rename(document: dict[str, Any]) -> dict[str, Any]:
    document["trace_id"] = document.pop("trace")
    return document


def _pick(document: dict[str, Any]) -> dict[str, Any]:
    return {name: document[name] for name in ("order", "amount")}


def _only_paid(document: dict[str, Any]) -> dict[str, Any] | None:
    return document if document["state"] == "paid" else None


class _TakingWriter:
    """Writer that takes everything."""

    Config: ClassVar[type[AdaptorConfig]] = AdaptorConfig

    def open(self, context: WriterContext) -> None: ...

    def close(self) -> None: ...

    def write(self, batch: Entries, ack: Ack) -> None:  # noqa: ARG002 - as every writer
        ack.all()


def _route(step: dict[str, Any]) -> Delivery:
    """Return a route of one step, as the pipeline file has it."""
    ((name, settings),) = step.items()
    steps = compile_steps([StepConfig(name=name, settings=settings)], ROOT)
    return Delivery(NamespaceFilter(), "bench", steps)


def _our_rate(slices: list[pa.RecordBatch], routes: list[Delivery]) -> float:
    """Return the messages that go through *routes* in a second. Each route counts them."""
    writer = _TakingWriter()
    began = time.perf_counter()
    for each in slices:
        for route in routes:
            outcome = deliver(each, each.column("offset")[-1].as_py(), 0, route, writer)
            if outcome.failure is not None:
                raise RuntimeError(outcome.failure.text)
    return len(routes) * sum(each.num_rows for each in slices) / (time.perf_counter() - began)


def _floor_rate(slices: list[pa.RecordBatch], change: Loop | None, indent: int | None) -> float:
    """Return the messages that a loop changes in a second, columns to columns."""
    began = time.perf_counter()
    for rows in slices:
        data = rows.column("data").to_pylist()
        if change is None:
            # A step without documents compares or replaces one text a message.
            [name == "orders" for name in rows.column("namespace").to_pylist()]
            continue
        changed = [change(json.loads(document)) for document in data]
        made = [json.dumps(each, indent=indent).encode() for each in changed if each is not None]
        pa.array(made, pa.binary())
    return sum(each.num_rows for each in slices) / (time.perf_counter() - began)


def _fan_out_rate(slices: list[pa.RecordBatch]) -> float:
    """Return the messages that a loop makes for all routes in a second."""
    began = time.perf_counter()
    for each in slices:
        documents = [json.loads(document) for document in each.column("data").to_pylist()]
        for number in range(_ROUTES):
            made = []
            for document in documents:
                own = dict(document)
                own[f"note_{number}"] = own.pop("note")
                made.append(json.dumps(own).encode())
            pa.array(made, pa.binary())
    return _ROUTES * sum(each.num_rows for each in slices) / (time.perf_counter() - began)
