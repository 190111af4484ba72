"""The views of pages: pure functions from a board, the posts of a job and, where known, its program.

Nothing here is trusted by anybody: a page repeats what a board and a hub say, and a reader with doubts runs a watcher.
All text that others chose (posts, names in programs) is clipped here and escaped by the templates.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Final, TypeVar

from tiebreak.api.watching.alarms import Sample, losses_rule, silence_rule, utilisation_rule
from tiebreak.node.pages import words
from tiebreak.node.pages.games import game_view, loser_of, said_game, unboarded
from tiebreak.node.pages.model import (
    Asked,
    Happening,
    HeadRow,
    JobCard,
    JobView,
    Listing,
    Money,
    Overview,
    PageSource,
    PartyRow,
    Point,
    ReadPost,
    ShownGame,
    ShownReplay,
    Stop,
    Training,
)
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
"""The newest jobs that a search looks at."""
MAX_FIRST_GAMES: Final = 6
"""Games on the first page, which leads to all."""
MAX_GAMES_SHOWN: Final = 32
"""Games of a job that its page shows; those on the board come first."""


# ---------------------------------------------------------------- a job


def overview(source: PageSource, asked: Asked) -> Overview:
    """One page of all jobs, or of those that match a text, the newest first, and the games that go on or ended last."""
    with source.reading() as board:
        known = board if board is not None else Board()
        ids = _newest(source, known)
        searched = ids[:MAX_SEARCHED] if asked.text else ids
        found = _matching(searched, asked, lambda job_id: _texts_of(source, known, job_id))
        jobs = _listing(found, asked, len(searched) if len(searched) < len(ids) else None)
        cards = tuple(card for job_id in jobs.rows if (card := _card_of(source, known, job_id)) is not None)
        first = games(source, Asked(), MAX_FIRST_GAMES).rows
        live = [job for job in known.jobs.values() if job.status is JobStatus.ACTIVE]
        opened = [game for game in known.games.values() if not game.is_over]
        convicted = sum(loser_of(game.state) is Side.DEFENDER for game in known.games.values())
        stake = sum(job.job.reward + job.job.trainer_stake for job in live) + sum(game.stake for game in opened)
    return Overview(jobs=replace(jobs, rows=cards), games=first, is_known=board is not None or source.on_paper,
                    running=len(live), open_games=len(opened), at_stake=stake, convicted=convicted)  # fmt: skip


def games(source: PageSource, asked: Asked, size: int = A_PAGE) -> Listing:
    """One page of the board's games, or of those that match a text: open ones first, then the newest."""
    with source.reading() as board:
        known = board if board is not None else Board()
        every = sorted(known.games.values(), key=lambda game: (game.is_over, -game.started))
        found = _matching(every, asked, lambda game: [
            game.id.hex(), words.address(game.challenger), *_texts_of(source, known, game.job.id)
        ])  # fmt: skip
        shown = _listing(found, asked, size=size)
        posts = {game.job.id: source.posts(game.job.id, is_brief=True) for game in shown.rows}
        rows = (game_view(source, game, posts[game.job.id], game.job.job) for game in shown.rows)
        return replace(shown, rows=tuple(rows))


# ---------------------------------------------------------------- lists


def _newest(source: PageSource, board: Board) -> list[Digest]:
    """Ids of the jobs with posts on this hub, then of those on the board alone, the newest of each first."""
    return list(dict.fromkeys([*source.jobs(), *reversed(board.jobs)]))


def _listing(found: Sequence[Any], asked: Asked, searched: int | None = None, size: int = A_PAGE) -> Listing:
    pages = max(1, -(-len(found) // size))
    page = min(asked.page, pages)
    rows = tuple(found[(page - 1) * size : page * size])
    return Listing(rows=rows, page=page, pages=pages, found=len(found), searched=searched)


def _matching(rows: Sequence[T], asked: Asked, texts: Callable[[T], Sequence[str]]) -> list[T]:
    """The rows with a text that holds what a reader typed, perhaps a digest as pages shorten it: `ab12cd…34ef`."""
    if not asked.text:
        return list(rows)
    parts = asked.text.casefold().split("…")
    return [row for row in rows if any(all(part in text.casefold() for part in parts) for text in texts(row))]


def _texts_of(source: PageSource, board: Board, job_id: Digest) -> list[str]:
    """The texts by which a reader may look for a job. None of them needs its posts."""
    agreed = board.jobs[job_id].job if job_id in board.jobs else source.offered(job_id)
    accounts = [] if agreed is None else [words.address(agreed.client), words.address(agreed.trainer)]
    return [job_id.hex(), source.name(job_id), *accounts]


def job(source: PageSource, job_id: Digest) -> JobView | None:
    """Everything about a job; None if neither the board nor a post knows it."""
    with source.reading() as board:
        known = board if board is not None else Board()
        seen = source.posts(job_id)
        public, agreed = known.jobs.get(job_id), _job_in(known, seen, job_id)
        if agreed is None:
            return None
        games = known.games_of(job_id)
        newest = list(reversed(games))[:MAX_GAMES_SHOWN]
        views = [game_view(source, game, seen, agreed) for game in newest]
        said = unboarded(known, seen)[: MAX_GAMES_SHOWN - len(views)]
        views += [said_game(source, found, seen, agreed) for found in said]
        heads = _heads(seen, public, agreed)
        what, at = _next(public)
        return JobView(
            card=_card(source, agreed, public, seen, games),
            stops=tuple(_stops(agreed, public, seen, games)),
            heads=tuple(heads[-MAX_ROWS:]),
            replays=tuple(_replays(seen)[-MAX_ROWS:]),
            games=tuple(views),
            terms=(*terms_of(agreed), *pool_terms(known, public)),
            facts=(
                ("Job", job_id.hex()),
                ("Program", agreed.program_root.hex()),
                ("First state", agreed.initial_state_root.hex()),
                ("Data", agreed.data_root.hex()),
            ),
            money=tuple(_job_money(board, agreed, public, on_paper=source.on_paper)),
            happenings=tuple(_happenings(seen, agreed)),
            next_what=what,
            next_at=at,
        )


def agreed(source: PageSource, job_id: Digest) -> Job | None:
    """The terms of a job, if the board or a post knows it."""
    with source.reading() as board:
        return _job_in(board if board is not None else Board(), source.posts(job_id), job_id)


def _card_of(source: PageSource, board: Board, job_id: Digest) -> JobCard | None:
    seen = source.posts(job_id, is_brief=True)
    agreed = _job_in(board, seen, job_id)
    return None if agreed is None else _card(source, agreed, board.jobs.get(job_id), seen, board.games_of(job_id))


def _job_in(board: Board, seen: Sequence[ReadPost], job_id: Digest) -> Job | None:
    if job_id in board.jobs:
        return board.jobs[job_id].job
    return next((one.body.job for one in seen if isinstance(one.body, p.OfferBody) and one.body.job.id == job_id), None)


def _card(
    source: PageSource, agreed: Job, public: PublicJob | None, seen: Sequence[ReadPost], games: Sequence[PublicGame]
) -> JobCard:
    now = source.now()
    opened = sum(not game.is_over for game in games)
    status, tone = _status(public, seen, opened)
    signed = max((one.body.head.head.count for one in seen if isinstance(one.body, p.HeadBody)), default=0)
    return JobCard(
        id=agreed.id.hex(),
        name=words.clipped(source.name(agreed.id)),
        status=status,
        tone=tone,
        client=words.address(agreed.client),
        trainer=words.address(agreed.trainer),
        steps=agreed.steps,
        training=training_of(
            seen, agreed, now, is_over=public is not None and (public.has_final_head or public.status in _ENDED)
        ),
        checkpoints=agreed.checkpoints,
        heads=min(agreed.checkpoints, max(signed, public.head_count if public else 0)),
        reward=agreed.reward,
        games=len(games),
        open_games=opened,
    )


_ENDED: Final = {
    JobStatus.OFFERED: ("Offered", "calm"),
    JobStatus.CANCELLED: ("Cancelled", "calm"),
    JobStatus.SETTLED: ("Settled", "good"),
    JobStatus.SLASHED: ("Trainer convicted", "bad"),
    JobStatus.ABANDONED: ("Abandoned", "bad"),
    JobStatus.PARTED: ("Parted", "calm"),
}


def _status(public: PublicJob | None, seen: Sequence[ReadPost], opened: int) -> tuple[str, str]:
    if public is None:
        answers = [one.body.signature for one in seen if isinstance(one.body, p.AnswerBody)]
        return ("Offered", "calm") if not answers else ("Signed", "calm") if answers[-1] else ("Declined", "calm")
    if public.status in _ENDED:
        return _ENDED[public.status]
    if opened:
        return "Disputed", "bad"
    return ("Trained, may be challenged", "live") if public.has_final_head else ("Training", "live")


def training_of(seen: Sequence[ReadPost], agreed: Job, now: int, *, is_over: bool) -> Training:
    """The losses that the trainer posted, as a curve, its newest figures, and alarms about them."""
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
    if newest is None or not isinstance(newest.body, p.StepsBody):
        return Training()
    step = max(losses, default=0)
    last = losses.get(step)
    return Training(
        points=_thinned([Point(step=s, loss=x) for s, x in sorted(losses.items()) if isfinite(x)]),
        step=step,
        loss=last if last is not None and isfinite(last) else None,
        speed=newest.body.millisteps / 1000,
        processor=newest.body.processor / 1000,
        memory=newest.body.memory,
        at=newest.at,
        rules=(
            losses_rule(len(losses), step, agreed.steps, is_over=is_over),
            utilisation_rule(samples),
            silence_rule(samples, newest.at, now, is_over=is_over),
        ),
    )


def _thinned(points: list[Point]) -> tuple[Point, ...]:
    if len(points) <= MAX_POINTS:
        return tuple(points)
    kept, parts = [], MAX_POINTS // 2
    for part in range(parts):
        some = points[part * len(points) // parts : (part + 1) * len(points) // parts]
        ends = {min(some, key=lambda q: q.loss), max(some, key=lambda q: q.loss)}
        kept += sorted(ends, key=lambda q: q.step)
    return tuple(kept)


def _stops(agreed: Job, public: PublicJob | None, seen: Sequence[ReadPost], games: Sequence[PublicGame]) -> list[Stop]:
    heads = public.head_count if public else 0
    names = ["Offered", "Accepted", "Trained", "Challenge window", "Settled"]
    details = [
        words.instant(seen[0].at) if seen else "",
        words.instant(public.accepted) if public and public.accepted else "",
        f"{heads} of {words.tally(agreed.checkpoints, 'head')} on the board",
        f"until {words.instant(public.window_end)}" if public and public.has_final_head else "",
        "",
    ]
    if public is None:
        done = 0
    elif public.status is JobStatus.OFFERED:
        done = 1
    elif public.status is JobStatus.SETTLED:
        done = 5
    else:
        done = 3 if public.has_final_head else 2
    states = ["done" if k < done else "now" if k == done else "next" for k in range(5)]
    if public is not None and public.is_over and public.status is not JobStatus.SETTLED:
        states[done] = "failed"
        details[done] = _ENDED[public.status][0]
    elif public is not None and any(not game.is_over for game in games):
        details[done] = f"{words.tally(sum(not game.is_over for game in games), 'open game')}"
    if public is not None and public.ended is not None and done == 5:
        details[4] = words.instant(public.ended)
    return [Stop(name=n, detail=d, state=s) for n, d, s in zip(names, details, states, strict=True)]


def _next(public: PublicJob | None) -> tuple[str, int | None]:
    if public is None or public.status is not JobStatus.ACTIVE:
        return "", None
    if public.has_final_head:
        return "It can be settled, unless a game is open", public.window_end
    return "The next head is due", public.due


def _heads(seen: Sequence[ReadPost], public: PublicJob | None, agreed: Job) -> list[HeadRow]:
    shown: dict[tuple[int, bytes], int] = {}
    receipts: set[int] = set()
    for one in seen:
        if isinstance(one.body, p.HeadBody):
            head = one.body.head.head
            shown.setdefault((head.count, head.run_root), one.at)
        if isinstance(one.body, p.LogReceiptBody):
            receipts.add(one.body.receipt.head.count)
    on_board = public.head_count if public else 0
    replays = _replays(seen)
    rows = [
        HeadRow(
            count=count,
            step=agreed.last_step(count - 1),
            run_root=bytes(root).hex(),
            signed=at,
            on_board=count <= on_board,
            has_receipt=count in receipts,
            replays=sum(r.agrees and r.run_root == bytes(root).hex() for r in replays),
            contradictions=sum(not r.agrees and r.count == count for r in replays),
        )
        for (count, root), at in shown.items()
        if 1 <= count <= agreed.checkpoints
    ]
    return sorted(rows, key=lambda row: row.count)


def _replays(seen: Sequence[ReadPost]) -> list[ShownReplay]:
    return [
        ShownReplay(auditor=words.address(one.post.sender), count=one.body.count, run_root=one.body.run_root.hex(),
               agrees=bool(one.body.agrees), at=one.at)
        for one in seen
        if isinstance(one.body, p.ReplayedBody)
    ]  # fmt: skip


def terms_of(agreed: Job) -> list[str]:
    """The terms of a job in plain sentences."""
    ether, lasts = words.amount, words.duration
    said = [
        f"The client puts up {ether(agreed.reward)}. The trainer gets it, and its own stake of "
        f"{ether(agreed.trainer_stake)} back, when its last head has stood unchallenged until its window ends.",
        f"A head is due at least every {lasts(agreed.challenge_window)}, and the last one within "
        f"{lasts(agreed.deadline)} of acceptance. A head can be challenged for {lasts(agreed.challenge_window)}"
        + (f", and for {lasts(agreed.audit_time)} for each of its segments." if agreed.audit_time else "."),
        f"To challenge costs a stake of {ether(agreed.challenger_stake)}, and twice as much for each game already "
        "open. Whoever was right gets it back.",
        (f"In a game the two sides first talk for {lasts(agreed.talk_time)}. Then" if agreed.talk_time else "In a game")
        + f" each side has {lasts(agreed.clock)} on its clock"
        + (f", and {lasts(agreed.replay_time)} more where a move needs re-execution." if agreed.replay_time else ".")
        + " A proof on the chain waits as long as a clock, so that nobody can copy it.",
        "A trainer that is proven wrong loses its stake: half of it goes to the prover, the rest burns, and the client "
        "gets its reward back. A challenger that is proven wrong loses its stake: half goes to the trainer, the rest "
        "burns. Silence loses.",
    ]
    if agreed.seats:
        said.append(
            f"{words.tally(agreed.seats, 'auditor')} drawn by lot replay the whole run before the trainer shows its "
            f"final head, for {ether(agreed.seat_fee)} each if they are right."
        )
    rounding = "exact" if agreed.precision == 32 else f"rounded to {agreed.precision} bits"
    said.append(
        f"Every result is the correctly rounded value of its exact result ({rounding}), so there is one right answer."
        if not agreed.is_logged
        else "The trainer logs how it rounded what lies near a tie, and the client signs a receipt for each log."
    )
    return said


def pool_terms(board: Board, public: PublicJob | None) -> list[str]:
    """The size of the pool from which the seats are drawn, until they are."""
    if public is None or not public.job.seats or public.seating.seed is not None or public.is_over:
        return []
    slots, own = board.pool_of(public)
    if not slots:
        return ["The pool of its seats is empty: nobody would be drawn."]
    return [
        f"The pool of its seats has {words.tally(slots, 'slot')}. A lie that saves the reward would pay a trainer that "
        f"owned {own} of them."
    ]


def _job_money(board: Board | None, agreed: Job, public: PublicJob | None, *, on_paper: bool) -> list[Money]:
    status = public.status if public else JobStatus.NONE
    holds = "at stake" if on_paper else "held by the board"
    held = holds if public and not public.is_over else ""
    reward, stake = held or "promised by the client", held or "promised by the trainer"
    if status is JobStatus.SETTLED:
        reward, stake = "paid to the trainer", "returned to the trainer"
    elif status is JobStatus.SLASHED:
        reward, stake = "back to the client", "half to the prover, the rest burnt"
    elif status in (JobStatus.ABANDONED, JobStatus.CANCELLED):
        reward = "back to the client"
        stake = "to the client" if status is JobStatus.ABANDONED else "never paid"
    elif status is JobStatus.PARTED:
        reward, stake = "shared by receipts", "returned to the trainer"
    elif status is JobStatus.OFFERED:
        stake = "due at acceptance"
    if board is None and not on_paper:
        reward = stake = "as agreed; no board is followed here"
    rows = [Money(what="Reward", who=reward, wei=agreed.reward)]
    rows.append(Money(what="Trainer’s stake", who=stake, wei=agreed.trainer_stake))
    rows += [
        Money(what=f"Stake of game {words.short(game.id)}", who=_stake_goes(game) or holds, wei=game.stake)
        for game in (board.games_of(agreed.id) if board else ())
    ]
    if on_paper:  # nothing is paid, and what an account has gained or lost in all jobs is on the page of parties
        return [replace(row, who=f"{row.who}, on paper") for row in rows]
    for name, account in (("client", agreed.client), ("trainer", agreed.trainer)):
        if board and (credit := board.credit(account)):
            rows.append(Money(what="Can be withdrawn", who=f"by the {name}, from all jobs", wei=credit))
    return rows


def _stake_goes(game: PublicGame) -> str:
    if not game.is_over:
        return ""
    if game.void or loser_of(game.state) is Side.DEFENDER:
        return "back to the challenger"
    return "half to the trainer, the rest burnt"


_SAID: Final = {
    p.PostKind.OFFER: "offers the job",
    p.PostKind.LOG_RECEIPT: "signs a receipt for logs",
    p.PostKind.GAME: "challenges a head",
    p.PostKind.CONCESSION: "signs that a head is false",
    p.PostKind.LIBRARY: "publishes what a replay needs",
    p.PostKind.AUDITORS: "names auditors",
}


def _happenings(seen: Sequence[ReadPost], agreed: Job) -> list[Happening]:
    """The newest statements, as sentences; only one of each talk, since it goes to and fro."""
    told: list[Happening] = []
    moves = Counter(_moved_in(one) for one in seen)
    for one in reversed(seen):
        sentence = ""
        if (game_id := _moved_in(one)) is not None:
            if count := moves.pop(game_id, 0):
                sentence = f"{words.tally(count, 'move')} in game {words.short(game_id)}."
        elif (what := _told(one)) is not None:
            known = {agreed.client: "The client", agreed.trainer: "The trainer"}
            sentence = f"{known.get(one.post.sender, words.short(words.address(one.post.sender)))} {what}."
        if sentence:
            told.append(Happening(at=one.at, sentence=sentence))
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


def _told(one: ReadPost) -> str | None:
    match one.body:
        case p.StepsBody() | p.ReceiptBody():
            return None  # the curve and the moves say it
        case p.AnswerBody(signature=signature):
            return "signs the job" if signature else "declines the job"
        case p.HeadBody(head=head):
            return f"signs head {head.head.count}"
        case p.ReplayedBody(count=count, agrees=agrees):
            return f"replayed to head {count}: {'the same root' if agrees else 'another root'}"
        case p.TransactionBody(transaction=wanted):
            return wanted.WORDS
    return _SAID[p.PostKind(one.post.kind)]


def game(source: PageSource, game_id: Digest) -> ShownGame | None:
    """Everything about a game, on the board or only opened in the hub; None if neither knows it."""
    with source.reading() as board:
        known = board if board is not None else Board()
        if (found := known.games.get(game_id)) is not None:
            return game_view(source, found, source.posts(found.job.id), found.job.job)
        if (job_id := source.job_of_game(game_id)) is None:
            return None
        seen = source.posts(job_id)
        agreed = _job_in(known, seen, job_id)
        opening = next((one for one in unboarded(known, seen) if one.post.game_id == game_id), None)
        return None if opening is None or agreed is None else said_game(source, opening, seen, agreed)


# ---------------------------------------------------------------- parties


def parties(source: PageSource, asked: Asked) -> Listing:
    """One page of the accounts of the newest jobs and of all games, by their roles."""
    roles: dict[bytes, dict[str, None]] = {}
    jobs: dict[bytes, set[bytes]] = {}
    score: dict[bytes, list[int]] = {}

    def note(account: bytes, role: str, job_id: bytes) -> None:
        roles.setdefault(account, {})[role] = None
        jobs.setdefault(account, set()).add(job_id)

    with source.reading() as board:
        known = board if board is not None else Board()
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
            if (loser := loser_of(game.state)) is None or game.void:
                continue
            for account, side in ((game.job.job.trainer, Side.DEFENDER), (game.challenger, Side.CHALLENGER)):
                score.setdefault(account, [0, 0])[side is loser] += 1
        rows = [
            PartyRow(account=words.address(account), roles=tuple(found), jobs=len(jobs[account]),
                     won=score.get(account, [0, 0])[0], lost=score.get(account, [0, 0])[1],
                     credit=known.credit(Address(account)))
            for account, found in roles.items()
        ]  # fmt: skip
    return _listing(_matching(rows, asked, lambda row: [row.account, *row.roles]), asked)
