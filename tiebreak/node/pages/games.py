"""The view of a game: pure functions from the board, the posts about its job and its program, if known."""

from collections.abc import Sequence

from tiebreak.node.pages import words
from tiebreak.node.pages.source import PageSource, ReadPost, talk_of
from tiebreak.node.pages.walk import walk_of
from tiebreak.node.pages.words import Values
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.parties import posts as p
from tiebreak.protocol.parties.board import Board, PublicGame, PublicJob


def unboarded(board: Board, seen: Sequence[ReadPost]) -> list[ReadPost]:
    """The openings of games that the board does not have, at least not yet."""
    return [one for one in seen if isinstance(one.body, p.GameBody) and one.post.game_id not in board.games]


def said_game(source: PageSource, opening: ReadPost, seen: Sequence[ReadPost], agreed: Job) -> Values:
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
) -> Values:
    """Everything about a game. on_board: whether the board has it, besides the post that opened it."""
    state, line, shown = game.state, tuple(game.moves), game.state
    # Moves that are known from signed messages alone, and have not been made on the board.
    talk = talk_of(source.domain, game, seen)
    ahead = max(0, len(talk.line) - state.moves) if not game.is_over else 0
    if ahead:
        line, shown = talk.line, talk.state
    # Of the transaction that first brought the game to a number of moves, by that number.
    gas = {moves: spent for moves, spent in reversed(game.costs) if moves}
    walk = walk_of(game.first_state, line, shown, source.program(agreed.id), source.origins(agreed.id), gas)
    talks = on_board and not game.is_stopped and state.talks(source.now())
    verdict = _verdict(game)
    mover = None if game.is_stopped or verdict is not None else shown.mover
    sides = [_side(game, side, mover, talks=talks) for side in (Side.DEFENDER, Side.CHALLENGER)]
    return {
        "id": game.id.hex(), "job_id": agreed.id.hex(), "name": words.clipped(source.name(agreed.id)),
        "head_count": game.head.head.count, "head_step": agreed.last_step(game.head.head.count - 1),
        "on_board": on_board, "is_open": verdict is None and not game.is_stopped,
        "is_void": game.void or (game.is_stopped and not game.is_over),
        "talks_until": state.last if talks else None, "sides": sides, "turn": "" if mover is None else _name(mover),
        "walk": walk, "verdict": verdict, "by_message": ahead, "job": agreed, "stake": game.stake,
        # The rest of the gas went into transactions that made no move: the challenge, or the end of a clock.
        "gas": game.gas, "other_gas": game.gas - sum(gas.values()),
    }  # fmt: skip


def _name(side: Side) -> str:
    return "trainer" if side is Side.DEFENDER else "challenger"


def loser_of(state: GameState) -> Side | None:
    return None if state.verdict is None else state.verdict.winner.other


def _side(game: PublicGame, side: Side, mover: Side | None, *, talks: bool) -> Values:
    """A side of a game. rest: seconds on its clock; due: the last instant for its move, if a clock runs for it."""
    state, loser = game.state, loser_of(game.state)
    runs = mover is side and not talks and not game.is_stopped and loser is None and state.mover is side
    return {
        "role": _name(side),
        "account": words.address(game.job.job.trainer if side is Side.DEFENDER else game.challenger),
        "rest": state.defender_rest if side is Side.DEFENDER else state.challenger_rest,
        "due": state.deadline if runs else None,
        "allowance": state.allowance if runs else 0,
        "is_winner": None if loser is None or game.void else side is not loser,
    }


def _verdict(game: PublicGame) -> Values | None:
    """The end of a game: its winner and loser, empty if it is void, and the name of the reason."""
    if game.void:
        return {"winner": "", "loser": "", "reason": ""}
    if (verdict := game.state.verdict) is None:
        return None
    return {"winner": _name(verdict.winner), "loser": _name(verdict.winner.other), "reason": verdict.reason.name}
