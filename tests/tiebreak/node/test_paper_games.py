"""Games without a chain, by the thousand: real machines on the hub's ledger, in virtual time, with what goes wrong.

Parties are killed and cut off from the hub, the hub is away, a stranger repeats and turns over what others post, and
one side lies, stalls, falls silent or concedes. Whatever happens: a lie costs its trainer the stake, an honest trainer
is owed its reward, all grounds and `judge` come to one board, and nobody signs two things in one place.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import pytest

from tests.protocol.runs import CHALLENGER, CLIENT, TRAINER, Liar, Run, program
from tests.protocol.town import JOB, TALKED, TALKED_TRUTH, TRUTH, Kept, KnowingAuditor, KnowingTrainer, result_of
from tests.tiebreak.node.test_ledger import Commune, Member, end_of
from tests.tiebreak.node.village import BLOCK, HUB
from tiebreak.api.disputing import judging
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Address
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties.board import JobStatus
from tiebreak.protocol.parties.driver import Turn
from tiebreak.protocol.parties.player import GameView, Player, Reply

pytestmark = pytest.mark.slow
STRANGER: Final = PrivateKey.from_int(0x57)
AWAY: Final = 20
"""Rounds of a block's time that a party may be cut off in a game: its clock has room for them."""
GAMES: Final = 2_000
ACTS: Final = ("plain", "silent", "stalling", "conceding", "never entering")
"""What a party that is wrong does in its game."""


def acting(kind: type[Player], act: str, after: int) -> type[Player]:
    """A party that behaves like this from a move on."""

    class Acting(kind):  # type: ignore[misc,valid-type]
        def reply(self, view: GameView) -> Reply:
            found: Reply = super().reply(view)
            left = view.state.deadline - self.now - 2 * BLOCK
            if act == "stalling" and view.talk is None and view.state.moves >= after and left > 0:
                return replace(found, wait=left)
            return found

        def answers(self, view: GameView) -> bool:
            return not (act == "silent" and view.state.moves >= after) and super().answers(view)

        def concedes(self, view: GameView) -> bool:
            return act == "conceding" and view.state.moves >= after

        def enters(self, view: GameView) -> bool:
            return act != "never entering"

        def acknowledges(self, view: GameView) -> bool:
            return act in ("plain", "stalling")

    Acting.__name__ = act
    return Acting


class Posts(Kept):
    """A journal that also knows how many of its posts the hub has taken."""

    taken = 0


class Tossed(Member):
    """A member that may be cut off, and is made anew from its journal after it was killed."""

    village: "Storm"
    kept: Posts

    def __init__(self, village: "Storm", name: str, kept: Posts | None = None) -> None:
        super().__init__(village, name)
        self.kept = kept or Posts()
        kind = village.plan.kinds.get(name, self.kind)
        known: dict[str, Any] = {"board": self.board_source.board, "domain": OFF_CHAIN, "pace": self.board_source.pace}
        machine = kind(key=self.key, journal=list(self.kept), **known)
        self.machine, self._keep_record, self._posts = machine, self.kept.append, self.kept
        if name == "client":  # its owner's offer lies in its folder
            self.inbox.append(lambda: self.tell(e.JobDrafted(at=0, job=village.run.job)))
        self.away = 0
        """Rounds until it reaches the hub again."""

    def start_work(self, work: e.Work, turn: Turn | None) -> bool:
        truth = self.village.plan.beliefs.get(self.name, self.village.truth)
        self.inbox.append(lambda: self.finish(work, **result_of(work, turn, self.village.run, truth)))
        return True

    def posted(self) -> None:
        """What is new leaves when the hub can be reached."""

    def step(self) -> None:
        if self.away:
            self.away -= 1
            self.look()
            return
        super().step()
        wires = list(self.kept.posts.values())
        for wire in wires[self.kept.taken :]:
            self.village.deliver(posts.SignedPost.decode(wire), OFF_CHAIN)
        self.kept.taken = len(wires)


@dataclass
class Plan:
    """One game: who is wrong, what it does about it, and how rough the world is."""

    run: Run
    beliefs: dict[str, Run]
    """The runs that parties replay, where it is not the true one."""
    kinds: dict[str, type[Player]]
    calm: bool


def draw(rng: Random) -> Plan:
    """A lie at any place, believed by nobody but its trainer, or by nobody but the one who challenges a true run."""
    job, truth = (TALKED, TALKED_TRUTH) if rng.random() < 0.5 else (JOB, TRUTH)
    lie = Liar(job, rng.randint(1, job.steps), rng.randrange(len(program().body)))
    act, after, calm = rng.choice(ACTS), rng.randrange(12), rng.random() < 0.25
    if rng.random() < 0.6:
        return Plan(lie, {}, {"trainer": acting(KnowingTrainer, act, after)}, calm)
    return Plan(truth, {"auditor": lie}, {"auditor": acting(KnowingAuditor, act, after)}, calm)


class Storm(Commune):
    """A commune in which things go wrong."""

    KIND = Tossed
    villagers: dict[str, Tossed]  # type: ignore[assignment]

    def __init__(self, plan: Plan, rng: Random) -> None:
        self.plan, self.rng = plan, rng
        self.cut: Counter[str] = Counter()
        """Rounds that each party has been cut off."""
        self.said: dict[tuple[bytes, bytes, int], bytes] = {}
        self.strange = 0
        super().__init__(plan.run)

    def deliver(self, signed: posts.SignedPost, domain: Any) -> None:
        """A hub gives one number of a sender one place."""
        place = (signed.post.sender, signed.post.job_id, signed.post.number)
        if self.said.setdefault(place, signed.post.encode()) == signed.post.encode():
            if all(verified.received.wire != signed.encode() for verified in self.verified_posts):
                super().deliver(signed, domain)
        else:
            raise AssertionError(f"expected one post of a number, got two: {place}")

    def disturb(self) -> None:
        """Cut somebody off, or all, or kill somebody; and let a stranger post what it has seen."""
        if self.verified_posts and self.rng.random() < 0.2:
            verified = self.rng.choice(self.verified_posts)
            self.strange += 1
            named = {"job_id": verified.post.job_id, "game_id": verified.post.game_id}
            made = posts.Post.of(verified.body, number=self.strange, sender=STRANGER.address, **named)
            with suppress(VerificationError):  # what names its own author is no post of a stranger's
                self.deliver(posts.SignedPost.sign(made, OFF_CHAIN, STRANGER), OFF_CHAIN)
        if self.plan.calm or self.rng.random() > 0.1:
            return
        names = [self.rng.choice(list(self.villagers))] if self.rng.random() < 0.8 else list(self.villagers)
        rounds = self.rng.randrange(4)
        for name in names:
            if self.rng.random() < 0.5:
                self.villagers[name] = Tossed(self, name, self.villagers[name].kept)
            if self.cut[name] + rounds <= AWAY:
                self.cut[name] += rounds
                self.villagers[name].away = rounds

    def live(self) -> None:
        for _ in range(4_000):
            self.seconds += BLOCK
            self.disturb()
            for villager in list(self.villagers.values()):
                villager.step()
            boards = [villager.board_source.board for villager in self.villagers.values()]
            if all(board.jobs and all(job.is_over for job in board.jobs.values()) for board in boards):
                return
        raise AssertionError("expected an end, got none")


def play(seed: int) -> str:
    """Play one game and check everything that holds of all. Returns how it ended."""
    rng = Random(seed)
    plan = draw(rng)
    storm = Storm(plan, rng)
    storm.live()
    job, is_lie = plan.run.job, not plan.beliefs
    wanted = JobStatus.SLASHED if is_lie else JobStatus.SETTLED
    gains: list[dict[Address, int]] = []
    for villager in storm.villagers.values():
        ledger = villager.board_source._ledger
        (found,) = ledger.board.jobs.values()
        assert found.status is wanted
        gains.append(ledger.gains())
        assert sum(gains[-1].values()) == -found.relief * len(ledger.board.open_games(job.id)), "which wait for it"
    assert all(one == gains[0] for one in gains)
    keys = (CLIENT, TRAINER, CHALLENGER, STRANGER)
    client, trainer, challenger, stranger = (gains[0].get(key.address, 0) for key in keys)
    if is_lie:
        assert client == 0
        assert trainer <= -job.trainer_stake - stranger, "it may win what a stranger lost by silence"
        assert challenger > 0
    else:
        assert client == -job.reward
        assert trainer >= job.reward
        assert challenger <= 0
    judged = judging.judge(storm.export, [end_of(storm.export)], OFF_CHAIN, Address(HUB.address), now=storm.now)
    assert [one["status"] for one in judged["jobs"]] == [wanted.name.lower()]
    act = next(iter(plan.kinds.values())).__name__
    return f"{wanted.name.lower()}, {act}, talk {job.talk_time}"


def played(seeds: range) -> Counter[str]:
    """Games by their ending. Raises for a seed in which a promise was broken."""
    endings: Counter[str] = Counter()
    for seed in seeds:
        try:
            endings[play(seed)] += 1
        except Exception as error:
            raise AssertionError(f"game {seed}: {type(error).__name__}: {error}") from error
    return endings


def test_no_honest_party_loses_in_a_game_without_a_chain(cases: Callable[[int], None]) -> None:
    endings = played(range(12))
    cases(endings.total())
    assert {ending.split(",")[0] for ending in endings} == {"slashed", "settled"}


@pytest.mark.nightly
def test_honest_parties_win_two_thousand_games_without_a_chain(cases: Callable[[int], None]) -> None:
    endings = played(range(GAMES))
    cases(endings.total())
    assert len(endings) == 2 * 2 * len(ACTS), "every way of being wrong, with and without a talk"
