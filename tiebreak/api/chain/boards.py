"""Jobs and games on a board, as people read them. Needs the extra `chain`.

The board is a chain's, or the one that the posts of a hub make without a chain (`HubBoard`).
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, cast

from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.chain import Chain, Event, GameRecord, JobRecord, JobStatus, Outcome
from tiebreak.protocol.commitments.certificate import Certificate
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.game.moves import Phase, Side
from tiebreak.protocol.game.state import Level, Reason
from tiebreak.protocol.parties.board import PublicGame, loss_of
from tiebreak.protocol.parties.ledger import Ledger, Refusal
from tiebreak.protocol.parties.posts import Body, Post, TransactionBody
from tiebreak.protocol.tags import Digest


def connect(rpc: str, chain_id: int | None = None) -> Chain:
    """Connects to a chain by URL or IPC path. Raises `ConfigurationError` if its id is not `chain_id`."""
    chain = Chain.connect(rpc)
    if chain_id is not None:
        require_chain(chain, chain_id)
    return chain


def require_chain(chain: Chain, chain_id: int) -> None:
    """Raise `ConfigurationError` unless the chain has this id."""
    if chain.chain_id != chain_id:
        raise ConfigurationError(f"expected chain id {chain_id}, got {chain.chain_id}; is this the right endpoint?")


def board_at(rpc: str, board: Address) -> Chain:
    """Connects to a board. Raises `ContractMismatch` unless its contracts are those of this version."""
    chain = Chain.connect(rpc)
    chain.attach(board)
    return chain


def board_of(rpc: str, signed: RunDirectory | Certificate) -> Chain:
    """Connects to the board that a job names. Raises `ConfigurationError` if the job is for another chain, or none."""
    domain = signed.agreement.domain
    if not domain.chain_id:
        raise ConfigurationError(f"expected a job for a chain, got one that is judged off chain: {signed.job.id.hex()}")
    chain = connect(rpc, domain.chain_id)
    chain.attach(domain.contract)
    return chain


class HubBoard:
    """The board that a hub's posts make without a chain, read like one.

    Places stand for blocks, and the instant of the last post for the time. Records have the names of the contracts' as
    far as the ledger knows them (`tiebreak.protocol.parties.ledger`).
    """

    def __init__(self, posts: Iterable[tuple[int, int, Post, Body]], domain: Domain) -> None:
        """posts: place, instant, post and body of each, with all signatures checked (`tiebreak.node.hub_client`)."""
        self._ledger, self._events, self._at = Ledger(domain), list[Event](), 0
        self._logged: set[tuple[str, Digest]] = set()
        for place, self._at, post, body in posts:
            with suppress(Refusal):
                self._ledger.read(post, body, self._at)
                if isinstance(body, TransactionBody):
                    self._log(place, post)

    def now(self) -> int:
        return self._at

    def events(self, game_id: Digest | None = None, first_block: int = 0) -> list[Event]:
        found = [event for event in self._events if event.block >= first_block]
        return [event for event in found if game_id in (None, event.values.get("gameId"))]

    def job_state(self, job_id: Digest) -> JobRecord:
        if (found := self._ledger.board.jobs.get(job_id)) is None:
            return cast("JobRecord", SimpleNamespace(status=JobStatus.NONE))
        signed = {field.name: getattr(found.job, field.name) for field in fields(Job)}
        names = ("status", "head_count", "last_progress", "accepted", "audit_end", "receipts", "crowd")
        changed = {name: getattr(found, name) for name in names}
        roots = {"head_root": self._ledger.roots.get(job_id, bytes(32))}
        open_games = len(self._ledger.board.open_games(job_id))
        return cast("JobRecord", SimpleNamespace(**signed, **changed, **roots, open_games=open_games))

    def game_state(self, game_id: Digest) -> GameRecord:
        if (game := self._ledger.board.games.get(game_id)) is None:
            return cast("GameRecord", SimpleNamespace(phase=0))
        names = ("level", "height", "position", "node", "last", "defender_rest", "challenger_rest")
        walked = {name: getattr(game.state, name) for name in names}
        verdict, reason = _outcome(game)
        more = {"sequence": game.state.moves, "job_id": game.job.id, "challenger": game.challenger}
        found = SimpleNamespace(phase=game.state.phase, **walked, **more, verdict=verdict, reason=reason)
        return cast("GameRecord", found)

    def _log(self, place: int, post: Post) -> None:
        """Note the events that the contracts would have logged for a transaction that was taken."""
        board = self._ledger.board
        for job in board.jobs.values():
            said = {"jobId": job.id, "reward": job.job.reward, "client": job.job.client, "trainer": job.job.trainer}
            self._say(place, post, "JobCreated", job.id, said)
        for game in board.games.values():
            about = {"gameId": game.id, "jobId": game.job.id}
            started = {"count": game.head.head.count, "challenger": game.challenger}
            self._say(place, post, "GameStarted", game.id, about | started)
            verdict, reason = _outcome(game)
            if game.is_over:
                self._say(place, post, "GameEnded", game.id, about | {"verdict": verdict, "reason": reason})

    def _say(self, place: int, post: Post, name: str, subject: Digest, values: dict[str, Any]) -> None:
        if (name, subject) not in self._logged:
            self._logged.add((name, subject))
            self._events.append(Event(name, values, place, post.content))


def _outcome(game: PublicGame) -> tuple[Outcome, Reason]:
    """The outcome of a game of the ledger, in the contract's numbers."""
    if game.void:
        return Outcome.VOID, Reason.JOB_SLASHED
    if (verdict := game.state.verdict) is None:
        return Outcome.NONE, Reason.NONE
    lost = {Side.CHALLENGER: Outcome.DEFENDER_LOST, Side.DEFENDER: Outcome.CHALLENGER_LOST}
    return lost[verdict.winner], verdict.reason


def job_document(chain: Chain | HubBoard, job_id: Digest) -> dict[str, Any]:
    """The board's record of a job, and the times that follow from it. Raises `StateError` if there is none."""
    state = chain.job_state(job_id)
    if state.status is JobStatus.NONE:
        raise StateError(f"expected a job on the board, got none of id {job_id.hex()}")
    document = {name: _plain(value) for name, value in vars(state).items()}
    return {"job": job_id.hex(), **document, **_times(state, chain.now())}


def standing(chain: Chain, job: Job) -> dict[str, Any]:
    """The standing of a job: its status and times, the stakes in it, and what the board owes to its parties."""
    state = chain.job_state(job.id)
    open_stakes = job.trainer_stake if state.status is JobStatus.ACTIVE else 0
    owed = {
        name: {"credit": ether(chain.credit(account)), "balance": ether(chain.balance(account))}
        for name, account in (("client", job.client), ("trainer", job.trainer))
    }
    return {
        "status": state.status.name.lower(),
        **({"why": why} if (why := loss_of(job, state)) else {}),
        "heads": state.head_count,
        "open_games": state.open_games,
        "trainer_stake_at_risk": ether(open_stakes),
        "next_challenge_costs": ether(job.challenger_stake << state.open_games),
        **_times(state, chain.now()),
        **{f"{name} {what}": amount for name, amounts in owed.items() for what, amount in amounts.items()},
    }


def _times(state: JobRecord, now: int) -> dict[str, Any]:
    """When a job of this state can be settled, and by when its trainer has to go on; in seconds of the chain's time."""
    if state.status is not JobStatus.ACTIVE:
        return {}
    window_end = max(state.last_progress + state.challenge_window, state.audit_end)
    last = -(-state.steps // state.checkpoint_interval)
    due = min(state.last_progress + state.challenge_window, state.accepted + state.deadline)
    ending = {"settles_after": window_end} if state.head_count == last else {"next_head_due": due}
    return {"checkpoints": last, "now": now, **ending, "seconds_left": max(0, next(iter(ending.values())) - now)}


def jobs(chain: Chain | HubBoard, first_block: int = 0) -> Iterator[dict[str, Any]]:
    """A line about each job that was created since a block."""
    for event in chain.events(first_block=first_block):
        if event.name == "JobCreated":
            state, values = chain.job_state(Digest(event.values["jobId"])), event.values
            yield {
                "job": values["jobId"].hex(), "status": state.status.name.lower(), "heads": state.head_count,
                "open_games": state.open_games, "reward": values["reward"],
                "client": f"0x{bytes(values['client']).hex()}", "trainer": f"0x{bytes(values['trainer']).hex()}",
                "block": event.block,
            }  # fmt: skip


def games(chain: Chain | HubBoard, first_block: int = 0, job_id: Digest | None = None) -> Iterator[dict[str, Any]]:
    """A line about each game that was started since a block, perhaps only about one job."""
    found = chain.events(first_block=first_block)
    ends = {event.values["gameId"]: event.values for event in found if event.name == "GameEnded"}
    for event in found:
        if event.name != "GameStarted" or job_id not in (None, event.values["jobId"]):
            continue
        values = event.values
        end, state = ends.get(values["gameId"]), chain.game_state(Digest(values["gameId"]))
        yield {
            "game": values["gameId"].hex(), "job": values["jobId"].hex(), "head": values["count"],
            "challenger": f"0x{bytes(values['challenger']).hex()}", "moves": state.sequence,
            "level": None if end else Level(state.level).name.lower(),
            "verdict": None if end is None else Outcome(end["verdict"]).name.lower(),
            "reason": None if end is None else Reason(end["reason"]).name.lower(), "block": event.block,
        }  # fmt: skip


def game_document(chain: Chain | HubBoard, game_id: Digest, first_block: int = 0) -> dict[str, Any]:
    """The board's record of a game, and its events about it. Raises `StateError` if there is none."""
    state = chain.game_state(game_id)
    if not state.phase:
        raise StateError(f"expected a game on the board, got none of id {game_id.hex()}")
    document = {name: _plain(value) for name, value in vars(state).items()}
    named = {"phase": Phase(state.phase).name.lower(), "level": Level(state.level).name.lower()}
    reason = {"reason": Reason(state.reason).name.lower()} if state.reason else {}
    logged = []
    for event in chain.events(game_id, first_block):
        values = {name: _plain(value) for name, value in event.values.items()}
        logged.append({"event": event.name, "block": event.block, "transaction": event.transaction.hex(), **values})
    return {"game": game_id.hex(), **document, **named, **reason, "events": logged}


def _plain(value: Any) -> Any:
    """Enumerations by name, bytes in hex, amounts as they are."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.name.lower() if isinstance(value, IntEnum) else value
