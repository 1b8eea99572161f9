"""Parts of rows are put together as they are spelled."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from transporter_adaptors.postgres_writer.comparing.log_state import merge_objects

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=5)


@settings(max_examples=50, deadline=None)
@given(OBJECTS, OBJECTS, st.sampled_from([None, 1]))
def test_merged_objects(before: dict[str, object], after: dict[str, object], indent: int) -> None:
    """The later members win, at any spacing."""
    texts = [json.dumps(each, indent=indent).encode() for each in (before, after)]
    assert json.loads(merge_objects(texts[0], texts[1])) == before | after


def test_spelling_is_kept() -> None:
    """Numbers keep their digits, and texts their escapes."""
    before, after = b' { "a" : 1.00, "b":"\\u00e9" }', b'{"b":123456789012345678901234567890.10}'
    assert merge_objects(before, after) == b'{"a":1.00,"b":123456789012345678901234567890.10}'
    assert merge_objects(after, before) == b'{"b":"\\u00e9","a":1.00}'
