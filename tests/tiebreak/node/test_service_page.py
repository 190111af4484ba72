"""The page of the fine-tuning service in Debian's Chromium: it fits, follows a job, and asks nobody else."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.tiebreak.node.services import TRAINER, Service, order, running
from tiebreak.node.pages.headers import POLICY

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>" + "W" * 200
WIDTH = "[document.documentElement.scrollWidth, window.innerWidth]"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    with Service.of(tmp_path_factory.mktemp("page")) as made, running(made.app) as url:
        yield made, url


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "expected Debian's package chromium, which .ci/run installs"
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


@pytest.fixture
def page(chromium: Browser, site: tuple[Service, str]) -> Iterator[Page]:
    """A page that fails the test if anything is refused, breaks, or goes to another place."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    opened, problems = context.new_page(), []
    opened.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "request", lambda sent: problems.append(sent.url) if not sent.url.startswith((site[1], "blob:")) else None
    )
    yield opened
    context.close()
    assert [text for text in problems if "status of 401" not in text] == []  # which Chromium notes of a wrong key


def enter(page: Page, site: tuple[Service, str], name: str, path: str = "/") -> None:
    page.goto(site[1] + path)
    page.get_by_label("Key").fill(site[0].key(name))
    page.get_by_role("button", name="Show my jobs").click()


def train(service: Service, name: str, job: str, steps: range, total: int = 40) -> None:
    """Tells a job's losses, as the scheduler does."""
    service.store.change(job, {"queued", "running"}, status="running")
    for step in steps:
        data = {"step": step, "total_steps": total, "train_loss": 2 / step, "head": "00"}
        event = {"object": "fine_tuning.job.event", "level": "info", "message": f"Step {step} of {total}"}
        service.store.add(name, {**event, "type": "metrics", "data": data}, of=job)


def finish(service: Service, name: str, job: str) -> list[str]:
    """Ends a job with result files. Returns their ids."""
    ids = []
    for filename in ("adapter/adapter_model.safetensors", "metrics.csv", *(f"run/states/{n}" for n in range(120))):
        body = {
            "object": "file",
            "filename": filename,
            "bytes": 4,
            "purpose": "fine-tune-results",
            "status": "processed",
        }
        ids.append(service.store.add(name, body, amount=4)["id"])
        service.store.path(ids[-1]).write_bytes(b"data")
    service.store.change(job, status="succeeded", result_files=ids, fine_tuned_model="ft:tiny::x:1", trained_tokens=999)
    return ids


def test_page_follows_a_job_to_its_files(page: Page, site: tuple[Service, str], tmp_path: Path) -> None:
    service, url = site
    job = order(service.client("ann"), suffix="mine")["id"]
    assert service.client("ann").get("/").headers["content-security-policy"] == POLICY
    enter(page, site, "ann")
    page.get_by_role("link", name="mine").click()
    expect(page.get_by_text("no losses yet")).to_be_visible()
    train(service, "ann", job, range(1, 11))
    expect(page.get_by_text("Step 10 of 40")).to_be_visible()
    expect(page.locator("polyline.loss")).to_have_attribute("points", points(10))
    train(service, "ann", job, range(11, 41))
    expect(page.get_by_text("Step 40 of 40")).to_be_visible()
    expect(page.locator("polyline.loss")).to_have_attribute("points", points(40))
    finish(service, "ann", job)
    expect(page.locator(".tag", has_text="succeeded")).to_be_visible()
    with page.expect_download() as got:
        page.get_by_role("button", name="Download metrics.csv").click()
    assert got.value.suggested_filename == "metrics.csv"
    assert Path(got.value.path()).read_bytes() == b"data"
    command = f"tiebreak receipt check --service {url} --job {job} --data FILE --base FOLDER"
    expect(page.get_by_text(command)).to_be_visible()
    expect(page.get_by_text(TRAINER)).to_be_visible()
    assert page.get_by_role("button", name="Cancel").count() == 0
    page.reload()
    expect(page.locator(".tag", has_text="succeeded")).to_be_visible()
    assert page.evaluate("[Object.keys(localStorage), document.cookie]") == [[], ""]


def points(count: int) -> re.Pattern[str]:
    """Matches a line of so many points."""
    return re.compile(rf"^(\S+,\S+ ?){{{count}}}$")


def test_buttons_pause_resume_and_cancel(page: Page, site: tuple[Service, str]) -> None:
    service, _ = site
    job = order(service.client("bob"))["id"]
    page.on("dialog", lambda dialog: dialog.accept())
    enter(page, site, "bob", f"/#{job}")
    for button, status in (("Pause", "paused"), ("Resume", "queued"), ("Cancel", "cancelled")):
        page.get_by_role("button", name=button).click()
        expect(page.locator(".tag", has_text=status)).to_be_visible()
        assert service.store.get("bob", "fine_tuning.job", job)["status"] == status  # type: ignore[index]
    page.get_by_role("button", name="Forget the key").click()
    expect(page.get_by_label("Key")).to_be_visible()
    assert page.locator("#content").text_content() == ""
    assert page.evaluate("sessionStorage.length") == 0


def test_wrong_key_is_asked_for_again(page: Page, site: tuple[Service, str]) -> None:
    page.goto(site[1])
    page.get_by_label("Key").fill("sk-wrong")
    page.get_by_role("button", name="Show my jobs").click()
    expect(page.get_by_role("alert")).to_contain_text("expected `Bearer` and a key of this service")
    expect(page.get_by_label("Key")).to_be_visible()


@pytest.mark.parametrize("width", [390, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_texts_stay_texts_and_nothing_is_wider_than_the_window(
    page: Page, site: tuple[Service, str], width: int, scheme: str
) -> None:
    service, url = site
    name = f"{scheme}-{width}"
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    job = order(service.client(name))["id"]
    train(service, name, job, range(1, 41))
    event = {"object": "fine_tuning.job.event", "level": "error", "message": HOSTILE, "type": "message", "data": {}}
    service.store.add(name, event, of=job)
    finish(service, name, job)
    error = {"code": "failed", "message": HOSTILE, "param": None}
    service.store.change(job, status="failed", user_provided_suffix=HOSTILE, error=error, model=HOSTILE)
    body = {"object": "file", "filename": HOSTILE, "bytes": 4, "purpose": "fine-tune-results", "status": "processed"}
    files = service.store.get(name, "fine_tuning.job", job)["result_files"]  # type: ignore[index]
    service.store.change(job, result_files=[*files, service.store.add(name, body)["id"]])
    enter(page, site, name)
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    for path in ("/", f"/#{job}"):
        page.goto(url + path)
        expect(page.get_by_text(HOSTILE).first).to_be_visible()
        found, there = page.evaluate(WIDTH)
        assert found <= there, (path, found, there)
    assert page.locator("main img").count() == 0
