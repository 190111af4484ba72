"""The pages over HTTP: whole documents for any browser, and their live parts for one that runs scripts.

A page asks for its live parts when the hub's stream says that something happened, and every few seconds for what only
the chain knows. The answer holds the sections that differ from those the page has (it names them by their hashes), and
is empty if none does. Nothing is requested from elsewhere: the policy below would refuse it.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from pathlib import Path
from time import thread_time
from typing import Any, Final
from urllib.parse import urlencode

from anyio import CapacityLimiter, to_thread
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from tiebreak.node.hub.bodies import body_of
from tiebreak.node.hub.limits import PROCESSOR
from tiebreak.node.pages import checking, pictures, views, words
from tiebreak.node.pages.model import Asked, PageSource
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.tags import Digest

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_RUNNING: Final = re.compile(r"(<time [^>]*data-due[^>]*>)[^<]*")
STATIC: Final = Path(__file__).with_name("static")
THREADS: Final = 4
"""Pages that are made at once. However long they take, all other threads of the hub stay free for posts."""
MAX_QUERY: Final = 100
"""Characters of a search."""
View = Callable[[Request], Mapping[str, Any] | None]


def routes(source: PageSource) -> list[BaseRoute]:
    """The routes of all pages, for an application of Starlette's."""
    pages = _Pages(source)
    found: list[BaseRoute] = []
    for path, template, view in (
        ("/", "overview.html", pages.overview),
        ("/jobs/{id}", "job.html", pages.job),
        ("/games/{id}", "game.html", pages.game),
        ("/games", "games.html", pages.games),
        ("/parties", "parties.html", pages.parties),
    ):
        found.append(Route(path, pages.metered(pages.page(template, view)), methods=["GET"]))
        found.append(Route(path.rstrip("/") + "/live", pages.metered(pages.live(template, view)), methods=["GET"]))
    found.append(Route("/check", pages.check, methods=["GET", "POST"]))
    found.append(Mount("/static", app=StaticFiles(directory=STATIC), name="static"))
    return found


def environment() -> Environment:
    """The templates, with what they say numbers and instants with. Everything is escaped."""
    made = Environment(
        loader=PackageLoader("tiebreak.node.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "short": words.short, "whole": words.whole, "amount": words.amount,
        "duration": words.duration, "clock": words.clock, "instant": words.instant, "iso": words.iso,
        "clipped": words.clipped, "tally": words.tally,
    }  # fmt: skip
    made.globals |= {"pictures": pictures, "apart": apart}
    return made


def apart(text: str, other: str) -> list[tuple[str, bool]]:
    """A text in runs of characters, each with whether it differs from the other text there."""
    if len(text) != len(other):
        return [(text, False)]
    runs: list[tuple[str, bool]] = []
    for a, b in zip(text, other, strict=True):
        if runs and runs[-1][1] == (a != b):
            runs[-1] = (runs[-1][0] + a, a != b)
        else:
            runs.append((a, a != b))
    return runs


def _digest(text: str) -> Digest | None:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return None
    return Digest(found) if len(found) == 32 and text == found.hex() else None


class _Pages:
    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._templates = environment()
        self._threads = CapacityLimiter(THREADS)

    # ------------------------------------------------------------------ what each page shows

    def overview(self, request: Request) -> Mapping[str, Any]:
        return {"view": views.overview(self._source, _asked(request)), "stream": ""}

    def games(self, request: Request) -> Mapping[str, Any]:
        return {"view": views.games(self._source, _asked(request)), "stream": ""}

    def job(self, request: Request) -> Mapping[str, Any] | None:
        job_id = _digest(request.path_params["id"])
        found = None if job_id is None else views.job(self._source, job_id)
        return None if found is None else {"view": found, "stream": found.card.id}

    def game(self, request: Request) -> Mapping[str, Any] | None:
        game_id = _digest(request.path_params["id"])
        found = None if game_id is None else views.game(self._source, game_id)
        return None if found is None else {"view": found, "stream": found.job_id}

    def parties(self, request: Request) -> Mapping[str, Any]:
        money = "Gained, on paper" if self._source.on_paper else "Can withdraw"
        return {"view": views.parties(self._source, _asked(request)), "money": money, "stream": ""}

    # ------------------------------------------------------------------ how they are sent

    def metered(self, respond: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint that makes pages in threads of their own, and tells the hub what each has cost."""

        def timed(request: Request) -> Response:
            start = thread_time()
            try:
                return respond(request)
            finally:
                request.scope[PROCESSOR] = thread_time() - start

        async def endpoint(request: Request) -> Response:
            return await to_thread.run_sync(timed, request, limiter=self._threads)

        return endpoint

    def page(self, template: str, view: View) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            found = view(request)
            if found is None:
                return self._html("missing.html", self._context(request, {"stream": None}), 404)
            shown = self._context(request, found)
            sections = self._sections(template, shown)
            return self._html(template, {**shown, "seen": _seen(sections)})

        return respond

    def live(self, template: str, view: View) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            found = view(request)
            if found is None:
                return Response(status_code=404, headers=HEADERS)
            shown = self._context(request, found)
            sections = self._sections(template, shown)
            had = dict(pair.partition(":")[::2] for pair in request.query_params.get("seen", "").split(","))
            changed = {name: html for name, html in sections.items() if had.get(name) != _hash(html)}
            if not changed:
                return Response(status_code=204, headers=HEADERS)
            return self._html("live.html", {**shown, "seen": _seen(sections), "changed": changed})

        return respond

    async def check(self, request: Request) -> Response:
        finding = None
        if request.method == "POST":
            try:
                body = await body_of(request, checking.MAX_FORM_BYTES)
                finding = await run_in_threadpool(self._finding, body, request.headers.get("content-type", ""))
            except HTTPException as error:
                finding = checking.FileFinding(holds=None, title=f"Nothing to check: {error.detail}")
        shown = self._context(request, {"finding": finding, "stream": None})
        return self._html("check.html", shown, 200 if finding is None or finding.holds else 422)

    def _finding(self, body: bytes, content_type: str) -> checking.FileFinding:
        try:
            data = checking.file_in(body, content_type)
        except EncodingError as error:
            return checking.FileFinding(holds=None, title=f"Nothing to check: {words.clipped(str(error))}")
        return checking.check(data, self._source.domain, lambda job_id: views.agreed(self._source, job_id))

    def _context(self, request: Request, found: Mapping[str, Any]) -> dict[str, Any]:
        source = self._source
        path = request.url.path.removesuffix("/live") or "/"
        asked = _asked(request)
        given = ({"q": asked.text} if asked.text else {}) | ({"page": asked.page} if asked.page > 1 else {})
        shown = {"now": source.now(), "path": path, "asked": asked, "query": urlencode(given)}
        parts = self._templates.get_template("parts.html").make_module(shown)
        return {**found, **shown, "parts": parts, "chain": source.chain, "on_paper": source.on_paper,
                "place": source.place()}  # fmt: skip

    def _sections(self, template: str, shown: Mapping[str, Any]) -> dict[str, str]:
        """The live parts of a page: the blocks of its template whose names begin with `live_`."""
        made = self._templates.get_template(template)
        context = made.new_context({**shown, "seen": ""})
        return {name: "".join(block(context)) for name, block in made.blocks.items() if name.startswith("live_")}

    def _html(self, template: str, shown: Mapping[str, Any], status: int = 200) -> Response:
        if "changed" in shown:
            shown = {**shown, "changed": {name: Markup(html) for name, html in shown["changed"].items()}}  # noqa: S704
        text = self._templates.get_template(template).render(shown)
        return HTMLResponse(text, status_code=status, headers=HEADERS)


def _asked(request: Request) -> Asked:
    """The part of a list that a request asks for."""
    page, text = request.query_params.get("page", "1"), request.query_params.get("q", "")
    return Asked(page=max(1, int(page)) if re.fullmatch("[0-9]{1,9}", page) else 1, text=text.strip()[:MAX_QUERY])


def _hash(html: str) -> str:
    """A hash that differs between states of a section, except where only a clock has counted down."""
    return sha256(_RUNNING.sub(r"\1", html).encode()).hexdigest()[:12]


def _seen(sections: Mapping[str, str]) -> str:
    return ",".join(f"{name}:{_hash(html)}" for name, html in sections.items())
