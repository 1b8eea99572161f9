"""Documents of any content load, or are refused as configuration. Nothing else can happen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transporter.errors import ConfigError
from transporter.pipeline.config import Pipeline, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORDS = [
    *("name", "log", "dir", "segment_bytes", "compression", "readers", "routes", "adaptor"),
    *("writer", "namespace", "slice_rows", "slice_bytes", "spark", "master", "config", "count"),
    *("path", "wait", "tls", "verify", "doubles:Source", "doubles:Sink", "demo", "a:b", "64MiB"),
    *("5s", "^a(", ".*", "${HOME}", "${X:-5}", "$${X}", "${", "spark.x", "none", "~x/y", "\0"),
]
texts = st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
steps = st.sampled_from(["omit", "rename", "python"]) | texts
readers = st.lists(
    st.fixed_dictionaries(
        {"name": texts, "adaptor": st.just("doubles:Source") | texts},
        optional={"count": values, "wait": values, "tls": values, "text": values},
    )
    | values,
    max_size=2,
)
routes = st.lists(
    st.fixed_dictionaries(
        {
            "name": texts,
            "writer": st.fixed_dictionaries(
                {"adaptor": st.just("doubles:Sink") | texts, "path": texts}
            )
            | values,
        },
        optional={
            "namespace": texts,
            "slice_rows": scalars,
            "slice_bytes": scalars,
            "steps": st.lists(st.dictionaries(steps, values, max_size=2)) | values,
            **dict.fromkeys(("start", "after", "retry", "park_limit", "worker_memory"), values),
        },
    )
    | values,
    max_size=2,
)
pipelines = st.fixed_dictionaries(
    {"readers": readers, "routes": routes},
    optional={"log": values, "spark": values, "name": texts, "commit_interval": scalars},
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(document=pipelines | st.dictionaries(texts, values, max_size=4))
def test_a_mapping_loads_or_is_refused(
    pipeline_file: Callable[[str], Path], document: dict[str, object]
) -> None:
    """No mapping makes loading fail in any other way than with problems of one line each."""
    # JSON is YAML, but for characters that no YAML may hold unescaped.
    file = pipeline_file(json.dumps(document))
    try:
        assert isinstance(load(file, {"HOME": "/home"}), Pipeline)
    except ConfigError as error:
        for each in getattr(error, "problems", (error,)):
            assert each.file == str(file)
            assert each.problem.isprintable(), each.problem
