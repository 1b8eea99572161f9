"""Options of a route: defaults, every value, and every mistake with its line."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from transporter.errors import ConfigError
from transporter.pipeline.config import RouteConfig, load
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.route_options import BackoffRange, ParkLimit, RetryConfig, StartPosition

if TYPE_CHECKING:
    from collections.abc import Callable

    Write = Callable[[str], Path]


def route(write: Write, valid: str, options: str, environ: dict[str, str] | None = None) -> Any:
    """Return the route of the valid pipeline with *options* added to it."""
    return load(write(f"{valid}    {options}\n"), environ or {}).routes[0]


def problem(write: Write, valid: str, options: str, environ: dict[str, str] | None = None) -> str:
    """Return the only problem of the valid pipeline with *options* added to its route."""
    with pytest.raises(InvalidPipeline) as caught:
        route(write, valid, options, environ)
    (found,) = caught.value.problems
    return f"{found.line}: {found.problem}"


def test_defaults(pipeline_file: Write, valid: str) -> None:
    """A route without options has the documented ones."""
    found: RouteConfig = load(pipeline_file(valid), {}).routes[0]
    assert found.retry == RetryConfig(attempts=5, backoff=BackoffRange(0.2, 30.0))
    assert (found.on_error, found.park_order) == ("stop", "key")
    assert found.park_limit == ParkLimit(entries=10_000, bytes=256 * 1024**2)
    assert (found.max_in_flight_per_key, found.linger) == (None, 0.0)
    assert (found.slice_timeout, found.worker_memory) == (60.0, 1024**3)
    assert (found.after, found.start, found.steps) == (None, StartPosition("earliest", 0), ())


VALUES = [
    # (in the file, the option, its value)
    ("retry: {attempts: 1}", "retry", RetryConfig(attempts=1)),
    ("retry: {backoff: 10ms..10ms}", "retry", RetryConfig(backoff=BackoffRange(0.01, 0.01))),
    ("retry: {backoff: 1s .. 2m}", "retry", RetryConfig(backoff=BackoffRange(1.0, 120.0))),
    ("on_error: park", "on_error", "park"),
    ("on_error: skip", "on_error", "skip"),
    ("park_order: free", "park_order", "free"),
    ("park_limit: {bytes: 1MiB}", "park_limit", ParkLimit(bytes=1024**2)),
    ("park_limit: {entries: 3}", "park_limit", ParkLimit(entries=3)),
    ("max_in_flight_per_key: 1", "max_in_flight_per_key", 1),
    ("max_in_flight_per_key:", "max_in_flight_per_key", None),
    ("linger: 250ms", "linger", 0.25),
    ("max_rate: 30/m", "max_rate", 0.5),
    ("max_rate: null", "max_rate", None),
    ("slice_timeout: 2m", "slice_timeout", 120.0),
    ("worker_memory: 128MiB", "worker_memory", 128 * 1024**2),
    ("worker_memory: null", "worker_memory", None),
    ("after: null", "after", None),
    ("start: earliest", "start", StartPosition("earliest")),
    ("start: latest", "start", StartPosition("latest")),
    ("start: 0", "start", StartPosition("offset", 0)),
    ("start: 9223372036854775807", "start", StartPosition("offset", 2**63 - 1)),
    ("start: '17'", "start", StartPosition("offset", 17)),
    ("start: 1970-01-01T00:00:01Z", "start", StartPosition("time", 1_000_000)),
    (
        "start: 2030-01-31T08:00:00.000001+02:00",
        "start",
        StartPosition("time", 1_896_069_600_000_001),
    ),
    ("start: 0001-01-01T00:00:00+14:00", "start", StartPosition("time", -62_135_647_200_000_000)),
    (
        "start: 9999-12-31T23:59:59.999999-14:00",
        "start",
        StartPosition("time", 253_402_351_199_999_999),
    ),
]


@pytest.mark.parametrize(("text", "option", "value"), VALUES)
def test_an_option_arrives(
    pipeline_file: Write, valid: str, text: str, option: str, value: object
) -> None:
    """Each option of the file ends in the value of its name, converted."""
    found = route(pipeline_file, valid, text)
    assert getattr(found, option) == value
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301 - our own


def test_options_may_come_from_variables(pipeline_file: Write, valid: str) -> None:
    """A variable is text, and still becomes the number or the offset of an option."""
    found = route(
        pipeline_file,
        valid,
        "retry: {attempts: '${N}'}\n    start: ${N}\n    max_in_flight_per_key: ${ONE}",
        {"N": "7", "ONE": "1"},
    )
    assert (found.retry.attempts, found.start, found.max_in_flight_per_key) == (
        7,
        StartPosition("offset", 7),
        1,
    )


MISTAKES = [
    ("retry: 5", "retry must be a mapping"),
    ("retry: {atempts: 5}", "unknown key 'atempts' in routes[0].retry; did you mean 'attempts'?"),
    ("retry: {attempts: 0}", "retry.attempts must be greater than or equal to 1 (it is 0)"),
    ("retry: {attempts: true}", "retry.attempts must be a whole number (it is true)"),
    ("retry: {backoff: 5s}", "retry.backoff is not a range of durations; write for example 200"),
    ("retry: {backoff: 5}", "retry.backoff is not a range of durations"),
    ("retry: {backoff: 1..2}", "retry.backoff is not a duration"),
    ("retry: {backoff: 2s..1s}", "retry.backoff must begin above 0s and end with the longer"),
    ("retry: {backoff: 0s..1s}", "retry.backoff must begin above 0s"),
    ("on_error: ignore", "on_error must be 'stop', 'park' or 'skip' (it is 'ignore')"),
    ("park_order: none", "park_order must be 'key' or 'free'"),
    ("park_limit: {entries: 0}", "park_limit.entries must be greater than or equal to 1"),
    ("park_limit: {bytes: 0}", "park_limit.bytes must be greater than or equal to 1"),
    ("max_in_flight_per_key: 2", "max_in_flight_per_key must be 1; leave it out for no limit (it"),
    ("max_in_flight_per_key: true", "max_in_flight_per_key must be a whole number"),
    ("linger: 5", "linger is not a duration"),
    ("max_rate: 5", "max_rate is not a rate"),
    ("max_rate: 0/s", "max_rate is not a rate"),
    ("max_rate: 5/d", "max_rate is not a rate"),
    ("linger: -5s", "linger is not a duration"),
    ("slice_timeout: 0s", "slice_timeout must be greater than 0"),
    ("worker_memory: 1MiB", "worker_memory must be greater than or equal to 134217728"),
    ("start: -1", "start must be earliest, latest, an offset or a time such as 2030-"),
    ("start: 1.5", "start must be earliest, latest, an offset or a time"),
    ("start: true", "start must be earliest, latest, an offset or a time"),
    ("start:", "start must be earliest, latest, an offset or a time"),
    ("start: first", "start must be earliest, latest, an offset or a time such as 2030-"),
    ("start: 2030-01-31", "start lacks a time zone; use for example 2030-01-31T08:00:00Z"),
    ("start: 2030-01-31T25:00:00Z", "start must be earliest, latest, an offset or a time such"),
    ("start: 9223372036854775808", "start is above the largest offset"),
    (f"start: {'9' * 5000}", "start is above the largest offset"),
    ("after: 5", "after must be text"),
    ("after: [out]", "after must be text"),
    ("after: in", "after: there is no route 'in' (routes: out)"),
    ("after: ou", "after: there is no route 'ou'; did you mean 'out'? (routes: out)"),
    ("after: out", "after: out waits for out; none of them could ever start"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_a_wrong_option_is_one_problem(
    pipeline_file: Write, valid: str, text: str, expected: str
) -> None:
    """A wrong option is named with its line, its key and a correction."""
    found = problem(pipeline_file, valid, text)
    assert found.startswith((f"7: routes[0].{expected}", f"7: {expected}")), found


def test_a_wrong_option_from_a_variable_is_not_shown(pipeline_file: Write, valid: str) -> None:
    """A value that came from a variable stays out of the error, whichever option refuses it."""
    for option in ("start", "after", "on_error", "linger", "max_in_flight_per_key"):
        found = problem(pipeline_file, valid, f"{option}: ${{X}}", {"X": "hunter22"})
        assert option in found
        assert "hunter22" not in found


CHAIN = """\
readers:
  - {name: in, adaptor: "doubles:Source"}
routes:
"""


def chain(after: dict[str, str | None]) -> str:
    """Return a pipeline whose routes wait by *after*. Route n stands on line 4 + n."""
    lines = [
        f"  - {{name: {name}, writer: {{adaptor: 'doubles:Sink', path: o}}, after: {other or '~'}}}"
        for name, other in after.items()
    ]
    return CHAIN + "\n".join(lines) + "\n"


def test_routes_may_wait_in_a_row(pipeline_file: Write) -> None:
    """Any route may wait for any other, in any order of the file."""
    after = {"c": "b", "b": "a", "a": None, "d": "a"}
    routes = load(pipeline_file(chain(after)), {}).routes
    assert {each.name: each.after for each in routes} == after


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"a": "b", "b": "a"}, ["4: routes[0].after: a waits for b waits for a;"]),
        ({"x": "a", "a": "b", "b": "a"}, ["5: routes[1].after: a waits for b waits for a;"]),
        (
            {"a": "b", "b": "c", "c": "a", "d": "d", "e": "nobody"},
            [
                "4: routes[0].after: a waits for b waits for c waits for a;",
                "7: routes[3].after: d waits for d;",
                "8: routes[4].after: there is no route 'nobody'",
            ],
        ),
    ],
)
def test_routes_that_wait_in_a_circle_are_refused(
    pipeline_file: Write, after: dict[str, str | None], expected: list[str]
) -> None:
    """Each circle is one problem, at its first route in the file, and names the whole way."""
    with pytest.raises(ConfigError) as caught:
        load(pipeline_file(chain(after)), {})
    assert isinstance(caught.value, InvalidPipeline)
    found = [f"{each.line}: {each.problem}" for each in caught.value.problems]
    assert len(found) == len(expected)
    assert all(one.startswith(start) for one, start in zip(found, expected, strict=True)), found


def test_every_option_is_documented() -> None:
    """The reference has a row for each key of a route, and of the mappings in it."""
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    nested = {"retry": RetryConfig, "park_limit": ParkLimit}
    for name in RouteConfig.model_fields:
        keys = [f"{name}.{key}" for key in nested[name].model_fields] if name in nested else [name]
        for key in keys:
            row = "| `writer.adaptor` |" if key == "writer" else f"| `{key}` |"
            assert row in page, key
