"""Dishonest challengers: without ground, in great numbers, too late, against themselves, or with others' findings."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar, Final

from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import IllegalMove
from tiebreak.protocol.game import seals
from tiebreak.protocol.game.moves import (
    NO_SEAL,
    ChunkOpening,
    Descend,
    Move,
    OpenChunk,
    Phase,
    Prove,
    Select,
    SelectElement,
    Side,
    TensorOpening,
)
from tiebreak.protocol.game.rules import GameState, Level, judge
from tiebreak.protocol.game.sides import Challenger, Oracle, Party
from tiebreak.protocol.parties.board import PublicGame, PublicJob
from tiebreak.protocol.tags import Digest
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.false_runs import TRAINER, FalseSum, PlainFalseRun, seat_trainer
from tiebreak.sim.adversaries.signing import Withholding
from tiebreak.sim.adversaries.spoiling import flipped
from tiebreak.sim.adversaries.waiting import last_call
from tiebreak.sim.world import calls
from tiebreak.sim.world.agents import Auditor, GameView, Process, Reply, Scripted, Trainer
from tiebreak.sim.world.cast import AgentFactory, Cast, Seat, TrainerFactory
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.world import Pending, World

CHALLENGED: Final = 6
"""A deviation in a game may begin at one of the first `CHALLENGED` moves."""


def seat_challenger(cast: Cast, name: str, make: AgentFactory) -> str:
    """Seat a challenger after the auditors that there are. Returns the party's name."""
    party = f"challenger {len(cast.auditors)}"
    cast.auditors.append(Seat(name=party, make=make, adversary=name))
    return party


class _Challenging(Adversary):
    """A dishonest party on the challenger's side."""

    role: ClassVar[Role] = Role.CHALLENGER
    make: ClassVar[type[Auditor]]

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # its choices are made as it goes
        """Takes a seat beside the honest auditor. The run is true unless another adversary is the trainer."""
        seat_challenger(cast, self.name, self.make)


# ---------------------------------------------------------------- without ground


class Mistaken(Auditor):
    """Has a mistake in its own replay and believes it. At the end of the game it finds that it can prove nothing.

    Under policy `logged` its logs differ too, and with them the records of a whole segment. The walk then goes to the
    segment's first step, whose values agree with the trainer's, so that its proof there supports the trainer's
    commitment.
    """

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self._wrong: Work | None = None

    def replay(self, job: PublicJob) -> Work:
        """The replay with the mistake. It is made once and stays the same."""
        if self._wrong is None:
            self._wrong = FalseSum().work(self.world.workshop, job.job, self.rng)
        return self._wrong


class MistakenChallenge(_Challenging):
    """An auditor that computed wrong."""

    name: ClassVar[str] = "challenge by a wrong replay"
    gain: ClassVar[str] = "half of an honest trainer's stake, it believes"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.CONCEDED, Catch.RECOMPUTED})
    make: ClassVar[type[Auditor]] = Mistaken


class _Accusing(Auditor):
    """Challenges a head although its own replay agrees."""

    def accuses(self, head: SignedHead, agrees: bool) -> bool:  # noqa: ARG002
        return True


class Wandering(Challenger):
    """Walks at random. At the end it proves the truth, which is what the defender committed."""

    def __init__(self, oracle: Oracle, secret: bytes, rng: Random) -> None:
        super().__init__(oracle, secret)
        self.rng = rng

    def pick(self, state: GameState, nodes: Sequence[bytes]) -> int:  # noqa: ARG002
        return self.rng.randrange(len(nodes))

    def pick_element(self, state: GameState, chunk: bytes) -> int:
        return self.rng.randrange(len(chunk) // state.dtype.size)


class Careful(Wandering):
    """Walks at random, but never into padding, so that it arrives at something that can be proved."""

    def pick(self, state: GameState, nodes: Sequence[bytes]) -> int:
        """A random node with at least one leaf that is not padding."""
        height, first = state.height - state.levels, state.position << state.levels
        return self.rng.choice([k for k in range(len(nodes)) if not _is_empty(state, first + k << height)])


def _is_empty(state: GameState, leaf: int) -> bool:
    """Whether a leaf is padding, and with it everything to its right in the tree or half-tree."""
    if state.level is not Level.VALUES:
        return leaf >= state.leaves
    half = 1 << state.job.half_depth
    return leaf >= state.job.body_count if leaf < half else leaf - half >= state.job.state_count


class _Wanderer(_Accusing):
    def party_in(self, game: PublicGame) -> Party:
        """A challenger that walks at random."""
        return Wandering(self.world.workshop.honest(game.job.job).oracle, self.secret, self.rng)


class RandomWalk(_Challenging):
    """A challenge without ground, played to its end at random."""

    name: ClassVar[str] = "challenge that walks at random"
    gain: ClassVar[str] = "a lucky find"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.RECOMPUTED, Catch.PADDING})
    make: ClassVar[type[Auditor]] = _Wanderer


class _Fickle(_Accusing):
    def __init__(self, world: World, name: str, key: PrivateKey, *, after: int, silent: bool) -> None:
        super().__init__(world, name, key)
        self.after = after
        self.silent = silent

    def answers(self, view: GameView) -> bool:
        """Answers until move `after`, if it falls silent then."""
        return not self.silent or view.state.moves < self.after

    def concedes(self, view: GameView) -> bool:
        """Concedes from move `after` on, if it gives up rather than falls silent."""
        return not self.silent and view.state.moves >= self.after


class SilentChallenge(Adversary):
    """Starts a game and stops answering."""

    name: ClassVar[str] = "challenge without moves"
    gain: ClassVar[str] = "the trainer's pay held up, for one transaction"
    role: ClassVar[Role] = Role.CHALLENGER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.TIMEOUT})

    def join(self, cast: Cast, rng: Random) -> None:
        """Draw the move at which it falls silent."""
        seat_challenger(cast, self.name, partial(_Fickle, after=rng.randint(0, CHALLENGED), silent=True))


class ConcededChallenge(Adversary):
    """Starts a game and gives up."""

    name: ClassVar[str] = "challenge that is given up"
    gain: ClassVar[str] = "a look at the trainer's trees"
    role: ClassVar[Role] = Role.CHALLENGER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.CONCEDED})

    def join(self, cast: Cast, rng: Random) -> None:
        """Draw the move at which it gives up."""
        seat_challenger(cast, self.name, partial(_Fickle, after=rng.randint(0, CHALLENGED), silent=False))


# ---------------------------------------------------------------- proofs that are none

Forge = Callable[[Prove, Random], Prove | None]
"""Makes a forged proof; None if the proof has no part to forge."""


def other_operand(proof: Prove, rng: Random) -> Prove | None:
    """Changes the bytes of an operand."""
    if not proof.chunks:
        return None
    place = rng.randrange(len(proof.chunks))
    chunk = proof.chunks[place]
    chunks = (*proof.chunks[:place], replace(chunk, data=flipped(chunk.data, rng)), *proof.chunks[place + 1 :])
    return replace(proof, chunks=chunks)


def other_tensor(proof: Prove, rng: Random) -> Prove | None:
    """Places an operand elsewhere in the program."""
    if not proof.tensors:
        return None
    place = rng.randrange(len(proof.tensors))
    tensor = proof.tensors[place]
    tensors = (*proof.tensors[:place], replace(tensor, value=tensor.value ^ 1), *proof.tensors[place + 1 :])
    return replace(proof, tensors=tensors)


def unused_opening(proof: Prove, rng: Random) -> Prove | None:
    """Opens a tensor or a chunk twice."""
    if not proof.tensors or not proof.chunks:
        return None
    tensor: TensorOpening = rng.choice(proof.tensors)
    chunk: ChunkOpening = rng.choice(proof.chunks)
    return rng.choice((replace(proof, tensors=(*proof.tensors, tensor)), replace(proof, chunks=(*proof.chunks, chunk))))


def other_witness(proof: Prove, rng: Random) -> Prove | None:
    """Names another tensor of the state or the data."""
    witness = proof.witness
    return (
        None if witness is None else replace(proof, witness=replace(witness, tensor_id=flipped(witness.tensor_id, rng)))
    )


def other_instruction(proof: Prove, rng: Random) -> Prove | None:
    """Uses an operation that is in no program."""
    return replace(proof, instruction=flipped(proof.instruction, rng))


def other_salt(proof: Prove, rng: Random) -> Prove | None:
    """Uses a salt that does not belong to the seal."""
    return replace(proof, salt=rng.randbytes(32))


FORGERIES: Final[tuple[Forge, ...]] = (
    other_operand,
    other_tensor,
    unused_opening,
    other_witness,
    other_instruction,
    other_salt,
)


class _Forging(_Accusing):
    """At the end of its walk it sends every kind of forged proof, but not the true one."""

    def party_in(self, game: PublicGame) -> Party:
        """A challenger whose walk ends in a proof."""
        return Careful(self.world.workshop.honest(game.job.job).oracle, self.secret, self.rng)

    def reply(self, game: GameView) -> Reply:
        """All forged proofs, one after the other."""
        plain = super().reply(game)
        if not isinstance(plain.move, Prove):
            return plain
        forged = [proof for forge in FORGERIES if (proof := forge(plain.move, self.rng)) is not None]
        self.spam(calls.make_move(game.state, proof) for proof in forged)
        return Reply(move=None)


class ForgedProof(_Challenging):
    """Proves with other operands, with openings that nobody needs, and with another's salt."""

    name: ClassVar[str] = "forged proof"
    gain: ClassVar[str] = "an honest trainer convicted by a number that is not in its run"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.TIMEOUT})
    make: ClassVar[type[Auditor]] = _Forging


class _Garbling(_Wanderer):
    """Before each of its moves it sends invalid ones on the chain: of the other side, of no node, of no seal."""

    def reply(self, game: GameView) -> Reply:
        """The garbage moves and then the real move."""
        plain, state = super().reply(game), game.state
        found: list[Move] = [Descend(nodes=()), OpenChunk(chunk=self.rng.randbytes(8))]
        if isinstance(plain.move, Select):
            move = plain.move
            found.append(replace(move, node=flipped(move.node, self.rng)))
            found.append(replace(move, index=move.index | 1 << 31))
            found.append(replace(move, siblings=(*move.siblings, move.node)))
            if move.seal == NO_SEAL:
                found.append(replace(move, seal=self.rng.randbytes(32)))
        if isinstance(plain.move, SelectElement):
            found.append(replace(plain.move, chunk=flipped(plain.move.chunk, self.rng)))
            found.append(replace(plain.move, index=1 << 31))
        self.spam(calls.make_move(state, move) for move in found)
        return plain


class GarbledChallenge(_Challenging):
    """A challenge without ground, with garbage before each of its moves."""

    name: ClassVar[str] = "challenge full of garbage"
    gain: ClassVar[str] = "a game in a state that no one thought of"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.RECOMPUTED, Catch.PADDING})
    make: ClassVar[type[Auditor]] = _Garbling


# ---------------------------------------------------------------- in numbers


class _Griefer(Scripted):
    """Challenges the same head repeatedly under new nonces, and leaves each game to the clock."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, games: int, late: bool) -> None:
        super().__init__(world, name, key)
        self.games = games
        self.late = late
        """Whether it waits until the window is almost over."""

    def follow(self, job: PublicJob) -> Process:
        """Challenges the final head every few blocks. Its window keeps the trainer waiting."""
        yield from self.until(lambda: job.is_over or job.has_final_head)
        if self.late:
            pause = 20 * self.world.block_seconds
            yield from self.sleep(last_call(self.world, job.window_end) - self.rng.randint(0, self.games) * pause)
        heads = self.world.mail.heads_of(job.id)
        for nonce in range(self.games):
            if job.is_over or not (yield from self.attempt(calls.challenge(job.job, heads[-1].head, nonce))):
                return
            yield from self.sleep(self.rng.randint(1, 20) * self.world.block_seconds)


class Griefing(Adversary):
    """Uses several addresses and nonces against one honest head. It plays none of these false challenges."""

    name: ClassVar[str] = "griefing in series"
    gain: ClassVar[str] = "a competitor's trainer that pays for gas and waits for its money"
    role: ClassVar[Role] = Role.CHALLENGER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.TIMEOUT})

    def join(self, cast: Cast, rng: Random) -> None:
        """Seat two or three accounts with two to four games each, at the beginning or the end of the window."""
        late = rng.random() < 0.5
        for _ in range(rng.randint(2, 3)):
            seat_challenger(cast, self.name, partial(_Griefer, games=rng.randint(2, 4), late=late))


# ---------------------------------------------------------------- too late


class _Tardy(Scripted):
    """Challenges after the end of the window, and once more after the job is settled."""

    def follow(self, job: PublicJob) -> Process:
        """Sends untried transactions that must be refused."""
        yield from self.until(lambda: job.is_over or job.has_final_head)
        yield from self.sleep(job.window_end + 1 - self.world.now)
        heads = self.world.mail.heads_of(job.id)
        for known in (heads[0], heads[-1]):
            self.world.submit(self, calls.challenge(job.job, known.head), untried=True)
        yield from self.until(lambda: job.is_over)
        self.world.submit(self, calls.challenge(job.job, heads[-1].head, 1), untried=True)


class LateChallenge(_Challenging):
    """A challenge after the window."""

    name: ClassVar[str] = "challenge after the window"
    gain: ClassVar[str] = "a job that can never be settled"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.REFUSED})
    make: ClassVar[type[Auditor]] = _Tardy


# ---------------------------------------------------------------- oneself


class _Puppet(Scripted):
    """Challenges its master's first false head at once. It need not replay, because its master told it."""

    def objects(self, job: PublicJob) -> bool:  # noqa: ARG002
        """It accepts any terms, since it wants to lose."""
        return False

    def accused(self, job: PublicJob) -> SignedHead | None:
        """The first head that is false."""
        truth = self.world.workshop.honest(job.job)
        shown = self.heads_of(job.id)
        return next((head for head in shown if head.head.run_root != truth.run_root(head.head.count)), None)

    def reclaims(self, game: PublicGame) -> bool:  # noqa: ARG002
        """It takes back the stake that its master paid."""
        return True


class _Master(Trainer):
    """Concedes at once to its puppet, and plays all other games as slowly as possible."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, puppet: str) -> None:
        super().__init__(world, name, key)
        self.puppet = puppet

    def concedes(self, view: GameView) -> bool:
        """Concedes only to the puppet."""
        return view.game.challenger == self.world.parties[self.puppet].address


def seat_pair(
    cast: Cast,
    name: str,
    trainer: Callable[[str], TrainerFactory],
    puppet: AgentFactory,
    false_run: FalseSum | None = FalseSum(),  # noqa: B008  # it is frozen
) -> None:
    """Put a trainer and its puppet into a cast under one name. The pair ends where the trainer ends."""
    party = f"puppet {len(cast.auditors)}"
    cast.auditors.insert(0, Seat(name=party, make=puppet))
    cast.dishonest[party] = name
    cast.dishonest.pop(TRAINER, None)
    seat_trainer(cast, name, trainer(party), false_run=false_run)


class SelfChallenge(Adversary):
    """A trainer with a false run loses to its own account before anybody else can win."""

    name: ClassVar[str] = "self-challenge to keep the stake"
    gain: ClassVar[str] = "half of its stake, which an honest challenger would have won"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.CONCEDED})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # the false number is drawn when it computes
        """The puppet is faster than any auditor."""
        seat_pair(cast, self.name, lambda party: partial(_Master, puppet=party), _Puppet)


class _Delaying(Scripted):
    """Challenges its master's last head in the last block of the window, and lets its own clock run out."""

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.is_over or bool(self.world.mail.heads_of(job.id)))
        while not job.is_over and self.world.now < job.window_end - self.world.block_seconds:
            yield from self.sleep(last_call(self.world, job.window_end))  # each new head extends the window
        if not job.is_over:
            head = self.world.mail.heads_of(job.id)[-1].head
            yield from self.attempt(calls.challenge(job.job, head))


class SelfDelay(Adversary):
    """A trainer that falls silent delays its client by a game against itself, started late in the window."""

    name: ClassVar[str] = "self-challenge to win time"
    gain: ClassVar[str] = "its stake for a while longer, in the hope that the client forgets"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.ABANDONED})

    def join(self, cast: Cast, rng: Random) -> None:
        """Draw the checkpoint from which the trainer falls silent."""
        seat_pair(cast, self.name, lambda _: partial(Withholding, first=rng.randint(2, 4)), _Delaying, false_run=None)


class _Reporter(Scripted):
    """Reports its master's two heads as soon as somebody challenges."""

    def follow(self, job: PublicJob) -> Process:
        """Report two heads of one count once a game has begun."""
        master = self.world.parties[TRAINER]
        assert isinstance(master, Trainer), "it is seated with one"
        yield from self.until(lambda: job.is_over or bool(self.world.board.games_of(job.id)))
        if job.is_over:
            return
        first = self.world.mail.heads_of(job.id)[0].head
        second = master.sign_head(replace(first.head, run_root=Digest(self.rng.randbytes(32))))
        yield from self.attempt(calls.report(first, second))


class SelfReport(Adversary):
    """A challenged trainer of a false run has its own account report two heads of one count."""

    name: ClassVar[str] = "self-report to keep the stake"
    gain: ClassVar[str] = "half of its stake, which the challenger would have won"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.EQUIVOCATION})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002
        seat_pair(cast, self.name, lambda _: Trainer, _Reporter)


# ---------------------------------------------------------------- with what others found out


class _Mirror(Scripted):
    """Repeats the game of the first other challenger, copying each move as soon as it is in the mempool.

    It has replayed nothing: it knows only what others show.
    """

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.victim: bytes | None = None
        self.seen: list[Move] = []
        """The moves that the victim has sent."""

    def reclaims(self, game: PublicGame) -> bool:  # noqa: ARG002
        """It takes its own stake back."""
        return True

    def on_pending(self, pending: Pending) -> None:
        """Copy a challenge at once, and note the victim's moves."""
        call, sender = pending.call, pending.sender.key.address
        if call.kind == "challenge" and self.victim is None:
            self.victim = sender
            self.world.submit(self, call)
        elif sender == self.victim and (move := call.move) is not None:
            self.seen.append(move)
            self.world.notify()

    def follow(self, job: PublicJob) -> Process:
        """Play the copied game, if the copied challenge was accepted."""

        def own() -> list[PublicGame]:
            return [game for game in self.world.board.games_of(job.id) if game.challenger == self.address]

        yield from self.until(lambda: job.is_over or bool(own()))
        for game in own():
            yield from self._copy(game)

    def _copy(self, game: PublicGame) -> Process:
        """Make the victim's moves, each in its turn. A refused move is tried again."""

        def is_ready() -> bool:
            made = sum(1 for move in game.moves if move.KIND.mover is Side.CHALLENGER)
            return game.is_stopped or (game.mover() == self.address and len(self.seen) > made)

        while not game.is_stopped:
            yield from self.until(is_ready)
            if not game.is_stopped:
                made = sum(1 for move in game.moves if move.KIND.mover is Side.CHALLENGER)
                move = self.copied(game, made)
                if move is None or not (yield from self.attempt(calls.make_move(game.state, move))):
                    yield from self.sleep(self.world.next_block - self.world.now)

    def copied(self, game: PublicGame, made: int) -> Move | None:  # noqa: ARG002  # for who does not copy blindly
        """The next move to send; None to send nothing."""
        return self.seen[made]


class _Resealing(_Mirror):
    """Holds back the sealed move until it has seen the proof, and then seals the answer that the proof reveals."""

    def copied(self, game: PublicGame, made: int) -> Move | None:
        """The victim's move with a seal of its own."""
        move = self.seen[made]
        if isinstance(move, Prove):
            return replace(move, salt=self.secret)
        if not isinstance(move, Select | SelectElement) or move.seal == NO_SEAL:
            return move
        proof = self.seen[-1]
        if not isinstance(proof, Prove):
            return None
        theirs = next(other for other in self.world.board.games.values() if other.challenger == self.victim)
        if theirs.state.phase is not Phase.PROVE:
            return None
        try:
            answer = judge(theirs.state, proof)
        except IllegalMove:
            return None  # the victim's proof was forged
        answer = seals.element_answer(answer) if theirs.state.level is Level.CHUNKS else answer
        return replace(move, seal=seals.seal(game.id, answer, self.secret))


class Mirror(Adversary):
    """Copies the moves of an honest challenger of a false run from the mempool."""

    name: ClassVar[str] = "mirror"
    gain: ClassVar[str] = "an honest challenger's reward, without a replay"
    role: ClassVar[Role] = Role.CHALLENGER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.UNPAID})
    make: ClassVar[type[Auditor]] = _Mirror

    def join(self, cast: Cast, rng: Random) -> None:
        """Takes a seat beside the honest auditor, and adds a false run if there is none to challenge."""
        if cast.deviation is None:
            PlainFalseRun().join(cast, rng)
        seat_challenger(cast, self.name, self.make)


class ResealingMirror(Mirror):
    """Copies as a mirror does, but seals only when it has seen the proof: one block too late."""

    name: ClassVar[str] = "mirror that seals late"
    make: ClassVar[type[Auditor]] = _Resealing


ADVERSARIES: tuple[type[Adversary], ...] = (
    MistakenChallenge,
    RandomWalk,
    SilentChallenge,
    ConcededChallenge,
    ForgedProof,
    GarbledChallenge,
    Griefing,
    LateChallenge,
    SelfChallenge,
    SelfDelay,
    SelfReport,
    Mirror,
    ResealingMirror,
)
