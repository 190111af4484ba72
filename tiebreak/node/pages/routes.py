"""The pages over HTTP: whole documents for any browser, and their live parts for one that runs scripts.

A page asks for its live parts when the hub's stream says that something happened, and every few seconds for what only
the chain knows. The answer holds the sections that differ from those the page has (it names them by their hashes), and
is empty if none does. Nothing is requested from elsewhere: the policy below would refuse it.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from anyio import CapacityLimiter, to_thread
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from tiebreak.node.hub import limits
from tiebreak.node.pages import pictures, views, words
from tiebreak.node.pages.headers import HEADERS
from tiebreak.node.pages.source import PageContext, PageSource
from tiebreak.node.pages.views import PageQuery
from tiebreak.node.pages.words import Values
from tiebreak.protocol.tags import Digest

if TYPE_CHECKING:
    from tiebreak.node.hub.store import Store

_RUNNING: Final = re.compile(r"(<time [^>]*data-due[^>]*>)[^<]*")
STATIC: Final = Path(__file__).with_name("static")
CHECKER: Final = STATIC / "checker.html"
THREADS: Final = 4
"""Pages that are made at once. However long they take, all other threads of the hub stay free for posts."""
MAX_QUERY: Final = 100
"""Characters of a search."""
View = Callable[[Request], Values | None]


def pages(posts: "Store", context: PageContext) -> Sequence[BaseRoute]:
    """The routes of the pages of a hub. A thread reads its posts now, and follows the board from then on."""
    source = PageSource(posts, context)
    source.start()
    return routes(source)


def routes(source: PageSource) -> list[BaseRoute]:
    """The routes of all pages, for an application of Starlette's."""
    made = _Pages(source)
    found: list[BaseRoute] = []
    for path, template, view in (
        ("/", "overview.html", lambda request: {"view": views.overview(source, _query(request)), "stream": ""}),
        ("/jobs/{id}", "job.html", made.job),
        ("/games/{id}", "game.html", made.game),
        ("/games", "games.html", lambda request: {"view": views.games(source, _query(request)), "stream": ""}),
        ("/parties", "parties.html", lambda request: {"view": views.parties(source, _query(request)), "stream": ""}),
    ):
        for live in ("", "/live"):
            endpoint = made.metered(made.page(template, view, is_live=bool(live)))
            found.append(Route(path.rstrip("/") + live or "/", endpoint, methods=["GET"]))
    found.append(Route("/check", made.metered(checker), methods=["GET"]))
    found.append(Mount("/static", app=StaticFiles(directory=STATIC), name="static"))
    return found


def checker(_: Request) -> Response:
    """The page that checks files in the browser, under the policy that it has for itself, and in no frame."""
    html = CHECKER.read_text("utf-8")
    policy = html.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    return HTMLResponse(html, headers=HEADERS | {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"})


def environment() -> Environment:
    """The templates, with what they say numbers and instants with. Everything is escaped."""
    made = Environment(
        loader=PackageLoader("tiebreak.node.pages", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "short": words.short, "whole": words.whole, "amount": words.amount, "address": words.address,
        "duration": words.duration, "clock": words.clock, "instant": words.instant, "iso": words.iso,
        "clipped": words.clipped, "tally": words.tally,
    }  # fmt: skip
    made.globals |= {"pictures": pictures, "apart": apart}
    return made


def apart(text: str, other: str) -> list[tuple[str, bool]]:
    """A text in runs of characters, each with whether it differs from the other text there."""
    if len(text) != len(other):
        return [(text, False)]
    runs = groupby(zip(text, other, strict=True), key=lambda pair: pair[0] != pair[1])
    return [("".join(a for a, _ in run), differs) for differs, run in runs]


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

    def job(self, request: Request) -> Values | None:
        job_id = _digest(request.path_params["id"])
        found = None if job_id is None else views.job(self._source, job_id)
        return None if found is None else {"view": found, "stream": found["card"]["id"]}

    def game(self, request: Request) -> Values | None:
        game_id = _digest(request.path_params["id"])
        found = None if game_id is None else views.game(self._source, game_id)
        return None if found is None else {"view": found, "stream": found["job_id"]}

    def metered(self, respond: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint that makes pages in threads of their own, and tells the hub what each has cost."""

        def timed(request: Request) -> Response:
            start = thread_time()
            try:
                return respond(request)
            finally:
                request.scope[limits.PROCESSOR] = thread_time() - start

        async def endpoint(request: Request) -> Response:
            return await to_thread.run_sync(timed, request, limiter=self._threads)

        return endpoint

    def page(self, template: str, view: View, *, is_live: bool) -> Callable[[Request], Response]:
        """A page, or those of its live parts that a browser does not have."""

        def respond(request: Request) -> Response:
            if (found := view(request)) is None and is_live:
                return Response(status_code=404, headers=HEADERS)
            if found is None:
                return self._html("missing.html", self._context(request, {"stream": None}), 404)
            shown = self._context(request, found)
            # The live parts are the blocks of the template whose names begin with `live_`.
            made = self._templates.get_template(template)
            context = made.new_context({**shown, "seen": ""})
            sections = {n: "".join(block(context)) for n, block in made.blocks.items() if n.startswith("live_")}
            seen = ",".join(f"{name}:{_hash(html)}" for name, html in sections.items())
            if not is_live:
                return self._html(template, {**shown, "seen": seen})
            had = dict(pair.partition(":")[::2] for pair in request.query_params.get("seen", "").split(","))
            changed = {n: Markup(html) for n, html in sections.items() if had.get(n) != _hash(html)}  # noqa: S704
            if not changed:
                return Response(status_code=204, headers=HEADERS)
            return self._html("live.html", {**shown, "seen": seen, "changed": changed})

        return respond

    def _context(self, request: Request, found: Values) -> Values:
        source, query = self._source, _query(request)
        given = ({"q": query.text} if query.text else {}) | ({"page": query.page} if query.page > 1 else {})
        path = request.url.path.removesuffix("/live") or "/"
        shown = {"now": source.now(), "path": path, "query": query, "given": urlencode(given)}
        parts = self._templates.get_template("parts.html").make_module(shown)
        return {**found, **shown, "parts": parts, "chain": source.chain, "on_paper": source.on_paper,
                "place": source.place()}  # fmt: skip

    def _html(self, template: str, shown: Mapping[str, object], status: int = 200) -> Response:
        return HTMLResponse(self._templates.get_template(template).render(shown), status_code=status, headers=HEADERS)


def _query(request: Request) -> PageQuery:
    page, text = request.query_params.get("page", "1"), request.query_params.get("q", "")
    return PageQuery(page=max(1, int(page)) if re.fullmatch("[0-9]{1,9}", page) else 1, text=text.strip()[:MAX_QUERY])


def _hash(html: str) -> str:
    """A hash that differs between states of a section, except where only a clock has counted down."""
    return sha256(_RUNNING.sub(r"\1", html).encode()).hexdigest()[:12]
