"""SQL in ``transporter check``: it reports errors of Spark's parser, with their lines, only."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest
from acceptance_tools import without_java

from transporter.cli import app
from transporter.pipeline.config import load
from transporter.pipeline.steps.sql import SqlSettings

HEAD = "log: {dir: log}\nreaders: [{name: in, adaptor: file, path: in.jsonl}]\n"
RIGHT = [
    "SELECT data:amount::decimal(12, 2) AS n, offset FROM entries |> WHERE offset > 1",
    "SELECT * EXCEPT (data), to_json(struct(offset AS id)) AS data FROM entries",
    "FROM entries SELECT offset, variant_get(parse_json(data), '$.a', 'int') AS a",
    "SELECT offset FROM entries LATERAL VIEW explode(split(data, ',')) AS part",
    "SELECT offset, transform(array(1), x -> x + 1) AS a FROM entries QUALIFY 1 = 1",
    "SELECT `offset`, r'\\d' AS r FROM entries /* a comment */;",
    "WITH RECURSIVE t AS (SELECT * FROM entries) SELECT * FROM t",
    "SELECT nosuch(offset) FROM entries",
]


def pipeline(folder: Path, steps: list[str], tail: str = "") -> Path:
    """Write a pipeline whose routes have one step each, given as YAML below ``- sql:``."""
    routes = "".join(
        f"  - name: r{number}\n    steps:\n      - sql:{step}\n"
        f"    writer: {{adaptor: file, path: out{number}.jsonl}}\n"
        for number, step in enumerate(steps)
    )
    file = folder / "p.yaml"
    file.write_text(f"{HEAD}routes:\n{routes}{tail}")
    return file


def literal(query: str) -> str:
    """Return *query* as a block that keeps its lines."""
    return " |\n" + indent(query, " " * 10)


@pytest.mark.spark
def test_what_does_not_parse_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mistake is reported with its line and Spark's words, without a variable's value."""
    monkeypatch.setenv("WORD", "s3cret-word")
    steps = [
        " SELECT * FORM entries",
        literal("SELECT offset,\n  upper(key) AS k\nFROM entries\nWHERE (key"),
        " {query: SELECT * FROM entries, schema: 'a INT, b'}",
        " SELECT * FROM entries",
        " SELECT 1 '${WORD}' s3cret-word FROM FROM entries",
    ]
    file = pipeline(tmp_path, steps)
    assert app.execute(["check", str(file)]) == 2
    said = capsys.readouterr().err
    lines = said.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"{file}:6: routes[0].steps[0].sql.query does not parse: ")
    assert "Syntax error at or near 'entries'" in lines[0]
    assert lines[1].startswith(f"{file}:14: routes[1].steps[0].sql.query does not parse: ")
    assert "end of input" in lines[1]
    assert lines[2].startswith(f"{file}:18: routes[2].steps[0].sql.schema does not parse: ")
    assert "s3cret-word" not in said


@pytest.mark.spark
def test_what_spark_takes_is_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """New syntax, user-defined functions and the queries of our examples are accepted."""
    quickstart = load(Path("pipelines/quickstart.yaml"), {"ORDERS_DSN": "dbname=x"})
    ours = [
        SqlSettings.model_validate(step.settings).query
        for route in quickstart.routes
        for step in route.steps
        if step.name == "sql"
    ]
    assert ours
    file = pipeline(tmp_path, [literal(query) for query in [*RIGHT, *ours]])
    assert app.execute(["check", str(file)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.exhaustive
@pytest.mark.spark
def test_settings_of_the_pipeline_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings that change Spark's grammar are respected, and possible changes are reported."""
    steps = [literal('SELECT offset AS "a b" FROM entries')]
    assert app.execute(["check", str(pipeline(tmp_path, steps))]) == 2
    settings = (
        "spark: {config: {spark.sql.ansi.enabled: 'true',"
        " spark.sql.ansi.doubleQuotedIdentifiers: 'true'}}\n"
    )
    assert app.execute(["check", str(pipeline(tmp_path, steps, settings))]) == 0
    capsys.readouterr()
    settings = "spark: {config: {spark.sql.extensions: org.example.Extensions}}\n"
    assert app.execute(["check", str(pipeline(tmp_path, [" SELEKT entries"], settings))]) == 0
    assert "not parsed: spark.sql.extensions may add to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step", "told"), [(" SELECT * FORM entries", "sql steps were not parsed: no Java"), ("", "")]
)
def test_without_java(tmp_path: Path, step: str, told: str) -> None:
    """Without Java no query is refused, and the skipped check is reported."""
    file = pipeline(tmp_path, [step])
    if not step:
        file.write_text(file.read_text().replace("      - sql:\n", "      - pretty: {}\n"))
    done = without_java(tmp_path, "check", str(file))
    assert done.returncode == 0, done.stderr
    assert told in done.stderr
    assert bool(done.stderr) == bool(told)
