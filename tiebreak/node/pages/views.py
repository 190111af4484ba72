"""The views of pages: pure functions from a board, the posts of a job and, where known, its program.

Nothing here is trusted by anybody: a page repeats what a board and a hub say, and a reader with doubts runs a watcher.
Templates read jobs, bodies of posts and the values made here. All text that others chose (names of runs, names in
programs) is clipped here and escaped by the templates.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple, TypeVar

from tiebreak.api.watching.alarms import Sample, losses_rule, silence_rule, utilisation_rule
from tiebreak.node.pages import words
from tiebreak.node.pages.games import game_view, loser_of, said_game, unboarded
from tiebreak.node.pages.source import PageSource, ReadPost
from tiebreak.node.pages.words import Values
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.numbers.float32 import to_float
from tiebreak.protocol.parties import posts as p
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import Board, JobStatus, PublicGame, PublicJob
from tiebreak.protocol.tags import Digest

T = TypeVar("T")
MAX_POINTS: Final = 480
"""Points of a curve. Of more losses, the least and the greatest of each of `MAX_POINTS // 2` parts are drawn."""
MAX_ROWS: Final = 200
"""Rows of a table. The newest are shown."""
MAX_SAID: Final = 12
A_PAGE: Final = 50
"""Entries of a list on one page."""
MAX_SEARCHED: Final = 2_000
"""The number of jobs that a search reads, the newest first."""
MAX_FIRST_GAMES: Final = 6
"""Games on the first page, which leads to all."""
MAX_GAMES_SHOWN: Final = 32
"""Games of a job that its page shows; those on the board come first."""


class PageQuery(NamedTuple):
    """The requested part of a list: the number of a page, from 1, and the text to search for."""

    page: int = 1
    text: str = ""


# ---------------------------------------------------------------- lists


def overview(source: PageSource, query: PageQuery) -> Values:
    """One page of all jobs, or of those that match a text, the newest first, and the games that go on or ended last."""
    board = source.board
    known = board or Board()
    ids = _newest(source, known)
    searched = ids[:MAX_SEARCHED] if query.text else ids
    jobs = _listing(_matching(searched, query, lambda job_id: _texts_of(source, known, job_id)), query)
    cards = list[Values]()
    for job_id in jobs["rows"]:
        seen = source.posts(job_id, is_brief=True)
        if (agreed := _job_in(known, seen, job_id)) is not None:
            cards.append(_card(source, agreed, known.jobs.get(job_id), seen, known.games_of(job_id)))
    jobs |= {"rows": cards, "searched": len(searched) if len(searched) < len(ids) else None}
    live = [job for job in known.jobs.values() if job.status is JobStatus.ACTIVE]
    opened = [game for game in known.games.values() if not game.is_over]
    stake = sum(job.job.reward + job.job.trainer_stake for job in live) + sum(game.stake for game in opened)
    return {
        "jobs": jobs, "games": games(source, PageQuery(), MAX_FIRST_GAMES)["rows"],
        # Without a board the numbers are unknown, not zero.
        "is_known": board is not None or source.on_paper, "at_stake": stake, "running": len(live),
        "open_games": len(opened),
        "convicted": sum(loser_of(game.state) is Side.DEFENDER for game in known.games.values()),
    }  # fmt: skip


def games(source: PageSource, query: PageQuery, size: int = A_PAGE) -> Values:
    """One page of the board's games, or of those that match a text: open ones first, then the newest."""
    known = source.board or Board()
    every = sorted(known.games.values(), key=lambda game: (game.is_over, -game.started))
    found = _matching(every, query, lambda game: [
        game.id.hex(), words.address(game.challenger), *_texts_of(source, known, game.job.id)
    ])  # fmt: skip
    shown = _listing(found, query, size=size)
    posts = {game.job.id: source.posts(game.job.id, is_brief=True) for game in shown["rows"]}
    return shown | {"rows": [game_view(source, game, posts[game.job.id], game.job.job) for game in shown["rows"]]}


def parties(source: PageSource, query: PageQuery) -> Values:
    """One page of the accounts of the newest jobs and of all games, by their roles."""
    roles: dict[bytes, dict[str, None]] = {}
    jobs: dict[bytes, set[bytes]] = {}
    score: Counter[tuple[bytes, bool]] = Counter()

    def note(account: bytes, role: str, job_id: bytes) -> None:
        roles.setdefault(account, {})[role] = None
        jobs.setdefault(account, set()).add(job_id)

    known = source.board or Board()
    for job_id in _newest(source, known)[:A_PAGE]:
        seen = source.posts(job_id, is_brief=True)
        if (agreed := _job_in(known, seen, job_id)) is None:
            continue
        note(agreed.client, "client", job_id)
        note(agreed.trainer, "trainer", job_id)
        for one in seen:
            if isinstance(one.body, p.ReplayedBody):
                note(one.post.sender, "auditor", job_id)
    for game in known.games.values():
        note(game.challenger, "challenger", game.job.id)
        if (loser := loser_of(game.state)) is not None and not game.void:
            score[game.job.job.trainer, loser is Side.CHALLENGER] += 1
            score[game.challenger, loser is Side.DEFENDER] += 1
    rows = [
        {"account": words.address(account), "roles": list(found), "jobs": len(jobs[account]),
         "won": score[account, True], "lost": score[account, False], "credit": known.credit(Address(account))}
        for account, found in roles.items()
    ]  # fmt: skip
    return _listing(_matching(rows, query, lambda row: [row["account"], *row["roles"]]), query)


def _newest(source: PageSource, board: Board) -> list[Digest]:
    """Ids of the jobs with posts on this hub, then of those on the board alone, the newest of each first."""
    return list(dict.fromkeys([*source.jobs(), *reversed(board.jobs)]))


def _listing(found: Sequence[Any], query: PageQuery, size: int = A_PAGE) -> Values:
    """One page of a list. found: the entries on all pages; searched: how many were looked at, if not all."""
    pages = max(1, -(-len(found) // size))
    page = min(query.page, pages)
    rows = found[(page - 1) * size : page * size]
    return {"rows": rows, "page": page, "pages": pages, "found": len(found), "searched": None}


def _matching(rows: Sequence[T], query: PageQuery, texts: Callable[[T], Sequence[str]]) -> Sequence[T]:
    """The rows with a text that holds what a reader typed, perhaps a digest as pages shorten it: `ab12cd…34ef`."""
    if not query.text:
        return rows
    parts = query.text.casefold().split("…")
    return [row for row in rows if any(all(part in text.casefold() for part in parts) for text in texts(row))]


def _texts_of(source: PageSource, board: Board, job_id: Digest) -> list[str]:
    """The texts by which a search finds a job. None of them needs its posts."""
    agreed = board.jobs[job_id].job if job_id in board.jobs else source.offered(job_id)
    accounts = [] if agreed is None else [words.address(agreed.client), words.address(agreed.trainer)]
    return [job_id.hex(), source.name(job_id), *accounts]


# ---------------------------------------------------------------- a game, a job


def game(source: PageSource, game_id: Digest) -> Values | None:
    """Everything about a game, on the board or only opened in the hub; None if neither knows it."""
    known = source.board or Board()
    if (found := known.games.get(game_id)) is not None:
        return game_view(source, found, source.posts(found.job.id), found.job.job)
    if (job_id := source.job_of_game(game_id)) is None:
        return None
    seen = source.posts(job_id)
    agreed = _job_in(known, seen, job_id)
    opening = next((one for one in unboarded(known, seen) if one.post.game_id == game_id), None)
    return None if opening is None or agreed is None else said_game(source, opening, seen, agreed)


def job(source: PageSource, job_id: Digest) -> Values | None:
    """Everything about a job; None if neither the board nor a post knows it."""
    board, seen = source.board, source.posts(job_id)
    known = board or Board()
    public, agreed = known.jobs.get(job_id), _job_in(known, seen, job_id)
    if agreed is None:
        return None
    games = known.games_of(job_id)
    views = [game_view(source, game, seen, agreed) for game in list(reversed(games))[:MAX_GAMES_SHOWN]]
    views += [said_game(source, one, seen, agreed) for one in unboarded(known, seen)[: MAX_GAMES_SHOWN - len(views)]]
    return {
        "card": _card(source, agreed, public, seen, games), "public": public, "offered": seen[0].at if seen else None,
        "heads": _heads(seen, public, agreed)[-MAX_ROWS:],
        "replays": [one for one in seen if isinstance(one.body, p.ReplayedBody)][-MAX_ROWS:], "games": views,
        "pool": pool_of(known, public), "said": _said(seen), "disputes": games,
        "credits": {"client": known.credit(agreed.client), "trainer": known.credit(agreed.trainer)},
        "is_known": board is not None or source.on_paper,
    }  # fmt: skip


def _job_in(board: Board, seen: Sequence[ReadPost], job_id: Digest) -> Job | None:
    if job_id in board.jobs:
        return board.jobs[job_id].job
    return next((one.body.job for one in seen if isinstance(one.body, p.OfferBody) and one.body.job.id == job_id), None)


_ENDED: Final = {
    JobStatus.OFFERED: ("Offered", "calm"),
    JobStatus.CANCELLED: ("Cancelled", "calm"),
    JobStatus.SETTLED: ("Settled", "good"),
    JobStatus.SLASHED: ("Trainer convicted", "bad"),
    JobStatus.ABANDONED: ("Abandoned", "bad"),
    JobStatus.PARTED: ("Parted", "calm"),
}


def _card(
    source: PageSource, agreed: Job, public: PublicJob | None, seen: Sequence[ReadPost], games: Sequence[PublicGame]
) -> Values:
    """The summary of a job in a list. tone: the style of its status, which is live, good, bad or calm."""
    if public is None:
        answers = [one.body.signature for one in seen if isinstance(one.body, p.AnswerBody)]
        status, tone = "Offered" if not answers else "Signed" if answers[-1] else "Declined", "calm"
    elif public.status in _ENDED:
        status, tone = _ENDED[public.status]
    elif any(not game.is_over for game in games):
        status, tone = "Disputed", "bad"
    else:
        status, tone = "Trained, may be challenged" if public.has_final_head else "Training", "live"
    signed = max((one.body.head.head.count for one in seen if isinstance(one.body, p.HeadBody)), default=0)
    is_over = public is not None and (public.has_final_head or public.status in _ENDED)
    return {
        "job": agreed, "id": agreed.id.hex(), "name": words.clipped(source.name(agreed.id)), "status": status,
        "tone": tone, "training": training_of(seen, agreed, source.now(), is_over=is_over),
        "heads": min(agreed.checkpoints, max(signed, public.head_count if public else 0)),
    }  # fmt: skip


def training_of(seen: Sequence[ReadPost], agreed: Job, now: int, *, is_over: bool) -> Values:
    """The trainer's own account of its training: a curve of losses, its newest figures, and alarms about them.

    Nothing of it is evidence, and an alarm is no verdict. newest: the last post with figures, or None.
    """
    losses: dict[int, float] = {}
    samples: list[Sample] = []
    newest: ReadPost | None = None
    for one in seen:
        if isinstance(one.body, p.StepsBody) and one.post.sender == agreed.trainer:
            newest = one
            share, reached = one.body.processor / 1000, one.body.first_step + len(one.body.losses) - 1
            samples.append(Sample(step=max(0, reached), time=one.at, processor=share))
            for step, bits in enumerate(one.body.losses, start=one.body.first_step):
                if 1 <= step <= agreed.steps:
                    losses[step] = to_float(bits)
    if newest is None:
        return {"points": [], "step": 0, "loss": None, "newest": None, "rules": []}
    step = max(losses, default=0)
    last = losses.get(step)
    return {
        "points": _thinned([(s, x) for s, x in sorted(losses.items()) if isfinite(x)]), "step": step,
        "loss": last if last is not None and isfinite(last) else None, "newest": newest.body,
        "rules": [
            losses_rule(len(losses), step, agreed.steps, is_over=is_over),
            utilisation_rule(samples),
            silence_rule(samples, newest.at, now, is_over=is_over),
        ],
    }  # fmt: skip


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    if len(points) <= MAX_POINTS:
        return points
    kept, parts = [], MAX_POINTS // 2
    for part in range(parts):
        some = points[part * len(points) // parts : (part + 1) * len(points) // parts]
        kept += sorted({min(some, key=lambda point: point[1]), max(some, key=lambda point: point[1])})
    return kept


def _heads(seen: Sequence[ReadPost], public: PublicJob | None, agreed: Job) -> list[Values]:
    """The signed heads: when the hub got each, and how many auditors say they got the same root, or another one."""
    signed: dict[tuple[int, bytes], int] = {}
    for one in seen:
        if isinstance(one.body, p.HeadBody):
            head = one.body.head.head
            signed.setdefault((head.count, head.run_root), one.at)
    receipts = {one.body.receipt.head.count for one in seen if isinstance(one.body, p.LogReceiptBody)}
    replays = [one.body for one in seen if isinstance(one.body, p.ReplayedBody)]
    return [
        {
            "count": count, "step": agreed.last_step(count - 1), "run_root": root.hex(), "signed": at,
            "on_board": public is not None and count <= public.head_count, "has_receipt": count in receipts,
            "replays": sum(bool(one.agrees) and one.run_root == root for one in replays),
            "contradictions": sum(not one.agrees and one.count == count for one in replays),
        }
        for (count, root), at in sorted(signed.items(), key=lambda item: item[0][0])
        if 1 <= count <= agreed.checkpoints
    ]  # fmt: skip


def pool_of(board: Board, public: PublicJob | None) -> tuple[int, int] | None:
    """The size of the pool from which seats will be drawn, and the slots that make a lie pay; None if none will."""
    if public is None or not public.job.seats or public.seating.seed is not None or public.is_over:
        return None
    return board.pool_of(public)


def _said(seen: Sequence[ReadPost]) -> list[tuple[ReadPost, Digest | None, int]]:
    """The newest statements; one of each talk alone, since it goes to and fro, with its game and number of moves."""
    told: list[tuple[ReadPost, Digest | None, int]] = []
    moves = Counter(_moved_in(one) for one in seen)
    for one in reversed(seen):
        game_id = _moved_in(one)
        if game_id is None and not isinstance(one.body, p.StepsBody | p.ReceiptBody):  # the curve and the moves say it
            told.append((one, None, 0))
        elif game_id is not None and (count := moves.pop(game_id, 0)):
            told.append((one, game_id, count))
        if len(told) == MAX_SAID:
            break
    return told


def _moved_in(one: ReadPost) -> Digest | None:
    """The game in which a post makes a move."""
    match one.body:
        case p.MoveBody():
            return one.post.game_id
        case p.TransactionBody(transaction=tx.MakeMove(game_id=game_id)):
            return game_id
    return None
