"""The public state of a board, folded from the logs of its contracts, transaction by transaction.

A log shows every change, whoever made it and by whatever way. Calldata adds what logs leave out (a job's fields, a
head's signature, siblings, an entered proof), where a transaction calls one of the contracts directly. Without it:

- a job is followed if somebody else knows its fields (`job_of`); the id says whether they are the right ones;
- a move is the one in the log (`tiebreak.protocol.chain.moves`), for which the job's program is needed;
- a state that enters is known from the talk (`talk_of`), or else from its snapshot, so far as that says it;
- a game whose state cannot be known has `is_lost` until another state enters or the game ends.

The rules judge again what the contracts took. `disagreements` lists what they would have refused.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any, Final, TypeVar, cast

from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.chain.moves import move_in
from tiebreak.protocol.chain.records import Event, Outcome
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.commitments.keys import SIGNATURE_BYTES
from tiebreak.protocol.errors import TiebreakError, VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Concede, Move, Phase, Prove, Side
from tiebreak.protocol.game.snapshot import Snapshot
from tiebreak.protocol.game.state import GameState, Level, Reason, Verdict
from tiebreak.protocol.parties import board
from tiebreak.protocol.parties.board import BURNED, JobStatus, PoolSlot, PublicGame, PublicJob, Seating
from tiebreak.protocol.program.isa import Opcode
from tiebreak.protocol.program.program import Program, instruction_digest
from tiebreak.protocol.program.rounding import Direction
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

_ENDINGS: Final = {
    "JobCancelled": JobStatus.CANCELLED,
    "JobSettled": JobStatus.SETTLED,
    "JobSlashed": JobStatus.SLASHED,
    "JobAbandoned": JobStatus.ABANDONED,
    "JobParted": JobStatus.PARTED,
}
_OF_MOVES: Final = (Reason.PADDING, Reason.RECOMPUTED, Reason.FORKED)
"""Reasons of endings that another event of the same call comes before."""
_WITH_BEFORE: Final = ("LogOpened", "GameEnded")
MOST_TRIED: Final = 256
"""The most places of calldata that are searched for a signature, so that nobody can make that take long."""
MAX_DISAGREEMENTS: Final = 1000
"""The most disagreements listed: strangers can enter garbage in games of their own as long as they pay for gas."""
KEPT_BLOCKS: Final = 64
"""The number of newest blocks with logs that can be taken back; Ethereum finalises after as many."""
_LINES: Final = 1 << 16
"""The number of the first line of a game that begins with a vanished block, so that each line has its own."""

TalkOf = Callable[[PublicGame, int, bytes], tuple[GameState, list[Move]]]
"""Finds a state and the line that led to it, by a game, its number of moves and its snapshot's id.

Raises `VerificationError` for one that is not known.
"""
Known = TypeVar("Known", PublicJob, PublicGame)


def unknown_talk(_game: PublicGame, _sequence: int, _snapshot: bytes) -> tuple[GameState, list[Move]]:
    """The default `TalkOf`, of a follower that has received no messages: knows no state."""
    raise VerificationError("expected a state that was talked about here, got another")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A transaction with at least one event of the contracts, as its block shows it to everybody."""

    events: tuple[Event, ...]
    """The events of these contracts alone, in their order."""
    at: int
    """The timestamp of its block, in seconds."""
    call: Call | None = None
    """The call that it made, if it called one of the contracts directly and its calldata is known."""
    gas: int = 0


@dataclass(slots=True)
class _Frame:
    """The parts of the board that a block changed, as they were before. None where there was nothing."""

    items: dict[Digest, tuple[PublicJob | PublicGame, dict[str, Any] | None]] = field(default_factory=dict)
    credits: dict[Address, int | None] = field(default_factory=dict)
    pools: dict[int, list[PoolSlot] | None] = field(default_factory=dict)
    disagreements: int = 0


class FollowedBoard(board.Board):
    """A board that is kept current by `begin_block` and `follow`; `take_back` undoes blocks, newest first."""

    def __init__(self) -> None:
        super().__init__()
        self.disagreements: list[str] = []
        self.unread: set[Digest] = set()
        """Jobs on the board that are not followed, because their fields are not known."""
        self.talk_of: TalkOf = unknown_talk
        self.program_of: Callable[[Job], Program | None] = lambda _: None
        self.job_of: Callable[[Digest], Job | None] = lambda _: None
        self._frames: deque[_Frame] = deque(maxlen=KEPT_BLOCKS)
        self._gone: dict[Digest, PublicJob | PublicGame] = {}
        """Jobs and games that vanished with their blocks. The same objects come back, since others hold them."""
        self._lines = count(_LINES)

    # ------------------------------------------------------------------ blocks

    def begin_block(self) -> None:
        """Begin a block, which can be taken back as one."""
        self._frames.append(_Frame(disagreements=len(self.disagreements)))

    def take_back(self) -> None:
        """Undo what followed since the last `begin_block`. Raises `IndexError` if that is no longer known."""
        frame = self._frames.pop()
        for number, (item, fields) in frame.items.items():
            if fields is None:
                self._gone[number] = item
                self.jobs.pop(number, None)
                self.games.pop(number, None)
                continue
            for slot, value in fields.items():
                setattr(item, slot, value)
            if isinstance(item, PublicGame):
                self._another_line(item)
        del self.disagreements[frame.disagreements :]  # a log may have been missing
        _put_back(self.credits, frame.credits)
        _put_back(self.pools, frame.pools)

    def start_again(self) -> None:
        """Forget all that was followed, for following it from the first block again."""
        self._gone |= {**self.jobs, **self.games}
        for held in (self.jobs, self.games, self.credits, self.pools, self.unread, self._frames, self.disagreements):
            held.clear()

    def _touch(self, item: PublicJob | PublicGame, *, is_new: bool = False) -> None:
        """Save an item's fields before its first change in a block, so that `take_back` can restore them."""
        if self._frames and item.id not in self._frames[-1].items:
            fields = None if is_new else {slot: _copied(getattr(item, slot)) for slot in item.__slots__}
            self._frames[-1].items[item.id] = (item, fields)

    def _add(self, made: Known) -> Known:
        """A new item: the object of the same id that vanished with its block, updated, if there is one."""
        if (found := self._gone.pop(made.id, None)) is not None:
            for slot in made.__slots__:
                setattr(found, slot, getattr(made, slot))
            if isinstance(found, PublicGame):
                self._another_line(found)
        made = made if found is None else cast("Known", found)
        self._touch(made, is_new=True)
        return made

    def _another_line(self, found: PublicGame) -> None:
        """Give the game a new line number, so that a party forgets what it was shown in the old line."""
        found.entries = next(self._lines)

    # ------------------------------------------------------------------ transactions

    def follow(self, seen: Seen) -> None:
        about: list[PublicGame | None] = []
        for part in _parts(seen.events):
            try:
                about.append(self._follow(part, seen))
            except Exception as error:  # it is a disagreement, and the other calls go on
                self._disagree(part, error)
        for found in {found.id: found for found in about if found is not None}.values():
            found.costs.append((found.state.moves, seen.gas))
            found.height = self.height
            if found.is_over and not found.ended:
                found.ended = seen.at

    def _note(self, disagreement: str) -> None:
        if len(self.disagreements) < MAX_DISAGREEMENTS:
            self.disagreements.append(disagreement)

    def _disagree(self, part: Sequence[Event], error: Exception) -> None:
        says = f"{error}" if isinstance(error, TiebreakError) else f"{type(error).__name__}: {error}"
        self._note(f"{part[0].name}: the contract took it, Python says {says}")

    def _follow(self, part: Sequence[Event], seen: Seen) -> PublicGame | None:
        """Fold the events of one call in. Returns the game that it was about, if it is known."""
        name, said = part[0].name, part[0].values
        match name:
            case "JobCreated":
                self._create(said["jobId"], seen)
            case "Credited" | "Withdrawn":
                self._pay(said["account"], said["amount"] if name == "Credited" else -said["amount"])
            case "PoolJoined" | "PoolLeft":
                self._pool(name, said, seen.at)
            case "GameStarted":
                return self._start(said, seen)
        if "burned" in said:
            self._pay(BURNED, said["burned"])
        if "gameId" in said:
            if (found := self.games.get(said["gameId"])) is not None:
                self._touch(found)
                self._play(found, part, seen)
            return found
        job = self.jobs.get(said["jobId"]) if "jobId" in said else None
        if job is not None and name != "JobCreated":
            self._touch(job)
            _change(job, name, said, seen.at, len(self.pools.get(job.job.seat_bond, [])))
        return None

    def _create(self, job_id: Digest, seen: Seen) -> None:
        job = None
        try:
            job = None if seen.call is None else seen.call.job
        except VerificationError as error:
            self._note(f"createJob: the contract took it, Python says {error}")
        if job is None or job.id != job_id:
            job = self.job_of(job_id)
        if job is not None and job.id == job_id:
            self.unread.discard(job_id)
            self.jobs[job_id] = self._add(PublicJob(job=job, last_progress=seen.at))
        else:
            self.unread.add(job_id)

    def _pay(self, account: Address, amount: int) -> None:
        if self._frames:
            self._frames[-1].credits.setdefault(account, self.credits.get(account))
        self.credits[account] = self.credit(account) + amount

    def _pool(self, name: str, said: dict[str, Any], now: int) -> None:
        bond = said["bond"]
        if self._frames and bond not in self._frames[-1].pools:
            self._frames[-1].pools[bond] = _copied(self.pools.get(bond))
        if name == "PoolLeft":
            self.pools[bond][said["slot"]].owner = None
            return
        pool = self.pools.setdefault(bond, [])
        pool[said["slot"] : said["slot"] + 1] = [PoolSlot(owner=said["owner"], since=now)]

    # ------------------------------------------------------------------ games

    def _start(self, said: dict[str, Any], seen: Seen) -> PublicGame | None:
        if (job := self.jobs.get(said["jobId"])) is None:
            return None
        head = Head(job_id=job.id, count=said["count"], run_root=Digest(said["runRoot"]))
        heads = () if seen.call is None else seen.call.heads
        shown = next((one for one in heads if one.head == head), SignedHead(head=head, signature=b""))
        game_id = Digest(said["gameId"])
        state = rules.start(job.job, head, game_id, seen.at)
        self._touch(job)
        for other in self.open_games(job.id):
            self._touch(other)
        made = PublicGame(id=game_id, job=job, challenger=said["challenger"], head=shown, state=state, started=seen.at)
        self.begin(made := self._add(made))
        return made

    def _play(self, found: PublicGame, part: Sequence[Event], seen: Seen) -> None:
        """Follow one call in a game: a move, an entry, or its end."""
        call = seen.call if seen.call is not None and seen.call.game_id == found.id else None
        names = {event.name: event.values for event in part}
        if (ended := names.get("GameEnded")) is not None and ended["verdict"] is Outcome.VOID:
            found.void = True
            return
        before = found.state
        try:
            if "Entered" in names:
                self._enter(found, names["Entered"], seen.at)
            elif ended is not None:
                self._end(found, part, ended, call, seen.at)
            else:
                self._move(found, part, call, seen.at)
        except Exception as error:  # whatever the error is, the other games go on
            self._disagree(part, error)
            found.is_lost = True
        self._compare(found, before, ended, call)

    def _compare(self, found: PublicGame, before: GameState, ended: dict[str, Any] | None, call: Call | None) -> None:
        """Adopt the verdict that the chain logged, if any, and record a disagreement if the rules give another."""
        ours = found.state.verdict
        if ended is None:
            if ours is not None:
                self._note(f"game {found.id.hex()[:8]}: over in Python, not on the chain")
                found.state, found.is_lost = replace(before, moves=found.state.moves), True
            return
        theirs = _verdict(ended, f"so says the chain: {ended['reason'].name}")
        if ours is None or (ours.winner, ours.reason) != (theirs.winner, theirs.reason):
            if not found.is_lost and (ours is not None or call is not None):
                who = f"{theirs.winner.name} by {theirs.reason.name}"
                self._note(f"game {found.id.hex()[:8]}: expected a verdict for {who}, got {ours}")
            found.state = replace(found.state, phase=Phase.OVER, verdict=theirs)

    def _move(self, found: PublicGame, part: Sequence[Event], call: Call | None, now: int) -> None:
        """A move that did not end the game: whole from calldata, or else as the log shows it."""
        move = self._called(call)
        if found.is_lost:
            return  # of a state that is not known, nothing can be said
        if move is not None:
            found.state = rules.apply(found.state, move, now)
        else:
            move = self._logged(found, part)
            found.is_lost = move is None
            if move is None:
                return
            found.state = rules.follow(found.state, move, now)
        found.moves.append(move)

    def _called(self, call: Call | None) -> Move | None:
        move = None if call is None else call.move
        if call is not None and call.is_move and move is None:
            self._note(f"{call.kind}: the contract took what is no move")
        return move

    def _logged(self, found: PublicGame, part: Sequence[Event]) -> Move | None:
        program = self.program_of(found.job.job)
        is_bare = part[0].name in ("Selected", "ElementSelected") and found.answered is None
        if found.is_lost or is_bare or (part[0].name == "TensorOpened" and program is None):
            return None
        return move_in(part, found.state, found.answered, cast("Program", program))

    def _end(
        self, found: PublicGame, part: Sequence[Event], ended: dict[str, Any], call: Call | None, now: int
    ) -> None:
        if found.is_lost and (call is None or call.kind != "enterAndProve"):
            return  # of a state that is not known, the chain's word is all there is
        loser = Side.DEFENDER if ended["verdict"] is Outcome.DEFENDER_LOST else Side.CHALLENGER
        match ended["reason"]:
            case Reason.CONCEDED:
                found.state = rules.concede(found.state, loser, now)
                found.moves.append(Concede())
            case Reason.FORKED:
                found.state = rules.forked(found.state, loser)
            case Reason.TIMEOUT:
                found.state = rules.timeout(found.state, now)
            case _:
                self._end_by_move(found, part, ended, call, now)

    def _end_by_move(
        self, found: PublicGame, part: Sequence[Event], ended: dict[str, Any], call: Call | None, now: int
    ) -> None:
        if call is not None and call.kind == "enterAndProve":
            _, sequence, snapshot, *_ = call.arguments
            later, found.moves = self._stood(found, sequence, snapshot)
            found.entries += 1
            if (proof := call.entered_proof) is not None and len(found.moves) == later.moves:
                found.state = rules.prove_signed(found.state, later, proof)
                found.moves.append(proof)
            else:  # what was opened on the way is not known here, and cannot be judged
                found.state = replace(later, phase=Phase.OVER, verdict=_verdict(ended, "", part, later))
            return
        if (move := self._called(call)) is None and part[0].name in ("Selected", "Descended"):
            move = self._logged(found, part[:1])
        if isinstance(move, Prove) and len(found.moves) != found.state.moves:
            move = None  # what was opened on the way to a state that entered is not known here, and cannot be judged
        if move is not None:
            found.state = rules.apply(found.state, move, now)
            found.moves.append(move)
        elif part[0].name != "Proved" or found.state.phase is Phase.PROVE:
            found.state = rules.ended(found.state, _verdict(ended, "", part, found.state), now)

    # ------------------------------------------------------------------ entered states

    def _enter(self, found: PublicGame, said: dict[str, Any], now: int) -> None:
        later, line = self._stood(found, said["sequence"], said["snapshot"])
        found.state = rules.enter(found.state, later, now)
        found.moves, found.entries = line, found.entries + 1

    def _stood(self, found: PublicGame, sequence: int, snapshot: bytes) -> tuple[GameState, list[Move]]:
        """A state that was signed, and the line that led to it, as far as they can be known here."""
        try:
            later, line = self.talk_of(found, sequence, tagged_hash(Tag.SNAPSHOT, snapshot))
            found.is_lost = False
        except VerificationError:
            shown = Snapshot.decode(snapshot)
            standing = standing_at(shown, found.first_state, sequence, self.program_of(found.job.job))
            found.is_lost = standing is None
            later, line = standing or replace(found.first_state, moves=sequence), []
        return later, line


def standing_at(shown: Snapshot, start: GameState, sequence: int, program: Program | None) -> GameState | None:
    """The state of a game at a snapshot, for a party that has not heard the moves that led there.

    It lacks the values opened on the way, so it cannot be signed or proved from, only followed. None if it needs a
    program that is not given, or is of none of its instructions. Raises `InvalidSnapshot` for what the contract
    refuses.
    """
    job, phase, level = start.job, Phase(shown.phase), Level(shown.level)
    shown.require_reachable(job, start.head)
    is_inner = level in (Level.CHUNKS, Level.TERMS)
    if is_inner and program is None:
        return None
    operation = program.instruction_at(shown.instruction) if is_inner and program is not None else None
    in_segment = level is not Level.RUN or phase is Phase.OPEN_STEPS
    is_element = level is Level.CHUNKS and phase in (Phase.OPEN_TERMS, Phase.PROVE)
    state = replace(
        start, phase=phase, level=level, node=shown.node, height=shown.height, position=shown.position,
        checkpoint=job.checkpoint_of(shown.step) if in_segment else 0, step=0 if level is Level.RUN else shown.step,
        leaf=shown.instruction, operation=operation, chunk=shown.position if is_inner else 0, element=shown.element,
        direction=Direction(shown.summation >> 6), moves=sequence,
    )  # fmt: skip
    if operation is not None and program is not None:
        state = replace(state, instruction=instruction_digest(program.encoded_at(shown.instruction)))
        if is_element:
            state = replace(state, claimed=shown.node[::-1][: operation.dtype.size])
    if (phase is Phase.SELECT_ELEMENT or is_element) and state.is_logged_sum:
        state = replace(state, word=shown.log)
    elif level is Level.STEPS:
        state = replace(state, log_root=shown.log)
    else:
        state = replace(state, step_log=shown.log)
    if operation is not None and (operation.opcode == Opcode.SOURCE or (level is Level.TERMS and not state.terms)):
        return None  # it has no such tree
    return None if replace(Snapshot.of(state), opened=shown.opened) != shown else state


# ---------------------------------------------------------------- contents of events


def _parts(events: Sequence[Event]) -> Iterator[list[Event]]:
    """The events of each call. One transaction can make many, also in one game, through another contract."""
    part: list[Event] = []
    for event in events:
        goes_on = event.name in _WITH_BEFORE and part and part[0].values.get("gameId") == event.values["gameId"]
        if event.name == "GameEnded":
            goes_on = goes_on and event.values["reason"] in _OF_MOVES and part[-1].name != "GameEnded"
        if part and not goes_on:
            yield part
            part = []
        part.append(event)
    if part:
        yield part


def _change(  # noqa: C901  # one case an event
    job: PublicJob, name: str, said: dict[str, Any], now: int, pool_length: int
) -> None:
    match name:
        case "JobAccepted":
            job.accept(now)
        case "HeadPosted":
            job.post(said["count"], now)
        case "ReceiptPosted":
            job.receipts = said["count"]
        case "Equivocation" | "Inconsistency" | "Nonfinite" | "Conceded":  # flags of the job with these names
            setattr(job, name.lower(), True)
        case "HeadSealed":
            job.seal(said["count"], now, pool_length)
        case "SeatsDrawn":
            job.draw(said["seed"], now)
        case "RootSealed":
            job.seating.seals[said["seat"]] = (said["auditor"], said["rootSeal"])
        case "SeatClaimed":
            job.seating.claimed[said["seat"]] = said["amount"]
        case "SeatsClosed":
            job.seating.is_closed = True
        case _ if name in _ENDINGS:
            job.status, job.ended = _ENDINGS[name], now


def _verdict(ended: dict[str, Any], detail: str, part: Sequence[Event] = (), state: GameState | None = None) -> Verdict:
    winner = Side.CHALLENGER if ended["verdict"] is Outcome.DEFENDER_LOST else Side.DEFENDER
    if ended["reason"] is not Reason.RECOMPUTED or state is None:
        return Verdict(winner=winner, reason=ended["reason"], detail=detail or "a tie of the defender failed")
    said, found = part[0].values, "agrees with" if winner is Side.DEFENDER else "contradicts"
    shown = (said["committed"], said["right"])
    if state.level is Level.CHUNKS:  # the log shows numbers; the state has their bytes
        shown = (shown[0][::-1][: len(state.claimed)], shown[1][::-1][: len(state.claimed)])
    return Verdict(
        winner=winner, reason=Reason.RECOMPUTED, detail=f"recomputing {found} the defender", committed=shown[0],
        correct=shown[1],
    )  # fmt: skip


def head_in(head: Head, job: Job, domain: Domain, data: bytes) -> SignedHead | None:
    """A head with its trainer's signature, wherever that stands in some calldata; None if it does not.

    Heads may be posted by way of another contract, and a challenger of one has to show its signature.
    """
    ends = (end for end in range(SIGNATURE_BYTES, len(data) + 1) if data[end - 1] in (27, 28))
    for end in islice(ends, MOST_TRIED):
        found = SignedHead(head=head, signature=data[end - SIGNATURE_BYTES : end])
        try:
            found.verify(job, domain)
        except VerificationError:
            continue
        return found
    return None


def _copied(value: Any) -> Any:
    """The value with containers, slots and seats of its own, however deep. Jobs and games stay the same objects."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    if isinstance(value, PoolSlot | Seating):
        return replace(value, **{name: _copied(getattr(value, name)) for name in value.__slots__})
    return value


Key = TypeVar("Key")
Value = TypeVar("Value")


def _put_back(now: dict[Key, Value], before: dict[Key, Value | None]) -> None:
    for key, value in before.items():
        if value is None:
            now.pop(key, None)
        else:
            now[key] = value
