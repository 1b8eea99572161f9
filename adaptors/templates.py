"""Texts with fields, such as ``shop.{namespace}``, in the settings of adaptors."""

from __future__ import annotations

from string import Formatter


def fields_of(template: str) -> set[str]:
    """Return the fields in *template* as they stand there; two braces in a row stand for one.

    A field with a conversion or a format has these behind its name. Raise
    :class:`ValueError`, which does not repeat it, for a brace without a partner.
    """
    try:
        parts = [*Formatter().parse(template)]
    except ValueError:
        raise ValueError("holds a brace without a partner; write {{ and }} for braces") from None
    return {
        f"{name}{'!' if how else ''}{how or ''}{':' if form else ''}{form or ''}"
        for _, name, form, how in parts
        if name is not None
    }
