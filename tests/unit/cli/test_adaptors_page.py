"""docs/adaptors.md, compared with the adaptors of ``transporter init adaptor`` and all names."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from transporter import adaptor, testing
from transporter.scaffold.adaptors import adaptor_package
from transporter.testing import contracts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

PAGE = (Path(__file__).parents[3] / "docs" / "adaptors.md").read_text()
NAMES = PAGE.partition("## Names and signatures\n")[2]
ROWS = dict(re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|$", NAMES, re.MULTILINE))


@pytest.mark.parametrize(
    ("package", "kind", "name"),
    [
        ("my-sink", "writer", "my_sink.py"),
        ("my-sink", "writer", "test_my_sink.py"),
        ("my-source", "reader", "my_source.py"),
    ],
)
def test_the_page_shows_what_is_made(package: str, kind: str, name: str) -> None:
    """The code on the page is exactly the code of the package."""
    assert f"```python\n{adaptor_package(package, (kind,))[name]}```" in PAGE


def test_the_page_names_every_contract() -> None:
    """Each contract of the package is in the table."""
    named = {name for name in vars(contracts) if name.endswith("Contract")}
    assert named
    assert all(f"| `{name}` |" in PAGE for name in named)


def listed() -> dict[str, str]:
    """Return the table text of each name, by the name without its arguments."""
    return {
        name.partition("(")[0]: text
        for names, text in ROWS.items()
        for name in re.findall(r"`([^`]+)`", names)
    }


def members(kind: type) -> Iterator[str]:
    """Yield the public parts of *kind*, methods with the names of their parameters."""
    found: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("transporter."):
            found |= dict.fromkeys(getattr(base, "__dataclass_fields__", ()))
            found |= dict.fromkeys(getattr(base, "_fields", ()))
            found |= vars(base)
    for name, value in found.items():
        if name == "__call__":
            # Shown as its callers write it.
            name = kind.__name__.lower()  # noqa: PLW2901
        if name.startswith(("_", "test_")) or name in ("Config", "model_config", "writer"):
            continue
        if inspect.isfunction(value):
            parameters = [each for each in inspect.signature(value).parameters if each != "self"]
            yield f"{name}({', '.join(parameters)})"
        else:
            yield name


@pytest.mark.parametrize("module", [adaptor, testing])
def test_every_public_name_is_on_the_page(module: ModuleType) -> None:
    """The tables name everything in the modules' ``__all__``, and nothing else."""
    assert set(module.__all__) <= listed().keys()
    known = {*adaptor.__all__, *testing.__all__, *vars(contracts)}
    assert listed().keys() <= known


@pytest.mark.parametrize("name", sorted(listed()))
def test_a_name_has_what_the_page_says(name: str) -> None:
    """Each class has the methods of its row, complete for interfaces and a contract's own part."""
    owner = next(each for each in (adaptor, testing, contracts) if hasattr(each, name))
    kind = getattr(owner, name)
    if not inspect.isclass(kind):
        return
    told = set(re.findall(r"`([a-z_]+(?:\([a-z_, ]*\))?)`", listed()[name]))
    there = set(members(kind))
    called = {part for part in told if part.endswith(")")}
    assert called - {"len(batch)"} <= there
    if owner is adaptor and not issubclass(kind, Exception):
        assert there <= told
    if owner is contracts:
        inherited = {part for base in kind.__mro__[1:-1] for part in members(base)}
        assert there - inherited <= told


def test_signatures_are_as_the_page_says() -> None:
    """Functions with parameters on the page have these parameters."""
    calls = [name for names in ROWS for name in re.findall(r"`([^`]+\))`", names)]
    assert calls
    for call in calls:
        name, _, parameters = call.rstrip(")").partition("(")
        wanted = [each for each in parameters.split(", ") if each]
        assert list(inspect.signature(getattr(testing, name)).parameters) == wanted
