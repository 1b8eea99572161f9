"""Bytes as JSON values, for sinks and commands."""

from __future__ import annotations

import base64


def text_or_base64(value: bytes | None) -> str | dict[str, str] | None:
    """Return UTF-8 as text, and other bytes as ``{"base64": …}`` to keep them distinct."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
