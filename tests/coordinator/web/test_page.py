"""The page and the report in Chromium: by click and by key, light and dark, small and large."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from fedagent_cli.report.page import write_report
from fedagent_cli.report.run_report import read_run_report
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.config import PageAddress
from fedagent_node.data_dir import load_or_create
from tests.fakes.written_runs import write_evaluated, write_run

from .served import Served, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
STATIC = Path("coordinator/fedagent_coordinator/web/static")
VIEWS = ("Overview", "Round", "Learning", "Money", "Fairness", "Devices", "Alarms")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, rounds=6, end=False)
    with served(folder) as found:
        yield found


TROUBLES: dict["Page", list[str]] = {}
"""What failed on each page, and what it asked for elsewhere."""


def opened(browser: "Browser", url: str, *, width: int = 1280, dark: bool = False) -> "Page":
    size: Any = {"width": width, "height": 800}
    page = browser.new_page(viewport=size, color_scheme="dark" if dark else "light")
    troubles = TROUBLES[page] = []
    own = url.partition("#")[0]

    def asked(request: "Request") -> None:
        if not request.url.startswith(own):
            troubles.append(request.url)

    def said(line: "ConsoleMessage") -> None:
        if line.type == "error":
            troubles.append(line.text)

    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", said)
    page.on("request", asked)
    page.goto(url)
    page.get_by_text("Rounds", exact=True).wait_for()
    return page


def serious(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What axe-core found of weight: its rule, and the first element."""
    return [
        (one["id"], one["nodes"][0]["html"][:200])
        for one in found["violations"]
        if one["impact"] in {"serious", "critical"}
    ]


def quiet(page: "Page") -> None:
    """Nothing failed, and nothing was asked for elsewhere."""
    assert TROUBLES[page] == []
    page.close()


def test_every_view_opens_by_click_and_by_key(browser: "Browser", site: Served) -> None:
    page = opened(browser, site.url)
    for name in VIEWS:
        page.get_by_role("tab", name=name).click()
        assert page.locator("main > .view:visible").count() == 1
    page.get_by_role("tab", name="Overview").click()
    for name in VIEWS[1:]:
        page.keyboard.press("ArrowRight")
        assert page.get_by_role("tab", name=name).get_attribute("aria-selected") == "true"
    quiet(page)


def test_bars_are_read_whatever_the_deadline_is(browser: "Browser", site: Served) -> None:
    """A round of 0.1 s under a deadline of 1 s has the whole width; the table has more columns."""
    page = opened(browser, site.url)
    said = page.evaluate(
        "import('./timeline.js').then(({ span }) => [[1, 0.1], [1, 0.5], [0, 0.5]].map("
        "([deadline_s, total_s]) => span({ state: 'done', deadline_s, bars: [{ total_s }] }, 0)))"
    )
    assert [(round(high, 2), reached) for high, reached in said] == [
        (0.11, False),
        (1.08, True),
        (0.54, False),
    ]
    page.get_by_role("tab", name="Devices").click()
    (row,) = page.get_by_role("row").filter(has_text="agent-a").all_inner_texts()
    assert row.split("\t")[3:6] == ["2 Mbit/s", "80 %", "51"]
    quiet(page)


def test_a_devices_card_says_why(browser: "Browser", site: Served) -> None:
    page = opened(browser, f"{site.url}")
    page.get_by_role("tab", name="Devices").click()
    page.get_by_role("searchbox").fill("agent-b")
    page.get_by_role("button", name="agent-b").press("Enter")
    card = page.locator("dialog[open]")
    card.get_by_text("ordered in 6 rounds, in time in 0").wait_for()
    card.get_by_label("Round").fill("2")
    card.get_by_role("button", name="Ask").click()
    card.get_by_text("in round 2").wait_for()
    page.keyboard.press("Escape")
    assert not card.is_visible()
    page.get_by_role("tab", name="Alarms").click()
    page.get_by_text("never delivered in time").wait_for()
    quiet(page)


def test_the_token_in_the_link_opens_a_session_and_leaves_the_address(
    browser: "Browser", site: Served
) -> None:
    page = opened(browser, f"{site.url}#token={site.token}")
    page.get_by_role("tab", name="Alarms").click()
    page.wait_for_function("!document.getElementById('token')")
    assert site.token not in page.url
    (cookie,) = page.context.cookies()
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
    page.close()


@pytest.mark.parametrize(("width", "dark"), [(360, False), (1920, True)])
def test_axe_finds_nothing_serious_and_nothing_is_cut_off(
    browser: "Browser", site: Served, width: int, dark: bool
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened(browser, site.url, width=width, dark=dark)
    for name in VIEWS:
        page.get_by_role("tab", name=name).click()
        assert not serious(axe.run(page).response), name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    page.get_by_role("tab", name="Devices").click()
    page.get_by_role("button", name="agent-a").click()
    page.locator("dialog[open]").get_by_text("Newest orders").wait_for()
    assert not serious(axe.run(page).response)
    quiet(page)


def test_back_leads_from_a_device_to_its_view_and_to_the_view_before(
    browser: "Browser", site: Served
) -> None:
    page = opened(browser, site.url)
    page.get_by_role("tab", name="Devices").click()
    page.get_by_role("button", name="agent-b").click()
    card = page.locator("dialog[open]")
    card.wait_for()
    page.go_back()
    card.wait_for(state="detached")
    assert page.url.endswith("#devices")
    page.get_by_role("button", name="agent-b").click()
    card.get_by_role("button", name="Close").click()
    page.wait_for_url("**/#devices")
    page.go_back()
    page.locator("#view-overview").wait_for()
    quiet(page)


def test_who_has_no_token_is_asked_for_it_and_sees_nothing(
    browser: "Browser", tmp_path: Path
) -> None:
    write_run(tmp_path, rounds=1, end=False)
    with served(tmp_path, PageAddress("0.0.0.0", 0), insecure=True) as site:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{urlsplit(site.url).port}/#token=wrong")
        page.get_by_text("the page needs its token").wait_for()
        page.get_by_text("the token is wrong").wait_for()
        assert not page.locator("main").is_visible()
        page.get_by_label("Token").fill(site.token)
        page.get_by_role("button", name="Use it").click()
        page.get_by_text("Rounds", exact=True).wait_for()
        page.close()


def test_an_open_page_hears_of_the_end_and_of_another_coordinator(
    browser: "Browser", tmp_path: Path
) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for folder in (first, second, third):
        folder.mkdir()
    identity, *others = (load_or_create(folder) for folder in (first, second, third))
    other = [one.id[:8] for one in (identity, *others)]
    run = write_run(first, rounds=2, end=False, identity=identity)
    write_run(second, rounds=1, identity=others[0])
    with served(first) as site:
        page = opened(browser, site.url)
        with Books(first, identity=identity) as store:
            store.end_run(run, "rounds")
    page.get_by_text(
        "the run has ended: all rounds are done; its coordinator has stopped"
    ).wait_for()
    place = PageAddress("127.0.0.1", urlsplit(site.url).port or 0)
    with served(second, place):
        page.get_by_text(f"Another coordinator, {other[1]}, now answers at this address").wait_for()
        page.get_by_text(f"Before it was {other[0]}: ").wait_for()
    with served(third, place):
        page.get_by_text(f"{other[2]}, now answers at this address: no run yet").wait_for()
        page.locator("main").wait_for(state="hidden")
    with served(first, place):
        page.get_by_text(f"Another coordinator, {other[0]}, now answers").wait_for()
        write_run(first, rounds=1, identity=identity)
        page.get_by_text("Another run is now shown").wait_for()
    page.close()


def test_a_hint_wraps_on_a_phone_and_is_taken_whole_by_a_tap(
    browser: "Browser", tmp_path: Path
) -> None:
    folder = tmp_path / "/".join(f"a-folder-with-a-long-name-{n}" for n in range(6))
    folder.mkdir(parents=True)
    write_run(folder, rounds=4, end=False)
    with served(folder) as site:
        page = opened(browser, site.url, width=360)
        page.get_by_role("tab", name="Alarms").click()
        command = page.locator(".alarm code").first
        command.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        command.click()
        taken = page.evaluate("getSelection().toString()")
        assert taken == f"fedagent why agent-b --data-dir {folder}"
        quiet(page)


def test_what_a_device_calls_itself_is_text(browser: "Browser", tmp_path: Path) -> None:
    run = write_run(tmp_path, rounds=2, end=False)
    with Books(tmp_path) as store:
        store.indices(run).label_clients({"agent-a": "<img src=x onerror=alert(1)>"})
    with served(tmp_path) as site:
        page = opened(browser, site.url)
        page.get_by_role("tab", name="Devices").click()
        page.get_by_role("button", name="<img src=x").wait_for()
        assert page.locator("main img").count() == 0
        quiet(page)


SHOWN = "[...document.querySelectorAll('canvas')].filter(one => one.clientWidth)"
DRAWN = f"""{SHOWN}.map(one => one.getContext("2d")
    .getImageData(0, 0, one.width, one.height).data.some(value => value))"""
PAPER: Any = {"width": 720, "height": 1000}
INK = "getComputedStyle(document.body).color"
FIRST = f"{SHOWN}[0].toDataURL()"


@pytest.mark.parametrize("width", [390, 1200])
def test_a_report_draws_all_and_asks_nobody(browser: "Browser", tmp_path: Path, width: int) -> None:
    """From a file, as wide as a phone and as a desk, and on paper."""
    write_evaluated(tmp_path)
    report = write_report(read_run_report(tmp_path), tmp_path)
    size: Any = {"width": width, "height": 844}
    page, troubles, asked = browser.new_page(viewport=size, color_scheme="dark"), [], []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda line: troubles.append(line.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    drawn = page.evaluate(DRAWN)
    assert len(drawn) > 8
    assert all(drawn)
    for title in ("Learning", "The run"):
        assert page.get_by_role("heading", name=title, exact=True).is_visible()
    for summary in page.locator("summary:visible").all():
        summary.click()
        summary.locator("xpath=..").locator("tbody tr").first.wait_for()
    page.emulate_media(media="print")
    page.set_viewport_size(PAPER)
    dark = page.evaluate(FIRST)
    assert page.evaluate(INK) == "rgb(228, 231, 235)"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(INK) == "rgb(27, 31, 36)"  # for paper, although the screen is dark
    assert page.evaluate(FIRST) != dark
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
    assert not page.locator("nav").is_visible()
    assert asked == [report.as_uri()]
    assert troubles == []
    page.close()


def test_the_page_weighs_little() -> None:
    assert sum(one.stat().st_size for one in STATIC.iterdir()) <= 250_000
