"""Templates with fields, such as ``shop.{namespace}``, in the settings of adaptors."""

from __future__ import annotations

from string import Formatter


def fields_of(template: str) -> set[str]:
    """Return the fields in *template* as they are spelt there. Doubled braces are literal ones.

    A field with a conversion or a format has these behind its name.

    Raises:
        ValueError: A brace has no partner. The message does not repeat *template*.
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
