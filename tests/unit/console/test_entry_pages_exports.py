"""Downloads of entries from the console: the files of ``transporter log export``."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from console_tools import TOKENS, client_of, make_console, make_shop
from pyarrow import parquet

from transporter.cli.app import execute
from transporter.errors import Corrupt

if TYPE_CHECKING:
    from pathlib import Path

    from werkzeug.test import TestResponse


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a pipeline that has run to its end."""
    return make_shop(tmp_path_factory.mktemp("shop"))


def get(client: Any, query: str, role: str = "operator", **options: Any) -> TestResponse:
    """Return a download with the token of *role*."""
    bearer = {"Authorization": f"Bearer {TOKENS[role]}"}
    found: TestResponse = client.get(f"/p/shop/export{query}", headers=bearer, **options)
    return found


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", []),
        ("?from=1&to=3", ["--from", "1", "--to", "3"]),
        ("?ns=^a&dir=newest", ["--namespace", "^a"]),
        ("?has=nowhere", ["--contains", "nowhere"]),
    ],
)
def test_a_download_is_the_file_of_the_command(
    folder: Path, tmp_path: Path, query: str, options: list[str]
) -> None:
    """Entries in the order of the log, as the command writes them, in both formats."""
    client = client_of(make_console(folder))
    for kind in ("jsonl", "parquet"):
        file = tmp_path / f"entries.{kind}"
        assert execute(["log", "export", str(folder / "shop.yaml"), str(file), *options]) == 0
        found = get(client, f"{query}{'&' if query else '?'}format={kind}")
        assert found.status_code == 200
        assert found.headers["Content-Disposition"].endswith(f'.{kind}"')
        if kind == "jsonl":
            assert found.data == file.read_bytes()
        else:
            assert parquet.read_table(io.BytesIO(found.data)) == parquet.read_table(file)


def test_who_may_download_and_what(folder: Path) -> None:
    """Viewers may not, and wrong searches and formats are errors of the request."""
    client = client_of(make_console(folder))
    assert get(client, "", role="viewer").status_code == 409
    assert client.get("/p/shop/export").status_code == 401
    assert get(client_of(make_console(folder, payloads="nobody")), "").status_code == 409
    for query, text in (
        ("?format=csv", "use jsonl or parquet"),
        ("?from=yesterday-ish", "from: "),
        ("?ns=(", "namespace: "),
    ):
        found = get(client, query)
        assert (found.status_code, text in found.text) == (400, True)


def test_two_downloads_at_a_time(folder: Path) -> None:
    """A third one is refused, until one of them has ended, or its client has gone."""
    client = client_of(make_console(folder))
    held = [get(client, "", buffered=False) for _ in range(2)]
    refused = get(client, "")
    assert (refused.status_code, "2 downloads are under way" in refused.text) == (409, True)
    held[0].close()
    assert get(client, "").status_code == 200
    held[1].close()


def test_the_page_of_entries_links_them(folder: Path) -> None:
    """With the search that it shows; viewers have no such link."""
    client = client_of(make_console(folder))
    for role, links in (("operator", 2), ("viewer", 0)):
        bearer = {"Authorization": f"Bearer {TOKENS[role]}"}
        page = client.get("/p/shop/log?ns=^a", headers=bearer).text
        assert page.count("/p/shop/export?") == links
    assert "ns=^a" in page or "ns=%5Ea" in page


def test_a_download_that_fails_keeps_no_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage that is found before the first byte is sent is an error of this download alone."""

    def fail(_: object) -> None:
        raise Corrupt("damaged")

    client = client_of(make_console(folder))
    with monkeypatch.context() as patch:
        patch.setattr("transporter.console.entry_pages.text_columns", fail)
        assert [get(client, "?format=parquet").status_code for _ in range(3)] == [503] * 3
    assert get(client, "").status_code == 200
