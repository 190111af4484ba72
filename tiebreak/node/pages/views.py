"""What the pages show: pure functions from a board, the posts of a job and, where known, its program.

Nothing here is trusted by anybody: a page repeats what a board and a hub say, and a reader with doubts runs a watcher.
Everything that others chose (posts, names in programs) is text of theirs, clipped here and escaped by the templates.
"""

import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from math import isfinite
from typing import Final

from tiebreak.node.pages import words
from tiebreak.node.pages.model import (
    GameView,
    Happening,
    HeadRow,
    JobCard,
    JobView,
    Money,
    Overview,
    PartyRow,
    Player,
    Point,
    Replay,
    Seen,
    Source,
    Stop,
    Training,
    Verdict,
)
from tiebreak.node.pages.walk import walk_of
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.messages import Transcript
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.state import GameState, Reason
from tiebreak.protocol.parties import posts as p
from tiebreak.protocol.parties.board import Board, JobStatus, PublicGame, PublicJob
from tiebreak.protocol.tags import Digest

MAX_POINTS: Final = 480
"""Of a curve. Of more losses, the least and the most of each of so many parts are drawn."""
MAX_ROWS: Final = 200
"""Of a table. The newest are shown."""


# ---------------------------------------------------------------- a job


def overview(source: Source) -> Overview:
    """All jobs, the newest first, and the games that go on or ended last."""
    with source.reading() as board:
        known = board if board is not None else Board()
        ids = list(dict.fromkeys([*source.jobs(), *reversed(known.jobs)]))[:MAX_ROWS]
        cards = [card for job_id in ids if (card := _card_of(source, known, job_id)) is not None]
        games = sorted(known.games.values(), key=lambda game: (game.is_over, -game.started))
        shown = tuple(_game_view(source, game, source.posts(game.job.id), game.job.job) for game in games[:6])
        live = [job for job in known.jobs.values() if job.status is JobStatus.ACTIVE]
        opened = [game for game in known.games.values() if not game.is_over]
        convicted = sum(_loser(game.state) is Side.DEFENDER for game in known.games.values())
        stake = sum(job.job.reward + job.job.trainer_stake for job in live) + sum(game.stake for game in opened)
    return Overview(jobs=tuple(cards), games=shown, running=len(live), open_games=len(opened), at_stake=stake,
                    convicted=convicted)  # fmt: skip


def job(source: Source, job_id: Digest) -> JobView | None:
    """Everything about a job; None if neither the board nor a post knows it."""
    with source.reading() as board:
        known = board if board is not None else Board()
        seen = source.posts(job_id)
        public, agreed = known.jobs.get(job_id), _job_in(known, seen, job_id)
        if agreed is None:
            return None
        games = known.games_of(job_id)
        views = [_game_view(source, game, seen, agreed) for game in reversed(games)]
        views += [_said_game(source, found, seen, agreed) for found in _unboarded(known, seen)]
        heads = _heads(seen, public, agreed)
        what, at = _next(public)
        return JobView(
            card=_card(agreed, public, seen, games),
            stops=tuple(_stops(agreed, public, seen, games)),
            heads=tuple(heads[-MAX_ROWS:]),
            replays=tuple(_replays(seen)[-MAX_ROWS:]),
            games=tuple(views),
            terms=tuple(terms_of(agreed)),
            facts=_facts(agreed, job_id),
            money=tuple(_job_money(known, agreed, public)),
            happenings=tuple(_happenings(seen, agreed)),
            next_what=what,
            next_at=at,
        )


def agreed(source: Source, job_id: Digest) -> Job | None:
    """The terms of a job, if the board or a post knows it."""
    with source.reading() as board:
        return _job_in(board if board is not None else Board(), source.posts(job_id), job_id)


def _card_of(source: Source, board: Board, job_id: Digest) -> JobCard | None:
    seen = source.posts(job_id)
    agreed = _job_in(board, seen, job_id)
    return None if agreed is None else _card(agreed, board.jobs.get(job_id), seen, board.games_of(job_id))


def _job_in(board: Board, seen: Sequence[Seen], job_id: Digest) -> Job | None:
    if job_id in board.jobs:
        return board.jobs[job_id].job
    return next((one.body.job for one in seen if isinstance(one.body, p.OfferBody) and one.body.job.id == job_id), None)


def _card(agreed: Job, public: PublicJob | None, seen: Sequence[Seen], games: Sequence[PublicGame]) -> JobCard:
    opened = sum(not game.is_over for game in games)
    status, tone = _status(public, seen, opened)
    signed = max((one.body.head.head.count for one in seen if isinstance(one.body, p.HeadBody)), default=0)
    return JobCard(
        id=agreed.id.hex(),
        status=status,
        tone=tone,
        client=words.address(agreed.client),
        trainer=words.address(agreed.trainer),
        steps=agreed.steps,
        training=training_of(seen, agreed),
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


def _status(public: PublicJob | None, seen: Sequence[Seen], opened: int) -> tuple[str, str]:
    if public is None:
        answers = [one.body.signature for one in seen if isinstance(one.body, p.AnswerBody)]
        return ("Offered", "calm") if not answers else ("Signed", "calm") if answers[-1] else ("Declined", "calm")
    if public.status in _ENDED:
        return _ENDED[public.status]
    if opened:
        return "Disputed", "bad"
    return ("Trained, may be challenged", "live") if public.has_final_head else ("Training", "live")


def training_of(seen: Sequence[Seen], agreed: Job) -> Training:
    """The losses that the trainer posted, as a curve, and its newest figures."""
    losses: dict[int, float] = {}
    newest: Seen | None = None
    for one in seen:
        if isinstance(one.body, p.StepsBody) and one.post.sender == agreed.trainer:
            newest = one
            for step, bits in enumerate(one.body.losses, start=one.body.first_step):
                if 1 <= step <= agreed.steps:
                    losses[step] = struct.unpack("<f", bits.to_bytes(4, "little"))[0]
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


def _stops(agreed: Job, public: PublicJob | None, seen: Sequence[Seen], games: Sequence[PublicGame]) -> list[Stop]:
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


def _heads(seen: Sequence[Seen], public: PublicJob | None, agreed: Job) -> list[HeadRow]:
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


def _replays(seen: Sequence[Seen]) -> list[Replay]:
    return [
        Replay(auditor=words.address(one.post.sender), count=one.body.count, run_root=one.body.run_root.hex(),
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
        + (f", and {lasts(agreed.replay_time)} more where a move needs re-execution." if agreed.replay_time else "."),
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


def _facts(agreed: Job, job_id: Digest) -> tuple[tuple[str, str], ...]:
    return (
        ("Job", job_id.hex()),
        ("Program", agreed.program_root.hex()),
        ("First state", agreed.initial_state_root.hex()),
        ("Data", agreed.data_root.hex()),
    )


def _job_money(board: Board, agreed: Job, public: PublicJob | None) -> list[Money]:
    status = public.status if public else JobStatus.NONE
    held = "held by the board" if public and not public.is_over else ""
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
    rows = [Money(what="Reward", who=reward, wei=agreed.reward)]
    rows.append(Money(what="Trainer’s stake", who=stake, wei=agreed.trainer_stake))
    rows += [
        Money(what=f"Stake of game {words.short(game.id)}", who=_stake_goes(game), wei=game.stake)
        for game in board.games_of(agreed.id)
    ]
    for name, account in (("client", agreed.client), ("trainer", agreed.trainer)):
        if credit := board.credit(account):
            rows.append(Money(what="Can be withdrawn", who=f"by the {name}", wei=credit))
    return rows


def _stake_goes(game: PublicGame) -> str:
    if not game.is_over:
        return "held by the board"
    if game.void or _loser(game.state) is Side.DEFENDER:
        return "back to the challenger"
    return "half to the trainer, the rest burnt"


_SAID: Final = {
    p.PostKind.OFFER: "offers the job",
    p.PostKind.LOG_RECEIPT: "signs a receipt for logs",
    p.PostKind.GAME: "challenges a head",
    p.PostKind.MOVE: "makes a move",
    p.PostKind.RECEIPT: "acknowledges a state of the game",
    p.PostKind.LIBRARY: "publishes what a replay needs",
    p.PostKind.TRANSACTION: "sends what would be a transaction",
}


def _happenings(seen: Sequence[Seen], agreed: Job) -> list[Happening]:
    told = []
    for one in reversed(seen):
        if (what := _told(one)) is not None:
            game = one.post.game_id.hex() if one.post.game_id != one.post.job_id else ""
            told.append(Happening(at=one.at, who=_role(one.post.sender, agreed), what=what, game=game))
        if len(told) == 14:
            break
    return told


def _told(one: Seen) -> str | None:
    match one.body:
        case p.StepsBody():
            return None  # the curve says it
        case p.AnswerBody(signature=signature):
            return "signs the job" if signature else "declines the job"
        case p.HeadBody(head=head):
            return f"signs head {head.head.count}"
        case p.ReplayedBody(count=count, agrees=agrees):
            return f"replayed to head {count}: {'the same root' if agrees else 'another root'}"
    return _SAID[p.PostKind(one.post.kind)]


def _role(sender: Address, agreed: Job) -> str:
    return "client" if sender == agreed.client else "trainer" if sender == agreed.trainer else words.address(sender)


# ---------------------------------------------------------------- a game


def game(source: Source, game_id: Digest) -> GameView | None:
    """Everything about a game, on the board or only opened in the hub; None if neither knows it."""
    with source.reading() as board:
        known = board if board is not None else Board()
        if (found := known.games.get(game_id)) is not None:
            return _game_view(source, found, source.posts(found.job.id), found.job.job)
        for job_id in source.jobs():
            seen = source.posts(job_id)
            agreed = _job_in(known, seen, job_id)
            for opening in _unboarded(known, seen) if agreed is not None else ():
                if opening.post.game_id == game_id and agreed is not None:
                    return _said_game(source, opening, seen, agreed)
    return None


def _unboarded(board: Board, seen: Sequence[Seen]) -> list[Seen]:
    """The openings of games that the board does not have, at least not yet."""
    return [one for one in seen if isinstance(one.body, p.GameBody) and one.post.game_id not in board.games]


@lru_cache(maxsize=64)
def _transcript(
    domain: Domain, agreed: Job, head: Head, game_id: Digest, challenger: Address, wires: tuple[bytes, ...]
) -> Transcript:
    transcript = Transcript(rules.start(agreed, head, game_id, 0), domain=domain, challenger=challenger)
    for wire in wires:
        with suppress(VerificationError):
            transcript.append(wire)
    return transcript


def talk_of(domain: Domain, game: PublicGame, seen: Sequence[Seen]) -> Transcript:
    """What the sides of a game have signed to each other, by the posts about its job."""
    wires = tuple(one.body.wire for one in seen if isinstance(one.body, p.MoveBody) and one.post.game_id == game.id)
    return _transcript(domain, game.job.job, game.head.head, game.id, game.challenger, wires)


def _said_game(source: Source, opening: Seen, seen: Sequence[Seen], agreed: Job) -> GameView:
    """A game that a challenger opened in the hub and that is not on the board."""
    assert isinstance(opening.body, p.GameBody)
    public = PublicJob(job=agreed, last_progress=0)
    state = rules.start(agreed, opening.body.head.head, opening.post.game_id, opening.at)
    game = PublicGame(
        id=opening.post.game_id, job=public, challenger=opening.post.sender, head=opening.body.head, state=state,
        started=opening.at,
    )  # fmt: skip
    return _game_view(source, game, seen, agreed, on_board=False)


def _game_view(
    source: Source, game: PublicGame, seen: Sequence[Seen], agreed: Job, *, on_board: bool = True
) -> GameView:
    now, state, line = source.now(), game.state, tuple(game.moves)
    talk = talk_of(source.domain, game, seen)
    ahead = max(0, len(talk.line) - state.moves) if not game.is_over else 0
    if ahead:
        line = talk.line
    start = rules.start(agreed, game.head.head, game.id, game.started)
    shown = talk.state if ahead else state
    walk = walk_of(start, line, shown, source.program(agreed.id), source.origins(agreed.id))
    talks = on_board and not game.is_stopped and state.talks(now)
    verdict = _verdict(game)
    mover = None if game.is_stopped or verdict is not None else shown.mover
    return GameView(
        id=game.id.hex(),
        job_id=agreed.id.hex(),
        head_count=game.head.head.count,
        head_step=agreed.last_step(game.head.head.count - 1),
        status=_game_status(game, talks=talks, on_board=on_board),
        is_open=verdict is None and not game.is_stopped,
        started=game.started,
        ended=game.ended,
        talks_until=state.last if talks else None,
        defender=_player(game, Side.DEFENDER, mover, talks=talks),
        challenger=_player(game, Side.CHALLENGER, mover, talks=talks),
        turn="" if mover is None else _name(mover),
        walk=walk,
        verdict=verdict,
        gas=game.gas,
        by_message=ahead,
        money=tuple(_game_money(game, agreed)),
        where=walk.stages[-1].title,
    )


def _name(side: Side) -> str:
    return "trainer" if side is Side.DEFENDER else "challenger"


def _loser(state: GameState) -> Side | None:
    return None if state.verdict is None else state.verdict.winner.other


def _game_status(game: PublicGame, *, talks: bool, on_board: bool) -> str:
    if game.void or (game.is_stopped and not game.is_over):
        return "Void"
    if (loser := _loser(game.state)) is not None:
        return "Trainer convicted" if loser is Side.DEFENDER else "Challenger was wrong"
    if not on_board:
        return "Opened, not on the board yet"
    return "The sides talk" if talks else "On the clock"


def _player(game: PublicGame, side: Side, mover: Side | None, *, talks: bool) -> Player:
    state, is_turn = game.state, mover is side
    account = game.job.job.trainer if side is Side.DEFENDER else game.challenger
    runs = is_turn and not talks and not game.is_stopped and state.verdict is None and state.mover is side
    loser = _loser(state)
    return Player(
        role=_name(side),
        account=words.address(account),
        rest=state.defender_rest if side is Side.DEFENDER else state.challenger_rest,
        due=state.deadline if runs else None,
        allowance=state.allowance if runs else 0,
        is_winner=None if loser is None or game.void else side is not loser,
    )


def _verdict(game: PublicGame) -> Verdict | None:
    state = game.state
    if game.void:
        sentence = "The trainer was convicted elsewhere first, so the challenger gets its stake back."
        return Verdict(loser="", title="Nobody lost this game", sentence=sentence)
    if state.verdict is None:
        return None
    loser = state.verdict.winner.other
    who, other = ("trainer", "challenger") if loser is Side.DEFENDER else ("challenger", "trainer")
    honest = f"The {who} "
    match state.verdict.reason:
        case Reason.RECOMPUTED if loser is Side.DEFENDER:
            sentence = (
                "A referee recomputed this one place from what was opened, and got other bits than were committed."
            )
        case Reason.RECOMPUTED:
            sentence = "A referee recomputed this one place from what was opened, and got the bits that were committed."
        case Reason.BROKEN_TIE:
            sentence = "What the trainer opened does not tie to what it had signed."
        case Reason.PADDING:
            sentence = "A place that must be empty was not, or the other way round."
        case Reason.TIMEOUT:
            sentence = honest + "let its clock run out. Silence loses."
        case Reason.CONCEDED:
            sentence = honest + "gave up."
        case Reason.FORKED:
            sentence = honest + "signed two different states in one place of the game."
        case _:
            sentence = f"The {other} was right."
    title = "The trainer was wrong" if loser is Side.DEFENDER else "The challenger was wrong"
    return Verdict(loser=who, title=title, sentence=sentence)


def _game_money(game: PublicGame, agreed: Job) -> list[Money]:
    loser, half = _loser(game.state), game.stake // 2
    if game.void or (game.is_stopped and loser is None):
        return [Money(what="Challenger’s stake", who="back to the challenger", wei=game.stake)]
    if loser is Side.DEFENDER:
        won = agreed.trainer_stake // 2 // (1 + agreed.seats)
        return [
            Money(what="Trainer’s stake", who="lost by the trainer", wei=-agreed.trainer_stake),
            Money(what="Share of it", who="won by the challenger", wei=won),
            Money(what="Challenger’s stake", who="back to the challenger", wei=game.stake),
            Money(what="Reward", who="back to the client", wei=agreed.reward),
        ]
    if loser is Side.CHALLENGER:
        return [
            Money(what="Challenger’s stake", who="lost by the challenger", wei=-game.stake),
            Money(what="Half of it", who="won by the trainer", wei=half),
        ]
    return [
        Money(what="The trainer risks", who="its stake", wei=agreed.trainer_stake),
        Money(what="The challenger risks", who="its stake", wei=game.stake),
        Money(what="Depends on it", who="the reward", wei=agreed.reward),
    ]


# ---------------------------------------------------------------- parties


def parties(source: Source) -> tuple[PartyRow, ...]:
    """Every account that the board or a post knows, by what it does."""
    roles: dict[bytes, dict[str, None]] = {}
    jobs: dict[bytes, set[bytes]] = {}
    score: dict[bytes, list[int]] = {}

    def note(account: bytes, role: str, job_id: bytes) -> None:
        roles.setdefault(account, {})[role] = None
        jobs.setdefault(account, set()).add(job_id)

    with source.reading() as board:
        known = board if board is not None else Board()
        for job_id in list(dict.fromkeys([*source.jobs(), *reversed(known.jobs)]))[:MAX_ROWS]:
            seen = source.posts(job_id)
            if (agreed := _job_in(known, seen, job_id)) is None:
                continue
            note(agreed.client, "client", job_id)
            note(agreed.trainer, "trainer", job_id)
            for one in seen:
                if isinstance(one.body, p.ReplayedBody):
                    note(one.post.sender, "auditor", job_id)
        for game in known.games.values():
            note(game.challenger, "challenger", game.job.id)
            if (loser := _loser(game.state)) is None or game.void:
                continue
            for account, side in ((game.job.job.trainer, Side.DEFENDER), (game.challenger, Side.CHALLENGER)):
                score.setdefault(account, [0, 0])[side is loser] += 1
        rows = [
            PartyRow(account=words.address(account), roles=tuple(found), jobs=len(jobs[account]),
                     won=score.get(account, [0, 0])[0], lost=score.get(account, [0, 0])[1],
                     credit=known.credit(Address(account)))
            for account, found in roles.items()
        ]  # fmt: skip
    return tuple(rows[:MAX_ROWS])
