"""The console in a real browser, beside a real engine without Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from acceptance_tools import TRANSPORTER
from engine_tools import delivered, until
from operator_tools import ENVIRONMENT, done, feed, operated, route, write_file
from services.browser import HOST, axe_source, chromium
from services.maven import Absent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, Page
    from services.postgres import Database

WIDTHS = (390, 1280, 2560)
PAGES = (
    *("", "/r/sales", "/log", "/log?dir=live", "/log/3", "/parked", "/audit", "/config"),
    *("/health", "/events", "/history", "/cluster", "/r/sales/pause", "/r/sales/replay?from=1"),
    "/r/sales/parked/retry?offsets=3",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run one browser for all tests of this module."""
    try:
        with chromium() as found:
            yield found
    except Absent as absent:
        if os.environ.get("CI"):
            pytest.fail(str(absent))
        pytest.skip(str(absent))


_NEUTRAL = """folder => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    walker.currentNode.data = walker.currentNode.data.replaceAll(folder, "/srv/shop");
  }
}"""
"""Pictures show the same folder on every machine."""


class Shop:
    """A console beside an engine, and the folder of its pipeline."""

    def __init__(self, folder: Path, process: subprocess.Popen[str], url: str, link: str) -> None:
        self.folder, self.process, self.url, self.link = folder, process, url, link

    @property
    def log(self) -> str:
        """The address of the log's pages."""
        return f"{self.url}p/pipeline"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Run an engine, and a console beside it."""
    folder = tmp_path_factory.mktemp("shop")
    sales = route("sales", on_error="park", writer={"reject": [3]})
    with running_shop(folder, [sales, route("audit", namespace="^a")]) as found:
        yield found


@contextmanager
def running_shop(folder: Path, routes: list[dict[str, Any]], **keys: Any) -> Iterator[Shop]:
    """Run an engine with *routes*, and a console beside it, for the length of a block.

    *keys* are further keys of the pipeline file.
    """
    pipeline = write_file(folder, routes, **keys)
    feed(folder, *(f"{'ab'[number % 2]} item-{number}-" for number in range(20)))
    words = [*TRANSPORTER, "ui", str(pipeline), "--listen", "127.0.0.1:0"]
    with (
        operated(pipeline),
        subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            first, second = process.stdout.readline(), process.stdout.readline()
            yield Shop(folder, process, first.split()[-1], second.split()[-1])
        finally:
            process.kill()


@pytest.fixture(scope="module")
def state(browser: Browser, shop: Shop) -> Any:
    """Log in by the link that the console printed, and return the browser's state."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(shop.link)
    assert "/p/pipeline" in page.url
    found = context.storage_state()
    context.close()
    return found


class Watched:
    """A page, and what it complained of or requested."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))


@pytest.fixture
def watched(browser: Browser, shop: Shop, state: Any) -> Iterator[Watched]:
    """Return a page that has logged in. It may complain of nothing, and ask no other host."""
    context = browser.new_context(storage_state=state, viewport={"width": 1280, "height": 800})
    found = Watched(context)
    yield found
    context.close()
    assert found.messages == []
    assert [each for each in found.requests if not each.startswith(shop.url)] == []


def test_numbers_move_without_a_reload(watched: Watched, shop: Shop) -> None:
    """New entries appear on an open overview, and in the live tail, within seconds."""
    page = watched.page
    page.goto(shop.log)
    page.evaluate("window.here = true")
    watermark = page.locator("#route-sales td:nth-child(6)")
    before = watermark.inner_text()
    feed(shop.folder, "a fresh-1")
    until(lambda: watermark.inner_text() != before)
    assert page.evaluate("window.here")
    page.goto(f"{shop.log}/log?dir=live")
    feed(shop.folder, "a fresh-2")
    page.wait_for_selector("td.data:has-text('fresh-2')")


@pytest.mark.exhaustive
def test_a_frozen_page_stands_still(watched: Watched, shop: Shop) -> None:
    """The key f stops the looks, and begins them again."""
    page = watched.page
    page.goto(shop.log)
    page.wait_for_selector("#freeze:visible")
    page.keyboard.press("f")
    assert page.get_attribute("#freeze", "aria-pressed") == "true"
    page.wait_for_timeout(300)
    watched.requests.clear()
    page.wait_for_timeout(2200)
    assert watched.requests == []
    page.keyboard.press("f")
    page.wait_for_timeout(1500)
    assert any("part=live" in each for each in watched.requests)


def test_keys_lead_from_page_to_page(watched: Watched, shop: Shop) -> None:
    """As the help page lists them; typing in a field leads nowhere."""
    page = watched.page
    page.goto(shop.log)
    page.keyboard.press("g")
    page.keyboard.press("l")
    page.wait_for_url("**/log")
    page.keyboard.press("/")
    page.keyboard.type("gp?f")
    assert page.input_value("#search") == "gp?f"
    assert page.url.endswith("/log")


def test_a_search_is_its_address(watched: Watched, shop: Shop) -> None:
    """A form fills the address, which shows the same again."""
    page = watched.page
    page.goto(f"{shop.log}/log")
    page.fill("input[name=ns]", "^b$")
    page.fill("input[name=has]", "item-13-")
    page.click("button:has-text('Search')")
    assert re.search(r"ns=%5Eb%24.*has=item-13-", page.url)
    assert page.locator("table.entries tbody tr").count() == 1
    page.click("table.entries tbody a")
    page.wait_for_selector("h1:has-text('13')")


def test_the_title_shows_problems(watched: Watched, shop: Shop) -> None:
    """Title and icon of the tab follow the state of the log."""
    page = watched.page
    page.goto(shop.log)
    assert page.title() == "pipeline"
    assert page.get_attribute("#icon", "href") == "/static/icon-good.svg"


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.exhaustive)])
def test_axe_finds_nothing(browser: Browser, shop: Shop, state: Any, scheme: Any) -> None:
    """Contrast, names, headings and landmarks are right on every page, light and dark."""
    context = browser.new_context(storage_state=state, color_scheme=scheme)
    page, axe = context.new_page(), axe_source()
    found = []
    still = [path for path in PAGES if "live" not in path]
    for path in [shop.log + path for path in still] + [f"{shop.url}help", f"{shop.url}login"]:
        page.goto(path)
        page.evaluate(f"{axe};0")
        violations = page.evaluate("axe.run()")["violations"]
        found += [(path, each["id"], each["nodes"][0]["html"]) for each in violations]
    context.close()
    assert found == []


def test_a_person_acts_by_forms(watched: Watched, shop: Shop) -> None:
    """From the button to the line in the audit."""
    page = watched.page
    page.goto(f"{shop.log}/r/audit")
    page.click("a:has-text('Pause…')")
    page.wait_for_selector("text=delivers nothing more until somebody resumes it")
    form = page.url
    page.fill("input[name=reason]", "the sink moves")
    page.click("button.primary")
    page.wait_for_selector(".note.good:has-text('Pause audit: paused')")
    page.goto(f"{shop.log}/audit?action=pause")
    assert page.locator("tr:has-text('the sink moves')").count() == 1
    page.goto(form.replace("/pause", "/resume"))
    page.click("button.primary")
    page.wait_for_selector(".note.good:has-text('Resume audit: resumed')")


def test_forms_work_under_another_name(browser: Browser, tmp_path: Path) -> None:
    """Over plain HTTP, where a browser sends no Sec-Fetch-Site, and Origin as the page lets it."""
    access = {"observe": {"console_access": {"hosts": [HOST]}}}
    with running_shop(tmp_path, [route("sales")], **access) as shop:
        context = browser.new_context()
        page = context.new_page()
        page.goto(shop.link.replace("127.0.0.1", HOST))
        page.goto(shop.log.replace("127.0.0.1", HOST) + "/r/sales/pause")
        page.fill("input[name=reason]", "the sink moves")
        page.click("button.primary")
        page.wait_for_selector(".note.good:has-text('Pause sales: paused')")
        page.click("button:has-text('Log out')")
        page.wait_for_selector("h1:has-text('Log in')")
        context.close()


def test_forms_work_without_javascript(browser: Browser, shop: Shop, state: Any) -> None:
    """Boxes, the list of what is chosen, the reason and the result."""
    context = browser.new_context(storage_state=state, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{shop.log}/parked?route=sales")
    page.check("input[name=offsets][value='3']")
    page.click("button:has-text('Note…')")
    page.wait_for_selector("input[name=text]")
    page.fill("input[name=text]", "waits for ACME")
    page.click("button.primary")
    page.wait_for_selector(".note.good:has-text('the note about offset 3 is recorded')")
    assert page.locator("td:has-text('note: waits for ACME')").count() == 1
    context.close()


def test_shots(browser: Browser, shop: Shop, state: Any, request: pytest.FixtureRequest) -> None:
    """With ``--shots`` a picture of every page is written, light and dark."""
    folder = request.config.getoption("--shots")
    if folder is None:
        pytest.skip("pictures are made with --shots FOLDER")
    for scheme in ("light", "dark"):
        context = browser.new_context(
            storage_state=state, color_scheme=scheme, viewport={"width": 1280, "height": 720}
        )
        page = context.new_page()
        for path in PAGES:
            page.goto(f"{shop.log}{path}")
            page.wait_for_timeout(300)
            page.evaluate(_NEUTRAL, str(shop.folder))
            page.screenshot(path=f"{folder}/{shot_name(path)}-{scheme}.png")
        context.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_the_window(watched: Watched, shop: Shop, width: int) -> None:
    """From a telephone to a wall: tables scroll by themselves, the page does not."""
    watched.page.set_viewport_size({"width": width, "height": 900})
    measure = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for path in PAGES:
        watched.page.goto(f"{shop.log}{path}")
        assert watched.page.evaluate(measure) <= 0, path


def test_nothing_jumps_while_it_polls(watched: Watched, shop: Shop) -> None:
    """Looks replace numbers, and move nothing."""
    page = watched.page
    page.goto(f"{shop.log}/r/sales")
    page.wait_for_timeout(2500)
    places = (
        "() => [...document.querySelectorAll('h1,h2,.tile')].map(each => each.offsetTop).join()"
    )
    before = page.evaluate(places)
    feed(shop.folder, *(f"a more-{number}" for number in range(50)))
    page.wait_for_timeout(2500)
    assert page.evaluate(places) == before


def test_pages_work_without_javascript(browser: Browser, shop: Shop, state: Any) -> None:
    """They are links and forms, and what needs a script is not shown."""
    context = browser.new_context(storage_state=state, java_script_enabled=False)
    page = context.new_page()
    for path in PAGES:
        page.goto(f"{shop.log}{path}")
        assert page.locator("h1").count() == 1, path
        assert page.locator("button[data-copy]:visible").count() == 0
    page.goto(f"{shop.log}/log")
    page.fill("input[name=has]", "item-13-")
    page.click("button:has-text('Search')")
    # The address is the new one before its page has come.
    until(lambda: page.locator("table.entries tbody tr").count() == 1)
    context.close()


@pytest.mark.exhaustive
def test_a_console_that_ends_leaves_the_last_picture(
    browser: Browser, shop: Shop, state: Any
) -> None:
    """The page says when it was taken, and clears nothing."""
    context = browser.new_context(storage_state=state)
    page = context.new_page()
    page.goto(shop.log)
    page.wait_for_timeout(1500)
    page.route("**/*part=live", lambda each: each.abort())
    page.wait_for_selector("#banner:visible")
    assert re.match(r"Last seen \d\d:\d\d:\d\dZ\. The console does not", page.inner_text("#banner"))
    assert page.locator("#route-sales").count() == 1
    page.unroute("**/*part=live")
    page.wait_for_selector("#banner", state="hidden")
    context.clear_cookies()
    page.wait_for_selector("#banner:has-text('You are logged out')")
    assert page.locator("#route-sales").count() == 1
    context.close()


INCIDENT_SECONDS = 60.0


@contextmanager
def incident(browser: Browser, shop: Shop, alert: str) -> Iterator[Page]:
    """Open the link of an alert, and measure the time until the block has mended the incident.

    It is mended when the overview shows no problem and nothing parked.
    """
    context = browser.new_context()
    page = context.new_page()
    page.goto(shop.link)
    began = time.monotonic()
    page.goto(f"{shop.log}{alert}")
    yield page
    page.goto(shop.log)
    page.wait_for_selector(".calm:has-text('no problems')")
    page.wait_for_selector("dd:text-is('0')")
    assert time.monotonic() - began < INCIDENT_SECONDS
    context.close()


def confirm(page: Page, reason: str) -> None:
    """Fill in the reason, and send the form."""
    page.fill("input[name=reason]", reason)
    page.click("button.primary")
    page.wait_for_selector(".note.good")


def test_a_poison_entry_is_mended_by_page(browser: Browser, tmp_path: Path) -> None:
    """Group, entry with its error, the mended file reloaded, one retried first, then the rest."""
    broken = route("sales", on_error="park", writer={"reject": [3, 7]})
    with (
        running_shop(tmp_path, [broken]) as shop,
        incident(browser, shop, "/parked?route=sales") as page,
    ):
        until(lambda: page.reload() is not None and page.locator("text=Retry one").count() > 0)
        page.click("details[open] tbody a >> nth=0")
        page.wait_for_selector("p.note:has-text('no 3 here')")
        write_file(tmp_path, [route("sales", on_error="park")])
        page.click("a:text-is('Config')")
        page.click("a:has-text('Compare and reload')")
        page.wait_for_selector("td:has-text('reject')")
        confirm(page, "the rule was wrong")
        page.click("nav a:has-text('Parked')")
        page.click("a:has-text('Retry one first')")
        confirm(page, "one first")
        until(
            lambda: (
                page.goto(f"{shop.log}/parked?route=sales") is not None
                and page.locator("input[value='3']").count() == 0
            )
        )
        if page.locator("a:has-text('Retry one first')").count():
            page.click("a:has-text('Retry one first')")
            confirm(page, "and the rest")
        until(lambda: page.goto(shop.log) is not None and page.locator(".badge").count() == 0)


@pytest.mark.exhaustive
def test_a_stuck_sink_is_mended_by_page(browser: Browser, tmp_path: Path) -> None:
    """The route says what it waits for; once the sink is back, it tries at once."""
    waiting = route("sales", retry={"attempts": 1000, "backoff": "30s..60s"})
    (tmp_path / "sales.down").write_text("write")
    with running_shop(tmp_path, [waiting]) as shop, incident(browser, shop, "/r/sales") as page:
        page.wait_for_selector("p.note:has-text('the sink is down for the test')")
        (tmp_path / "sales.down").unlink()
        page.click("a:has-text('Resume or try now')")
        confirm(page, "the sink is back")
        page.wait_for_selector("small:has-text('all entries are settled')")


@pytest.mark.exhaustive
def test_a_wrong_step_is_corrected_and_replayed_by_page(browser: Browser, tmp_path: Path) -> None:
    """The audit shows when it was shipped; the route is paused, reloaded, replayed, resumed."""
    step = {"python": {"function": "steps:mark"}}
    code = "import dataclasses\n\ndef mark(message):\n"

    def ship(data: str) -> None:
        line = f"    return dataclasses.replace(message, data={data})\n"
        (tmp_path / "steps.py").write_text(code + line)

    ship("message.data")
    with running_shop(tmp_path, [route("sales", steps=[step])]) as shop:
        sink, pipeline = tmp_path / "sales.jsonl", str(tmp_path / "pipeline.yaml")
        until(lambda: len(delivered(sink)) == 20)
        ship("b'wrong'")
        done("reload", pipeline, "--reason", "a better mark")
        feed(tmp_path, *(f"ab item-{number}-" for number in range(20, 25)))
        until(lambda: len(delivered(sink)) == 25)
        assert [each["data"] for each in delivered(sink)[20:]] == ["wrong"] * 5
        with incident(browser, shop, "/audit") as page:
            page.wait_for_selector("tr:has-text('a better mark')")
            page.goto(f"{shop.log}/r/sales")
            page.click("a:text-is('Pause…')")
            confirm(page, "its data is wrong")
            ship("message.data")
            page.click("nav a:has-text('Config')")
            page.click("a:has-text('Compare and reload')")
            confirm(page, "as before")
            page.goto(f"{shop.log}/r/sales")
            page.click("a:text-is('Replay…')")
            page.fill("input[name=from]", "20")
            page.fill("input[name=to]", "24")
            page.click("button:has-text('Count first')")
            page.wait_for_selector("p:has-text('20 .. 24 hold 5 entries')")
            page.fill("input[name=typed]", "5")
            confirm(page, "a wrong step was shipped")
            page.click("a:has-text('Resume or try now')")
            confirm(page, "the step is right again")
            until(lambda: len(delivered(sink)) == 30)
        again = [(each["offset"], each["data"]) for each in delivered(sink)[25:]]
        assert again == [(number, f"item-{number}-") for number in range(20, 25)]


@pytest.mark.exhaustive
def test_a_full_log_is_mended_by_page(browser: Browser, tmp_path: Path) -> None:
    """The overview names the reader that waits, log health the route that holds the log."""
    log = {"dir": "log", "segment_bytes": 65536, "max_bytes": 262144, "compression": "none"}
    reader = {"name": "in", "adaptor": "engine_tools:LinesReader", "path": "source.txt"}
    readers, routes = [{**reader, "end": False, "rows": 2}], [route("sales"), route("audit")]
    with running_shop(tmp_path, routes, log=log, readers=readers) as shop:
        pipeline = str(tmp_path / "pipeline.yaml")
        done("route", "pause", pipeline, "sales")
        feed(tmp_path, *(f"ab {number} {'x' * 8000}" for number in range(80)))
        until(lambda: "max_bytes" in json.dumps(done("status", pipeline)["readers"]))
        with incident(browser, shop, "") as page:
            page.wait_for_selector("li.note:has-text('log.max_bytes is reached')")
            page.click("nav a:has-text('Log health')")
            page.wait_for_selector("p:has-text('route sales holds')")
            page.click("nav a:has-text('Overview')")
            page.click("#route-sales a")
            page.click("a:has-text('Resume or try now')")
            confirm(page, "the route was paused for no reason")
        until(lambda: len(delivered(tmp_path / "sales.jsonl")) == 100)


@pytest.mark.exhaustive
def test_a_corrupt_segment_is_mended_by_page(browser: Browser, tmp_path: Path) -> None:
    """The route names file, byte and offset; what verification calls lost is acknowledged."""
    routes = [route("sales"), route("audit")]
    pipeline = write_file(tmp_path, routes)
    with operated(pipeline) as engine:
        done("route", "pause", str(pipeline), "sales")
        for name in ("ACME", "Globex"):
            feed(tmp_path, f"ab {name}")
            until(lambda name=name: name in str(delivered(tmp_path / "audit.jsonl")))
        engine.stop()
    (segment,) = (tmp_path / "log").glob("*.log")
    segment.write_bytes(segment.read_bytes().replace(b"ACME", b"ACMX"))
    with running_shop(tmp_path, routes) as shop, incident(browser, shop, "/r/sales") as page:
        page.click("a:has-text('Resume or try now')")
        confirm(page, "paused for no reason")
        page.wait_for_selector("p.note:has-text('the entries do not match their checksum')")
        page.click("nav a:has-text('Log health')")
        page.click("button:has-text('Verify now')")
        until(lambda: page.reload() is not None and page.locator("p.code").count() > 0)
        (lost,) = page.locator("p.code").all_inner_texts()
        assert lost.endswith("it costs 0 .. 0")
        page.goto(f"{shop.log}/r/sales")
        page.click("a:text-is('Acknowledge…')")
        page.fill("input[name=first]", "0")
        page.fill("input[name=last]", "0")
        confirm(page, "lost on a bad disk, ticket 9")
        page.click("a:has-text('Resume or try now')")
        confirm(page, "the lost order is known")
        until(lambda: len(delivered(tmp_path / "sales.jsonl")) == 21)
    assert [each["offset"] for each in delivered(tmp_path / "sales.jsonl")] == [*range(1, 22)]


@pytest.mark.exhaustive
@pytest.mark.postgres
def test_a_lost_leadership_is_mended_by_page(
    browser: Browser, tmp_path: Path, outbox: Database
) -> None:
    """The cluster page says which reader was fenced by whom; it leads again after a restart."""
    reader = {"name": "orders", "adaptor": "postgres-outbox", "dsn": outbox.dsn}
    other = tmp_path / "other"
    other.mkdir()
    lines = {"name": "in", "adaptor": "engine_tools:LinesReader", "path": "source.txt"}
    readers = [{**lines, "end": False}, reader]
    with running_shop(tmp_path, [route("sales")], readers=readers) as shop:
        with operated(write_file(other, [route("sales")], readers=[reader])) as second:
            second.await_event("leader-acquired")
            pipeline = str(tmp_path / "pipeline.yaml")
            until(lambda: "fenced" in json.dumps(done("status", pipeline)["readers"]))
            second.stop()
        with incident(browser, shop, "/cluster") as page:
            page.wait_for_selector("main :text('fenced')")
            page.click("nav a:has-text('Overview')")
            page.click("li.note a:has-text('Restart')")
            confirm(page, "the second engine was a mistake, and is stopped")
            until(lambda: "fenced" not in json.dumps(done("status", pipeline)["readers"]))


def test_the_picture_of_the_readme_is_one_of_these() -> None:
    """The README shows a page of which ``--shots`` makes the picture, and it is small."""
    root = Path(__file__).parents[2]
    (name,) = re.findall(r"docs/shots/(\S+)\.png", (root / "README.md").read_text())
    assert name.rpartition("-")[0] in {shot_name(path) for path in PAGES}
    assert (root / "docs" / "shots" / f"{name}.png").stat().st_size < 200_000


def shot_name(path: str) -> str:
    """Return the name of the picture of a page."""
    return re.sub(r"[^a-z0-9]+", "-", path).strip("-") or "overview"
