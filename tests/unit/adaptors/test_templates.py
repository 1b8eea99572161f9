"""The fields of a template."""

from __future__ import annotations

import pytest
from transporter_adaptors.templates import fields_of


@pytest.mark.parametrize(
    ("template", "fields"),
    [
        ("orders", set()),
        ("{{a}}", set()),
        ("{a}-{b}.{a}", {"a", "b"}),
        ("{}", {""}),
        ("{a!r}{b:>9}{c!s:x}", {"a!r", "b:>9", "c!s:x"}),
        ("{a.b}{c[0]}", {"a.b", "c[0]"}),
    ],
)
def test_fields_are_known_by_all_that_is_in_their_braces(template: str, fields: set[str]) -> None:
    """A field is everything within its braces, so that only plain names match a list of names."""
    assert fields_of(template) == fields


@pytest.mark.parametrize("template", ["hunter2{", "}hunter2", "a{hunter2", "{hunter2}}"])
def test_a_lonely_brace_is_refused(template: str) -> None:
    """The reason names the remedy, and repeats nothing of the template."""
    with pytest.raises(ValueError, match=r"write \{\{ and \}\}") as refusal:
        fields_of(template)
    assert "hunter2" not in str(refusal.value)
