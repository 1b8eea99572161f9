"""Status and entries without payloads, for people who must not see them. Pure.

The texts of errors count as payload, because an error may quote a message (Invariant 20).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import ActionRefused, ConfigError, EnvironmentFault, LogError, UnknownName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.console.sources import Look
    from transporter.errors import TransporterError

HIDDEN: Final = "not shown here, because it may quote a message"
"""What stands for a text that the reader must not see, whether it is about a problem or not."""
_PLAIN: Final = (UnknownName, ConfigError, EnvironmentFault, LogError)
"""Errors whose texts name files, settings, routes and offsets, and quote no message."""
_OPEN: Final = ("offset", "logged_at", "unconfirmed", "namespace", "op", "phase", "timestamp")
"""The fields of an entry without keys, ids, headers and data."""


def look_without_texts(look: Look) -> Look:
    """Return *look* with the texts of errors hidden."""
    if look.status is None:
        return look
    status = {
        **look.status,
        "readers": [_without_text(each) for each in look.status.get("readers", ())],
        "routes": [_without_text(each) for each in look.status.get("routes", ())],
    }
    return replace(look, status=status)


def _without_text(part: Mapping[str, Any]) -> dict[str, Any]:
    return {**part, "problem": HIDDEN} if part.get("problem") else dict(part)


def result_without_texts(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the *result* of an act with the texts of errors hidden."""
    hidden: dict[str, Any] = {name: HIDDEN for name in ("problem", "reason") if result.get(name)}
    if result.get("reason"):
        hidden["done"] = f"offset {result['through']}: {result['outcome'] or 'pending'}"
    if result.get("problems"):
        hidden["problems"] = dict.fromkeys(result["problems"], HIDDEN)
    return {**result, **hidden}


def error_without_text(error: TransporterError) -> TransporterError:
    """Return the *error* of a request as somebody may see it who must not see payloads.

    A refusal may quote why a reader or an entry has failed.
    """
    if isinstance(error, _PLAIN):
        return error
    return ActionRefused(f"refused, and nothing was changed; the reason is {HIDDEN}")


def entry_without_payload(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of an *entry* without its key, ids, headers and data."""
    return {name: entry[name] for name in _OPEN if name in entry}


def parked_without_payload(parked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a *parked* entry without its payload and its error."""
    return {**parked, "error": HIDDEN, "entry": entry_without_payload(parked["entry"])}
