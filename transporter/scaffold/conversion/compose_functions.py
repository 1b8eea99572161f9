"""Functions of compose/transporter as steps."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from transporter.scaffold.conversion.draft import variable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter.scaffold.conversion.draft import Draft
    from transporter.scaffold.conversion.javascript import Mapping

_CODE: Final = frozenset({"goja", "js", "otto", "transformer", "transform"})
_SPECIAL: Final = re.compile(r"([.\[\]\\])")


def step_of(draft: Draft, function: str, settings: Mapping, line: int) -> dict[str, Any] | None:
    """Return the step with the effect of *function*, or ``None`` if it had none."""
    if function == "pretty":
        draft.warn(line, "pretty wrote messages to the program's log, and is left out")
        return None
    return _known_step(function, _plain(settings)) or _undecided(draft, function, line)


def _known_step(function: str, values: dict[str, Any]) -> dict[str, Any] | None:
    match function, values:
        case (("omit" | "pick"), {"fields": list(fields)}) if _are_texts(fields):
            return {function: {"fields": [_path(each) for each in fields]}}
        case "rename", {"field_map": dict(fields)} if _are_texts(fields.values()):
            return {"rename": {"fields": {_path(old): new for old, new in fields.items()}}}
        case "remap", {"ns_map": dict(namespaces)} if _are_texts(namespaces.values()):
            return {"remap": {"namespaces": namespaces}}
        case "skip", {
            "field": str(field),
            "operator": str(operator),
            "match": str() | int() | float() | bool() | None as match,
        }:
            # In compose/transporter "skip" kept the messages for which it was true.
            return {"only": {"field": _path(field), "operator": operator, "value": match}}
        case "opfilter", _ if kept := _ops(values):
            return {"opfilter": kept}
    return None


def _undecided(draft: Draft, function: str, line: int) -> dict[str, Any]:
    """Return a step that prevents a start until it is written."""
    code = "is in JavaScript" if function in _CODE else "is not known with these settings"
    number = 1 + sum("TRANSFORM_" in each for each in draft.warnings)
    name = f"TRANSFORM_{number}"
    draft.warn(
        line,
        f"the function {function} {code}: write it as a step in Python or Starlark in the place "
        f"of ${name} (docs/steps.md)",
    )
    return {"python": {"function": variable(name, "module:function that does the transform")}}


def _ops(values: dict[str, Any]) -> dict[str, Any]:
    named = (("whitelist", "allow"), ("blacklist", "deny"))
    found = {ours: values.get(theirs) for theirs, ours in named}
    return {
        ours: each for ours, each in found.items() if isinstance(each, list) and _are_texts(each)
    }


def _are_texts(values: Iterable[object]) -> bool:
    """Return whether there are values, and only texts."""
    held = list(values)
    return bool(held) and all(isinstance(each, str) for each in held)


def _path(field: object) -> str:
    """Return the path of a field at the top of the document, whatever its name is."""
    return _SPECIAL.sub(r"\\\1", str(field))


def _plain(settings: Mapping) -> dict[str, Any]:
    return {key: getattr(each, "values", each) for key, each in settings.values.items()}
