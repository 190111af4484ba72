"""A simulated game with a cheat, and the posts that its parties would have sent: what the pages are tested with."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from tiebreak.lab.sim.games.line import GameLine
from tiebreak.lab.sim.games.playing import ADVERSARIES, gather
from tiebreak.lab.sim.world.game import seat
from tiebreak.lab.sim.world.world import World
from tiebreak.node.pages.source import ReadPost, snapshot
from tiebreak.node.pages.words import Values
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.parties import posts as p
from tiebreak.protocol.parties.board import Board
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest

LINE = "v1 seed=7 game=1 with=products-in-tf32"


@dataclass
class Staged:
    domain: Domain
    at: int
    board: Board
    seen: dict[Digest, list[ReadPost]] = field(default_factory=dict)
    known: Program | None = None
    chain: str = "chain 1337 at 127.0.0.1:8545"
    on_paper: bool = False
    names: Sequence[str] = ()
    named: dict[Digest, str] = field(default_factory=dict)

    def now(self) -> int:
        return self.at

    def place(self) -> int:
        return sum(map(len, self.seen.values()))

    def jobs(self) -> Sequence[Digest]:
        return list(self.seen)

    def posts(self, job_id: Digest, *, is_brief: bool = False) -> Sequence[ReadPost]:
        return self.seen.get(job_id, [])

    def offered(self, job_id: Digest) -> Job | None:
        bodies = [one.body for one in self.seen.get(job_id, ())]
        return next((body.job for body in bodies if isinstance(body, p.OfferBody)), None)

    def name(self, job_id: Digest) -> str:
        return self.named.get(job_id, "")

    def job_of_game(self, game_id: Digest) -> Digest | None:
        return next((job for job, seen in self.seen.items() for one in seen if one.post.game_id == game_id), None)

    def program(self, job_id: Digest) -> Program | None:
        return self.known

    def origins(self, job_id: Digest) -> Sequence[str]:
        return self.names

    def say(self, body: p.Body, sender: Address, job_id: Digest, at: int, game_id: Digest | None = None) -> None:
        post = p.Post.of(body, job_id=job_id, number=self.place(), sender=sender, game_id=game_id)
        self.seen.setdefault(job_id, []).append(ReadPost(place=self.place() + 1, at=at, post=post, body=body))


def known(view: Values | None) -> Values:
    """A view of what the board or a post knows."""
    assert view is not None
    return view


def source_of(world: World) -> Staged:
    made = Staged(world.chain.domain, world.now, snapshot(world.board), known=world.workshop.program)
    for job in world.board.jobs.values():
        agreed = job.job
        made.say(p.OfferBody(job=agreed), agreed.client, job.id, (job.accepted or world.now) - 24)
        heads = world.mail.heads_of(job.id)
        for found in heads:
            first = agreed.first_step(found.head.head.count - 1)
            steps = range(first, agreed.last_step(found.head.head.count - 1) + 1)
            losses = [struct.unpack("<I", struct.pack("<f", 1.6 / (1 + 0.21 * s) + 0.04 * (s % 3)))[0] for s in steps]
            body = p.StepsBody(first_step=first, losses=tuple(losses), millisteps=2310, processor=870, memory=1 << 30)
            made.say(body, agreed.trainer, job.id, found.at)
            made.say(p.HeadBody(head=found.head), agreed.trainer, job.id, found.at)
    for game in world.board.games.values():
        head = game.head.head
        root = Digest(bytes(31 - len(game.moves) % 7) + bytes([7] * (1 + len(game.moves) % 7)))
        replayed = p.ReplayedBody(count=head.count, run_root=root, agrees=0)
        made.say(replayed, game.challenger, game.job.id, game.started - 30)
    for told in made.seen.values():
        told.sort(key=lambda one: one.at)
    return made


@cache
def moments(line: str = LINE) -> tuple[Staged, ...]:
    """The game at each of its moves, and before and after it."""
    parsed = GameLine.parse(line, ADVERSARIES)
    cast = gather(parsed).cast
    world, agents = seat(cast, parsed.random("secrets"))
    for agent in agents.values():
        agent.start()
    found, before = [], None
    while world.env.peek() <= 60 * cast.terms.challenge_window:
        world.env.step()
        jobs = [(job.status, job.head_count) for job in world.board.jobs.values()]
        games = [(game.state.moves, game.is_over) for game in world.board.games.values()]
        if (jobs, games) != before:
            before = jobs, games
            found.append(source_of(world))
    return tuple(found)
