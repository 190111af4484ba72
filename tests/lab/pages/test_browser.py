"""The pages in Debian's Chromium: they fit, they follow what happens, and they ask nobody else for anything."""

import asyncio
import re
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from tests.lab.pages.staged import Staged, moments
from tests.lab.pages.test_pages import HOSTILE, paths
from tests.waiting import until
from tiebreak.lab.network.local_network import TERMS, LocalNetwork, UpPlan
from tiebreak.node.pages.routes import routes

pytestmark = pytest.mark.slow


class Stage(Staged):
    def show(self, source: Staged) -> None:
        self.__dict__.update(source.__dict__)


@dataclass
class Site:
    """A server on this machine, and what makes its stream say something."""

    address: str
    stage: Stage
    said: Callable[[], None]
    asked: list[str]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    stage = Stage(**vars(moments()[-1]))
    happened, asked = [0], []

    async def stream(request: Request) -> StreamingResponse:
        asked.append(str(request.url))

        async def events() -> AsyncIterator[str]:
            told = happened[0]
            yield ": from here on\n\n"
            while not await request.is_disconnected():
                await asyncio.sleep(0.05)
                if happened[0] > told:
                    told = happened[0]
                    yield f"id: {told}\ndata: {{}}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    def say() -> None:
        happened[0] += 1

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        app = Starlette(routes=[Route("/stream", stream), *routes(stage)])
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        yield Site(f"http://127.0.0.1:{bound.getsockname()[1]}", stage, say, asked)
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "expected Debian's package chromium, which .ci/run installs"
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


@contextmanager
def reader(chromium: Browser, address: str) -> Iterator[Page]:
    """A page that fails the test if anything is refused, breaks, or goes to another place."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    opened, problems = context.new_page(), []
    opened.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    own = (address, f"blob:{address}", "data:font/")
    opened.on("request", lambda sent: None if sent.url.startswith(own) else problems.append(sent.url))
    yield opened
    context.close()
    assert problems == []


@pytest.fixture
def page(chromium: Browser, site: Site) -> Iterator[Page]:
    with reader(chromium, site.address) as opened:
        yield opened


def go(page: Page, site: Site, source: Staged, path: str = "") -> None:
    """Opens a page of the site, which shows this source."""
    site.stage.show(source)
    page.goto(site.address + path, wait_until="load")


WIDTH = "[document.documentElement.scrollWidth, window.innerWidth]"


@pytest.mark.parametrize("width", [390, 1600])
def test_nothing_is_wider_than_the_window(page: Page, site: Site, width: int, cases: Callable[[], None]) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    ends = [source for source in moments() if source.board.games]
    for source in (moments()[0], ends[-1]):
        named = dict.fromkeys(source.board.jobs, "W" * 100)
        for shown in (source, replace(source, names=[HOSTILE] * 300, chain=HOSTILE, named=named)):
            for path in paths(source):
                go(page, site, shown, path)
                found, there = page.evaluate(WIDTH)
                assert found <= there, (path, width, found)
                cases()


def test_a_narrow_page_shows_money_before_lists(page: Page, site: Site) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    go(page, site, moments()[-1], f"/jobs/{next(iter(moments()[-1].board.jobs)).hex()}")
    places = [page.locator(name).bounding_box() for name in ("#live_training", "#money", "#live_heads", "#live_said")]
    tops = [place["y"] for place in places if place]
    assert len(tops) == 4
    assert tops == sorted(tops)


def test_live_updates_keep_the_search_and_the_text_being_typed(page: Page, site: Site) -> None:
    """The list stays the one that was asked for when the page changes, and so does what is being typed."""
    source = moments()[-1]
    page.set_viewport_size({"width": 390, "height": 844})
    go(page, site, replace(source, named=dict.fromkeys(source.board.jobs, "digits")))
    page.get_by_label("A name, an id or an account").fill("digitz")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**/?q=digitz")
    assert page.locator("#live_jobs").inner_text().startswith("No run has that.")
    page.locator("#q").fill("digit")
    site.stage.named = dict.fromkeys(source.board.jobs, "digitz")
    site.said()
    page.locator("#live_jobs strong", has_text="digitz").wait_for()
    assert page.locator("#q").input_value() == "digit"
    page.locator("#q").press("Enter")
    page.wait_for_url("**/?q=digit")
    page.locator("#live_jobs strong", has_text="digitz").wait_for()
    page.get_by_role("link", name="Show all").click()
    page.wait_for_url(site.address + "/")


def test_a_game_page_shows_new_moves_without_a_reload(page: Page, site: Site) -> None:
    games = [source for source in moments() if source.board.games]
    (game_id,) = games[0].board.games
    go(page, site, games[0], f"/games/{game_id.hex()}")
    page.wait_for_selector("body.live")
    assert site.asked[-1].endswith(f"&job={next(iter(games[0].board.jobs)).hex()}")
    assert page.locator(".stage").count() == 1
    loaded = page.evaluate("performance.timeOrigin")
    for source in games[1:]:
        site.stage.show(source)
        site.said()
        moves = len(next(iter(source.board.games.values())).moves)
        expect(page.locator(".plies li")).to_have_count(moves, timeout=9000)
    expect(page.locator("h1")).to_have_text("The trainer was wrong")
    assert page.locator(".stage").count() == 6
    assert page.locator(".terms-table").is_visible()
    assert page.evaluate("performance.timeOrigin") == loaded, "the document was loaded again"


def test_clocks_count_down_by_the_boards_time(page: Page, site: Site) -> None:
    source = next(source for source in moments() if source.board.games)
    (game_id,) = source.board.games
    go(page, site, source, f"/games/{game_id.hex()}")
    clock = page.locator(".side.turn .clock time")
    before = clock.inner_text()
    assert page.locator("#difference").inner_text().startswith("; this machine is at UTC")
    expect(clock).not_to_have_text(before)

    def seconds(text: str) -> int:
        *_, minutes, rest = text.split(":")
        return int(minutes) * 60 + int(rest)

    assert 0 < seconds(before) - seconds(clock.inner_text()) <= 10


def test_an_opened_detail_stays_open_across_live_updates(page: Page, site: Site) -> None:
    (job_id,) = moments()[-1].board.jobs
    go(page, site, moments()[-1], f"/jobs/{job_id.hex()}")
    page.wait_for_selector("body.live")
    page.locator("summary").click()
    site.stage.show(moments()[-2])
    site.said()
    expect(page.locator("#live_title .tag")).to_have_text("Disputed")
    assert page.locator("details[open] code").first.inner_text() == job_id.hex()


def test_the_hub_serves_the_page_that_checks_files(page: Page, site: Site) -> None:
    page.goto(f"{site.address}/check", wait_until="load")
    given: Any = {"name": "certificate.json", "mimeType": "application/json", "buffer": b"{}"}
    page.locator("[data-place=main] input").first.set_input_files([given])
    expect(page.locator("#said")).to_contain_text("certificate.json: envelope: expected a field")
    page.get_by_role("link", name="Runs").click()
    page.wait_for_url(site.address + "/")


def test_the_keyboard_reaches_every_link(page: Page, site: Site) -> None:
    go(page, site, moments()[-1])
    links = page.locator("a").count()
    reached: set[Any] = set()
    for _ in range(links):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML.slice(0, 120)"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert len(reached) == links


# ---------------------------------------------------------------- a whole run


class Tour(LocalNetwork):
    """`tiebreak up` without a chain, until the reader has seen enough."""

    def __init__(self, folder: Path) -> None:
        self.story: list[str] = []
        self.is_seen = threading.Event()
        plan = UpPlan(
            task="digits", steps=None, cheat="label", chain=False, embedded=False, port=0, folder=folder,
            until_over=False, terms=TERMS | {"challenge-window": 60},
        )  # fmt: skip
        super().__init__(plan, self.story.append)

    def disturb(self) -> None:
        if self.is_seen.is_set():
            raise KeyboardInterrupt


@contextmanager
def touring(tour: Tour) -> Iterator[Tour]:
    thread = threading.Thread(target=tour.run, daemon=True)
    thread.start()
    try:
        until(lambda: "page" in tour.ending.moments or not thread.is_alive(), seconds=120)
        assert thread.is_alive(), tour.story
        yield tour
    finally:
        tour.is_seen.set()
        thread.join(60)
        print("\n".join(tour.story))


def test_pages_follow_a_run_from_offer_to_verdict_without_a_reload(chromium: Browser, tmp_path: Path) -> None:
    """It goes from an empty page to verdict and money without one reload; the end is the same without scripts."""
    with touring(Tour(tmp_path / "town")) as tour, reader(chromium, tour.page) as page:
        page.goto(tour.page, wait_until="load")
        assert "No run was offered yet" in page.inner_text("main")
        page.locator(".jobs .row").click(timeout=180_000)
        page.wait_for_url("**/jobs/*")
        loaded = page.evaluate("performance.timeOrigin")
        curve = page.locator(".loss")
        lengths, end = set(), time.monotonic() + 600
        while not page.locator("#live_games .row").count():
            assert time.monotonic() < end, tour.story
            lengths.add(len(curve.get_attribute("points") or "") if curve.count() else 0)
            page.wait_for_timeout(100)
        assert page.evaluate("performance.timeOrigin") == loaded
        assert len(lengths) >= 3, "the curve grew"
        page.locator("#live_games .row").click()
        page.wait_for_url("**/games/*")
        loaded = page.evaluate("performance.timeOrigin")
        expect(page.locator("h1")).to_have_text("The trainer was wrong", timeout=300_000)
        expect(page.locator(".stage.last")).to_have_count(1, timeout=10_000)
        assert page.evaluate("performance.timeOrigin") == loaded
        text = page.inner_text("main")
        for expected in (
            "lost by the trainer", "won by the challenger", "back to the client", "Recomputed in integers",
        ):  # fmt: skip
            assert expected in text
        assert "gas" not in text
        assert page.locator("mark").count() == 2 * page.locator("mark.right").count() >= 2, (
            "both claims, where they differ"
        )

        plain = chromium.new_context(java_script_enabled=False)
        without = plain.new_page()
        without.goto(page.url)
        assert without.inner_text("main").split() == text.split()
        without.goto(f"{tour.page}/")
        assert "Trainer convicted" in without.inner_text(".jobs")
        plain.close()
        until(lambda: bool(tour.ending.status), seconds=60)  # the client may read the hub later than the page does
    assert tour.ending.status == "slashed", tour.story
    assert re.fullmatch(
        r"after the command: page [0-9.]+ s, accepted .*, challenged .*, slashed [0-9.]+ s", tour.story[-1]
    )
