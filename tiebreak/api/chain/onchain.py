"""Jobs and games on a chain, as people read them and act on them by hand. Needs the extra `chain`.

Without a chain, the posts of a hub are read in its place (`HubBoard`). Long-running parties (`tiebreak trainer`,
`auditor`, `client`) do all of this by themselves, in time.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tiebreak.api.certification.ownership import Posting
from tiebreak.engine.run.audit import compare
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.chain import Call, Chain, Event, GameRecord, JobRecord, JobStatus, Outcome, Receipt
from tiebreak.protocol.chain.deployments import require_chain
from tiebreak.protocol.commitments.certificate import Certificate, Logged, Seat
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Concession, Head, Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import ConfigurationError, StateError, VerificationError
from tiebreak.protocol.game.moves import Phase, Side
from tiebreak.protocol.game.state import Level, Reason
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import PublicGame, loss_of
from tiebreak.protocol.parties.ledger import Ledger, Refusal
from tiebreak.protocol.parties.posts import Body, Post, TransactionBody
from tiebreak.protocol.tags import Digest

ENDINGS: Final = {
    "settle": tx.Settle,
    "cancel": tx.CancelJob,
    "abandon": tx.Abandon,
    "part": tx.Part,
}
"""The ways in which a job ends by somebody's call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTransaction:
    """A transaction that was sent, in words, and its receipt."""

    what: str
    receipt: Receipt


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
    chain = Chain.connect(rpc)
    require_chain(chain, domain.chain_id)
    chain.attach(domain.contract)
    return chain


# ---------------------------------------------------------------- acting


def post(chain: Chain, run: RunDirectory, key: PrivateKey, count: int | None = None) -> SentTransaction:
    """Sends the transactions that the job needs next from the owner of this key.

    The client creates the job and pays the reward; the trainer accepts it and pays its stake, then posts heads. count:
    the head to post [default: the last that is signed]. Raises `StateError` if nothing is to be posted now.
    """
    job, state = run.job, chain.job_state(run.job.id)
    if state.status is JobStatus.NONE:
        _require_owner(key, job.client, "client, to create the job")
        call = Call.of(tx.CreateJob(job=job, signature=run.agreement.trainer_signature))
        return SentTransaction(what=f"the job, with {ether(call.value)} for it", receipt=chain.send(key, call))
    if state.status is JobStatus.OFFERED:
        _require_owner(key, job.trainer, "trainer, to accept the job")
        stake = ether(job.trainer_stake)
        return SentTransaction(what=f"its acceptance, with a stake of {stake}",
                    receipt=chain.send(key, Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake)))  # fmt: skip
    if state.status is not JobStatus.ACTIVE:
        raise StateError(f"expected a job that goes on, got one that is {state.status.name.lower()}")
    _require_owner(key, job.trainer, "trainer, to post a head")
    if job.seats:
        raise ConfigurationError("expected a job without seats, got one whose heads are sealed; run `tiebreak trainer`")
    head = signed_head(run, count)
    if head.head.count <= state.head_count:
        raise StateError(f"expected a head of more than {state.head_count} checkpoints, got one of {head.head.count}")
    return SentTransaction(
        what=f"head {head.head.count} of {job.checkpoints}", receipt=chain.send(key, Call.of(tx.PostHead(head=head)))
    )


def challenge(
    chain: Chain, run: RunDirectory, key: PrivateKey, *, replay: Path | None, count: int | None, nonce: int
) -> tuple[Digest, SentTransaction]:
    """Starts a game against a head of the run, and returns its id.

    replay: the challenger's own replay of the job (`tiebreak audit`), which must differ from the head; None: the caller
    knows what it risks. Raises `ConfigurationError` if the replay agrees, for then the stake would be lost.
    """
    head = signed_head(run, count)
    if replay is not None:
        own = RunDirectory.open(replay)
        if own.job.id != run.job.id:
            raise ConfigurationError(f"expected a replay of job {run.job.id.hex()}, got one of {own.job.id.hex()}")
        if compare(own, head).agrees:
            raise ConfigurationError(
                f"head {head.head.count} is what the replay gives: a challenge would lose the stake, so nothing is sent"
            )
    game_id, receipt = chain.challenge(key, head, nonce)
    return game_id, SentTransaction(what=f"a challenge of head {head.head.count}", receipt=receipt)


def end(chain: Chain, run: RunDirectory, key: PrivateKey, how: str) -> SentTransaction:
    """Ends a job in one of the `ENDINGS`. Raises `Reverted` with the contract's reason if it is too early."""
    call = Call.of(ENDINGS[how](job_id=run.job.id))
    return SentTransaction(what=f"{how} of job {run.job.id.hex()}", receipt=chain.send(key, call))


def claim(chain: Chain, game_id: Digest, key: PrivateKey) -> SentTransaction:
    """Claims that the side to move has used up its clock. Raises `Reverted`, with the reason, if it has not."""
    receipt = chain.send(key, Call.of(tx.ClaimTimeout(game_id=game_id)))
    return SentTransaction(what=f"a claim that the clock of game {game_id.hex()} ran out", receipt=receipt)


def concede(chain: Chain, run: RunDirectory, key: PrivateKey, prover: Address) -> SentTransaction:
    """Ends a job by its trainer's word that its last head is false: half of the stake goes to the prover."""
    _require_owner(key, run.job.trainer, "trainer, to concede a head")
    head = signed_head(run, None).head
    signed = Concession.sign(head, prover, run.agreement.domain, key)
    receipt = chain.send(key, Call.of(tx.ReportConcession(concession=signed)))
    return SentTransaction(what=f"the concession of head {head.count} to 0x{prover.hex()}", receipt=receipt)


def withdraw(chain: Chain, key: PrivateKey, to: Address | None = None) -> SentTransaction:
    """Withdraws all that the board owes to the key's account. Raises `StateError` if that is nothing."""
    amount = chain.credit(key.address)
    if not amount:
        raise StateError(f"expected credit of 0x{key.address.hex()} on the board, got none")
    return SentTransaction(
        what=ether(amount), receipt=chain.send(key, Call.of(tx.Withdraw(to=key.address if to is None else to)))
    )


def signed_head(run: RunDirectory, count: int | None) -> SignedHead:
    """The signed head of this count [default: the last]. Raises `StateError` if there is none."""
    heads = [head for head in run.heads() if count in (None, head.head.count)]
    if not heads:
        which = "a signed head" if count is None else f"a signed head of count {count}"
        raise StateError(f"{run.path}: expected {which}, got none")
    return heads[-1]


def _require_owner(key: PrivateKey, owner: Address, who: str) -> None:
    if key.address != owner:
        raise ConfigurationError(f"expected the key of 0x{owner.hex()}, the {who}, got 0x{key.address.hex()}")


# ---------------------------------------------------------------- reading


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
        found = self._ledger.board.jobs.get(job_id)
        if found is None:
            return SimpleNamespace(status=JobStatus.NONE)
        signed = {field.name: getattr(found.job, field.name) for field in fields(Job)}
        names = ("status", "head_count", "last_progress", "accepted", "audit_end", "receipts", "crowd")
        changed = {name: getattr(found, name) for name in names}
        roots = {"head_root": self._ledger.roots.get(job_id, bytes(32))}
        open_games = len(self._ledger.board.open_games(job_id))
        return SimpleNamespace(**signed, **changed, **roots, open_games=open_games)

    def game_state(self, game_id: Digest) -> GameRecord:
        game = self._ledger.board.games.get(game_id)
        if game is None:
            return SimpleNamespace(phase=0)
        names = ("level", "height", "position", "node", "last", "defender_rest", "challenger_rest")
        walked = {name: getattr(game.state, name) for name in names}
        verdict, reason = _outcome(game)
        return SimpleNamespace(
            phase=game.state.phase, **walked, sequence=game.state.moves, verdict=verdict, reason=reason,
            job_id=game.job.id, challenger=game.challenger,
        )  # fmt: skip

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


# ---------------------------------------------------------------- endings of jobs


def check_settled(chain: Chain, head: Head) -> None:
    """Raises `StateError` if a job is not settled, and `VerificationError` if it was settled with another head."""
    state = chain.job_state(head.job_id)
    if state.status is not JobStatus.SETTLED:
        raise StateError(f"expected a job that is settled, got one that is {state.status.name.lower()}")
    if (state.head_count, state.head_root) != (head.count, head.run_root):
        raise VerificationError(
            f"expected head {state.head_count} of root {state.head_root.hex()}, with which the job was settled, got "
            f"{head.count} of root {head.run_root.hex()}"
        )


def ending_of(chain: Chain, head: Head, first_block: int = 0) -> tuple[Logged, tuple[Seat, ...]]:
    """The log of a job's settlement with this head, and the seats paid since a block. Raises like `check_settled`."""
    check_settled(chain, head)
    found = chain.events(head.job_id, first_block)
    settled = [_logged(event) for event in found if event.name == "JobSettled"]
    if not settled:
        raise StateError(f"expected the event of a settlement since block {first_block}, got none from the node")
    return settled[0], tuple(
        Seat(auditor=Address(bytes(event.values["auditor"])), number=int(event.values["seat"]), paid=_logged(event))
        for event in found if event.name == "SeatClaimed"
    )  # fmt: skip


def check_ending(chain: Chain, certificate: Certificate) -> None:
    """Raises `VerificationError` unless a job ended as its certificate says, `StateError` if it has not ended."""
    check_settled(chain, certificate.head.head)
    logged = [seat.paid for seat in certificate.audits]
    logged += [certificate.settlement] if certificate.settlement else []
    if logged:
        settled, paid = ending_of(chain, certificate.head.head, min(one.block for one in logged))
        if certificate.settlement not in (None, settled):
            raise VerificationError(f"certificate: expected settlement by {settled}, got {certificate.settlement}")
        if false := [seat for seat in certificate.audits if seat not in paid]:  # others may be paid later
            raise VerificationError(f"certificate: expected a seat among {paid}, got {false[0]}")


def heads_posted(chain: Chain, job_id: Digest, first_block: int = 0) -> list[Posting]:
    """The heads of a job that the board has taken since a block, as a node says."""
    return [
        Posting(count=int(event.values["count"]), run_root=Digest(bytes(event.values["runRoot"])),
                when=f"block {event.block} of chain {chain.chain_id}")
        for event in chain.events(job_id, first_block) if event.name == "HeadPosted"
    ]  # fmt: skip


def _logged(event: Event) -> Logged:
    return Logged(transaction=bytes(event.transaction), block=event.block)


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
                "job": values["jobId"].hex(),
                "status": state.status.name.lower(),
                "heads": state.head_count,
                "open_games": state.open_games,
                "reward": values["reward"],
                "client": f"0x{bytes(values['client']).hex()}",
                "trainer": f"0x{bytes(values['trainer']).hex()}",
                "block": event.block,
            }


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
            "game": values["gameId"].hex(),
            "job": values["jobId"].hex(),
            "head": values["count"],
            "challenger": f"0x{bytes(values['challenger']).hex()}",
            "moves": state.sequence,
            "level": None if end else Level(state.level).name.lower(),
            "verdict": None if end is None else Outcome(end["verdict"]).name.lower(),
            "reason": None if end is None else Reason(end["reason"]).name.lower(),
            "block": event.block,
        }


def game_document(chain: Chain | HubBoard, game_id: Digest, first_block: int = 0) -> dict[str, Any]:
    """The board's record of a game, and its events about it. Raises `StateError` if there is none."""
    state = chain.game_state(game_id)
    if not state.phase:
        raise StateError(f"expected a game on the board, got none of id {game_id.hex()}")
    document = {name: _plain(value) for name, value in vars(state).items()}
    named = {"phase": Phase(state.phase).name.lower(), "level": Level(state.level).name.lower()}
    reason = {"reason": Reason(state.reason).name.lower()} if state.reason else {}
    logged = [event_document(event) for event in chain.events(game_id, first_block)]
    return {"game": game_id.hex(), **document, **named, **reason, "events": logged}


def event_document(event: Event) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in event.values.items()}
    return {"event": event.name, "block": event.block, "transaction": event.transaction.hex(), **values}


def _plain(value: Any) -> Any:
    """Enumerations by name, bytes in hex, amounts as they are."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.name.lower() if isinstance(value, IntEnum) else value
