"""Colluding parties: a trainer with most of the auditors, the builder, the client, or accounts of its own.

All of them share one name in a cast, and the ending of the last one counts for all.
"""

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from tiebreak.lab.sim.adversaries import base
from tiebreak.lab.sim.adversaries.auditors import Bribed, bribe
from tiebreak.lab.sim.adversaries.base import Catch, between, client, false_sum
from tiebreak.lab.sim.adversaries.heads import Withholding
from tiebreak.lab.sim.adversaries.mempool import Censor, bearable, diligent
from tiebreak.lab.sim.adversaries.talking import with_a_talk
from tiebreak.lab.sim.world.agents import Agent, BlockBuilder, ClientAgent, Process, Scripted, TrainerAgent
from tiebreak.lab.sim.world.game import Cast, CastMember, Factory
from tiebreak.lab.sim.world.work import Work, bound
from tiebreak.lab.sim.world.world import Pending
from tiebreak.protocol.chain import ChainError
from tiebreak.protocol.chain.calls import Call, move_call
from tiebreak.protocol.commitments.job import Job, SignedHead, game_id
from tiebreak.protocol.game.moves import Descend, Phase
from tiebreak.protocol.game.rules import start
from tiebreak.protocol.game.sides import Challenger, Party, choose
from tiebreak.protocol.game.snapshot import Snapshot, Standing
from tiebreak.protocol.game.state import GameState, Level
from tiebreak.protocol.packing import Uint
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import PublicGame, PublicJob
from tiebreak.protocol.parties.events import JobDrafted
from tiebreak.protocol.parties.player import GameView, Reply
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import depth_of, fold_nodes

MOST: Final = 3
"""The largest number of accounts that a trainer buys or opens."""


def second_head(party: Agent, head: SignedHead) -> SignedHead:
    """Another head of the same count by the trainer, an accomplice of this party, which chooses the root."""
    return base.trainer_of(party.world).sign_head(replace(head.head, run_root=Digest(party.rng.randbytes(32))))


# ---------------------------------------------------------------- with auditors, or a builder


def seat_with_auditors(cast: Cast, rng: Random, name: str, make: Factory[Any]) -> None:
    """Bribes auditors not to challenge, or to give up games that they are winning; all but one take the bribe."""
    for _ in range(rng.randint(1, MOST)):
        friend = base.given(Bribed, at=bribe(cast, rng))
        base.seat_friend(cast, name, "friend", friend, rng.randint(0, len(cast.auditors)))
    base.seat_trainer(cast, rng, name, make)


def seat_with_censor(cast: Cast, rng: Random, name: str, make: Factory[Any]) -> None:
    """A builder excludes the challenger's transactions for as long as its assumptions allow."""
    censor = base.given(Censor, victims=diligent(cast), seconds=bearable(cast), first=rng.randint(0, 8))
    base.seat_builder(cast, rng, name, censor)
    base.seat_trainer(cast, rng, name, make)


class Hoarder(BlockBuilder):
    """Keeps a transaction that would end the job pending for ever, so that honest parties might hold theirs back.

    It keeps no honest transaction out of a block, which is within a builder's assumptions. A party that waits for the
    pending transaction loses by its clock. An honest party sends what is legal on top of the newest block.
    """

    def run(self) -> Process:
        """Send a report of two heads signed by its friend, the trainer, once the first head is there."""
        heads = self.world.mail.heads
        yield from self.until(lambda: bool(heads))
        self.world.submit(self, Call.of(tx.Report(first=heads[0].head, second=second_head(self, heads[0].head))))

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        """The other transactions; its own only when it can do nothing any more."""
        is_over = all(job.is_over for job in self.world.board.jobs.values())
        return [waiting for waiting in pending if is_over or waiting.sender is not self]


def seat_with_hoarder(cast: Cast, rng: Random, name: str, make: Factory[Any]) -> None:
    base.seat_builder(cast, rng, name, Hoarder)
    base.seat_trainer(cast, rng, name, make)


# ---------------------------------------------------------------- with itself


class SockPuppet(Scripted):
    """Challenges its accomplice's first head before anyone else does, and plays as slowly as possible."""

    def objects(self, job: PublicJob) -> bool:  # noqa: ARG002
        """It accepts any terms, since it does not play to win."""
        return False

    def accused(self, job: PublicJob) -> SignedHead | None:
        return next(iter(self.heads_of(job.id)), None)

    def plays(self, game: PublicGame) -> bool:  # noqa: ARG002
        return True

    def party_in(self, game: PublicGame) -> Party:
        """It uses its master's run and needs none of its own."""
        return Challenger(self.world.mail.runs[game.job.id].oracle, self.secret)

    def reply(self, game: GameView) -> Reply:
        """Answer directly before its clock runs out."""
        honest = super().reply(game)
        return replace(honest, wait=base.last_call(self.world, game.state.deadline))


class AccompliceChallenger(Scripted):
    """Challenges its accomplice's first false head at once; it knows which one is false and need not replay."""

    def objects(self, job: PublicJob) -> bool:  # noqa: ARG002
        """It accepts any terms, since it wants to lose."""
        return False

    def accused(self, job: PublicJob) -> SignedHead | None:
        truth = self.world.workshop.honest(job.job)
        shown = self.heads_of(job.id)
        return next((head for head in shown if head.head.run_root != truth.run_root(head.head.count)), None)

    def reclaims(self, game: PublicGame) -> bool:  # noqa: ARG002
        """It takes back the stake that its master paid."""
        return True


class Master(TrainerAgent):
    """Concedes at once to its accomplice, before anyone else can win: in a game, or by a signed concession."""

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        """Sign a concession with a false head."""
        found = super().heads(job, count)
        if job.id[0] % 2 and found[0].head.run_root != self.world.workshop.honest(job).run_root(count):
            friend = next(other for other in self.world.parties.values() if isinstance(other, AccompliceChallenger))
            self.concede(found[0].head, friend.address)
        return found

    def concedes(self, view: GameView) -> bool:
        return isinstance(self.world.party_at(view.game.challenger), AccompliceChallenger)


class Delaying(Scripted):
    """Challenges its silent master's last head in the last block of the window, and lets its own clock run out.

    While the game is open, and so nobody can abandon the job, it posts the head that its master has kept back.
    """

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.is_over or bool(self.world.mail.heads_of(job.id)))
        while not job.is_over and self.world.now < job.due - self.world.block_seconds:
            yield from self.sleep(base.last_call(self.world, job.due))  # each new head extends the window
        if not job.is_over:
            head = self.world.mail.heads_of(job.id)[-1].head
            yield from self.attempt(Call.of(tx.Challenge(head=head, nonce=0), self.world.board.price(job)))
        master, count = self.world.party_at(job.job.trainer), job.head_count + 1
        while isinstance(master, TrainerAgent) and ("trained", job.id, count) in master.records and not job.is_over:
            yield from self.sleep(base.first_late(self.world, job.due) or job.job.challenge_window // 4)
            self.world.submit(self, Call.of(tx.PostHead(head=master.head(job.job, count))), untried=True)


class PriceRaiser(Scripted):
    """Starts games against its master's first head until the next one costs 2^`games` stakes, and leaves them alone."""

    games: int

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.is_over or bool(self.world.mail.heads_of(job.id)))
        head, board = self.world.mail.heads_of(job.id)[0].head, self.world.board
        for nonce in range(self.games):
            one = tx.Challenge(head=head, nonce=nonce)
            self.world.submit(self, Call.of(one, board.price(job, nonce)), untried=True)


class SelfReporter(Scripted):
    """Reports two heads of one count by its accomplice as soon as anyone challenges."""

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.is_over or bool(self.world.board.games_of(job.id)))
        if not job.is_over:
            first = self.world.mail.heads_of(job.id)[0].head
            yield from self.attempt(Call.of(tx.Report(first=first, second=second_head(self, first))))


def garbled(state: GameState, rng: Random) -> tuple[Snapshot, tuple[bytes, ...]]:
    """A place of some tree, with nodes below it of nobody's run; in half of them, one field is anything it can hold."""
    job, level = state.job, rng.choice(tuple(Level))
    step = rng.randint(1, job.last_step(state.head.count - 1))
    segment, in_run, inner = job.checkpoint_of(step), level is Level.RUN, level in (Level.CHUNKS, Level.TERMS)
    leaves = state.head.count if in_run else 9 if inner else job.segment_steps(segment)
    depth = {Level.RUN: job.run_depth, Level.VALUES: job.half_depth + 1}.get(level, depth_of(leaves))
    height = depth - job.descent_levels if depth > job.descent_levels else depth
    nodes = tuple(rng.randbytes(32) for _ in range(1 << min(height, job.descent_levels)))
    node = fold_nodes(nodes)
    fields: dict[str, int | bytes] = {
        "phase": Phase.SELECT if height == depth and not in_run else Phase.DESCEND, "level": level, "height": height,
        "fresh": height == depth, "dtype": 0, "summation": int(inner), "last_chunk_bytes": 512 * inner, "position": 0,
        "element": 0, "leaves": leaves, "term_leaves": 9 * inner, "instruction": inner * rng.randrange(job.body_count),
        "step": 0 if in_run else job.first_step(segment) if level is Level.STEPS else step,
        "node": node, "opened": node, "log": bytes(32),
    }  # fmt: skip
    numbers = {name: kind for name, kind in Snapshot.kinds().items() if isinstance(kind, Uint)}
    if rng.random() < 0.5:
        name, kind = rng.choice(list(numbers.items()))
        low, high = int(kind.low), (1 << kind.bits) - 1 if kind.high is None else int(kind.high)
        fields[name] = rng.choice((low, high, rng.randint(low, high)))
    shown = {name: int(value) if isinstance(value, int) else value for name, value in fields.items()}
    return Snapshot(**shown), nodes  # type: ignore[arg-type]


class Garbler(Scripted):
    """Enters states of no lawful play that its master signed, and both move on from there."""

    def follow(self, job: PublicJob) -> Process:
        world, heads = self.world, self.world.mail.heads_of
        yield from self.until(lambda: job.is_over or bool(heads(job.id)))
        if job.is_over or not (
            yield from self.attempt(Call.of(tx.Challenge(head=heads(job.id)[0].head, nonce=0), world.board.price(job)))
        ):
            return
        game = world.board.games[game_id(heads(job.id)[0].head.head, world.domain, self.address, 0)]
        master = base.trainer_of(world)
        while not game.is_stopped and game.state.talks(world.now):
            (shown, nodes), sequence = garbled(game.state, self.rng), game.state.moves + 1
            standing = Standing(game_id=game.id, sequence=sequence, snapshot=shown.id)
            self.spam(
                [Call("enter", (game.id, sequence, shown.encode(), master.key.sign(standing.digest(world.domain))))]
            )
            yield from self.sleep(2 * world.block_seconds)
            for phase, mover, move in (
                (Phase.DESCEND, master, Descend(nodes=nodes)),
                (Phase.SELECT, self, choose(nodes, self.rng.randrange(len(nodes)) * (self.rng.random() < 0.2))),
            ):
                if game.state.phase is phase and not game.is_stopped:
                    mover.spam([move_call(game.state, move)])
                    yield from self.sleep(2 * world.block_seconds)


class Puppet(TrainerAgent):
    """Signs whatever its puppet wants, and plays only against others."""

    def plays(self, game: PublicGame) -> bool:
        return not isinstance(self.world.party_at(game.challenger), Garbler)


def seat_pair(puppet: type[Agent], friend: str = "puppet", most: int = 1, **choices: base.Choice) -> base.Seating:
    """Seats a trainer with a puppet, or up to `most` of them, the fastest of all auditors, under the name `friend`.

    choices: draws the puppets' fields.
    """

    def seat(cast: Cast, rng: Random, name: str, make: Factory[Any]) -> None:
        for _ in range(1 if most == 1 else rng.randint(1, most)):
            fields = {field: draw(cast, rng) for field, draw in choices.items()}
            base.seat_friend(cast, name, friend, base.given(puppet, **fields))
        base.seat_trainer(cast, rng, name, make)

    return seat


# ---------------------------------------------------------------- with the client


class BaitingTrainer(TrainerAgent):
    """Posts a false head, and answers a challenge in the same block, so that the challenger's clock runs at once.

    If the clock is shorter than the time between blocks, the game ends there, whoever is right.
    """

    def objects(self, job: Job) -> bool:  # noqa: ARG002
        """It proposed the terms itself."""
        return False

    def on_pending(self, pending: Pending) -> None:
        """Notice a challenge in the mempool."""
        call = pending.call
        if call.kind == "challenge" and not pending.untried and self.job is not None and call.job_id == self.job.id:
            self.spawn(self._answer(call.heads[0], pending.sender.key.address, call.values["nonce"]))

    def _answer(self, head: SignedHead, challenger: bytes, nonce: int) -> Process:
        job, work = self.held()
        identity = game_id(head.head, self.world.domain, challenger, nonce)
        state = start(job, head.head, identity, self.world.next_block)
        shown = tuple(work.oracle.run_tree(head.head.count).below(state.height, 0, state.levels))
        try:
            yield from self.send(move_call(state, Descend(nodes=shown)), untried=True)
        except ChainError:
            return


class ComplicitClient(ClientAgent):
    """Never abandons its accomplice's job, since payments stay between the two."""

    def gives_up(self, job: PublicJob) -> bool:  # noqa: ARG002
        return False


BAIT: Final = "bait"


def _bait(cast: Cast, rng: Random) -> None:
    """Terms on which no challenger can win, and a trainer whose false head invites a challenge.

    The clock is shorter than the time between blocks, or the trainer's stake is nothing. Only a challenger that has not
    read the terms is cheated. An honest auditor stays out (`tiebreak.protocol.parties.terms`), and then the client has
    paid its own trainer for its own false run.
    """
    traps: tuple[dict[str, Any], ...] = (
        {"clock": rng.randint(1, cast.block_seconds - 1), "replay_time": rng.choice((0, cast.terms.replay_time))},
        {"trainer_stake": rng.randint(0, 1)},
    )
    cast.terms = replace(cast.terms, **rng.choice(traps))
    cast.deviation = false_sum()
    base.seat_trainer(cast, rng, BAIT, BaitingTrainer)


# ---------------------------------------------------------------- two of a kind


class CopyingTrainer(TrainerAgent):
    """Computes nothing, and signs the run that another trainer published for the same computation.

    Both sell the true run, which the client wanted twice. The copier takes the same risk, since it stakes the same
    amount on what it copies.
    """

    def compute(self, job: Job) -> Work:
        """The other trainer's run, bound to this trainer's job."""
        theirs = next(known for number, known in self.world.mail.runs.items() if number != job.id)
        return replace(theirs, oracle=bound(theirs.oracle, job), computed_steps=0)

    def accepts(self, job: PublicJob) -> bool:
        """Accepts once the other trainer's whole run is there."""
        others = [other for other in self.world.board.jobs.values() if other is not job]
        is_there = any(other.has_final_head for other in others) or all(other.is_over for other in others)
        return is_there and any(number != job.id for number in self.world.mail.runs)

    def seconds(self, steps: int) -> int:  # noqa: ARG002
        """Signing takes no time."""
        return 0


class DoubleClient(ClientAgent):
    """Offers the same work to two trainers."""

    second: str

    def run(self) -> Process:
        """Make both offers, one after the other."""
        yield from super().run()
        yield from self.until(lambda: bool(self.world.board.jobs))
        job = replace(self.draft(), trainer=self.world.parties[self.second].address)
        self.tell(JobDrafted(at=self.world.now, job=job))


def seat_second_trainer(cast: Cast, _rng: Random, name: str, make: Factory[Any]) -> None:
    """Adds a second trainer, and a client that offers the job to both."""
    cast.auditors.append(CastMember(name="second trainer", make=make, adversary=name))
    cast.client = base.given(DoubleClient, second="second trainer")


_SHARED: Final = false_sum()
"""The false run of two rows that can play in one game; rows with false runs of their own cannot."""
_conspiracy: Final = partial(base.row, base.Role.TRAINER)
# fmt: off
ADVERSARIES: Final = (
    _conspiracy(seat_with_auditors, "bribes all auditors but one", TrainerAgent,
        "the reward for a false run, if nobody else looks", run=false_sum()),
    _conspiracy(seat_with_censor, "trainer with a builder", TrainerAgent, "that the challenger's clock runs out",
        run=false_sum()),
    _conspiracy(seat_with_hoarder, "decoy in the mempool", TrainerAgent,
        "that a challenge, or a proof, is not even sent", run=false_sum()),
    _conspiracy(seat_pair(SockPuppet, "friend", MOST), "sock puppets", TrainerAgent,
        "that an honest challenger comes too late, or has to wait", run=false_sum()),
    _conspiracy(seat_pair(AccompliceChallenger), "self-challenge to keep the stake", Master,
        "half of its stake, which an honest challenger would have won", {Catch.CONCEDED}, run=_SHARED),
    _conspiracy(seat_pair(Delaying), "self-challenge to win time", Withholding,
        "its stake for a while longer, in the hope that the client forgets", {Catch.ABANDONED, Catch.PARTED},
        first=between(2, 4)),
    _conspiracy(seat_pair(SelfReporter), "self-report to keep the stake", TrainerAgent,
        "half of its stake, which the challenger would have won", {Catch.EQUIVOCATION}, run=_SHARED),
    _conspiracy(seat_pair(Garbler), "garbage entered", Puppet,
        "that whoever follows the board stops", {Catch.RECOMPUTED, Catch.TIMEOUT, Catch.PADDING}, before=with_a_talk,
        run=false_sum()),
    _conspiracy(seat_pair(PriceRaiser, games=between(2, 5)), "a challenge made dear for others", TrainerAgent,
        "that no honest challenger can put up its stake any more", run=false_sum()),
    _conspiracy(seat_second_trainer, "trainer that copies another", CopyingTrainer, "a reward without computing",
        {Catch.HARMLESS}),
    client(BAIT, ComplicitClient, "the stakes of challengers", {Catch.HARMLESS}, before=_bait),
)
# fmt: on
