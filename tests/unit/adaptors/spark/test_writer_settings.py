"""Settings of the spark writer: accepted, refused, and those that make it exact."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from transporter_adaptors.spark.writer import SparkWriter, SparkWriterConfig

from transporter.pipeline.adaptor_registry import find_writer, takes_frames
from transporter.pipeline.config import load
from transporter.pipeline.secrets import secrets_of
from transporter.pipeline.yaml_document import parse
from transporter.units import FOLDER


def made(**settings: Any) -> SparkWriterConfig:
    """Return *settings* as read from a pipeline file in /srv."""
    return SparkWriterConfig.model_validate(settings, context={FOLDER: Path("/srv")})


def test_defaults() -> None:
    """A path suffices, for Parquet in a path relative to the pipeline file's folder."""
    config = made(path="daily")
    assert (config.format, config.path) == ("parquet", "/srv/daily")
    assert (config.folder, config.is_shared_folder) == (Path("/srv/daily"), False)
    assert (config.table, config.partition_by, config.options, config.drop) == (None, (), {}, ())


@pytest.mark.parametrize(
    ("settings", "exact"),
    [
        ({"path": "/data/daily", "format": "json"}, True),
        ({"path": "s3a://bucket/daily"}, False),
        ({"path": "hdfs:/daily"}, False),
        ({"path": "file:///data/my%20daily"}, True),
        ({"path": "file:///data/daily", "format": "json"}, False),
        ({"table": "daily"}, False),
        ({"format": "jdbc"}, False),
        ({"format": "delta", "path": "daily"}, False),
    ],
)
def test_only_files_that_this_host_sees_are_exact(settings: dict[str, Any], exact: bool) -> None:
    """Tables, other systems and formats with their own log receive each slice at least once."""
    assert (made(**settings).folder is not None) is exact


def test_a_shared_folder_is_a_path_and_a_promise() -> None:
    """A file URL names the folder, and declares it shared by every host of the cluster."""
    config = made(path="file:///data/my%20daily")
    assert (config.folder, config.is_shared_folder) == (Path("/data/my daily"), True)


def test_urls_stay_as_they_are() -> None:
    """A URL is not resolved as a path of this host."""
    assert made(path="s3a://bucket/daily").path == "s3a://bucket/daily"
    assert made(path="dbfs:/daily").path == "dbfs:/daily"


def test_options_are_written_as_spark_reads_them() -> None:
    """Booleans and numbers become text."""
    config = made(format="csv", path="x", options={"header": True, "maxColumns": 5, "sep": ";"})
    assert config.options == {"header": "true", "maxColumns": "5", "sep": ";"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "needs a path: the folder of the parquet files"),
        ({"path": "x", "table": "y"}, "takes path or table, not both"),
        ({"path": "x", "mode": "overwrite"}, "Extra inputs"),
        ({"path": ""}, "at least 1 character"),
    ],
)
def test_mistakes_are_refused(settings: dict[str, Any], told: str) -> None:
    """Each mistake is refused before anything runs."""
    with pytest.raises(ValidationError, match=told):
        made(**settings)


def test_options_tell_no_secret() -> None:
    """Passwords are redacted, in options and in URLs, and other words are not."""
    text = (
        "options: {url: 'jdbc:x://db?password=hunter2&ssl=true', password: tiger-77, "
        "header: 'true', compression: gzip}"
    )
    document = parse(text, "p.yaml", {})
    config = made(format="jdbc", options=document.root["options"])
    assert "tiger-77" not in repr(config)
    secrets = secrets_of(document, config)
    assert secrets.hide("tiger-77 hunter2 true gzip") == "*** *** true gzip"


def test_it_takes_frames() -> None:
    """The short name resolves to a writer of DataFrames."""
    found = find_writer("spark", Path())
    assert found is SparkWriter
    assert takes_frames(found)


README = (Path(__file__).parents[4] / "adaptors/transporter_adaptors/spark/README.md").read_text()
SNIPPETS = re.findall(r"^```yaml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_readme_names_every_setting() -> None:
    """The table has each setting, and no other."""
    table = README.partition("| setting |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(
        SparkWriterConfig.model_fields
    )


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_the_readmes_pipelines_are_right(tmp_path: Path, snippet: str) -> None:
    """Each snippet, with a source above it, is a valid pipeline file."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"readers: [{{name: in, adaptor: demo}}]\n{snippet}")
    (route,) = load(file, {"WAREHOUSE_PASSWORD": "w-4711"}).routes
    assert route.on_frames
