"""The page that checks files, in Debian's Chromium: it asks for nothing, works offline, and shows names as text."""

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from safetensors.torch import load_file, save_file

from scripts import checker
from tests.conftest import CaseCounter
from tests.tiebreak.parties import Commands, Parties, flip
from tests.tiebreak.strict_html import Strict
from tests.tiebreak.test_certificates import Desk
from tiebreak.api.corpus import programs
from tiebreak.engine.run.directory import RunDirectory

pytestmark = pytest.mark.slow
built = pytest.mark.skipif(not checker.MODULE.exists(), reason="needs recheck.wasm, which make wasm builds")
PAGE = checker.PAGE
HOSTILE = "<img src=x onerror=alert(1)>&\"' {{ x }}"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "expected Debian's package chromium, which .ci/run installs"
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


class Watched:
    """A page that notes what it asks for and complains about."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.asked, self.problems = page, list[str](), list[str]()
        page.on("console", lambda said: self.problems.append(said.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.context.on("request", lambda request: self.asked.append(request.url))
        page.goto(url)

    def drop(self, *paths: Path, place: str = "main") -> None:
        """Gives files to the page, or one folder."""
        inputs = self.page.locator(f"[data-place={place}] input")
        (inputs.nth(1) if paths[0].is_dir() else inputs.nth(0)).set_input_files([str(path) for path in paths])

    def fill(self, name: str, value: str) -> None:
        """Changes an option, upon which the work begins again."""
        self.page.locator(f"#{name}").fill(value)
        self.page.locator(f"#{name}").blur()

    def fits(self, name: str) -> None:
        """Requires that nothing is wider than the window; keeps pictures for a person, if they are asked for."""
        self.page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for width, scheme in product((320, 390, 1280, 1600), schemes):
            self.page.set_viewport_size({"width": width, "height": 844})
            self.page.emulate_media(color_scheme=scheme)
            assert self.page.evaluate("document.documentElement.scrollWidth") <= width
            if folder := os.environ.get("CHECKER_PICTURES"):
                self.page.screenshot(path=f"{folder}/{name}-{scheme}-{width}.png", full_page=True)

    def result(self) -> str:
        """The title of the finding, when there is one."""
        expect(self.page.locator("#title")).to_be_visible(timeout=30_000)
        assert self.page.locator("#work").is_hidden()
        return self.page.locator("#title").inner_text()

    def states(self) -> list[str]:
        return self.page.locator("#checks .tag").all_inner_texts()

    def lines(self, name: str) -> list[str]:
        return self.page.locator(f"#{name} li").all_inner_texts()


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Watched]:
    """The page from the disk. It may ask for itself and its worker, and for nothing else."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    watched = Watched(context.new_page(), PAGE.as_uri())
    yield watched
    context.close()
    assert watched.problems == []
    assert [url for url in watched.asked if not url.startswith(("blob:", PAGE.as_uri(), "data:font/"))] == []


@pytest.fixture
def desk(parties: Parties, tmp_path: Path, command: Commands) -> Desk:
    made = Desk(parties, tmp_path, command)
    made.certify("trainer")
    return made


@built
def test_the_page_holds_exactly_what_its_sources_make() -> None:
    made = checker.assembled()
    assert made == checker.assembled()
    assert made == PAGE.read_text("utf-8"), "run python scripts/checker.py"
    read = Strict(made)
    assert {tag for tag, _ in read.seen}.isdisjoint({"img", "link", "iframe", "form", "object", "base"})
    policy = next(attributes["content"] for _, attributes in read.seen if "http-equiv" in attributes)
    assert policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy
    assert "'unsafe-eval'" not in policy


def test_the_page_says_in_a_browser_what_the_command_says(opened: Watched, desk: Desk) -> None:
    opened.drop(desk.certificate)
    assert opened.result().startswith("The certificate holds")
    assert opened.states() == ["holds", *["not asked"] * 6]
    opened.drop(desk.weights)
    told = desk.verify(desk.weights)
    expect(opened.page.locator("#checks .tag.good")).to_have_count(4, timeout=30_000)
    assert opened.result() == told.split("\n")[0]
    assert opened.states() == ["holds", "not asked", "holds", "holds", "holds", "not asked", "not asked"]
    for line in opened.lines("proves") + opened.lines("open"):
        assert line.replace(" model.safetensors ", f" {desk.weights} ") in told
    assert len(opened.lines("proves")) + len(opened.lines("open")) == told.count("\n  - ")
    opened.fits("certificate")


def test_false_weights_are_named_and_their_check_is_marked(opened: Watched, desk: Desk) -> None:
    data = bytearray(desk.weights.read_bytes())
    data[-1] ^= 1
    desk.weights.write_bytes(data)
    opened.drop(desk.certificate, desk.weights)
    expect(opened.page.locator("#title")).to_have_text("It does not hold", timeout=30_000)
    assert "another name, type, shape or value" in opened.page.locator("#said").inner_text()
    assert opened.states() == ["holds", "not asked", "holds", "not reached", "does not hold", "not asked", "not asked"]
    expect(opened.page.get_by_role("status")).to_contain_text("It does not hold. model.safetensors: weights: exp")
    assert not opened.page.locator("#holding").is_visible()


def test_a_folder_with_hostile_names_is_text(opened: Watched, desk: Desk) -> None:
    folder = desk.folder / HOSTILE.replace("/", "")
    folder.mkdir()
    desk.weights.rename(folder / "model.safetensors")
    (folder / f"{HOSTILE}.json").write_text(json.dumps({"auto_map": HOSTILE}))
    opened.drop(folder)
    assert opened.result() == "This cannot be checked"
    opened.drop(desk.certificate)
    expect(opened.page.locator("#title")).to_have_text("It does not hold", timeout=30_000)
    said = opened.page.locator("#said").inner_text()
    assert said.startswith(f"{HOSTILE}: expected model.safetensors")
    assert "onerror" in said
    assert opened.page.locator("img").count() == 0
    opened.page.get_by_text("Options").click()
    opened.page.get_by_label("Accept a folder with files").check()
    expect(opened.page.locator("#title")).to_contain_text("The certificate holds", timeout=30_000)


def test_hostile_files_get_one_sentence_each(opened: Watched, desk: Desk, cases: CaseCounter) -> None:
    zeros, header = desk.folder / "zeros.safetensors", desk.folder / "header.safetensors"
    with zeros.open("wb") as file:
        file.truncate(5 << 30)
    header.write_bytes((100_000_000).to_bytes(8, "little") + bytes(1000))
    opened.drop(desk.certificate)
    for path, said in ((zeros, "not a readable safetensors header"), (header, "at most 16777216 bytes, got 100000000")):
        opened.drop(path)
        expect(opened.page.locator("#said")).to_contain_text(said, timeout=30_000)
        opened.page.get_by_role("button", name=f"Remove {path.name}").click()
        cases()
    opened.drop(desk.weights)
    assert opened.result().startswith("The certificate holds")
    flip(desk.weights)
    for control in ("Options", "Accept other bytes"):
        opened.page.get_by_text(control).click()
    expect(opened.page.locator("#said")).to_contain_text("model.safetensors: cannot be read", timeout=30_000)
    opened.page.evaluate("put('main', []); add('main', [['x.txt', new File([''], 'x')]])")
    expect(opened.page.locator("#said")).to_contain_text("expected a certificate, with", timeout=30_000)
    opened.page.evaluate("add('main', Array.from({ length: 10_001 }, (_, k) => [`${k}/x`, new File([''], 'x')]))")
    expect(opened.page.locator("#said")).to_contain_text("expected at most 10000 files, got more", timeout=30_000)


def test_dropped_files_are_checked_and_endless_folders_are_not_followed(opened: Watched, parties: Parties) -> None:
    """On a page from the disk, Chromium gives handles of what is dropped from outside; its older entries fail."""
    place, session = opened.page.locator("[data-place=main]"), opened.page.context.new_cdp_session(opened.page)
    box = place.bounding_box()
    assert box
    data = {"items": [], "files": [str(parties.path("run"))], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": box["x"] + 9, "y": box["y"] + 9, "data": data})
    expect(opened.page.locator("#plan")).to_contain_text("3 of 3 signed segments", timeout=30_000)
    folder = "const folder = (name, inner) => ({ name, isFile: false, createReader: () => ({ readEntries: inner }) });"
    wide = "const inner = (take) => take(Array.from({ length: 100 }, () => folder('x', (end) => end([]))));"
    deepest = "let left = 1; const inner = (take) => take(left-- > 0 ? [folder('x', inner)] : []);"
    found = opened.page.evaluate(
        f"async () => {{ {folder} {wide} return (await walk([folder('top', inner)])).length; }}"
    )
    assert found == 10_001
    found = opened.page.evaluate(f"async () => {{ {folder} {deepest} return walk([folder('top', inner)]); }}")
    assert found == [["top/x", None]]


def test_several_bases_are_given_one_after_the_other(opened: Watched, desk: Desk, tmp_path: Path) -> None:
    start, state = tmp_path / "start" / "model.safetensors", RunDirectory.open(desk.run).state(0)
    start.parent.mkdir()
    save_file({name: state[f"model.{name}"] for name in load_file(desk.weights)}, start)
    holding, said = opened.page.locator("#checks .tag.good"), opened.page.locator("#said")
    opened.drop(desk.certificate, desk.weights)
    opened.drop(start.parent, place="base")
    expect(holding).to_have_count(5, timeout=30_000)
    assert "start is what the run started from" in " ".join(opened.lines("proves"))
    opened.drop(start, place="base")
    expect(said).to_contain_text("once, got others: it is given twice", timeout=30_000)
    opened.page.get_by_role("button", name="Remove model.safetensors").last.click()
    expect(holding).to_have_count(5, timeout=30_000)


def test_a_run_gets_the_verdict_of_the_audit(opened: Watched, parties: Parties, command: Commands) -> None:
    run, page = parties.path("run"), opened.page
    opened.drop(run)
    opened.fill("seed", "a seed")
    opened.fill("sample", "2")
    page.get_by_role("button", name="Start").click()
    plan = page.locator("#plan").text_content() or ""
    assert re.fullmatch(r"Replaying 2 of 3 signed segments takes 4 steps of .* and 8.4 MB of memory\.", plan)
    assert opened.result() == "What was replayed agrees with the program"
    told = command("audit", run, "--sample", 2, "--seed", "a seed", "--threads", 1)
    shown = [*opened.lines("lines"), page.locator("#said").inner_text()]
    plain = re.sub(r", [0-9.e+]+ a second|; .* were needed here", "", told)
    assert [line.split() for line in shown] == [line.split() for line in plain.splitlines()]
    opened.fill("sample", "")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#title")).to_have_text("All that is signed agrees with the program", timeout=30_000)


def test_the_first_difference_of_a_false_run_is_shown(opened: Watched, parties: Parties, tmp_path: Path) -> None:
    run, page = parties.cheating(tmp_path / "run", 5), opened.page
    shutil.copy(run / "job.bin", run / "certificate.json")
    opened.drop(run)
    page.get_by_role("button", name="Start").click()
    assert opened.result() == "The run is false"
    assert "the run leaves the program first in checkpoint 2 of 3, steps 4 to 6" in page.locator("#said").inner_text()
    titles = " ".join(page.locator("#place h3").all_inner_texts())
    assert re.fullmatch(r"Step 6 of 7 Instruction \d+ of \d+ Element \d+ of \d+", titles)
    committed, computed = page.locator("#got").inner_text(), page.locator("#expected").inner_text()
    apart = sum(a != b for a, b in zip(committed, computed, strict=True))
    assert 0 < apart == page.locator("#got mark").count() == page.locator("#expected mark.right").count()
    opened.fits("false-run")


def test_the_corpus_is_computed_and_its_statement_saved(opened: Watched, tmp_path: Path, command: Commands) -> None:
    corpus, page = tmp_path / "corpus", opened.page
    for name in ("bags", "late", "mlp"):
        shutil.copytree(programs.CORPUS / name, corpus / name)
    flip(corpus / "late" / "data.safetensors")
    opened.drop(corpus)
    assert opened.result() == "1 of 3 programs did not reach their roots"
    assert page.locator("#row .tag").all_inner_texts() == ["as expected", "not computed", "as expected"]
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the statement").click()
    download.value.save_as(tmp_path / download.value.suggested_filename)
    told = command.printed("corpus", "check", tmp_path / "corpus-statement.json", code=2)[0]
    assert f"signed by {page.locator('#statement').inner_text()}" in told
    opened.fits("corpus")


def test_work_is_paused_and_stopped_with_the_page_alive(opened: Watched, desk: Desk) -> None:
    """A file of 1.5 GB, which takes a while to hash, does not fill the memory."""
    size = 3 << 29
    text = json.dumps({"x": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    large = desk.folder / "large.safetensors"
    with large.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)
    page, far = opened.page, opened.page.locator("#progress")
    opened.drop(desk.certificate, large)
    expect(far).to_contain_text("of 1.6 GB", timeout=30_000)
    pause = page.get_by_role("button", name="Pause")
    pause.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    before, paused = "", far.inner_text()
    while before != paused:
        page.wait_for_timeout(500)
        before, paused = paused, far.inner_text()
    page.get_by_role("button", name="Go on").click()
    expect(far).not_to_have_text(paused, timeout=30_000)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Stopped.")
    expect(page.locator("#work")).to_be_hidden()


@contextmanager
def served(folder: Path, asked: list[str]) -> Iterator[str]:
    """The address of a server of a folder, which notes each request."""

    class Noting(SimpleHTTPRequestHandler):
        def log_message(self, *given: Any) -> None:
            asked.append(str(given[1]))

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Noting, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


def test_the_page_works_offline_and_can_neither_load_nor_send(
    chromium: Browser, desk: Desk, cases: CaseCounter
) -> None:
    """Whatever runs in it, the policy refuses each way out before a request is made."""
    context, requests = chromium.new_context(), list[str]()
    with served(PAGE.parent, requests) as address:
        watched = Watched(context.new_page(), f"{address}/{PAGE.name}")
        context.set_offline(True)
        watched.drop(desk.certificate, desk.weights)
        assert watched.result().startswith("The certificate holds")
        assert watched.problems == []
        context.set_offline(False)
        there, socket = f"{address}/inter.woff2", address.replace("http", "ws")
        for attempt in (
            f"await fetch('{there}')", f"new Image().src = '{there}'", f"new WebSocket('{socket}')",
            f"navigator.sendBeacon('{there}', 'x')", f"new EventSource('{there}')", f"new Worker('{there}')",
            f"document.body.append(Object.assign(document.createElement('script'), {{src: '{there}'}}))",
            "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))",
            f"document.body.append(Object.assign(document.createElement('iframe'), {{src: '{there}'}}))",
            f"l = document.createElement('link'); l.rel = 'stylesheet'; l.href = '{there}'; document.body.append(l)",
            f"const f = document.createElement('form'); f.action = '{there}'; document.body.append(f); f.submit()",
            f"const text = `fetch('{there}').catch((e) => postMessage(String(e)))`;"
            "const w = new Worker(URL.createObjectURL(new Blob([text])));"
            "console.log(await new Promise((said) => { w.onmessage = ({ data }) => said(data); }))",
        ):  # fmt: skip
            watched.problems.clear()
            run = f"(async () => {{ let l; try {{ {attempt}; }} catch (error) {{ console.log(String(error)); }} }})()"
            watched.page.evaluate(run)
            watched.page.wait_for_timeout(150)
            refused = ("Content Security Policy", "Failed to fetch")
            assert any(words in text for text in watched.problems for words in refused), (attempt, watched.problems)
            cases()
        assert watched.page.evaluate("window.ran") is None
        assert len(requests) == 1, "the page itself; Chromium also tells of requests that the policy stopped"
    context.close()


def test_each_control_has_a_name_and_is_reached_by_the_keyboard(opened: Watched) -> None:
    page, names = opened.page, list[str]()
    for _ in range(6):
        page.keyboard.press("Tab")
        names.append(page.evaluate("(document.activeElement.labels?.[0] ?? document.activeElement).innerText.trim()"))
    choose = ["Choose files", "Choose a folder"]
    assert names == ["Skip to the content", *choose, *choose, "Options"]
    page.keyboard.press("Enter")
    for name in ("Who must", "Accept other bytes", "Accept a folder", "How many segments", "The seed"):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.labels[0].innerText.trim()").startswith(name)
    assert page.evaluate("document.documentElement.lang") == "en"
