"""The view of a game: pure functions from the board, the posts about its job and its program, if known."""

from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Final

from tiebreak.node.hub.limits import Recent
from tiebreak.node.pages import words
from tiebreak.node.pages.model import Money, PageSource, ReadPost, ShownGame, ShownSide, ShownVerdict
from tiebreak.node.pages.walk import walk_of
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.messages import Transcript
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.state import GameState, Reason
from tiebreak.protocol.parties import posts as p
from tiebreak.protocol.parties.board import Board, PublicGame, PublicJob


def unboarded(board: Board, seen: Sequence[ReadPost]) -> list[ReadPost]:
    """The openings of games that the board does not have, at least not yet."""
    return [one for one in seen if isinstance(one.body, p.GameBody) and one.post.game_id not in board.games]


_TALKS: Final[Recent[tuple[object, ...], Transcript]] = Recent(1 << 25)
"""The newest talks that were read, up to as many bytes of messages."""
_LOCK: Final = Lock()


def talk_of(domain: Domain, game: PublicGame, seen: Sequence[ReadPost]) -> Transcript:
    """The messages that the sides of a game have signed to each other, from the posts about its job."""
    wires = tuple(one.body.wire for one in seen if isinstance(one.body, p.MoveBody) and one.post.game_id == game.id)
    name = (domain, game.job.job, game.head.head, game.id, game.challenger, wires)
    with _LOCK:
        known = _TALKS.get(name)
    if known is None:
        start = rules.start(game.job.job, game.head.head, game.id, 0)
        known = Transcript(start, domain=domain, challenger=game.challenger)
        for wire in wires:
            with suppress(VerificationError):
                known.append(wire)
        with _LOCK:
            _TALKS.put(name, known, 1024 + 2 * sum(map(len, wires)))
    return known


def said_game(source: PageSource, opening: ReadPost, seen: Sequence[ReadPost], agreed: Job) -> ShownGame:
    """A game that a challenger opened in the hub and that is not on the board."""
    assert isinstance(opening.body, p.GameBody)
    public = PublicJob(job=agreed, last_progress=0)
    state = rules.start(agreed, opening.body.head.head, opening.post.game_id, opening.at)
    game = PublicGame(
        id=opening.post.game_id, job=public, challenger=opening.post.sender, head=opening.body.head, state=state,
        started=opening.at,
    )  # fmt: skip
    return game_view(source, game, seen, agreed, on_board=False)


def game_view(
    source: PageSource, game: PublicGame, seen: Sequence[ReadPost], agreed: Job, *, on_board: bool = True
) -> ShownGame:
    now, state, line = source.now(), game.state, tuple(game.moves)
    talk = talk_of(source.domain, game, seen)
    ahead = max(0, len(talk.line) - state.moves) if not game.is_over else 0
    if ahead:
        line = talk.line
    shown = talk.state if ahead else state
    gas = _gas_of_moves(game)
    walk = walk_of(game.first_state, line, shown, source.program(agreed.id), source.origins(agreed.id), gas)
    talks = on_board and not game.is_stopped and state.talks(now)
    verdict = _verdict(game)
    mover = None if game.is_stopped or verdict is not None else shown.mover
    return ShownGame(
        id=game.id.hex(),
        job_id=agreed.id.hex(),
        name=words.clipped(source.name(agreed.id)),
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
        other_gas=game.gas - sum(gas.values()),
        by_message=ahead,
        money=tuple(_game_money(game, agreed)),
        where=walk.stages[-1].title,
    )


def _gas_of_moves(game: PublicGame) -> dict[int, int]:
    """The gas of the transaction that first brought a game to a number of moves, by that number."""
    made: dict[int, int] = {}
    for moves, gas in game.costs:
        made.setdefault(moves, gas)
    return {moves: gas for moves, gas in made.items() if moves}


def _name(side: Side) -> str:
    return "trainer" if side is Side.DEFENDER else "challenger"


def loser_of(state: GameState) -> Side | None:
    return None if state.verdict is None else state.verdict.winner.other


def _game_status(game: PublicGame, *, talks: bool, on_board: bool) -> str:
    if game.void or (game.is_stopped and not game.is_over):
        return "Void"
    if (loser := loser_of(game.state)) is not None:
        return "Trainer convicted" if loser is Side.DEFENDER else "Challenger was wrong"
    if not on_board:
        return "Opened, not on the board yet"
    return "The sides talk" if talks else "On the clock"


def _player(game: PublicGame, side: Side, mover: Side | None, *, talks: bool) -> ShownSide:
    state, is_turn = game.state, mover is side
    account = game.job.job.trainer if side is Side.DEFENDER else game.challenger
    runs = is_turn and not talks and not game.is_stopped and state.verdict is None and state.mover is side
    loser = loser_of(state)
    return ShownSide(
        role=_name(side),
        account=words.address(account),
        rest=state.defender_rest if side is Side.DEFENDER else state.challenger_rest,
        due=state.deadline if runs else None,
        allowance=state.allowance if runs else 0,
        is_winner=None if loser is None or game.void else side is not loser,
    )


def _verdict(game: PublicGame) -> ShownVerdict | None:
    state = game.state
    if game.void:
        sentence = "The trainer was convicted elsewhere first, so the challenger gets its stake back."
        return ShownVerdict(loser="", title="Nobody lost this game", sentence=sentence)
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
    return ShownVerdict(loser=who, title=title, sentence=sentence)


def _game_money(game: PublicGame, agreed: Job) -> list[Money]:
    loser, half = loser_of(game.state), game.stake // 2
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
