"""The changes between a running pipeline and its file, and those that a reload refuses.

All settings that differ are named for operators, without secrets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from transporter.errors import ConfigError
from transporter.pipeline.adaptor_registry import forget_modules, fresh_modules
from transporter.pipeline.config import Pipeline, load_with_lines
from transporter.pipeline.observe_config import ConsoleConfig
from transporter.pipeline.problems import InvalidPipeline, has_secret_name
from transporter.pipeline.route_changes import changed_routes_problems
from transporter.pipeline.secrets import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from transporter.pipeline.config import ReaderConfig, RouteConfig
    from transporter.pipeline.observe_config import ObserveConfig
    from transporter.pipeline.secrets import Secrets
    from transporter.pipeline.yaml_document import Document, KeyPath

_LIVE: Final = frozenset({"commit_interval", "shutdown_timeout"})
"""Top-level keys that may change while the engine runs, besides readers, routes and log."""
_LIVE_OF_LOG: Final = frozenset({"compaction", "retention", "max_bytes", "on_full", "segment_age"})
_OWN_CODE: Final = frozenset({"python", "starlark"})
"""Steps that read files of the user's own beside the pipeline file."""
_APART: Final = frozenset({"readers", "routes", "log", "observe", "file", "secrets", "written"})
_NAMED: Final = ("readers", "routes")
"""Lists whose items are known by their names, wherever they stand."""
_ABSENT: Final = object()
_RESTART: Final = "stop the engine and start it again for that; nothing was changed now"


def reread(running: Pipeline, environ: Mapping[str, str], declared: Sequence[str] = ()) -> Pipeline:
    """Read the file of the *running* pipeline again, its modules beside it included.

    Raise :class:`InvalidPipeline` if it cannot be used, changes a key that is fixed while the
    engine runs, or lacks one of the *declared* routes, which have offsets in the log, where
    that could be a mistake.
    """
    forget_modules(running.file.parent)
    wanted, problems = _examine(running, environ, declared)
    if problems:
        raise InvalidPipeline(*problems)
    return wanted


def preview(
    running: Pipeline, environ: Mapping[str, str], declared: Sequence[str] = ()
) -> tuple[Pipeline | None, list[ConfigError]]:
    """Return the pipeline that :func:`reread` would, and the problems that it would raise.

    Nothing that runs is changed. Without a usable file there are problems only.
    """
    try:
        with fresh_modules(running.file.parent):
            return _examine(running, environ, declared)
    except InvalidPipeline as error:
        return None, list(error.problems)
    except ConfigError as error:
        return None, [error]


def _examine(
    running: Pipeline, environ: Mapping[str, str], declared: Sequence[str]
) -> tuple[Pipeline, list[ConfigError]]:
    """Return the pipeline in the file of *running*, and why it may not replace that."""
    wanted, document = load_with_lines(running.file, environ)
    problems = list(_refusals(running, wanted, document))
    problems += [
        document.problem(path, f"{text}; nothing was changed now")
        for path, text in changed_routes_problems(wanted, declared)
    ]
    return wanted, sorted(problems, key=lambda problem: problem.line)


def changed_readers(running: Pipeline, wanted: Pipeline) -> list[ReaderConfig]:
    """Return the running readers of *wanted* that must be reopened.

    These are readers with changed settings, and readers with the user's own code, which may
    have changed.
    """
    before = {reader.name: _reader_settings(reader) for reader in running.readers}
    return [
        each
        for each in wanted.readers
        if each.name in before
        and (_reader_settings(each) != before[each.name] or ":" in each.adaptor)
    ]


def changed_routes(running: Pipeline, wanted: Pipeline) -> list[RouteConfig]:
    """Return the running routes of *wanted* that need a new worker.

    These are routes with changed settings or changed leaders, and routes with the user's own
    code, which may have changed.
    """
    before = {route.name: route for route in running.routes}
    known = [each for each in wanted.routes if each.name in before]
    if running.turns != wanted.turns:
        return known
    return [each for each in known if each != before[each.name] or _has_own_code(each)]


def describe_changes(running: Pipeline, wanted: Pipeline) -> dict[str, Any]:
    """Return the changes of a reload, as plain values without secrets, for use in the audit file.

    ``routes`` are the routes that need a new worker, and ``readers`` the readers that are reopened.
    ``added`` and ``removed`` are new and removed ones. ``settings`` has the new value of each other
    setting.
    """
    kept = {*_LIVE, "log"}
    before, after = (
        _flatten(each.model_dump(include=kept, mode="json")) for each in (running, wanted)
    )
    had, has = _members(running), _members(wanted)
    return {
        "routes": [route.name for route in changed_routes(running, wanted)],
        "readers": [reader.name for reader in changed_readers(running, wanted)],
        "added": _difference(has, had),
        "removed": _difference(had, has),
        "settings": {name: value for name, value in after.items() if before[name] != value},
    }


def member_texts(members: Mapping[str, list[str]]) -> list[str]:
    """Return the *added* or *removed* of :func:`describe_changes` as texts: ``reader orders``."""
    return [f"{kind[:-1]} {name}" for kind, names in members.items() for name in names]


def _members(pipeline: Pipeline) -> dict[str, list[str]]:
    return {kind: [each.name for each in getattr(pipeline, kind)] for kind in ("readers", "routes")}


def _difference(these: dict[str, list[str]], those: dict[str, list[str]]) -> dict[str, list[str]]:
    return {
        kind: [name for name in names if name not in those[kind]] for kind, names in these.items()
    }


def _flatten(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested settings by their paths, such as ``log.retention.age``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flatten(value, f"{before}{name}.")
        else:
            found[before + name] = value
    return found


def _has_own_code(route: RouteConfig) -> bool:
    return ":" in route.writer.adaptor or any(step.name in _OWN_CODE for step in route.steps)


def _refusals(old: Pipeline, new: Pipeline, document: Document) -> Iterator[ConfigError]:
    for name in sorted(set(Pipeline.model_fields) - _LIVE - _APART):
        # A changed secret file is not a change of the pipeline.
        same = old.written.get(name) == new.written.get(name)
        if getattr(old, name) != getattr(new, name) and not same:
            yield _refusal(document, (name,), name)
    # The console is a process of its own, which reads its keys when it starts.
    same = old.written.get("observe") == new.written.get("observe")
    if _engine_part(old) != _engine_part(new) and not same:
        yield _refusal(document, ("observe",), "observe")
    for name in sorted(set(type(old.log).model_fields) - _LIVE_OF_LOG):
        if getattr(old.log, name) != getattr(new.log, name):
            yield _refusal(document, ("log", name), f"log.{name}")
    yield from _reader_refusals(old, new, document)
    yield from _route_refusals(old, new, document)


def _engine_part(pipeline: Pipeline) -> ObserveConfig:
    """Return the section ``observe`` without the keys of the console."""
    return pipeline.observe.model_copy(update=dict.fromkeys(ConsoleConfig.model_fields))


def _refusal(document: Document, path: KeyPath, what: str) -> ConfigError:
    return document.problem(path, f"{what} cannot change while the engine runs; {_RESTART}")


def _reader_refusals(old: Pipeline, new: Pipeline, document: Document) -> Iterator[ConfigError]:
    before = {reader.name: _source_settings(reader) for reader in old.readers}
    for index, reader in enumerate(new.readers):
        if before.get(reader.name, _source_settings(reader)) != _source_settings(reader):
            what = (
                f"the adaptor of reader {reader.name!r}, and when it acknowledges an entry to its "
                "source,"
            )
            yield _refusal(document, ("readers", index), what)


def _source_settings(reader: ReaderConfig) -> tuple[object, ...]:
    """Return the parts of a reader's configuration that the engine depends on."""
    return reader.adaptor, reader.waits_for_delivery, reader.config.shared


def _reader_settings(reader: ReaderConfig) -> tuple[object, ...]:
    # Not the class, because the user's own module was imported again.
    return reader.settings_as_written, reader.max_in_flight


def _route_refusals(old: Pipeline, new: Pipeline, document: Document) -> Iterator[ConfigError]:
    before = {route.name: route.after for route in old.routes}
    for index, route in enumerate(new.routes):
        if before.get(route.name, route.after) != route.after:
            path: KeyPath = ("routes", index, "after")
            yield _refusal(document, path, f"'after' of route {route.name!r}")


def settings_diff(before: Pipeline, after: Pipeline) -> list[dict[str, Any]]:
    """Return each setting that differs as ``setting``, ``before`` and ``after``, as plain values.

    A setting that is absent is ``None``. Secrets of either reading are redacted (Invariant 20),
    so a changed secret shows as a change without its values. Secret files are shown by name.
    """
    old, new = dict(_each_setting(before.written)), dict(_each_setting(after.written))
    secrets = before.secrets | after.secrets
    return [
        {
            "setting": secrets.hide(".".join(path)),
            "before": _shown(path, old.get(path), secrets),
            "after": _shown(path, new.get(path), secrets),
        }
        for path in dict.fromkeys([*new, *old])
        if not _is_same(old.get(path, _ABSENT), new.get(path, _ABSENT))
    ]


def _is_same(one: object, other: object) -> bool:
    """Return whether two values are equal, where 1 is not true."""
    return type(one) is type(other) and one == other


def _each_setting(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401 - plain values
    """Yield the path and the value of each setting in nested values."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _each_setting(each, (*path, str(name)))
    elif isinstance(value, list | tuple) and value:
        for place, each in enumerate(value):
            is_named = len(path) == 1 and path[0] in _NAMED and isinstance(each, dict)
            name = str(each.get("name", place)) if is_named else str(place)
            yield from _each_setting(each, (*path, name))
    else:
        yield path, value


def _shown(path: tuple[str, ...], value: Any, secrets: Secrets) -> Any:  # noqa: ANN401 - plain values
    if value is None or isinstance(value, bool | dict | list | tuple):
        return value
    if has_secret_name(path):
        return HIDDEN
    text = str(value)
    hidden = secrets.hide(text)
    return value if isinstance(value, int | float) and hidden == text else hidden
