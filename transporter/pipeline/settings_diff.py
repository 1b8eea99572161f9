"""Differences between two readings of a pipeline file, setting by setting, without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from transporter.pipeline.problems import has_secret_name
from transporter.pipeline.secrets import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.pipeline.config import Pipeline
    from transporter.pipeline.secrets import Secrets

_NAMED: Final = ("readers", "routes")
"""Lists whose items are known by their names, wherever they stand."""
_ABSENT: Final = object()


def settings_diff(before: Pipeline, after: Pipeline) -> list[dict[str, Any]]:
    """Return each setting that differs as ``setting``, ``before`` and ``after``, as plain values.

    A setting that is absent is ``None``. Secrets of either reading are redacted (Invariant 20),
    so a changed secret shows as a change without its values. Secret files are shown by name.
    """
    old, new = dict(_flatten(before.written)), dict(_flatten(after.written))
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


def _flatten(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401 - plain values
    """Yield the path and the value of each setting in nested values."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _flatten(each, (*path, str(name)))
    elif isinstance(value, list | tuple) and value:
        for place, each in enumerate(value):
            is_named = len(path) == 1 and path[0] in _NAMED and isinstance(each, dict)
            name = str(each.get("name", place)) if is_named else str(place)
            yield from _flatten(each, (*path, name))
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
